"""RS161 pipeline-inefficiency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import server.checks.pipeline as pipeline
from server.checks.engine import lagging
from server.checks.measure import finding, finite, level
from server.checks.pipeline import LASTING, STAGES, StepTimes
from server.detectors.middle import median
from server.queries.view import RunView
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_TIMES = ("time.step_s", *(metric for metrics in STAGES.values() for metric in metrics))
_TAIL = "fact.seconds.rollout.tail"


class PipelineInefficiency:
    """One stage holds up the others, a side waits, or much of what is generated is thrown away.

    What it observes:
        Time of the step without evaluation and checkpoints, as logged or as the sum of its stages. Ten steps in a row above 1.3 times
        the baseline: warn where one stage makes .8 of the growth or the step takes twice as long, and the generated tokens do not
        explain it; else watch (all stages slower at once is another load on the machines). Discarded share of the generated tokens,
        median of ten points, above .5 watch, above .75 warn. The trainer or the engine waiting for more than .3 of the step, watch.
        Stages that run one after the other although samples may lag (overlap factor below .3), watch, with a side that waits warn: a
        bound on lag alone does not say that stages should overlap. The slowest response more than 4 times the median, watch, where
        generation takes over .4 of the step. One stage above .6 of the step, info. The summary says what a stage that cost nothing
        would bring (Amdahl): T / (T - t).

    Why it matters:
        Quality per hour and per dollar. A step that slows down is often the first sign of longer, looping or failing responses.

    Hypotheses:
        H16a generation, H16c rewards, H16d weight synchronisation: share of the step, or of its growth. H16b stragglers: slowest
        against usual response, and whether generation follows the longest or the mean length. H16e preemptions and cache of the engine.
        H16f discarded work. H16g environments and retries. H16h uneven ranks.

    When it is wrong:
        First steps that compile. Another load on the same machines. Times of asynchronous trainers are not those of a round.

    Sources:
        symptoms 16 and 0.2 (round time); prime-rl's wait metrics; verl issues 6747 and 6673.
    """

    code = "RS161"
    name = "pipeline-inefficiency"
    family = "cost"
    status: Status = "preview"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (
        (
            *_TIMES,
            "idle.trainer_frac",
            "idle.rollout_frac",
            "tokens.trained_over_generated",
            "group.filtered_frac",
            "fact.kept_frac",
            _TAIL,
        ),
    )
    params: tuple[Param, ...] = (
        Param("slower", 1.3, "ratio", 1.05, 10, "symptoms 16", "step's time over its baseline"),
        Param("much_slower", 2, "ratio", 1.05, 100, "default of ours", "step's time over its baseline that is a warn, whatever stage grew"),
        Param("one_stage", 0.8, "0..1", 0, 1, "default of ours", "share of the growth by which one stage is to blame"),
        Param("lasting", 10, "points", 3, 100, "symptoms 16", "in a row above it"),
        Param("discarded_watch", 0.5, "0..1", 0, 1, "symptoms 16"),
        Param("discarded_warn", 0.75, "0..1", 0, 1, "symptoms 16"),
        Param("waiting", 0.3, "0..1", 0, 1, "symptoms 16", "share of the step in which a side waits"),
        Param("overlap", 0.3, "0..1", 0, 1, "symptoms 16", "overlap factor below which stages run one after the other"),
        Param("tail", 4, "ratio", 1, 100, "symptoms 16", "slowest response over the median one"),
        Param("stage", 0.6, "0..1", 0.1, 1, "symptoms 16", "share of one stage that is noted"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H16a", "metrics", pipeline.generation_bound),
        hypothesis("H16c", "metrics", pipeline.verifier_blocks),
        hypothesis("H16b", "trajectories", pipeline.stragglers),
        hypothesis("H16d", "metrics", pipeline.synchronisation),
        hypothesis("H16f", "metrics", pipeline.work_discarded),
        hypothesis("H16e", "metrics", pipeline.engine_short_of_cache),
        hypothesis("H16g", "trajectories", pipeline.environment_slow),
        hypothesis("H16h", "metrics", pipeline.ranks_uneven),
    )
    next_checks = SYMPTOMS["pipeline-inefficiency"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gravest waste."""
        times = pipeline.step_times(view, view.params["slower"])
        if times is not None and int(times.steps[-1]) != view.step:
            times = None
        shares = {} if times is None else pipeline.shares(times)
        found = max(self._signs(view, times, shares), key=lambda f: SEVERITIES.index(f.severity), default=None)
        return () if found is None else (found,)

    def _signs(self, view: RunView, times: StepTimes | None, shares: Mapping[str, float]) -> Iterator[Finding]:
        yield from self._discarded(view)
        waits = {side: pipeline.waiting(view, shares, side) or 0.0 for side in ("trainer", "engine")}
        yield from self._waiting(view, shares, waits)
        if times is not None:
            yield from self._slower(view, times, shares)
            yield from self._sequential(view, times, shares, max(waits.values()))
            yield from self._tail(view, shares.get("generation", 0.0))
            yield from self._stage(view, times, shares)

    def _slower(self, view: RunView, times: StepTimes, shares: Mapping[str, float]) -> Iterator[Finding]:
        points, p = int(times.lasting[-1]), view.params
        if points < p["lasting"]:
            return
        onset = int(times.steps[len(times.steps) - points])
        ratio = median(times.times[-LASTING:])
        found = pipeline.growth(times, onset)
        stage = max(found, key=lambda name: found[name][0], default="")
        share, before, after = found.get(stage, (0.0, 0.0, 0.0))
        work = self._work(view, onset)
        alone = share > p["one_stage"]
        severity: Severity = "warn" if (alone or ratio > p["much_slower"]) and ratio > p["slower"] ** 0.5 * work else "watch"
        why = f"{stage} makes {share:.0%} of the growth, {before:.3g} s before and {after:.3g} s since" if stage else "no stage is logged"
        more = f"; {work:.2f} times as many tokens are generated" if work > 1.1 else ""
        summary = (
            f"a step takes {times.total[-1]:.3g} s, {ratio:.2f} times its baseline, for {points} points since step {onset}: {why}{more}"
        )
        metric = "time.step_s" if times.logged or not stage else next(m for m in STAGES[stage] if view.has(m))
        yield finding(view, self.name, severity, onset, summary, metric, *self._longest(view, shares), "length.response.mean")

    def _work(self, view: RunView, onset: int) -> float:
        """Generated tokens of the steps since an onset over those before; 1 where they are not logged."""
        found = view.first_of("tokens.generated", "length.response.mean")
        if found is None:
            return 1.0
        series = finite(found[1])
        old, new = series.values[series.steps < onset][-50:], series.values[series.steps >= onset][:LASTING]
        return median(new) / median(old) if len(old) and len(new) and median(old) > 0 else 1.0

    def _discarded(self, view: RunView) -> Iterator[Finding]:
        found, p = pipeline.discarded(view), view.params
        if found is None or found[1] <= p["discarded_watch"]:
            return
        severity: Severity = "warn" if found[1] > p["discarded_warn"] else "watch"
        summary = f"{found[1]:.0%} of what is generated is not trained on (median of {LASTING} points)"
        yield finding(view, self.name, severity, view.step, summary, found[0], "tokens.generated", "tokens.trained")

    def _waiting(self, view: RunView, shares: Mapping[str, float], waits: dict[str, float]) -> Iterator[Finding]:
        side = max(waits, key=lambda s: waits[s])
        if waits[side] <= view.params["waiting"]:
            return
        other, bound = ("rollouts", "generation") if side == "trainer" else ("new weights", "the trainer")
        idle = "idle.trainer_frac" if side == "trainer" else "idle.rollout_frac"
        metric = idle if view.has(idle) else "time.wait_batch_s" if side == "trainer" else "time.wait_policy_s"
        gain = 1 / max(1 - waits[side], 0.01)
        summary = (
            f"the {side} waits for {other} for {waits[side]:.0%} of the step, bound by {bound}; at most {gain:.1f} times as fast without"
        )
        yield finding(view, self.name, "watch", view.step, summary, metric, *self._longest(view, shares))

    def _sequential(self, view: RunView, times: StepTimes, shares: Mapping[str, float], waits: float) -> Iterator[Finding]:
        limit = view.config.get("lag_limit")
        if not times.logged or not (lagging(view) if limit is None else limit != 0):
            return
        factor = pipeline.overlap(times)
        if factor is None or factor >= view.params["overlap"]:
            return
        severity: Severity = "warn" if waits > view.params["waiting"] else "watch"
        summary = f"stages run one after the other (overlap factor {max(factor, 0):.2f}) although samples may be older than the policy"
        yield finding(view, self.name, severity, view.step, summary, "time.step_s", *self._longest(view, shares))

    def _tail(self, view: RunView, share: float) -> Iterator[Finding]:
        tail = level(view, _TAIL, pipeline.NEWEST)
        if tail is not None and tail > view.params["tail"] and share > 0.4:
            summary = f"the slowest response takes {tail:.1f} times as long as the median one, and generation {share:.0%} of the step"
            yield finding(view, self.name, "watch", view.step, summary, _TAIL, "time.rollout_s", "length.response.max")

    def _stage(self, view: RunView, times: StepTimes, shares: Mapping[str, float]) -> Iterator[Finding]:
        if len(times.steps) == 1 and view.step <= 1:  # the first step compiles
            return
        name = max(shares, key=lambda n: shares[n], default=None)
        if name is None or shares[name] <= view.params["stage"]:
            return
        gain = 1 / max(1 - shares[name], 0.01)
        bound = f"if {name} cost nothing, a step would be {gain:.1f} times as fast at most"
        summary = f"{name} takes {shares[name]:.0%} of the step ({times.total[-1]:.3g} s); {bound}"
        metric = next(m for m in STAGES[name] if view.has(m))
        yield finding(view, self.name, "info", int(times.steps[0]), summary, metric)

    def _longest(self, view: RunView, shares: Mapping[str, float]) -> list[str]:
        """Metrics of the two longest stages."""
        names = sorted(shares, key=lambda name: -shares[name])[:2]
        return [next(m for m in STAGES[name] if view.has(m)) for name in names]
