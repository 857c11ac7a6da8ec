"""RS131 verifier-fault."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.verifier as verifier
from server.checks.measure import beyond_for, finding, fresh, history, mean_of, moved, points, reward_metric, reward_range
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class VerifierFault:
    """Gradings fail, are constant, contradict themselves, or moved while the policy did not.

    What it observes:
        Share of trajectories whose verifier timed out or failed, mean of three points: above 1 % watch, 5 % warn, 20 % critical;
        above 1 % warn too where these count as the lowest reward. Rewards without any spread over more than 100 responses after
        rewards with spread: warn at three points, critical at ten. Equal responses to one prompt of one step with different rewards:
        more than 2 % warn. Different answers (last words) to one prompt that all get full reward, in five points more of the groups
        than at the start, where it was rare: warn. A step in the reward beyond 6 spreads within five points while entropy, length, KL,
        prompts and difficulty stay within two: warn. A component that is 0 from the first step, or has no spread below its best: watch
        at three points, warn at ten with more than 100 responses. The slowest gradings five times as slow as before: watch.

    Why it matters:
        The policy learns whatever the verifier says. Every alarm that rests on rewards is worthless while it is wrong.

    Hypotheses:
        H13e time-outs or errors counted as failures: unanswered gradings have the lowest reward and took longest.
        H13a grader down or constant: one value for all responses, nothing unanswered; or the failures of one worker.
        H13h rewards assigned to the wrong responses: equal responses disagree as often as chance would give.
        H13f a judge that is not deterministic: equal responses disagree, but seldom.
        H13d the wrong text is graded: different answers to one prompt get full reward.
        H13c a pattern that never matches: a component exactly 0 from the first step.
        H13g the grader's version changed: an event or the rows name it, or the reward stepped while the policy stood still.
        H13b wrong gold answers: prompts that fail at every visit although the responses agree, or with the same reason.

    When it is wrong:
        Answers that end in other words once the policy writes differently: the variety of answers in a group must not have risen. Rare
        rewards are absent from a batch by chance. A component that is saturated at its best value (format 1.0) has no spread either and
        is left out, as is a penalty. Easier or harder prompts move the reward without the policy: their length and difficulty are
        compared where they are written.

    Sources:
        symptoms 13 and 22.
    """

    code = "RS131"
    name = "verifier-fault"
    family = "verifier"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("fact.verifier.timeout_frac", "reward.mean", "fact.reward.mean", "reward.std"),)
    params: tuple[Param, ...] = (
        Param("unanswered_watch", 0.01, "0..1", 0, 1, "symptoms 22"),
        Param("unanswered_warn", 0.05, "0..1", 0, 1, "symptoms 22"),
        Param("unanswered_critical", 0.2, "0..1", 0, 1, "symptoms 22"),
        Param("zero_warn", 0.01, "0..1", 0, 1, "symptoms 13", "unanswered gradings that count as the lowest reward"),
        Param("conflict_warn", 0.02, "0..1", 0, 1, "symptoms 13", "equal responses with different rewards"),
        Param("conflict_responses", 100, "responses", 10, 10000, "default of ours", "equal responses needed in the window"),
        Param("constant_points", 3, "points", 2, 50, "default of ours"),
        Param("constant_critical_points", 10, "points", 3, 100, "symptoms 13"),
        Param("constant_points_seen", 3, "points", 2, 50, "default of ours", "at which a component without spread is a watch"),
        Param("responses_a_step", 11, "responses", 1, 10000, "default of ours", "taken where the run does not say how many it grades"),
        Param("slow_factor", 5, "ratio", 1, 100, "default of ours", "99th percentile of the verifier's seconds over its past"),
        Param("slow_seconds", 1, "s", 0, 1000, "default of ours", "a verifier quicker than that holds nobody up"),
        Param("chance", 9, "groups", 1, 100, "e^-9 is 1 in 8,000", "other rewards to be expected in the stretch, else it may be chance"),
        Param("step_spreads", 6, "MADN", 3, 20, "default of ours"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H13e", "trajectories", verifier.timeouts_counted, verifier.slow_gradings),
        hypothesis("H13a", "metrics", verifier.grader_constant, verifier.one_worker),
        hypothesis("H13h", "trajectories", verifier.rewards_shuffled),
        hypothesis("H13f", "trajectories", verifier.judge_contradicts),
        hypothesis("H13d", "trajectories", verifier.accepts_different, action="Print exactly what the grader was given."),
        hypothesis("H13c", "metrics", verifier.never_matched),
        hypothesis("H13g", "trajectories", verifier.version_changed, verifier.policy_stood),
        hypothesis("H13b", "trajectories", verifier.bad_gold, verifier.failures_repeat),
    )
    next_checks = SYMPTOMS["verifier-fault"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The first of the signs that shows, the gravest kind first."""
        for sign in (self._unanswered, self._constant, self._contradiction, self._leniency, self._step, self._part, self._slow):
            found = sign(view)
            if found is not None:
                return (found,)
        return ()

    def _unanswered(self, view: RunView) -> Finding | None:
        p, share = view.params, verifier.unanswered_share(view)
        if share is None or share <= p["unanswered_watch"]:
            return None
        zero = mean_of(view, "fact.verifier.zero_frac") or 0.0
        severity: Severity = "watch"
        if share > p["unanswered_critical"]:
            severity = "critical"
        elif share > p["unanswered_warn"] or zero > p["zero_warn"]:
            severity = "warn"
        metric = max(("fact.verifier.timeout_frac", "fact.verifier.error_frac"), key=lambda m: mean_of(view, m) or 0.0)
        onset = beyond_for(view, metric, p["unanswered_watch"] / 2)
        summary = f"{share:.1%} of gradings timed out or failed, {zero:.1%} of responses got the lowest reward for it, since step {onset}"
        return finding(view, self.name, severity, onset, summary, metric, "fact.verifier.zero_frac", "reward.mean", hard=True)

    def _constant(self, view: RunView) -> Finding | None:
        metric = "reward.std" if view.has("reward.std") else "fact.reward.std"
        series, p = history(view, metric), view.params
        if not fresh(view, series):
            return None
        stretch = len(series) - 1
        while stretch >= 0 and series.values[stretch] < 1e-9:
            stretch -= 1
        flat = len(series) - 1 - stretch
        before = series.values[max(0, stretch - 19) : stretch + 1]
        if flat < p["constant_points"] or len(before) < 5 or not self._unsaturated(view):
            return None
        if float((before < 1e-9).mean()) > 0.1 or flat * (mean_of(view, "fact.n") or 64) < 100:
            return None
        onset = int(series.steps[stretch + 1])
        if self._may_be_chance(view, onset, flat):
            return None
        severity: Severity = "critical" if flat >= p["constant_critical_points"] else "warn"
        summary = f"every response got the same reward at {flat} points in a row, since step {onset}; rewards differed before"
        return finding(view, self.name, severity, onset, summary, metric, "reward.mean", "entropy.mean", hard=True)

    def _may_be_chance(self, view: RunView, onset: int, flat: int) -> bool:
        """Whether batches of one reward are what the rare other reward of the points before leaves to be expected."""
        metric = reward_metric(view)
        low, high = reward_range(view)
        series = history(view, metric) if metric else None
        now = mean_of(view, metric, 1) if metric else None
        if series is None or now is None:
            return False
        before = series.values[series.steps < onset][-20:]
        rare = abs(float(before.mean()) - now) / (high - low) if len(before) else 1.0
        # Responses of one prompt succeed together, so that a group counts once.
        independent = mean_of(view, "fact.group.n") or (mean_of(view, "fact.n") or 64) / 8
        return rare * independent * flat < view.params["chance"]

    def _unsaturated(self, view: RunView) -> bool:
        """Not at the best reward, which a policy may reach with every response."""
        metric = reward_metric(view)
        low, high = reward_range(view)
        now = mean_of(view, metric, 1) if metric else None
        return now is not None and now < high - 0.02 * (high - low)

    def _contradiction(self, view: RunView) -> Finding | None:
        metric, p = "fact.reward.conflict_frac", view.params
        series, twins = points(view, metric).tail(5), points(view, "fact.reward.twin_n").tail(5)
        if not fresh(view, series) or float(twins.values.sum()) < p["conflict_responses"] or len(series) != len(twins):
            return None
        share = float((series.values * twins.values).sum() / twins.values.sum())
        if share <= p["conflict_warn"] or len(series) < 3:
            return None
        onset = beyond_for(view, metric, p["conflict_warn"] / 2)
        summary = f"{share:.1%} of equal responses to the same prompt got different rewards, over {twins.values.sum():.0f} responses"
        return finding(view, self.name, "warn", onset, summary, metric, "reward.mean")

    def _leniency(self, view: RunView) -> Finding | None:
        metric = "fact.group.accepted_differ_frac"
        series = points(view, metric)
        if not len(series) or not series.values[-20:].any():
            return None
        found = verifier.acceptance(view)
        if found is None or not found.rose:
            return None
        summary = (
            f"in {found.now:.0%} of the groups different answers to one prompt all got full reward, {found.before:.1%} before "
            f"step {found.onset} (the last word or number compared, {found.groups} groups)"
        )
        return finding(view, self.name, "warn", found.onset, summary, metric, "reward.mean", "fact.group.answer_frac")

    def _step(self, view: RunView) -> Finding | None:
        metric = reward_metric(view)
        change = moved(view, metric, newest=3, least=0.01) if metric else None
        low, high = reward_range(view)
        if (
            metric is None
            or change is None
            or abs(change.z) < view.params["step_spreads"]
            or abs(change.now - change.base.median) < 0.15 * (high - low)
        ):
            return None
        policy = verifier.policy_moved(view)
        if view.step - change.onset > 5 or len(policy) < 2 or max(policy.values()) > 2:
            return None
        if max(verifier.tasks_moved(view).values(), default=0.0) > 2:
            return None
        summary = f"{metric} went from {change.base.median:.3g} to {change.now:.3g} at step {change.onset} while the policy did not move"
        return finding(view, self.name, "warn", change.onset, summary, metric, *policy)

    def _part(self, view: RunView) -> Finding | None:
        p = view.params
        if not view.matching("reward.fn.", ".mean"):
            return None
        dead = verifier.constant_parts(view, int(p["constant_points_seen"]))
        if not dead:
            return None
        metric, onset, always = dead[0]
        n = len(history(view, metric).since(onset))
        responses = n * (mean_of(view, "fact.n") or p["responses_a_step"])
        many = n >= p["constant_critical_points"] and responses > 100
        what = "0 since the first step" if always else f"without any spread and below its best since step {onset}"
        summary = f"{metric} is {what}, at all {n} points"
        return finding(view, self.name, "warn" if many else "watch", onset, summary, metric, "reward.mean")

    def _slow(self, view: RunView) -> Finding | None:
        metric = "fact.verifier.seconds.p99"
        series = points(view, metric)
        if len(series) < 30 or float(series.values[-1]) < view.params["slow_seconds"]:
            return None
        change = moved(view, metric, newest=5, floor=0.1)
        if change is None or change.now < view.params["slow_factor"] * change.base.median or change.now < view.params["slow_seconds"]:
            return None
        summary = f"one grading in a hundred takes {change.now:.3g} s, {change.base.median:.3g} s before step {change.onset}"
        return finding(view, self.name, "watch", change.onset, summary, metric, "fact.verifier.seconds.mean", "fact.verifier.timeout_frac")
