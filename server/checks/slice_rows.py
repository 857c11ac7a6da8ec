"""What the rows of one slice say: equal responses scored before and after a step, and the prompts under its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ingest.store.connection import Columns
from server.checks.base import Observed
from server.checks.measure import mean_of
from server.queries.row_columns import HEAD_HASH, PROMPT_HASH, TEXT_HASH, VERIFIER_STATUS
from server.queries.view import RunView

_BACK = 200
"""Steps before the onset whose rows are looked at."""
_MOST_ROWS = 200_000


def reach(view: RunView, onset: int) -> tuple[int, int]:
    """First and last step whose rows a check reads: 200 steps before the onset and all since, fewer where steps hold many rows."""
    size = max(mean_of(view, "fact.n") or 1.0, 1.0)
    steps = int(min(_BACK, _MOST_ROWS / size / 2))
    return onset - steps, min(view.step, onset + steps)


def rows_of(view: RunView, name: str | None, first: int, last: int, columns: Sequence[str], split: str = "train") -> Columns:
    """Rows of one slice (None: of all) in steps first..last; columns as view.trajectories takes them, and those of row_columns."""
    rows = view.trajectories(first, last, ("task", *columns), split=split)
    if name is None:
        return rows
    here = rows["task"].astype(str) == name
    return {column: values[here] for column, values in rows.items()}


class Pairs(NamedTuple):
    """Equal responses to the same prompt, scored before and after the onset, and twice in one step."""

    n: int
    """Prompt and response on both sides."""
    differ: float
    """0..1, of those, whose mean reward differs by more than 5 % of the range."""
    twins: tuple[int, int]
    """Prompt and response twice or more in one step, before and since."""
    conflict: tuple[float, float]
    """0..1, of those, whose rewards differ."""

    @property
    def disagree(self) -> bool:
        """Scores depend on the date, or on nothing: enough pairs, and far more contradictions than before."""
        before, since = self.conflict
        return (self.n >= 3 and self.differ >= 0.5) or (self.twins[1] >= 10 and since > 0.1 and since > 3 * before + 0.02)

    @property
    def agree(self) -> bool:
        """Enough pairs on both sides, scored alike."""
        return self.n >= 5 and self.differ <= 0.1 and self.conflict[1] < 0.05

    @property
    def observed(self) -> Observed:
        """Numbers for the page."""
        return {
            "pairs": self.n,
            "differ": self.differ,
            "twins": self.twins[1],
            "conflict_before": self.conflict[0],
            "conflict": self.conflict[1],
        }

    @property
    def note(self) -> str:
        """One clause with the numbers."""
        return (
            f"{self.differ:.0%} of {self.n} equal responses score otherwise than before; {self.conflict[1]:.0%} of {self.twins[1]} "
            f"contradict each other within a step ({self.conflict[0]:.0%} of {self.twins[0]} before)"
        )


def pairs(view: RunView, name: str | None, onset: int) -> Pairs | None:
    """Equal responses of a slice before and since a step; None where no rows with prompt, response and reward are written."""
    rows = rows_of(view, name, *reach(view, onset), ("reward", VERIFIER_STATUS, PROMPT_HASH, TEXT_HASH))
    reward = rows["reward"].astype(np.float64)
    item, text = (np.ma.filled(np.ma.asarray(rows[c]).astype(np.float64), np.nan) for c in ("item", "text"))
    keep = np.isfinite(reward) & ~np.isnan(item) & ~np.isnan(text) & (rows["status"].astype(str) == "ok")
    step, reward, item, text = rows["step"][keep], reward[keep], item[keep], text[keep]
    if not (step < onset).any() or not (step >= onset).any():
        return None
    least = 0.05 * max(float(np.ptp(reward)), 1e-9)
    _, pair = np.unique(np.stack([item, text]), axis=1, return_inverse=True)
    pair = pair.reshape(-1)
    means = []
    for side in (step < onset, step >= onset):
        with np.errstate(invalid="ignore"):
            means.append(np.bincount(pair[side], reward[side], pair.max() + 1) / np.bincount(pair[side], minlength=pair.max() + 1))
    both = np.isfinite(means[0]) & np.isfinite(means[1])
    differ = float((np.abs(means[1] - means[0])[both] > least).mean()) if both.any() else 0.0
    counts, shares = zip(*(_twins(step[side], pair[side], reward[side], least) for side in (step < onset, step >= onset)), strict=True)
    return Pairs(int(both.sum()), differ, counts, shares)


def _twins(step: np.ndarray, pair: np.ndarray, reward: np.ndarray, least: float) -> tuple[int, float]:
    _, of = np.unique(np.stack([step, pair]), axis=1, return_inverse=True)
    of = of.reshape(-1)
    low, high = np.full(of.max() + 1, np.inf), np.full(of.max() + 1, -np.inf)
    np.minimum.at(low, of, reward)
    np.maximum.at(high, of, reward)
    several = np.bincount(of) > 1
    return int(several.sum()), float((high - low > least)[several].mean()) if several.any() else 0.0


class Heads(NamedTuple):
    """How a slice's prompts begin since a step, against before."""

    known: float
    """0..1, rows since then that begin as a row before did."""
    usual: float
    """0..1, the same of the second half of the rows before against the first half."""
    renamed: float
    """0..1, prompts of the slice since then that were seen before, under another task."""
    renamed_n: int
    """Prompts since then that were seen before under any task."""


def heads(view: RunView, name: str | None, onset: int) -> Heads | None:
    """How the prompts of a slice begin before and since a step; None where there are too few rows on either side."""
    rows = view.trajectories(*reach(view, onset), ("task", PROMPT_HASH, HEAD_HASH))
    item, head = (np.ma.filled(np.ma.asarray(rows[c]).astype(np.float64), np.nan) for c in ("item", "head"))
    written, task, step = ~np.isnan(head), rows["task"].astype(str), rows["step"]
    here = written & (task == name)
    before, since = here & (step < onset), here & (step >= onset)
    if int(before.sum()) < 20 or int(since.sum()) < 10:
        return None
    middle = np.median(step[before])
    early, late = before & (step < middle), before & (step >= middle)
    usual = float(np.isin(head[late], head[early]).mean()) if early.any() else 0.0
    new = np.unique(item[since])
    past = written & (step < onset)
    returning = new[np.isin(new, item[past])]
    elsewhere = returning[~np.isin(returning, item[before])]
    share = len(elsewhere) / len(returning) if len(returning) else 0.0
    return Heads(float(np.isin(head[since], head[before]).mean()), usual, share, len(returning))
