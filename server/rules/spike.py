"""RS051 spike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import server.checks.optimiser as optimiser
from server.checks.measure import finding, fresh, points, reward_fell, rolled, warmed_up
from server.queries.view import RunView
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class Spike:
    """Gradient norm, update ratio or KL jumps far above its own past or beyond a fixed limit.

    What it observes:
        Gradient norm on a logarithmic scale against the last 50 points ending 5 ago: z > 6 and three times the median is a spike. One
        is a watch, two of the last three points a warn, and if the median of the ten points after it is still twice the old one while
        the reward falls, critical. KL of one update above .05 watch, .2 warn, 1 critical; mean ratio outside .8 to 1.25 watch, .5 to 2
        warn, below .1 or above 10 critical; reference KL doubled within 20 steps and above ten times its median warn. Two of three
        points for the limits above watch. The limits work from the first step on.

    Why it matters:
        A lone spike of a clipped gradient settles by itself; one that stays, or comes with KL, moved the policy far in one step.

    Hypotheses:
        H5a step size or KL brake: the learning rate had just risen, or KL climbed before.
        H5b off-policy reuse: many updates per batch and many clipped tokens.
        H5c few extreme tokens: trainer and engine had drifted apart before.
        H5e degenerate batch: one response holds much of the loss, or hardly a group has variance.
        H5g change of scale: an event or another batch size at the onset. H5h: the critic's loss jumped first.

    When it is wrong:
        Isolated spikes with gradient clipping (1.2 per 100 steps in healthy logs). KL grows with learning. GSPO's ratio is a geometric
        mean per sequence and far closer to 1. k3 can be carried by a single token.

    Sources:
        symptoms 5, 0.3, 0.5 and 22; measured on 22 public logs.
    """

    code = "RS051"
    name = "spike"
    family = "optimiser"
    status: Status = "preview"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("grad.norm", "kl.old", "ratio.mean", "kl.ref"),)
    params: tuple[Param, ...] = (
        Param("z", 6, "MADN of log10", 3, 30, "symptoms 22"),
        Param("factor", 3, "ratio", 1.5, 100, "symptoms 22"),
        Param("kl_watch", 0.05, "nats", 0, 10, "symptoms 22"),
        Param("kl_warn", 0.2, "nats", 0, 10, "symptoms 22"),
        Param("kl_critical", 1, "nats", 0, 100, "symptoms 22"),
        Param("ref_factor", 10, "ratio", 2, 100, "symptoms 5"),
        Param("ref_least", 0.1, "nats", 0, 10, "default of ours", "reference KL below it is never a jump"),
        Param("settle_points", 10, "points", 5, 50, "symptoms 0.3"),
    )
    hold_points = 10
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H5a", "metrics", optimiser.step_too_large),
        hypothesis("H5b", "config", optimiser.batch_reused),
        hypothesis("H5c", "metrics", optimiser.mismatch_first),
        hypothesis("H5e", "trajectories", optimiser.degenerate_batch),
        hypothesis("H5g", "metrics", optimiser.scale_changed),
        hypothesis("H5h", "metrics", optimiser.critic_first, prior=0.8),
        hypothesis("H5f", "action", action="Compare the prompt ids of the batches of all spikes."),
    )
    next_checks = SYMPTOMS["spike"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gravest of gradient, KL and ratio; the KL to the reference belongs to the distribution, whatever moved it."""
        signs = list(self._signs(view))
        if not signs:
            return ()
        gravest = max(signs, key=lambda f: SEVERITIES.index(f.severity))
        least = min(SEVERITIES.index("warn"), SEVERITIES.index(gravest.severity))
        families: dict[str, int] = {}
        for sign in signs:
            if SEVERITIES.index(sign.severity) >= least:
                family = "distribution" if sign.metric == "kl.ref" else self.family
                families[family] = min(sign.onset_step, families.get(family, sign.onset_step))
        return (replace(gravest, families=tuple(families.items())),)

    def _signs(self, view: RunView) -> Iterator[Finding]:
        yield from self._gradient(view)
        yield from self._update(view)
        yield from self._ratio(view)
        yield from self._reference(view)

    def _gradient(self, view: RunView) -> Iterator[Finding]:
        metric = "grad.norm"
        series, middle, _ = rolled(view, metric)
        if not fresh(view, series) or not warmed_up(view, series):
            return
        hits = optimiser.spike_hits(view, metric, view.params["z"], view.params["factor"])[: len(series)]
        settle = int(view.params["settle_points"])
        recent = hits[-3:]
        if recent.any():
            severity: Severity = "warn" if int(recent.sum()) >= 2 else "watch"
            first = len(series) - len(recent) + int(recent.argmax())
            text = f"gradient norm {series.values[-3:].max():.3g} against {middle[first]:.3g} before"
            yield finding(view, self.name, severity, int(series.steps[first]), text, metric, "lr", "kl.old", "reward.mean", newest=1)
        at = len(series) - 1 - settle
        if at >= 0 and hits[at]:
            after = float(sorted(series.values[at + 1 :].tolist())[settle // 2])
            onset = int(series.steps[at])
            if after > 2 * middle[at] and reward_fell(view, onset) is not None:
                levels = f"{after:.3g} over {settle} points after the spike, {middle[at]:.3g} before"
                text = f"gradient norm has not settled: {levels}; the reward fell"
                yield finding(view, self.name, "critical", onset, text, metric, "reward.mean", hard=True)

    def _update(self, view: RunView) -> Iterator[Finding]:
        p, series = view.params, points(view, "kl.old")
        if not fresh(view, series):
            return
        last = abs(series.values[-3:])
        severity: Severity | None = "watch" if last[-1] > p["kl_watch"] else None
        if int((last > p["kl_warn"]).sum()) >= 2 or last[-1] > p["kl_critical"]:
            severity = "warn"
        if int((last > p["kl_critical"]).sum()) >= 2:
            severity = "critical"
        if severity is not None:
            step = int(series.steps[-len(last) :][(last > p["kl_watch"]).argmax()])
            yield finding(
                view,
                self.name,
                severity,
                step,
                f"KL of one update {last.max():.3g} nats",
                "kl.old",
                "lr",
                "grad.norm",
                "reward.mean",
                newest=1,
            )

    def _ratio(self, view: RunView) -> Iterator[Finding]:
        series = points(view, "ratio.mean")
        if not fresh(view, series):
            return
        last = series.values[-3:]
        severity: Severity | None = None
        for name, low, high in (("watch", 0.8, 1.25), ("warn", 0.5, 2.0), ("critical", 0.1, 10.0)):
            outside = int(((last < low) | (last > high)).sum())
            if outside >= (1 if name == "watch" and (last[-1] < low or last[-1] > high) else 2):
                severity = name  # type: ignore[assignment]
        if severity is not None:
            onset = int(series.steps[-len(last)])
            yield finding(
                view, self.name, severity, onset, f"mean update ratio {last[-1]:.3g}", "ratio.mean", "kl.old", "reward.mean", newest=1
            )

    def _reference(self, view: RunView) -> Iterator[Finding]:
        p, (series, middle, _) = view.params, rolled(view, "kl.ref")
        if not fresh(view, series) or not warmed_up(view, series) or len(series) < 30:
            return
        last = sorted(series.values[-3:].tolist())[1]
        before = sorted(series.values[-25:-20].tolist())[2]
        if last > p["ref_least"] and last > 2 * before and last > p["ref_factor"] * middle[-1]:
            text = f"reference KL {last:.3g} against {middle[-1]:.3g} before, doubled within 20 points"
            yield finding(view, self.name, "warn", int(series.steps[-3]), text, "kl.ref", "lr", "reward.mean", newest=3)
