"""RS171 agent-loop-fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import server.checks.agent as agent
from server.checks.active import near
from server.checks.engine import reward_trend
from server.checks.examples import with_examples
from server.checks.measure import beyond_for, finding, finite, fresh, level, mean_of, moved, points, reward_fell, trend_of
from server.detectors.level import beyond
from server.queries.view import RunView
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_OTHERS = ("turns.mean", "reward.mean")


class AgentLoopFault:
    """Agents repeat themselves, run into the turn limit, or their tools fail.

    What it observes:
        Three or more identical calls (tool and arguments) in a row in more than 5 % of the trajectories: watch, 20 % warn, 50 % critical
        if the reward fell. Error share of tool calls above .1 watch, above .3 warn, and warn as well where it leaves its own past: above
        .1, twice the baseline and four spreads. One tool alone likewise. Trajectories stopped by the turn limit above .3: warn. Calls that
        nobody could read above 5 %: watch, 20 % warn. Turns of exclamation marks or NaN above 1 % watch, 5 % warn. Turns that grow by a
        fifth while the reward does not rise, trajectories without a final answer, and last turns that name less of the task: watch.

    Why it matters:
        Failures of the environment are scored as failures of the policy, and a loop fills the context with what the loss then trains on.

    Hypotheses:
        H17a the policy loops: the same call meets the same observation and no error.
        H17b the environment or a tool fails: calls that used to succeed fail, repeated failures succeed, errors sit at one time or tool.
        H17c lost goal: later prompts or turns without the task. H17d echo: repeated words while groups lose their variance.
        H17e calls themselves are rewarded. H17f parser: calls that nobody read. H17g observations are trained on: masks.
        H17h success hangs on few turns: one turn's action decides the reward among members of a group in the same state.

    When it is wrong:
        Polling and waiting tools, pagination and retries by design repeat calls: where identical calls mostly meet new observations, a
        level says nothing, only a rise does, and while the reward rises with it, it is a watch. Games of a fixed number of turns always
        end at the limit and are not judged by it. Error shares that fall are a policy that learns its tools, and stay a watch.

    Sources:
        symptoms 17 and 22; RAGEN (2604.06268), GiGPO.
    """

    code = "RS171"
    name = "agent-loop-fault"
    family = "shape"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = ((*agent.ERRORS, agent.LOOPS, *agent.LIMIT, "turns.mean"),)
    params: tuple[Param, ...] = (
        Param("errors_watch", 0.1, "0..1", 0, 1, "symptoms 17"),
        Param("errors_warn", 0.3, "0..1", 0, 1, "symptoms 17"),
        Param("times", 2, "ratio", 1, 20, "default of ours", "error share over its baseline that is a step"),
        Param("z", 4, "spreads", 3, 50, "symptoms 0.3, change point", "distance from its baseline that is a step"),
        Param("loops_watch", 0.05, "0..1", 0, 1, "symptoms 22"),
        Param("loops_warn", 0.2, "0..1", 0, 1, "symptoms 22"),
        Param("loops_critical", 0.5, "0..1", 0, 1, "symptoms 22"),
        Param("same_observation", 0.3, "0..1", 0, 1, "default of ours", "identical calls with the same observation; below it they poll"),
        Param("limit", 0.3, "0..1", 0, 1, "symptoms 17"),
        Param("unread_watch", 0.05, "0..1", 0, 1, "symptoms 17"),
        Param("unread_warn", 0.2, "0..1", 0, 1, "default of ours"),
        Param("garbage_watch", 0.01, "0..1", 0, 1, "default of ours"),
        Param("garbage_warn", 0.05, "0..1", 0, 1, "default of ours"),
        Param("growth", 0.2, "share", 0, 5, "default of ours", "growth of turns over 60 steps without reward"),
        Param("trajectories", 200, "trajectories", 10, 10000, "default of ours", "of one mean of loops: 1.5 % error at 5 %"),
        Param("points", 5, "points", 1, 20, "default of ours", "newest points looked at"),
        Param("held", 4, "points", 1, 20, "default of ours", "of these, beyond the limit"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H17b", "trajectories", agent.environment_fails, agent.errors_concentrated),
        hypothesis("H17a", "trajectories", agent.policy_loops),
        hypothesis("H17f", "trajectories", agent.parser_fails),
        hypothesis("H17g", "tokens", agent.observations_trained),
        hypothesis("H17c", "tokens", agent.goal_lost, prior=0.8),
        hypothesis("H17e", "trajectories", agent.calls_rewarded, prior=0.8),
        hypothesis("H17d", "trajectories", agent.echo, prior=0.8),
        hypothesis("H17h", "trajectories", agent.few_turns_decide, prior=0.5),
    )
    next_checks = SYMPTOMS["agent-loop-fault"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gravest sign of the run as a whole, and tools that fail while the whole does not."""
        if not near(view, self.name, lambda: agent.anything(view)):
            return ()
        whole = max(self._whole(view), key=lambda f: SEVERITIES.index(f.severity), default=None)
        if whole is None:
            return tuple(self._by_tool(view))
        return (whole,) if whole.metric in agent.ERRORS else (whole, *self._by_tool(view))

    def _whole(self, view: RunView) -> Iterator[Finding]:
        signs: tuple[Callable[[RunView], Iterator[Finding]], ...] = (
            self._errors, self._loops, self._limit, self._unread, self._garbage, self._growth, self._unanswered, self._unnamed,
        )  # fmt: skip
        for sign in signs:
            yield from sign(view)

    def _held(self, view: RunView, metric: str, limit: float) -> bool:
        series, p = points(view, metric), view.params
        return fresh(view, series) and beyond(series.values, limit, int(p["points"])) >= p["held"]

    def _errors(self, view: RunView) -> Iterator[Finding]:
        metric = agent.first_known(view, agent.ERRORS)
        if metric is not None and (found := self._failing(view, metric, "of the tool calls fail", None)):
            yield with_examples(view, found, "fact.tools.error.example")

    def _by_tool(self, view: RunView) -> Iterator[Finding]:
        for metric in view.matching(agent.BY_TOOL):
            tool = metric.removeprefix(agent.BY_TOOL)
            found = self._failing(view, metric, f"of the calls of {tool} fail", tool)
            if found is not None and found.severity != "watch":
                yield found

    def _failing(self, view: RunView, metric: str, text: str, slice: str | None) -> Finding | None:
        p = view.params
        if not self._held(view, metric, p["errors_watch"]):
            return None
        now = mean_of(view, metric, int(p["points"])) or 0.0
        past = moved(view, metric, newest=int(p["points"]), least=0.01)
        stepped = (
            past is not None and past.z > p["z"] and past.now > p["times"] * past.base.median and agent.clear_of_noise(view, metric, past)
        )
        severity: Severity = "watch"
        onset = beyond_for(view, metric, p["errors_watch"])
        against = ""
        if stepped and past is not None:
            severity, onset = "warn", min(past.onset, onset)
            against = f", {past.base.median:.1%} before"
        elif self._held(view, metric, p["errors_warn"]) and not self._falls(view, metric):
            severity, onset = "warn", beyond_for(view, metric, p["errors_warn"])
        if slice is not None and not stepped:
            return None  # a tool that was never easy is no fault of the run
        summary = f"{now:.0%} {text} since step {onset}{against}"
        return finding(view, self.name, severity, onset, summary, metric, *_OTHERS, slice=slice)

    def _falls(self, view: RunView, metric: str) -> bool:
        """Whether the share falls over the newest 40 steps: a policy that learns its tools."""
        found, _ = trend_of(view, metric, 40, 40)
        return found.p < 0.05 and found.slope < 0

    def _loops(self, view: RunView) -> Iterator[Finding]:
        p, metric = view.params, agent.LOOPS
        means, enough = agent.loop_share(view, p["trajectories"])
        at = len(points(view, metric)) - 1
        share = float(means.values[at]) if at >= 0 and enough[at] and fresh(view, points(view, metric)) else 0.0
        if share <= p["loops_watch"]:
            return
        same = mean_of(view, "fact.turns.same_observation_frac", 5)
        severity: Severity = "watch"
        limit = p["loops_watch"]
        polling = same is not None and same < p["same_observation"]
        if polling:
            past = moved(view, metric, newest=5, least=0.01)
            if past is None or past.z < p["z"] or past.now < p["times"] * past.base.median:
                return
        if share > p["loops_warn"] and not (polling and reward_trend(view) > 0):
            severity, limit = "warn", p["loops_warn"]
        onset = beyond_for(view, metric, limit)
        hard = share > p["loops_critical"] and severity == "warn" and reward_fell(view, onset) is not None
        severity = "critical" if hard else severity
        summary = f"{share:.0%} of the trajectories make the same call three times in a row, since step {onset}"
        told = finding(view, self.name, severity, onset, summary, metric, "fact.turns.stuck_frac", *_OTHERS, hard=hard)
        yield with_examples(view, told, "fact.turns.loop.example")

    def _limit(self, view: RunView) -> Iterator[Finding]:
        p, metric = view.params, agent.first_known(view, agent.LIMIT)
        if metric is None or not self._held(view, metric, p["limit"]) or self._always(view, metric):
            return
        onset = beyond_for(view, metric, p["limit"])
        summary = f"{level(view, metric, 5):.0%} of the trajectories are stopped by the turn limit since step {onset}"
        yield with_examples(view, finding(view, self.name, "warn", onset, summary, metric, *_OTHERS), "fact.turns.limit.example")

    def _always(self, view: RunView, metric: str) -> bool:
        """Whether it was so for nearly all trajectories from the first points on: episodes of a fixed length."""
        early = finite(view.series(metric)).values[:5]
        return float(early.min()) > 0.9

    def _unread(self, view: RunView) -> Iterator[Finding]:
        yield from self._share(view, agent.UNREAD, "unread", "of the marked calls could not be read")

    def _garbage(self, view: RunView) -> Iterator[Finding]:
        yield from self._share(view, agent.GARBAGE, "garbage", "of the trajectories hold turns of exclamation marks or NaN")

    def _share(self, view: RunView, metric: str, name: str, text: str) -> Iterator[Finding]:
        p = view.params
        for severity, limit in (("warn", p[f"{name}_warn"]), ("watch", p[f"{name}_watch"])):
            if self._held(view, metric, limit):
                onset = beyond_for(view, metric, limit)
                summary = f"{level(view, metric, 5):.1%} {text} since step {onset}"
                yield finding(view, self.name, "warn" if severity == "warn" else "watch", onset, summary, metric, *_OTHERS)
                return

    def _growth(self, view: RunView) -> Iterator[Finding]:
        metric = agent.first_known(view, agent.TURNS)
        series = points(view, metric) if metric else None
        if metric is None or series is None or len(series) < 20 or not fresh(view, series):
            return
        # Cheap first: the newest level against that of 60 points ago.
        if (level(view, metric, 5) or 0.0) < (1 + view.params["growth"]) * float(series.values[-60:][:5].mean()):
            return
        found, part = trend_of(view, metric)
        if found.p < 0.01 and found.slope > 0 and reward_trend(view) <= 0:
            onset, now, early = int(part.steps[0]), level(view, metric, 5) or 0.0, float(part.values[:5].mean())
            summary = f"turns grow from {early:.1f} to {now:.1f} since step {onset} and the reward does not"
            yield finding(view, self.name, "watch", onset, summary, metric, "fact.turns.calls", "reward.mean")

    def _unanswered(self, view: RunView) -> Iterator[Finding]:
        if not self._held(view, agent.NO_ANSWER, view.params["limit"]) or self._always(view, agent.NO_ANSWER):
            return
        onset = beyond_for(view, agent.NO_ANSWER, view.params["limit"])
        summary = f"{level(view, agent.NO_ANSWER, 5):.0%} of the trajectories end without an answer since step {onset}"
        yield finding(view, self.name, "watch", onset, summary, agent.NO_ANSWER, *_OTHERS)

    def _unnamed(self, view: RunView) -> Iterator[Finding]:
        """Last turns name less than half as much of the task as they did, and first turns still name it."""
        first = mean_of(view, agent.NAMED_FIRST, 10)
        last = mean_of(view, agent.NAMED, 10)
        if first is None or last is None or last > 0.5 * first or first < agent.FIRST_NAMES:
            return
        past = moved(view, agent.NAMED, newest=10, floor=0.2, least=0.02)
        if past is not None and past.z < -view.params["z"] and past.now < 0.5 * past.base.median:
            summary = f"last turns name {past.now:.0%} of the task's words since step {past.onset}, {past.base.median:.0%} before"
            yield finding(view, self.name, "watch", past.onset, summary, agent.NAMED, agent.NAMED_FIRST, *_OTHERS)
