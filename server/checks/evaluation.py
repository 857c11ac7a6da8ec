"""Checks of the evaluation itself: its budget, its items, its harness, and whether a part of the reward stands for the whole."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ingest.schema.metrics import eval_parts
from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.distribution import eval_metric as chosen_metric
from server.checks.measure import finite, reward_metric, shift, spacing
from server.detectors.middle import median
from server.queries.view import Event, RunView, Series, Steps

SETTINGS = {
    "fact.eval.max_tokens": "the token budget",
    "fact.eval.temperature": "the temperature",
    "fact.eval.top_p": "top_p",
    "fact.eval.top_k": "top_k",
    "fact.eval.attempts": "the responses an item",
    "fact.eval.grader": "the grader",
}
"""What an evaluation's rows say about how it was done."""
OVERLAP = "fact.eval.overlap"
_RECENT = 5
"""Evaluations for which a change is told."""
_STRETCHES = 20
"""Stretches of so many evaluations behind an onset in which a check looks for a change."""
_EQUAL = 0.01
_WORDS = ("eval", "validation", "val.", "val_", "test set", "benchmark")


def eval_metric(view: RunView) -> str | None:
    """The primary evaluation, chosen once a step."""
    key = "primary evaluation"
    if key not in view.scratch:
        view.scratch[key] = chosen_metric(view)
    found: str | None = view.scratch[key]
    return found


class Changed(NamedTuple):
    """Something about the evaluation that changed at one of them."""

    kind: str
    """setting, items, truncated or length."""
    what: str
    metric: str
    step: int
    before: float
    after: float
    since: int
    """Step of the evaluation before it."""


def changes(view: RunView) -> list[Changed]:
    """Changes at the newest evaluations, one a kind and metric, the newest of each."""
    key = "evaluation changes"
    if key not in view.scratch:
        found = [*_settings(view), *_counts(view), *_items(view), *_shape(view)]
        view.scratch[key] = [change for change in found if change is not None]
    made: list[Changed] = view.scratch[key]
    return made


def series_of(view: RunView, metric: str) -> Series:
    """All finite points of an evaluation's metric: a setting is not forgotten at a planned event."""
    return finite(view.series(metric))


def _settings(view: RunView) -> list[Changed | None]:
    return [_stepped(view, "setting", what, metric, 1) for metric, what in SETTINGS.items() if len(series_of(view, metric))]


def _counts(view: RunView) -> list[Changed | None]:
    # A total varies where items fail now and then, so that it must have stood still before.
    key = "evaluation counts"
    if key not in view.data.memo:
        view.data.memo[key] = [m for m in view.data.metrics() if m.startswith("eval.") and m.endswith(".attempts")]
    return [_stepped(view, "setting", "the number of responses", metric, 2) for metric in view.data.memo[key]]


def _stepped(view: RunView, kind: str, what: str, metric: str, steady: int) -> Changed | None:
    """The newest change of a setting among the newest evaluations, after so many equal steps before it."""
    steps, values = series_of(view, metric).tail(_RECENT + steady + 1)
    for at in range(len(values) - 1, steady, -1):
        past = values[at - steady - 1 : at]
        if float(np.ptp(past)) <= _EQUAL * abs(past[-1]) and abs(values[at] - past[-1]) > _EQUAL * max(abs(past[-1]), 1e-9):
            if len(values) - at > _RECENT:
                return None
            return Changed(kind, what, metric, int(steps[at]), float(past[-1]), float(values[at]), int(steps[at - 1]))
    return None


def _items(view: RunView) -> list[Changed | None]:
    """Another set of items, where the set was the same at three evaluations before and is one set again after it."""
    steps, values = series_of(view, OVERLAP).tail(_RECENT + 3)
    for at in range(len(values) - 1, 1, -1):
        if values[at] < 0.9 and float(values[at - 2 : at].min()) >= 0.99:
            # A sample of a set that is drawn anew each time overlaps little at every evaluation.
            settled = at == len(values) - 1 or float(values[at + 1 :].min()) >= 0.9
            return [Changed("items", "the items", OVERLAP, int(steps[at]), 1.0, float(values[at]), int(steps[at - 1]))] if settled else []
    return []


