"""Checks of agents: loops, failing tools, the goal, echoes, rewards for calls, the parser, masks, and turns that decide."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from server.checks.active import Where, chain, grown, held, means
from server.checks.base import CheckResult, Finding, Observed, answer, cannot
from server.checks.measure import Moved, finite, level, mean_of, moved, points, since_onset
from server.detectors.middle import median
from server.queries.view import RunView, Series

ERRORS = ("tools.failure_frac", "fact.tools.error_frac")
CALLS = ("tools.calls_per_sample", "fact.turns.calls")
TURNS = ("turns.mean", "fact.turns.mean")
LOOPS = "fact.turns.loop_frac"
LIMIT = ("stop.max_turns.frac", "fact.turns.limit_frac")
NO_ANSWER = "fact.turns.no_answer_frac"
UNREAD = "fact.turns.unparsed_frac"
GARBAGE = "fact.turns.garbage_frac"
NAMED_FIRST, NAMED = "fact.turns.goal.first", "fact.turns.goal.last"
FIRST_NAMES = 0.2
"""Words of the task that first turns name, below which it says nothing that last turns name fewer."""
BY_TOOL = "fact.tools.error_frac."

_ROWS = 2000
"""Trajectories of a window whose turns are read."""
_LEAST_CALLS = 50
_LEAST_STATES = 8
_LEAST_SEEN = 5
"""Calls before the onset from which the error share of one call is known."""

Call: TypeAlias = tuple[str, str]


def first_known(view: RunView, metrics: tuple[str, ...]) -> str | None:
    """The first of the metrics that the run has."""
    return next((m for m in metrics if view.has(m)), None)


def error_share(view: RunView, newest: int = 5) -> float | None:
    """Mean error share of tool calls at the newest points."""
    metric = first_known(view, ERRORS)
    return mean_of(view, metric, newest) if metric else None


def _judged(view: RunView, finding: Finding) -> str | None:
    """The error share that a finding is about: its own metric, else that of all tools."""
    own = finding.metric
    return own if own is not None and (own in ERRORS or own.startswith(BY_TOOL)) else first_known(view, ERRORS)


def clear_of_noise(view: RunView, metric: str, past: Moved, newest: int = 5, errors: float = 4) -> bool:
    """Whether the newest mean lies beyond the baseline's by standard errors: shares of few calls have a median of 0 and no spread."""
    series = points(view, metric)
    base = series.values[(series.steps >= past.steps[0]) & (series.steps <= past.steps[1])]
    now = series.values[-newest:]
    return float(now.mean() - base.mean()) > errors * float(base.std()) * math.sqrt(1 / len(now) + 1 / len(base))


def loop_share(view: RunView, trajectories: float) -> Where:
    """Mean share of trajectories that loop over the newest steps that hold so many of them (3 to 20), and where it is above 0."""
    key = ("loops", view.attempt, view.baseline_start, trajectories)
    if key not in view.data.memo:
        series, sizes = chain(view, LOOPS), chain(view, "fact.turns.n")
        n = sizes.values[np.clip(np.searchsorted(sizes.steps, series.steps, side="right") - 1, 0, None)] if len(sizes) else series.values
        windows = np.clip(np.ceil(trajectories / np.maximum(n, 1)), 3, 20).astype(np.int64)
        shares = means(series.values, windows)
        view.data.memo[key] = Series(series.steps, shares), np.arange(len(series)) + 1 >= windows
    found: Where = view.data.memo[key]
    return found


