"""RS021 eval-not-following-reward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import server.checks.evaluation as evaluation
import server.checks.held_out as held_out
from server.checks.distribution import eval_metric
from server.checks.measure import Shift, evaluations, finding, fresh, points, reward_metric, reward_range
from server.checks.parting import Course
from server.checks.verifier import acceptance
from server.queries.view import RunView, Series
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_RUN_AGAIN = "Run the evaluation once with the training's temperature, length cap and template."


class _Parting(NamedTuple):
    severity: Severity
    onset: int
    gain: Shift
    held_out: Shift
    expected: float | None
    """Change of the evaluation, had it followed the reward as before; None: it did not rise at all or fell."""


class EvalNotFollowingReward:
    """The training reward rises and the independent evaluation does not.

    What it observes:
        The newest four or more evaluations against as many before, over several spans, with the reward of the same steps: the reward
        rose by more than three standard errors and .03 of its range while the evaluation's upper 95 % bound stays below +1 point, or it
        fell by more than two standard errors: warn. Down by more than four errors or five points while the reward rose: critical.
        Errors come from the scatter of neighbouring points of the whole run. Where the evaluation followed the reward before, it also
        speaks from two new evaluations on when these lag by 3.5 errors behind what they did before (2 where the grader is seen to accept
        different answers) and miss half of it: warn. A reward that comes back to where it was is no rise.

    Why it matters:
        What is optimised is no longer what is wanted.

    Hypotheses:
        H2a the grader is exploited: different answers accepted, gradings contradict each other, or a surface feature earns reward.
        H2b over-fitting: training prompts come back and score higher than fresh ones of the same kind.
        H2c sharpening only: groups without a success grow while the mean rises. H2d the evaluation samples differently since the onset.
        H2e the evaluation is constant, jumped or was changed. H2f other parts of the reward rose and accuracy did not.
        H2g filtering or easier prompts inflate the reward. H2h the evaluation is too small to show the gain.

    When it is wrong:
        Saturated evaluations, sets of 30 items (one standard error is 8 to 9 points), evaluations of another checkpoint, a curriculum that
        moves away from the evaluation's domain.

    Sources:
        symptoms 2; Gao et al. 2022 on proxy and gold rewards.
    """

    code = "RS021"
    name = "eval-not-following-reward"
    family = "quality"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("reward.generated.mean", "reward.mean", "fact.reward.mean"), ("eval.*",))
    params: tuple[Param, ...] = (
        Param("evaluations", 4, "evaluations", 2, 50, "symptoms 2", "newest ones that are compared with as many before"),
        Param("reward_z", 3, "standard errors", 1, 10, "symptoms 2"),
        Param("least_steps", 10, "steps", 1, 1000, "default of ours", "evaluations at every step are compared over at least so many"),
        Param("reward_gain", 0.03, "share of the range", 0, 1, "default of ours"),
        Param("tolerance", 0.01, "points", 0, 1, "symptoms 2", "upper 95 % bound of the evaluation's change"),
        Param(
            "gap_z",
            3.5,
            "standard errors",
            1,
            10,
            "default of ours: 26 healthy runs stay below 3",
            "by which the evaluation lags behind what it did before",
        ),
        Param(
            "witness_z", 2, "standard errors", 1, 10, "default of ours", "the same where the grader accepts different answers to one prompt"
        ),
        Param("gap_share", 0.5, "share", 0, 1, "default of ours", "of the expected change that the evaluation's upper bound must miss"),
        Param("fall_z", 2, "standard errors", 1, 10, "symptoms 2"),
        Param("critical_z", 4, "standard errors", 1, 20, "symptoms 2"),
        Param("critical_fall", 0.05, "points", 0, 1, "symptoms 2"),
    )
    hold_points = 30
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H2a", "trajectories", held_out.grader_exploited),
        hypothesis("H2b", "trajectories", held_out.prompts_repeat, held_out.repeats_gain),
        hypothesis("H2c", "trajectories", held_out.sharpening_only),
        hypothesis("H2d", "trajectories", held_out.sampling_differs, action=_RUN_AGAIN),
        hypothesis("H2e", "metrics", held_out.eval_changed, evaluation.budget_moved),
        hypothesis("H2f", "metrics", held_out.other_parts_gain),
        hypothesis("H2g", "trajectories", held_out.filtered),
        hypothesis("H2h", "metrics", held_out.eval_small, prior=0.8),
    )
    next_checks = SYMPTOMS["eval-not-following-reward"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gravest parting over the spans, as of the newest evaluation."""
        trained, held_out = reward_metric(view), eval_metric(view)
        if trained is None or held_out is None:
            return ()
        series = evaluations(view, held_out)
        if not fresh(view, points(view, held_out)) or len(series) < 2 * view.params["evaluations"]:
            return ()
        worst = self._worst(view, trained, held_out, series)
        if worst is None:
            return ()
        summary = (
            f"reward went from {worst.gain.before:.3f} to {worst.gain.after:.3f} and {held_out} from {worst.held_out.before:.3f} "
            f"to {worst.held_out.after:.3f} since step {worst.onset}"
        )
        if worst.expected is not None:
            summary += f"; it would have moved by {worst.expected:+.3f}, had it followed as before"
        return (finding(view, self.name, worst.severity, worst.onset, summary, held_out, trained, "length.response.mean", "entropy.mean"),)

    def _worst(self, view: RunView, trained: str, held_out: str, series: Series) -> _Parting | None:
        """Worked out once an evaluation: between two of them there is nothing new to compare."""
        last = int(series.steps[-1])
        key = ("parting", view.attempt, trained, held_out, view.baseline_start, last, *view.params.values())
        if key not in view.data.memo:
            then = view.at(last)
            found = self._partings(then, Course(then, trained, held_out))
            view.data.memo[key] = max(found, key=lambda f: SEVERITIES.index(f.severity), default=None)
        worst: _Parting | None = view.data.memo[key]
        return worst

    def _partings(self, view: RunView, course: Course) -> Iterator[_Parting]:
        p = view.params
        low, high = reward_range(view)
        n, known = int(p["evaluations"]), len(course.steps)
        # A grader seen to accept different answers is a second witness of the same thing.
        accepted = acceptance(view)
        gap_z = p["witness_z"] if accepted is not None and accepted.rose else p["gap_z"]
        # Who looks often finds chance more often: the limit grows with the evaluations seen so far beyond twenty.
        rose = math.sqrt(p["reward_z"] ** 2 + 2 * math.log(max(1.0, known / 20)))
        for newest in (n // 2, n, 2 * n, 4 * n):
            before = max(newest, n)
            if newest + before > known:
                return
            gain, change = course.newest(newest, before)
            if known > newest and course.steps[-1] - course.steps[-newest - 1] < p["least_steps"]:
                continue
            if gain is None or change is None or gain.z < rose or gain.change < p["reward_gain"] * (high - low):
                continue
            if gain.after < course.reached(known - newest, before) - gain.error:
                continue  # it comes back to where it was, which no evaluation need follow
            onset = int(course.steps[-newest])
            upper, fell = change.change + 1.96 * change.error, change.z < -p["fall_z"]
            if newest >= n and (fell or upper < p["tolerance"]):
                much = fell and (change.z < -p["critical_z"] or change.change < -p["critical_fall"])
                yield _Parting("critical" if much else "warn", onset, gain, change, None)
            elif (followed := course.followed(known - newest)) is not None:
                expected = followed.slope * gain.change
                error = math.hypot(change.error, followed.slope * gain.error, followed.error * gain.change)
                if expected - change.change > gap_z * error and upper < p["gap_share"] * expected:
                    yield _Parting("warn", onset, gain, change, expected)