def _shape(view: RunView) -> list[Changed | None]:
    """A step in the length or truncated share of the evaluation's responses that training did not make."""
    name = (eval_parts(eval_metric(view) or "") or ("overall",))[0]
    found: list[Changed | None] = []
    for metric in (f"eval.{name}.truncated_frac", "fact.eval.truncated_frac"):
        if view.has(metric):
            found.append(_jump(view, metric, "truncated", "the truncated share"))
            break
    for metric in (f"eval.{name}.length.mean", "eval.overall.length.mean", "fact.eval.length.mean"):
        if view.has(metric):
            found.append(_jump(view, metric, "length", "the length of the responses"))
            break
    return found


_TRAINED = {
    "truncated": ("length.response.truncated_frac", "fact.truncated_frac"),
    "length": ("length.response.mean", "fact.length.mean"),
}


def _jump(view: RunView, metric: str, kind: str, what: str) -> Changed | None:
    """The clearest step of the newest evaluations: beyond six of the scatter before it, and not made by the policy."""
    steps, values = series_of(view, metric).tail(_RECENT + 6)
    best: Changed | None = None
    for at in range(max(3, len(values) - _RECENT), len(values)):
        past, now = values[max(0, at - 5) : at], median(values[at:])
        before = median(past)
        step = abs(now - before)
        scatter = max(1.4826 * median(np.abs(past - before)), 0.02 if kind == "truncated" else 0.03 * abs(before))
        # Half of the step at the first evaluation: a budget is another one at once.
        sudden = abs(values[at] - before) > 0.5 * step and abs(values[at] - values[at - 1]) > 0.5 * step
        large = step > 0.1 if kind == "truncated" else step > 0.25 * abs(before)
        if large and sudden and step > 6 * scatter and (best is None or step > abs(best.after - best.before)):
            best = Changed(kind, what, metric, int(steps[at]), before, now, int(steps[at - 1]))
    return best if best is not None and not _policy_made(view, best) else None


def _policy_made(view: RunView, change: Changed) -> bool:
    """Whether training responses changed by a third as much over the same steps; where none are logged, it needs two evaluations."""
    found = view.first_of(*_TRAINED[change.kind])
    if found is None:
        return len(series_of(view, change.metric).since(change.step)) < 2
    series = finite(found[1])
    before = series.values[(series.steps > change.since - max(10, change.step - change.since)) & (series.steps <= change.since)]
    if not len(before):
        return False
    # The policy may have moved anywhere between the two evaluations, and one step of training is a small sample.
    spans = (series.since(change.since + 1).values, series.since(change.step).values, series.values[-5:])
    told, old = change.after - change.before, float(before.mean())
    made = max((math.copysign(1.0, told) * (float(span.mean()) - old) for span in spans if len(span)), default=0.0)
    if change.kind == "length":
        made, told = made / max(abs(old), 1e-9), told / max(abs(change.before), 1e-9)
    return made > abs(told) / 3


def announced(view: RunView, change: Changed) -> Event | None:
    """An event that names the evaluation, after the evaluation before the change and up to the step."""
    for event in view.events(change.since):
        if any(word in f"{event.kind} {event.text}".lower() for word in _WORDS):
            return event
    return None


class Frozen(NamedTuple):
    """A score that stands still."""

    metric: str
    value: float
    step: int
    """First evaluation of the stretch."""
    n: int


def frozen(view: RunView) -> Frozen | None:
    """The primary score, where it is equal to 4 digits at three evaluations or more and chance does not explain it.

    Two scores over few items are often equal: the more often by the values before, the longer the stretch has to be. A
    score that never differed needs four evaluations and a training reward that says otherwise: exactly 0 while rewards are
    earned, exactly 1 while they are missed, anything else while the reward moved.
    """
    metric = eval_metric(view)
    if metric is None:
        return None
    steps, values = series_of(view, metric)
    rounded = np.array([float(f"{value:.4g}") for value in values[-200:]])
    differ = np.flatnonzero(rounded != rounded[-1]) if len(rounded) else np.empty(0, np.int64)
    n = len(rounded) - 1 - int(differ[-1]) if len(differ) else len(rounded)
    if n < 3 or _filled(view, steps, rounded, n):
        return None
    value, start = float(values[-1]), int(steps[len(values) - n])
    before = values[-200:][: len(rounded) - n]
    trained = _trained(view)
    if value in (0.0, 1.0) and trained is not None:
        share = trained[0]
        return Frozen(metric, value, start, n) if (share > 0.1 if value == 0.0 else share < 0.9) else None
    if len(before) < 5:
        return Frozen(metric, value, start, n) if n >= 4 and not len(before) and trained is not None and trained[1] > 3 else None
    return Frozen(metric, value, start, n) if n >= _chance(before) else None


