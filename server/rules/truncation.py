"""RS101 truncation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import server.checks.endings as endings
import server.checks.sampler as sampler
import server.checks.shape as shape
from server.checks.measure import beyond_for, finding, fresh, level, mean_of, points, reward_fell, trend_of
from server.detectors.level import beyond
from server.queries.fact_trajectories import weighs_by_tokens
from server.queries.view import RunView
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_ALL = 0.999
"""Share from which every response is cut: the first point says all."""


class Truncation:
    """Responses are cut by the token budget, or cut and repetitive ones carry the loss.

    What it observes:
        Truncated share above 5 % and rising: watch; above 20 % at three of four points, at the first two of the run, or at two of
        three with the reward falling: warn; above 50 % at two of three points: critical, if the reward falls as well; at the very
        first point if all are cut. A cap of more than eight times the longest right responses: info. Weight in the loss of truncated
        and repetitive responses under the run's aggregation above 30 % with token mean: warn; a single one above 10 % in a batch of
        64 and more: warn. Under token mean seven answers of 200 tokens and one of 8,192 give that one 85 % of the weight, under
        sequence mean 12.5 %.

    Why it matters:
        A cut response cannot contain its answer, is graded wrong, and under token mean outweighs everything else in the batch.

    Hypotheses:
        H10a cap too small: cut responses score far below others and do not repeat themselves.
        H10b termination lost: cut responses already hold a rewarded answer or score like others, right ones kept their length.
        H4d the same in the policy: the end token got rarer. H7d the engine draws from another distribution than it reports.
        H10c the metric is wrong: logged share against finish reasons. H10d degenerate text: tails that repeat.
        H10e truncated samples are masked: their weight in the loss. H10f stop tokens or template: there from the first step.

    When it is wrong:
        Staged training begins with a small cap on purpose. In multi-turn runs the cap may be per turn.

    Sources:
        symptoms 10, 0.2 and 22: AReaL, DAPO, Skywork-OR1, slime.
    """

    code = "RS101"
    name = "truncation"
    family = "shape"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = ((*shape.TRUNCATED, "fact.loss_share.outliers"),)
    params: tuple[Param, ...] = (
        Param("watch", 0.05, "0..1", 0, 1, "symptoms 22"),
        Param("warn", 0.2, "0..1", 0, 1, "symptoms 22"),
        Param("critical", 0.5, "0..1", 0, 1, "symptoms 22"),
        Param("loss_share", 0.3, "0..1", 0, 1, "symptoms 10"),
        Param("one_share", 0.1, "0..1", 0, 1, "symptoms 10"),
        Param("cap_over_need", 8, "times", 1, 1000, "symptoms 10"),
        Param("batch", 64, "responses", 2, 10000, "symptoms 10"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H10b", "trajectories", endings.answer_before_cut, endings.cut_are_rewarded, endings.right_keep_length),
        hypothesis("H10a", "trajectories", shape.cap_too_small, endings.cap_above_need),
        hypothesis("H10d", "trajectories", shape.tails_repeat),
        hypothesis("H10c", "trajectories", shape.metric_differs),
        hypothesis("H10f", "metrics", shape.from_first_step),
        hypothesis("H7d", "tokens", sampler.sampler_hidden),
        hypothesis("H4d", "tokens", endings.right_keep_length, endings.end_token_rarer, prior=0.9),
        hypothesis("H10e", "trajectories", shape.truncated_masked, prior=0.5),
    )
    next_checks = SYMPTOMS["truncation"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The graver of share and loss weight."""
        found = max((*self._share(view), *self._weight(view), *self._cap(view)), key=lambda f: SEVERITIES.index(f.severity), default=None)
        return () if found is None else (found,)

    def _share(self, view: RunView) -> Iterator[Finding]:
        p, metric = view.params, shape.truncated_metric(view)
        series = points(view, metric) if metric else None
        if metric is None or series is None or not fresh(view, series):
            return
        severity: Severity | None = None
        limit = p["watch"]
        if (
            beyond(series.values, p["watch"], 3) >= 2
            and trend_of(view, metric, 40, 40)[0].p < 0.05
            and trend_of(view, metric, 40, 40)[0].slope > 0
        ):
            severity = "watch"
        # A burst of two points that recovers by itself is no lasting truncation, unless the reward goes with it. A run whose
        # first two points are both beyond has no better state to recover to.
        if beyond(series.values, p["warn"], 3) >= 2 and (
            beyond(series.values, p["warn"], 4) >= min(3, len(series)) or reward_fell(view, beyond_for(view, metric, p["warn"])) is not None
        ):
            severity, limit = "warn", p["warn"]
        onset = beyond_for(view, metric, limit)
        if beyond(series.values, p["critical"], 3) >= 2 or (len(series) == 1 and series.values[0] >= _ALL):
            severity, limit = "critical", p["critical"]
        if severity is None:
            return
        fell = severity == "critical" and reward_fell(view, onset) is not None
        since = beyond_for(view, metric, limit)
        summary = f"{level(view, metric):.1%} of the responses are cut by the token budget, above {limit:.0%} since step {since}"
        yield finding(
            view, self.name, severity, onset, summary, metric, "fact.loss_share.truncated", "length.response.mean", "reward.mean", hard=fell
        )

    def _weight(self, view: RunView) -> Iterator[Finding]:
        p, metric = view.params, "fact.loss_share.outliers"
        share = mean_of(view, metric, 3)
        if share is None or share <= min(p["loss_share"], 0.9 * p["one_share"]) or weighs_by_tokens(view.data) is False:
            return
        if share > p["loss_share"] and len(points(view, metric)) >= 3:
            onset = beyond_for(view, metric, p["loss_share"])
            summary = f"truncated and repetitive responses carry {share:.0%} of the loss since step {onset}"
            yield finding(view, self.name, "warn", onset, summary, metric, "fact.loss_share.truncated", "fact.loss_share.repetitive")
            return
        largest, n = level(view, "fact.loss_share.largest", 3), level(view, "fact.n", 3)
        one = largest is not None and n is not None and n >= p["batch"] and largest > p["one_share"] and share >= 0.9 * largest
        if one:
            onset = beyond_for(view, "fact.loss_share.largest", p["one_share"])
            summary = f"one truncated or repetitive response carries {largest:.0%} of the loss in a batch of {n:.0f}"
            yield finding(view, self.name, "warn", onset, summary, "fact.loss_share.largest", metric)

    def _cap(self, view: RunView) -> Iterator[Finding]:
        cap, metric = view.config.get("max_response_tokens"), "fact.length.correct.p99"
        newest = view.series(metric).values[-1:]
        if not isinstance(cap, (int, float)) or not len(newest) or not cap > 0.5 * view.params["cap_over_need"] * newest[0]:
            return
        need = level(view, metric, 10)
        if need and len(points(view, metric)) >= 10 and cap > view.params["cap_over_need"] * need:
            summary = f"the cap of {cap:g} tokens is {cap / need:.0f} times the 99th percentile of right responses ({need:.0f} tokens)"
            yield finding(view, self.name, "info", int(points(view, metric).steps[0]), summary, metric, "length.response.max")
