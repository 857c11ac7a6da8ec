"""RS181 context-rewritten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import server.checks.context as context
from server.checks.active import held, near
from server.checks.examples import with_examples
from server.checks.measure import beyond_for, finding, fresh, level, points
from server.detectors.level import beyond
from server.queries.view import RunView
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_EMPTY = "fact.context.empty_delta_frac"
_SEGMENTS = "fact.context.segments"


class ContextRewritten:
    """Prompts of later turns do not begin with the tokens of earlier ones, so that the trainer trains on another context.

    What it observes:
        The prefix test: the prompt of each turn must begin with prompt and output of the turn before, token by token. Any trajectory
        that fails it is a warn, and so is one whose trained tokens differ from what the engine was given; it is deterministic and needs
        no history. Turns whose prompt is no longer than what came before although something was observed between: critical, for what
        was observed is lost. Where each turn is trained on with its own context it is noted, with the pieces a trajectory falls into.

    Why it matters:
        Log-probs of later turns belong to another context than the one they were sampled in: the ratio of trainer and engine is wrong
        from the second turn on. Cut into pieces, a long trajectory counts many times.

    Hypotheses:
        H18a the template removes thinking: differences begin where thinking opens. H18b re-tokenisation: same text, other ids.
        H18c tool calls are written differently: same characters, other white space or order.
        H18d compaction: much dropped and something put in. H18e cut from the left: much dropped and nothing put in.
        H18f different templates: log-probs agree in the first turn and not after it.

    When it is wrong:
        Training turn by turn, with recorded segments, is meant to rewrite: the configuration says it, or the trained tokens equal what
        the engine was given. Contexts that are compacted on purpose fail the test as well, and then need segments.

    Sources:
        symptoms 18; verl issue 6854, prime-rl issue 1334.
    """

    code = "RS181"
    name = "context-rewritten"
    family = "integrity"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = ((context.REWRITTEN, context.DIFFERS),)
    params: tuple[Param, ...] = (
        Param("share", 0, "0..1", 0, 1, "symptoms 18", "trajectories that fail the test, above which it is told"),
        Param("points", 3, "points", 1, 20, "default of ours", "newest points looked at"),
        Param("held", 2, "points", 1, 20, "default of ours", "of these, beyond the limit, so that one odd row is no fault"),
        Param("at_once", 0.05, "0..1", 0, 1, "default of ours", "share that is told from a single point"),
        Param("empty", 0.01, "0..1", 0, 1, "default of ours", "turns with nothing new in their prompt, above which it is critical"),
        Param("segments", 1.5, "ratio", 1, 100, "symptoms 18", "pieces a trajectory, above which turn-by-turn training is noted"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H18a", "tokens", context.think_removed),
        hypothesis("H18b", "tokens", context.retokenised),
        hypothesis("H18c", "tokens", context.reserialised),
        hypothesis("H18d", "tokens", context.compacted),
        hypothesis("H18e", "tokens", context.cut_from_left),
        hypothesis("H18f", "tokens", context.mismatch_after_first_turn, prior=0.9),
    )
    next_checks = SYMPTOMS["context-rewritten"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gravest of what fails; where turns are trained apart, the pieces only."""
        share = view.params["share"]
        if not near(view, self.name, lambda: (held(view, m, share, 1, 1) for m in (context.REWRITTEN, context.DIFFERS))):
            return ()
        if not any(self._holds(view, metric, share) for metric in (context.REWRITTEN, context.DIFFERS)):
            return ()
        signs = self._apart(view) if context.trained_apart(view) else self._joined(view)
        found = max(signs, key=lambda f: SEVERITIES.index(f.severity), default=None)
        return () if found is None else (with_examples(view, found, "fact.context.rewritten.example"),)

    def _holds(self, view: RunView, metric: str, limit: float) -> bool:
        series, p = points(view, metric), view.params
        if not fresh(view, series):
            return False
        return beyond(series.values, limit, int(p["points"])) >= p["held"] or float(series.values[-1]) > max(limit, p["at_once"])

    def _joined(self, view: RunView) -> Iterator[Finding]:
        p = view.params
        if self._holds(view, _EMPTY, p["empty"]):
            share = level(view, _EMPTY) or 0.0
            text = f"{share:.0%} of the turns begin with a prompt that is no longer than what came before, although something was observed"
            yield self._told(view, _EMPTY, p["empty"], text, "critical")
        for metric, text in (
            (context.REWRITTEN, "of the trajectories prompts do not begin with the tokens of the turn before"),
            (context.DIFFERS, "of the trajectories the trained tokens are not what the engine was given"),
        ):
            if self._holds(view, metric, p["share"]):
                yield self._told(view, metric, p["share"], f"in {level(view, metric) or 0:.1%} {text}", "warn")

    def _told(self, view: RunView, metric: str, limit: float, text: str, severity: Severity) -> Finding:
        onset = beyond_for(view, metric, limit, allowed=1)
        others = [m for m in (context.REWRITTEN, context.DIFFERS, _SEGMENTS, "mismatch.logprob_diff.mean") if m != metric]
        return finding(view, self.name, severity, onset, f"{text}, since step {onset}", metric, *others, newest=3, hard=True)

    def _apart(self, view: RunView) -> Iterator[Finding]:
        pieces = level(view, _SEGMENTS)
        if pieces is None or pieces <= view.params["segments"]:
            return
        onset = beyond_for(view, _SEGMENTS, view.params["segments"])
        summary = (
            f"a trajectory falls into {pieces:.1f} pieces that are trained on apart, since step {onset}: long ones weigh more by as much"
        )
        yield finding(view, self.name, "info", onset, summary, _SEGMENTS, context.REWRITTEN, newest=3)