def _filled(view: RunView, steps: Steps, rounded: np.ndarray, n: int) -> bool:
    """Whether the newest n equal values may be one evaluation that an export repeats at every step until the next.

    So it is where every earlier value was repeated: then the stretch has to be three times the longest of those. Before a second
    value is known, scores at every training step may be repeats for a hundred steps.
    """
    edges = np.flatnonzero(np.diff(rounded)) + 1
    if len(edges):
        stood = np.diff(edges, prepend=0)
        return int(stood.min()) > 1 and n < 3 * int(stood.max())
    metric = reward_metric(view)
    every = metric is not None and spacing(Series(steps[-200:], rounded)) <= 1.5 * spacing(finite(view.series(metric)))
    return every and n < 100


def _chance(before: np.ndarray) -> int:
    """Evaluations in a row that are equal by chance less often than once in ten thousand, given the values before."""
    jumps = np.abs(np.diff(before))
    moved = jumps[jumps > 0]
    if not len(moved):
        return 3
    # Two scores that differ by a normal deviate fall on one of the steps that their items allow; a drift is no scatter.
    scatter = max(min(float(np.std(jumps)), 1.4826 * median(jumps)), float(moved.min()) / 2)
    equal = max(float((jumps == 0).mean()), float(moved.min()) / (math.sqrt(2 * math.pi) * scatter))
    return max(3, 1 + math.ceil(math.log(1e-4) / math.log(min(max(equal, 1e-3), 0.9))))


