"""RS051 spike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import server.checks.optimiser as optimiser
import server.checks.repeats as repeats
import server.checks.tokens as tokens
from server.checks.measure import finding, fresh, moved, points, reward_fell, rolled, trend_of, warmed_up, window
from server.detectors.level import since
from server.detectors.middle import median
from server.detectors.trend import trend
from server.queries.view import RunView, Series
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_MISMATCH = ("mismatch.logprob_diff.mean", "mismatch.prob_diff.mean", "mismatch.kl_k3")


class Spike:
    """Gradient norm, update ratio, KL or loss jumps far above its own past or beyond a fixed limit.

    What it observes:
        Gradient norm on a logarithmic scale against the last 50 points ending 5 ago, points of exactly 0 left out: z > 6 and three
        times the median is a spike. One is a watch, two of the last three points a warn. Once the ten points after it are there: median
        still twice the old one critical (warn while quality holds), and so is a spike that settled and left a lower reward (5 standard
        errors). Growth by more than .3 decades per 100 steps (Theil-Sen, Mann-Kendall p < .01) and to twice its past: watch, warn where
        the engine mismatch has left its past too. KL of one update above .05 watch, .2 warn, 1 critical, two of three points; a single
        one above .2 watch. Mean ratio outside .8 to 1.25 watch, .5 to 2 warn, below .1 or above 10 critical; reference KL doubled
        within 20 steps and above ten times its 100-step median warn; loss as the gradient norm, and above 1. The limits work from the
        first step on.

    Why it matters:
        A lone spike of a clipped gradient settles by itself; one that stays, or comes with KL, moved the policy far in one step.

    Hypotheses:
        H5a step size or KL brake: the learning rate had just risen, KL climbed before, or updates were large from the first one on.
        H5b off-policy reuse: several updates per batch and many clipped tokens.
        H5c few extreme tokens: the top .1 % carry most of the ratios' distance from 1, are rare ones, and are not the end token.
        H5d numerics: something was not finite. H5e degenerate batch: one response holds much of the loss, or hardly a group has variance.
        H5f data outlier: one prompt in every spike. H5g change of scale: an event or another batch size at the onset.
        H5h the critic's loss jumped first.

    When it is wrong:
        Isolated spikes with gradient clipping (1.2 per 100 steps in healthy logs). KL grows with learning. GSPO's ratio is a geometric
        mean per sequence and far closer to 1, and its clip share is large by construction. k3 can be carried by a single token.

    Sources:
        symptoms 5, 0.3, 0.5 and 22; measured on 22 public logs.
    """

    code = "RS051"
    name = "spike"
    family = "optimiser"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("grad.norm", "kl.old", "ratio.mean", "kl.ref", "loss.policy", "loss.total"),)
    params: tuple[Param, ...] = (
        Param("z", 6, "MADN of log10", 3, 30, "symptoms 22"),
        Param("factor", 3, "ratio", 1.5, 100, "symptoms 22"),
        Param("kl_watch", 0.05, "nats", 0, 10, "symptoms 22"),
        Param("kl_warn", 0.2, "nats", 0, 10, "symptoms 22"),
        Param("kl_critical", 1, "nats", 0, 100, "symptoms 22"),
        Param("ref_factor", 10, "ratio", 2, 100, "symptoms 5"),
        Param("ref_least", 0.1, "nats", 0, 10, "default of ours", "reference KL below it is never a jump"),
        Param("settle_points", 10, "points", 5, 50, "symptoms 0.3"),
        Param("fall_z", 5, "standard errors", 2, 20, "default of ours", "fall of the reward after a spike that settled"),
        Param("slope", 0.3, "decades per 100 steps", 0.05, 5, "symptoms 5", "steady growth of the gradient norm"),
        Param("grew", 2, "ratio", 1, 20, "default of ours", "newest ten points against the first ten of 100 steps"),
        Param("mismatch_z", 8, "spreads", 2, 50, "default of ours", "mismatch above its past that makes such growth a warn"),
        Param("loss_least", 1, "loss", 0, 1000, "default of ours", "a smaller loss is no jump, whatever it was before"),
    )
    hold_points = 10
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H5a", "metrics", optimiser.step_too_large),
        hypothesis("H5b", "config", optimiser.batch_reused),
        hypothesis("H5c", "tokens", tokens.few_tokens),
        hypothesis("H5e", "trajectories", optimiser.degenerate_batch),
        hypothesis("H5f", "trajectories", repeats.same_prompt, action="Compare the prompt ids of the batches of all spikes.", prior=0.8),
        hypothesis("H5g", "metrics", optimiser.scale_changed),
        hypothesis("H5h", "metrics", optimiser.critic_first, prior=0.8),
        hypothesis("H5d", "metrics", optimiser.values_finite, prior=0.8),
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
        yield from self._loss(view)
        yield from self._reference(view)

    def _gradient(self, view: RunView) -> Iterator[Finding]:
        p, metric = view.params, "grad.norm"
        series, hits, middle = optimiser.jumps(view, metric, p["z"], p["factor"])
        if not fresh(view, series) or not warmed_up(view, series):
            return
        recent = hits[-3:]
        if recent.any():
            severity: Severity = "warn" if int(recent.sum()) >= 2 else "watch"
            first = len(series) - len(recent) + int(recent.argmax())
            text = f"gradient norm {series.values[-3:].max():.3g} against {middle[first]:.3g} before"
            yield finding(view, self.name, severity, int(series.steps[first]), text, metric, "lr", "kl.old", "reward.mean", newest=1)
        settle = int(p["settle_points"])
        at = len(series) - 1 - settle
        if at >= 0 and hits[at]:
            yield from self._settled(view, series, at, float(middle[at]))
        yield from self._growth(view, series)

    def _settled(self, view: RunView, series: Series, at: int, before: float) -> Iterator[Finding]:
        """What became of a spike once the points to settle in are over."""
        after, onset = median(series.values[at + 1 :]), int(series.steps[at])
        stays = after > 2 * before
        fell = reward_fell(view, onset, 3.0 if stays else view.params["fall_z"])
        if not stays and fell is None:
            return
        levels = f"{after:.3g} over {len(series) - 1 - at} points after the spike, {before:.3g} before"
        text = f"gradient norm {'has not settled' if stays else 'settled'}: {levels}" + ("; the reward fell" if fell else "")
        yield finding(view, self.name, "critical", onset, text, "grad.norm", "reward.mean", hard=fell is not None)

    def _growth(self, view: RunView, series: Series) -> Iterator[Finding]:
        """A gradient norm that grows all the time. Alone it follows the number of varied groups and is a watch; with a mismatch
        that has left its past, which symptoms 5 wants looked at first, a warn."""
        p = view.params
        part = series.tail(window(series, 100, 100))
        early = median(part.values[:10])
        if len(part) < 40 or median(part.values[-10:]) <= p["grew"] * early:
            return
        found, _ = trend_of(view, "grad.norm", 100, 100, log=True)
        # Both halves must grow: a late jump is a spike or a step.
        if found.p >= 0.01 or found.slope * 100 <= p["slope"] or self._stepped(part):
            return
        engine = next((m for m in _MISMATCH if view.has(m)), None)
        drift = moved(view, engine, newest=3, floor=0.1) if engine else None
        apart = drift is not None and drift.z > p["mismatch_z"]
        onset = int(part.steps[min(since(part.values, p["grew"] * early, allowed=5), len(part) - 1)])
        text = f"gradient norm grows by {found.slope * 100:.2f} decades per 100 steps, {early:.3g} to {median(part.values[-10:]):.3g}"
        text += f"; {engine} is {drift.z:.1f} spreads above its past" if apart and drift is not None else ""
        yield finding(view, self.name, "warn" if apart else "watch", onset, text, "grad.norm", engine or "reward.mean", "reward.mean")

    def _stepped(self, part: Series) -> bool:
        half = len(part) // 2
        first, second = trend(part.steps[:half], part.values[:half]), trend(part.steps[half:], part.values[half:])
        return not (first.slope > 0 and second.slope > 0)

    def _update(self, view: RunView) -> Iterator[Finding]:
        p, series = view.params, points(view, "kl.old")
        if not fresh(view, series):
            return
        last = abs(series.values[-3:])
        severity: Severity | None = None
        for name, limit in (("watch", p["kl_watch"]), ("warn", p["kl_warn"]), ("critical", p["kl_critical"])):
            if int((last > limit).sum()) >= 2:
                severity, passed = name, limit  # type: ignore[assignment]
        if severity is None and last[-1] > p["kl_warn"]:
            severity, passed = ("warn" if last[-1] > p["kl_critical"] else "watch"), p["kl_warn"]
        if severity is not None:
            step = int(series.steps[-len(last) :][(last > passed).argmax()])
            text = f"KL of one update {last.max():.3g} nats"
            yield finding(view, self.name, severity, step, text, "kl.old", "lr", "grad.norm", "reward.mean", newest=1)

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

    def _loss(self, view: RunView) -> Iterator[Finding]:
        """A jump of the loss itself. Near 0 a loss of group advantages has no scale, so it must be large in itself too."""
        p, metric = view.params, "loss.policy" if view.has("loss.policy") else "loss.total"
        series, middle, spread = rolled(view, metric)
        if not fresh(view, series) or not warmed_up(view, series):
            return
        size, usual = abs(series.values[-3:]), abs(middle[-3:])
        high = (abs(series.values[-3:] - middle[-3:]) > p["z"] * spread[-3:]) & (size > p["factor"] * usual) & (size > p["loss_least"])
        if high.any():
            severity: Severity = "warn" if int(high.sum()) >= 2 else "watch"
            first = len(series) - len(high) + int(high.argmax())
            text = f"loss {series.values[-3:][size.argmax()]:.3g} against {middle[first]:.3g} before"
            yield finding(view, self.name, severity, int(series.steps[first]), text, metric, "grad.norm", "kl.old", "reward.mean", newest=1)

    def _reference(self, view: RunView) -> Iterator[Finding]:
        p, series = view.params, points(view, "kl.ref")
        if not fresh(view, series) or not warmed_up(view, series) or len(series) < 30:
            return
        last = sorted(series.values[-3:].tolist())[1]
        if last <= p["ref_least"]:
            return
        now = int(series.steps[-1])
        earlier = series.values[series.steps <= now - 20]
        if len(earlier) < 10 or last <= 2 * median(earlier[-3:]):
            return
        usual = median(series.values[(series.steps >= now - 100) & (series.steps <= now - 5)])
        if last > p["ref_factor"] * usual:
            text = f"reference KL {last:.3g} against {usual:.3g} in the 100 steps before, doubled within 20 steps"
            yield finding(view, self.name, "warn", int(series.steps[-3]), text, "kl.ref", "lr", "reward.mean", newest=3)
