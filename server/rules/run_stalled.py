"""RS162 run-stalled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import server.checks.stall as stall
from server.detectors.middle import median
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Status, hypothesis
from server.symptoms import SYMPTOMS


class RunStalled:
    """The run stands still: no new step for far longer than its own rhythm.

    What it observes:
        Live: no row of a followed run for max(10 min, 5 usual steps, twice its longest earlier pause): critical, opened by the clock and
        closed by the next step. Looking back over recorded times, a pause of that length between two steps of one attempt is noted (info):
        the run went on by itself.

    Why it matters:
        Every GPU of the job is paid for and idle, and nobody is told: no curve moves.

    Hypotheses:
        H16c the verifier blocks: it took longer and longer before. H16b one request never ends: so did generation. H16d weight
        synchronisation hangs. H16g an environment or a tool does not answer.

    When it is wrong:
        A long evaluation or checkpoint, the first time; the longest earlier pause raises the limit afterwards. A run that has reached
        its planned steps has ended. Files that are written only at checkpoints tell nothing about the rhythm.

    Sources:
        symptoms 16: 10 minutes and 5 steps; verl issue 6673 is such a stall.
    """

    code = "RS162"
    name = "run-stalled"
    family = "cost"
    status: Status = "preview"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("fact.wall_time",),)
    params: tuple[Param, ...] = (
        Param("least_seconds", 600, "seconds", 10, 86400, "symptoms 16"),
        Param("steps", 5, "usual steps", 1.5, 100, "symptoms 16"),
        Param("pauses", 2, "longest earlier pauses", 1, 10, "default of ours", "evaluations and checkpoints are part of the rhythm"),
    )
    hold_points = 1
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H16c", "trajectories", stall.verifier_slowing),
        hypothesis("H16b", "metrics", stall.generation_slowing),
        hypothesis("H16d", "metrics", stall.sync_slowing),
        hypothesis("H16g", "action", action="Ask the environment or the tool servers whether a call is still open."),
    )
    next_checks = SYMPTOMS["run-stalled"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """A pause before this step that the clock would have called a stall."""
        start = view.data.attempt_starts.get(view.attempt, view.step)
        times = view.series("fact.wall_time").since(start)
        if len(times) < 3 or times.steps[-1] != view.step:
            return ()
        limit = self.limit(view, times.tail(200).values[:-1].tolist())
        pause = float(times.values[-1] - times.values[-2])
        if limit is None or pause <= limit:
            return ()
        before = int(times.steps[-2])
        summary = f"nothing for {pause / 60:.0f} min after step {before}, above its limit of {limit / 60:.0f} min; then it went on"
        return (Finding(self.name, "info", before, summary, "fact.wall_time"),)

    def limit(self, view: RunView, times: Sequence[float]) -> float | None:
        """Seconds without a row after which the run stands still, from the times (Unix seconds) of its steps; None below two of them."""
        pauses = [b - a for a, b in pairwise(times) if b >= a]
        if not pauses:
            return None
        p = view.params
        return max(
            p["least_seconds"], p["steps"] * median(pauses[-50:]), p["pauses"] * max(pauses) if max(pauses) > p["least_seconds"] else 0.0
        )
