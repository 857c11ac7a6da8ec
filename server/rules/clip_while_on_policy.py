"""RS072 clip-while-on-policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import server.checks.engine as engine
import server.checks.onpolicy as onpolicy
from server.checks.measure import finding, fresh, points
from server.detectors.level import beyond, since
from server.queries.view import RunView
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class _Test(NamedTuple):
    metric: str
    rest: float
    limit: str
    severity: Severity
    text: str


_CLIPS = ("clip.frac", "clip.outside_frac")
_RATIO = "ratio.mean"
_SEQUENCE_CLIPS = frozenset({"gspo", "cispo"})
"""Algorithms whose clip interval is narrower than rounding or of another kind: their clip fraction has no limit here."""


class ClipWhileOnPolicy:
    """The update's ratio is not 1 although a batch is used once and no sample is stale.

    What it observes:
        Only where a batch is used for one update (by the configuration; without one, where the first 20 points were exactly on-policy)
        and no sample lags behind the trainer: two of the last three points with clipped tokens, watch, above .001, warn; the mean
        ratio off 1 by more than .001, warn, by more than .05, critical; the KL between old and new policy off 0 by more than .0001,
        warn, unless it was never 0: then it is measured after the update. Where the old log-probs are the engine's, rounding moves the KL
        and single tokens: then only the ratio and more than .001 clipped count. Never the clip fraction of GSPO and CISPO.

    Why it matters:
        Nothing was updated yet, so every deviation is an error of the log-probs themselves, and the clip then drops wrong tokens.

    Hypotheses:
        H7e batch-variant kernels, or dropout or other precision in one pass: update and old log-probs of the trainer differ, while one
        of them fits the engine's. Mean errors hide it; the share of tokens outside 0.9 to 1.1 shows it.
        H7a accumulated numerics, where the engine's log-probs are the old ones: a mismatch that grew.
        H5b several updates a batch: read from the configuration. H7d temperature or truncation in one of two passes: constant sign.
        H7g misaligned rows. H7i another context. H7f wrong weights in the engine. H7b from the first step. H7x text broke first.

    When it is wrong:
        Several updates a batch that no configuration tells. Log-prob passes in lower precision that are known and accepted.

    Sources:
        symptoms 7 (test i) and 22: slime asserts a KL below 1e-8 at the first optimiser step, AReaL a weight of exactly 1; trl issue
        6789 (8 % of tokens outside 0.9 to 1.1 at a mean error of 1e-4).
    """

    code = "RS072"
    name = "clip-while-on-policy"
    family = "optimiser"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = ((*_CLIPS, _RATIO, "kl.old"),)
    params: tuple[Param, ...] = (
        Param("points", 3, "points", 1, 20, "default of ours", "newest points looked at"),
        Param("held", 2, "points", 1, 20, "default of ours", "of these, beyond the limit"),
        Param("clipped", 0.001, "0..1", 0, 1, "default of ours", "share of clipped tokens that is a warn; any is a watch (symptoms 22)"),
        Param("ratio", 0.001, "ratio", 0, 1, "symptoms 7", "distance of the mean ratio from 1 that is a warn"),
        Param("ratio_critical", 0.05, "ratio", 0, 10, "symptoms 22"),
        Param("kl", 0.0001, "nats", 0, 1, "symptoms 7", "distance of the KL from 0 that is a warn"),
        Param("none", 0, "0..1", 0, 0.1, "symptoms 7", "share of clipped tokens above which it is a watch"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H7e", "tokens", onpolicy.trainer_disagrees),
        hypothesis("H7a", "metrics", onpolicy.engine_drifted),
        hypothesis("H5b", "config", onpolicy.batch_reused),
        hypothesis("H7d", "config", onpolicy.transform_differs, prior=0.9),
        hypothesis("H7g", "tokens", engine.rows_misaligned),
        hypothesis("H7i", "tokens", onpolicy.mismatch_of_others),
        hypothesis("H7f", "metrics", onpolicy.mismatch_after_sync),
        hypothesis("H7b", "metrics", onpolicy.mismatch_from_start, prior=0.8),
        hypothesis("H7x", "metrics", engine.text_broke_first, prior=0.8),
        hypothesis("H7c", "action", action="Compare token ids of one prompt in both passes, position by position."),
        hypothesis("H7h", "action", action="Repeat on a dense model, or replay the routing of the first pass in the second."),
    )
    next_checks = SYMPTOMS["clip-while-on-policy"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gravest deviation of the ratio from 1, where it must be 1."""
        if view.step not in self._suspects(view) or not onpolicy.must_be_one(view):
            return ()
        signs = [sign for test in self._tests(view) if (sign := self._beyond(view, test)) is not None]
        return (max(signs, key=lambda f: SEVERITIES.index(f.severity)),) if signs else ()

    def _suspects(self, view: RunView) -> frozenset[int]:
        """Steps of the chain at which some test's newest points lie beyond its limit: hardly any of a sound run, and read once."""
        key = (self.code, view.attempt, *view.params.values())
        found: frozenset[int] | None = view.data.memo.get(key)
        if found is None:
            size, held = int(view.params["points"]), view.params["held"]
            steps: set[int] = set()
            for metric, rest, limit in ((_RATIO, 1.0, "ratio"), ("kl.old", 0.0, "kl"), *((clip, 0.0, "none") for clip in _CLIPS)):
                steps.update(onpolicy.off_steps(view.data.chain(metric, view.attempt), rest, view.params[limit], size, held))
            found = view.data.memo[key] = frozenset(steps)
        return found

    def _tests(self, view: RunView) -> Iterator[_Test]:
        exact = not onpolicy.from_engine(view)
        yield _Test(_RATIO, 1.0, "ratio_critical", "critical", "the mean ratio is off 1 by")
        yield _Test(_RATIO, 1.0, "ratio", "warn", "the mean ratio is off 1 by")
        if exact and onpolicy.kl_is_of_first_pass(view, view.params["kl"]):
            yield _Test("kl.old", 0.0, "kl", "warn", "the KL between old and new policy is off 0 by")
        if view.run.algorithm in _SEQUENCE_CLIPS or view.config.get("ratio_level") == "sequence":
            return
        for metric in _CLIPS:
            yield _Test(metric, 0.0, "clipped", "warn", "the share of clipped tokens is")
            if exact:
                yield _Test(metric, 0.0, "none", "watch", "the share of clipped tokens is")

    def _beyond(self, view: RunView, test: _Test) -> Finding | None:
        series, p = points(view, test.metric), view.params
        if not fresh(view, series):
            return None
        off = onpolicy.distance(series, test.rest)
        if beyond(off.values, p[test.limit], int(p["points"])) < p["held"]:
            return None
        at = since(off.values, p[test.limit], allowed=2)
        onset = int(off.steps[at]) if at < len(off) else view.step
        now = float(sorted(off.values[-int(p["points"]) :])[-int(p["held"])])
        summary = f"{test.text} {now:.2g} since step {onset}, with one update a batch and fresh samples it is {p[test.limit]:g} at most"
        others = [m for m in ("clip.frac", "kl.old", "ratio.max", "mismatch.logprob_diff.mean", "reward.mean") if m != test.metric]
        return finding(view, self.name, test.severity, onset, summary, test.metric, *others, hard=test.severity == "critical")