def _trained(view: RunView) -> tuple[float, float] | None:
    """Newest training reward as a share of its range so far, and how far it has moved since the start, in errors."""
    metric = reward_metric(view)
    series = finite(view.series(metric)) if metric else None
    if metric is None or series is None or len(series) < 20:
        return None
    low, high = min(0.0, float(series.values.min())), max(1.0, float(series.values.max()))
    tenth = max(5, len(series) // 10)
    found = shift(view, metric, (int(series.steps[0]), int(series.steps[tenth - 1])), (int(series.steps[-tenth]), view.step))
    return (median(series.values[-tenth:]) - low) / (high - low), abs(found.z) if found is not None else 0.0


def budget_moved(view: RunView, finding: Finding) -> CheckResult:
    """The budget: settings of the evaluation's rows changed, or length or truncation of its responses moved and not those of training."""
    reach = max(1, _reach(view))
    last = min(view.step, finding.onset_step + _STRETCHES * reach)
    moments = [*range(finding.onset_step, last, reach), last]
    found = {(c.metric, c.step): c for moment in moments for c in changes(view.at(min(moment, view.step)))}
    told = [c for c in found.values() if c.kind != "items" and c.metric != "fact.eval.grader" and c.step >= finding.onset_step - reach]
    known = [m for m in (*SETTINGS, *_shape_metrics(view)) if len(series_of(view, m))]
    if not known:
        return cannot("budget_moved", "sampling", "eval.heldout.length.mean", "eval.heldout.truncated_frac", "eval.heldout.attempts")
    observed = {c.metric: c.after for c in told} or {m: float(series_of(view, m).values[-1]) for m in known}
    note = "; ".join(f"{c.what} of the evaluation {c.before:.4g} before, {c.after:.4g} at step {c.step}" for c in told)
    return answer(
        "budget_moved", bool(told), not told and len(known) > 1, observed, note or f"{len(known)} signs of the budget stand still"
    )


def _shape_metrics(view: RunView) -> list[str]:
    return [m for m in view.matching("eval.") if m.endswith((".truncated_frac", ".length.mean", ".attempts"))]


def _reach(view: RunView) -> int:
    """Steps of the newest evaluations in which a change is looked for."""
    metric = eval_metric(view) or next(iter(view.matching("fact.eval.")), None)
    return int(_RECENT * spacing(series_of(view, metric))) if metric else 0


def harness_failed(view: RunView, finding: Finding) -> CheckResult:
    """A fault of the harness: the score stands still, or fell to less than a quarter at once while the training reward held."""
    metric, trained = eval_metric(view), reward_metric(view)
    series = series_of(view, metric) if metric else None
    if metric is None or series is None or len(series) < 3:
        return cannot("harness_failed", "eval.heldout.score")
    still = frozen(view)
    before, after = series.values[series.steps < finding.onset_step][-5:], series.values[series.steps >= finding.onset_step]
    old = median(before) if len(before) else None
    new = median(after) if len(after) else float(series.values[-1])
    reach = max(10, _reach(view))
    held = shift(view, trained, (finding.onset_step - reach, finding.onset_step - 1), (finding.onset_step, view.step)) if trained else None
    broke = old is not None and new < 0.25 * old and held is not None and held.z > -2
    observed = {"before": old, "after": new, "equal": still.n if still else 0}
    note = (
        f"{metric} equal at {still.n} evaluations"
        if still
        else f"{metric} {old if old is not None else math.nan:.3f} before, {new:.3f} since"
    )
    lives = still is None and old is not None and new > 0.5 * old
    return answer("harness_failed", still is not None or broke, lives, observed, note)


def items_differ(view: RunView, finding: Finding) -> CheckResult:
    """Other items: the prompts of an evaluation since the onset are not those of the one before it."""
    series = series_of(view, OVERLAP)
    near = series.values[(series.steps >= finding.onset_step) & (series.steps <= finding.onset_step + max(1, _reach(view)))]
    if not len(near):
        return cannot("items_differ", "prompt", note="needs rows of the evaluations (split eval)")
    before = series.values[series.steps < finding.onset_step][-5:]
    usual = median(before) if len(before) else 1.0
    least = float(near.min())
    note = f"{least:.0%} of the prompts were in the evaluation before, {usual:.0%} usually"
    return answer("items_differ", least < 0.9 and usual >= 0.99, least >= 0.99, {"overlap": least, "usual": usual}, note)


def contaminated(view: RunView, finding: Finding) -> CheckResult:
    """Contamination: one evaluation rises far more than its siblings."""
    metric = eval_metric(view)
    own_name = (eval_parts(metric or "") or ("",))[0]
    others = [
        m for m in view.matching("eval.") if (p := eval_parts(m)) and p[0] != own_name and (p[1] == "score" or p[1].startswith("mean@"))
    ]
    reach = max(30, 2 * _reach(view))
    old, new = (finding.onset_step - reach, finding.onset_step - 1), (finding.onset_step, view.step)
    own = shift(view, metric, old, new) if metric else None
    if own is None:
        return cannot("contaminated", "eval.heldout.score")
    if own.z < 1:
        return answer(
            "contaminated", False, True, {"rise": own.change}, f"the score did not rise: {own.before:.3f} before, {own.after:.3f} since"
        )
    rises = [found.change for m in others if (found := shift(view, m, old, new)) is not None]
    if not rises:
        return cannot("contaminated", "eval.{task}.score", note="needs a second evaluation to compare with")
    sibling = median(rises)
    far = own.z > 4 and own.change > 0.1 and own.change > 3 * max(sibling, 0.0)
    note = f"it rose by {own.change:+.3f}, {len(rises)} others by {sibling:+.3f}"
    return answer("contaminated", far, sibling > 0.5 * own.change, {"rise": own.change, "others": sibling}, note)


def grader_moved(view: RunView, finding: Finding) -> CheckResult:
    """The evaluation's grader: another name or version in its rows."""
    series = series_of(view, "fact.eval.grader")
    if len(series) < 2:
        return cannot("grader_moved", "verifier.version", note="needs rows of the evaluations (split eval)")
    near = series.since(finding.onset_step)
    past = series.values[series.steps < finding.onset_step]
    other = bool(len(near)) and bool(len(past)) and bool((near.values != past[-1]).any())
    return answer(
        "grader_moved", other, not other, {"graders": len(np.unique(series.values))}, "another grader" if other else "the same grader"
    )


def described(change: Changed) -> str:
    """A change in words."""
    if change.metric == "fact.eval.grader":
        return "the evaluation's grader has another name or version"
    if change.kind == "items":
        return f"{1 - change.after:.0%} of the evaluation's items were replaced"
    return f"{change.what} of the evaluation went from {change.before:.4g} to {change.after:.4g}"


def evaluated(view: RunView) -> bool:
    """Whether the judged step holds an evaluation."""
    key = ("evaluated", view.attempt)
    found: frozenset[int] | None = view.data.memo.get(key)
    if found is None:
        steps: set[int] = set()
        for metric in view.data.metrics():
            if metric.startswith(("eval.", "fact.eval.")):
                steps.update(view.data.chain(metric, view.attempt).steps.tolist())
        found = view.data.memo[key] = frozenset(steps)
    return view.step in found