def anything(view: RunView) -> Iterator[Where]:
    """Where any sign of a fault of agents can be present, by the parameters of the rule."""
    p = view.params
    of, times = int(p["points"]), int(p["held"])
    by_tool = [m for m in view.data.metrics() if m.startswith(BY_TOOL)]
    for metric in (*ERRORS, *by_tool):
        yield held(view, metric, p["errors_watch"], of, times)
    for metric, limit in (*((m, "limit") for m in (*LIMIT, NO_ANSWER)), (UNREAD, "unread_watch"), (GARBAGE, "garbage_watch")):
        yield held(view, metric, p[limit], of, times)
    shares, enough = loop_share(view, p["trajectories"])
    yield shares, enough & (shares.values > p["loops_watch"])
    for metric in TURNS:
        yield grown(view, metric, p["growth"], 60, 20)
    named, first = chain(view, NAMED), chain(view, NAMED_FIRST)
    if len(named) == len(first):
        ten = np.full(len(named), 10)
        yield named, (means(first.values, ten) >= FIRST_NAMES) & (means(named.values, ten) <= 0.5 * means(first.values, ten))
    else:
        yield named, np.ones(len(named), bool)


def policy_loops(view: RunView, finding: Finding) -> CheckResult:
    """Identical calls in a row that met the same observation and did not fail."""
    loops, same, after_error = (
        mean_of(view, f"fact.turns.{m}", 10) for m in ("loop_frac", "same_observation_frac", "repeat_after_error_frac")
    )
    if loops is None:
        return cannot("policy_loops", LOOPS)
    failing = (after_error or 0.0) > 0.5 or (error_share(view, 10) or 0.0) > 0.3
    observed = {"loop_frac": loops, "same_observation_frac": same, "repeat_after_error_frac": after_error}
    note = f"{loops:.0%} of the trajectories loop" + (f", {after_error:.0%} of repeats follow an error" if after_error is not None else "")
    return answer("policy_loops", loops > 0.05 and (same is None or same > 0.5) and not failing, loops < 0.02 or failing, observed, note)


def environment_fails(view: RunView, finding: Finding) -> CheckResult:
    """The same calls fail more often than before the onset, or calls that failed succeed when they are repeated."""
    metric = _judged(view, finding)
    share = mean_of(view, metric, 10) if metric else None
    if share is None:
        return cannot("environment_fails", *ERRORS)
    again = since_onset(view, "fact.turns.retry_ok_frac", finding.onset_step, 10)
    found = _same_calls(view, finding)
    observed: Observed = {
        "error_frac": share,
        "retry_ok_frac": again,
        "expected": found.expected if found else None,
        "actual": found.actual if found else None,
        "calls": found.calls if found else None,
    }
    if share < 0.05:
        return answer("environment_fails", False, True, observed, f"{share:.1%} of the calls fail")
    if again is None and found is None:
        return cannot("environment_fails", "tool_name", "tool_args", "is_error", note="no earlier calls to compare with")
    worse = found is not None and found.actual > 2 * found.expected and found.actual > found.expected + 0.1
    alike = found is not None and found.actual < 1.3 * found.expected + 0.03
    parts = [f"calls seen before fail in {found.actual:.0%}, {found.expected:.0%} before"] if found else []
    parts += [f"{again:.0%} of repeated failures succeed"] if again is not None else []
    return answer("environment_fails", worse or (again or 0.0) > 0.2, alike and (again is None or again < 0.05), observed, "; ".join(parts))


class _SameCalls(NamedTuple):
    expected: float
    actual: float
    calls: int


def _same_calls(view: RunView, finding: Finding) -> _SameCalls | None:
    """Error share now of calls that were also made before the onset, against what their shares before would give."""
    span = _span(view)
    before = _outcomes(view, finding.onset_step - span, finding.onset_step - 1)
    now = _outcomes(view, max(finding.onset_step, view.step - span + 1), view.step)
    tool = finding.slice
    known = {c: sum(failed) / len(failed) for c, failed in before.items() if len(failed) >= _LEAST_SEEN and tool in (None, c[0])}
    both = [(known[call], failed) for call, failed in now.items() if call in known]
    calls = sum(len(failed) for _, failed in both)
    if calls < _LEAST_CALLS:
        return None
    expected = sum(rate * len(failed) for rate, failed in both) / calls
    return _SameCalls(expected, sum(sum(failed) for _, failed in both) / calls, calls)


def _span(view: RunView) -> int:
    """Steps of a window that holds few enough trajectories to read their turns."""
    n = level(view, "fact.n", 5) or 64.0
    return int(min(30, max(2, _ROWS // max(n, 1))))


def _outcomes(view: RunView, first: int, last: int) -> dict[Call, list[bool]]:
    """Whether each call (tool and arguments) failed, for every answer that says so."""
    found: dict[Call, list[bool]] = defaultdict(list)
    rows = view.turns(first, last, ("role", "tool_name", "tool_args", "is_error"))
    asked: Call = ("", "")
    for role, tool, arguments, failed in zip(rows["role"], rows["tool_name"], rows["tool_args"], rows["is_error"], strict=True):
        if role == "assistant":
            asked = (str(tool), str(arguments))
        elif role == "tool" and _said(failed):
            found[(str(tool), str(arguments)) if arguments is not None else asked].append(bool(failed))
    return found


def _said(flag: Any) -> bool:
    """Whether a boolean column holds a value here; null comes as None or NaN."""
    return flag is not None and not (isinstance(flag, float) and math.isnan(flag))


def errors_concentrated(view: RunView, finding: Finding) -> CheckResult:
    """Errors that set in at a certain step, or at one tool and not at the others."""
    metric = _judged(view, finding)
    if metric is None:
        return cannot("errors_concentrated", *ERRORS)
    before, now = _before_and_now(view, metric, finding.onset_step)
    tools = {m.removeprefix(BY_TOOL): share for m in view.matching(BY_TOOL) if (share := mean_of(view, m, 5)) is not None}
    ranked = sorted(tools.values(), reverse=True)
    one_tool = len(ranked) > 1 and ranked[0] > 0.2 and ranked[0] > 3 * ranked[1]
    in_time = before is not None and now is not None and now > 0.1 and now > 2 * before
    observed: Observed = {"before": before, "now": now, **{f"tool {name}": share for name, share in sorted(tools.items())[:8]}}
    worst = max(tools, key=lambda name: tools[name], default="")
    note = f"{now or 0:.0%} fail, {before:.0%} before" if before is not None else f"{now or 0:.0%} fail from the first step on"
    note += f"; {worst} {tools[worst]:.0%}" if one_tool else ""
    calm = (now or 0.0) < 0.05 or (before is not None and now is not None and now < 1.3 * before + 0.01)
    return answer("errors_concentrated", in_time or one_tool, calm and not one_tool, observed, note)


def _before_and_now(view: RunView, metric: str, onset: int) -> tuple[float | None, float | None]:
    """Median of at most 50 points before an onset (None below three) and of the newest 5 (None without)."""
    series = finite(view.series(metric))
    before = series.values[series.steps < onset][-50:]
    return (median(before) if len(before) >= 3 else None), (median(series.values[-5:]) if len(series) else None)


def goal_lost(view: RunView, finding: Finding) -> CheckResult:
    """Later prompts without the task they began with, or last turns that name less of it than they did."""
    kept = mean_of(view, "fact.context.goal_kept_frac", 5)
    before, now = _before_and_now(view, "fact.turns.goal.last", finding.onset_step)
    if kept is None and (before is None or now is None):
        return cannot("goal_lost", "prompt_token_ids", "prompt")
    less = before is not None and now is not None and before > 0.1 and now < 0.5 * before
    observed = {"goal_kept_frac": kept, "named_before": before, "named_now": now}
    note = (
        f"{kept:.0%} keep the first prompt" if kept is not None else f"last turns name {now or 0:.0%} of the task, {before or 0:.0%} before"
    )
    return answer("goal_lost", (kept is not None and kept < 0.9) or less, kept is not None and kept > 0.99 and not less, observed, note)


def echo(view: RunView, finding: Finding) -> CheckResult:
    """Groups lose their reward variance while turns repeat the words of the turn before."""
    metric = first_known(view, ("group.reward_std.mean", "fact.reward.std", "reward.std"))
    spread = moved(view, metric, newest=5) if metric else None
    same = _before_and_now(view, "fact.turns.same_text_frac", finding.onset_step)
    if spread is None or same[1] is None:
        return cannot("echo", "group.reward_std.mean", "fact.turns.same_text_frac")
    fell = 1 - spread.now / spread.base.median if spread.base.median > 0 else 0.0
    repeats = same[1] > 0.1 and same[1] > 2 * (same[0] or 0.0)
    observed = {"reward_std_fall": fell, "same_text_before": same[0], "same_text_now": same[1]}
    note = f"spread of rewards {-fell:+.0%}, {same[1]:.1%} of the turns repeat the one before"
    return answer("echo", fell > 0.4 and repeats, fell < 0.2 or same[1] < 0.03, observed, note)


def calls_rewarded(view: RunView, finding: Finding) -> CheckResult:
    """More calls bring more reward among right answers; within groups where those are all rewarded alike."""
    right, within = mean_of(view, "fact.turns.calls_correct_correlation", 10), mean_of(view, "fact.turns.calls_reward_correlation", 10)
    if right is None and within is None:
        return cannot("calls_rewarded", "reward", "group_id", "turns")
    observed = {"among_right": right, "within_groups": within}
    best = right if right is not None else within or 0.0
    where = "among right answers" if right is not None else "within groups"
    note = f"correlation of calls and reward {best:.2f} {where}"
    return answer("calls_rewarded", right is not None and right > 0.3, best < 0.1, observed, note)


def parser_fails(view: RunView, finding: Finding) -> CheckResult:
    """Calls in the text that nobody read, or errors that tell of calls that were not understood."""
    unread, told = mean_of(view, "fact.turns.unparsed_frac", 5), mean_of(view, "fact.tools.error_parser_frac", 5)
    if unread is None and told is None:
        return cannot("parser_fails", "content", note="no marked call and no error text to judge by")
    share = (told or 0.0) * (error_share(view) or 0.0)
    observed = {"unparsed_frac": unread, "parser_errors": told, "of_all_calls": share}
    parts = [f"{unread:.1%} of the marked calls were not read"] if unread is not None else []
    parts += [f"{told:.0%} of the error texts name the call's form"] if told is not None else []
    return answer(
        "parser_fails", (unread or 0.0) > 0.05 or ((told or 0.0) > 0.5 and share > 0.05), (unread or 0.0) < 0.01 and share < 0.02,
        observed, "; ".join(parts),
    )  # fmt: skip


def observations_trained(view: RunView, finding: Finding) -> CheckResult:
    """Trained tokens behind the prompt that the policy did not write, or more tokens trained than generated."""
    extra, prompt = (since_onset(view, f"fact.mask.{m}_frac", finding.onset_step, 3) for m in ("extra", "prompt"))
    ratio = since_onset(view, "tokens.trained_over_generated", finding.onset_step, 3)
    if extra is None and ratio is None:
        return cannot("observations_trained", "loss_mask", "response_mask", "tokens.trained_over_generated")
    tools = (extra or 0.0) - (prompt or 0.0)
    observed = {"extra_frac": extra, "prompt_frac": prompt, "trained_over_generated": ratio}
    note = f"{tools:.1%} of the trained tokens are observations" if extra is not None else f"{ratio:.2f} times as many trained as generated"
    fresh_only = (level(view, "lag.policy.max") or 0.0) == 0
    more = ratio is not None and ratio > 1.02 and fresh_only
    return answer("observations_trained", tools > 0.001 or more, tools <= 0.001 and not more, observed, note)


def few_turns_decide(view: RunView, finding: Finding) -> CheckResult:
    """How much of the reward's variance the action of each turn decides, among a group's members in the same state there."""
    cells, shared, means = _states(view)
    effects = {block: effect for block, arms in cells.items() if (effect := _effect(arms, means)) is not None}
    if shared is None or not effects:
        return cannot("few_turns_decide", "group_id", "reward", "turns", note="no state was met by several members of a group")
    ranked = sorted(effects.values(), reverse=True)
    others = sum(ranked[1:]) / len(ranked[1:]) if len(ranked) > 1 else 0.0
    turn = max(effects, key=lambda block: effects[block])
    observed: Observed = {"shared_states": shared, "largest_effect": ranked[0], "turn": turn, "other_effects": others}
    note = f"the action of turn {turn} decides {max(ranked[0], 0):.0%} of the reward's variance, others {max(others, 0):.0%} on average"
    # Where only one turn can be judged, none stands out.
    return answer("few_turns_decide", len(ranked) > 1 and ranked[0] > 0.3 and ranked[0] > 2 * others, ranked[0] < 0.1, observed, note)


_State: TypeAlias = tuple[int, str, int, int]
"""Step, group, turn, and a number for all that was done and seen before it."""
_Arms: TypeAlias = dict[_State, dict[object, list[float]]]


def _states(view: RunView) -> tuple[dict[int, _Arms], float | None, dict[tuple[int, str], float]]:
    """Rewards by state and action for every turn, the share of later turns whose state other members met too, and groups' means."""
    first = view.step - _span(view) // 2
    rows = view.trajectories(first, view.step, ("group_id", "reward"))
    known = {
        (int(s), int(n)): (str(g), float(r))
        for s, n, g, r in zip(rows["step"], rows["n"], rows["group_id"], rows["reward"], strict=True)
        if g is not None and r is not None and math.isfinite(r)
    }
    cells: dict[int, _Arms] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    met: Counter[_State] = Counter()
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for (step, _), (group, reward) in known.items():
        groups[step, group].append(reward)
    for place, block, state, action in _walk(view, first):
        if place in known:
            group, reward = known[place]
            key = (place[0], group, block, state)
            cells[block][key][action].append(reward)
            met[key] += block > 0
    total = sum(met.values())
    shared = sum(count for count in met.values() if count > 1) / total if total else None
    return cells, shared, {key: sum(rewards) / len(rewards) for key, rewards in groups.items()}


def _walk(view: RunView, first: int) -> Iterator[tuple[tuple[int, int], int, int, object]]:
    """Every turn of the policy: its trajectory, its number, a number for all that was done and seen before, and the action."""
    rows = view.turns(first, view.step, ("role", "tool_name", "tool_args", "content"))
    columns = (rows[name].tolist() for name in ("step", "n", "role", "tool_name", "tool_args", "content"))
    place, block, state = (-1, -1), 0, 0
    for step, n, role, tool, arguments, content in zip(*columns, strict=True):
        if (step, n) != place:
            place, block, state = (int(step), int(n)), 0, 0
        if role != "assistant":
            state = hash((state, content))
            continue
        action = (tool, arguments) if tool is not None or arguments is not None else content
        yield place, block, state, action
        block, state = block + 1, hash((state, action))


def _effect(arms: _Arms, means: Mapping[tuple[int, str], float]) -> float | None:
    """Variance between actions of the same state, corrected for chance, over that of the same members around their group's mean.

    None below eight states in which members acted differently.
    """
    whole = inside = total = 0.0
    free_whole = free_inside = states = 0
    for (step, group, _, _), actions in arms.items():
        if len(actions) < 2:
            continue
        rewards = [r for some in actions.values() for r in some]
        states += 1
        whole += _squares(rewards)
        inside += sum(_squares(some) for some in actions.values())
        free_whole += len(rewards) - 1
        free_inside += len(rewards) - len(actions)
        total += sum((r - means[step, group]) ** 2 for r in rewards)
    if states < _LEAST_STATES or free_inside < _LEAST_STATES or total <= 0:
        return None
    return (whole - free_whole * inside / free_inside) / total


def _squares(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return sum((v - mean) ** 2 for v in values)
