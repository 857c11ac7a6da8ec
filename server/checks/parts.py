"""The parts of a reward: which of them made it rise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import Shift, finite, reward_metric, shift
from server.queries.view import RunView

_ACCURACY = re.compile(r"acc|correct|exact|match|solve|answer|outcome|verif|math|unit_?test|tests?_pass|success|gold", re.IGNORECASE)
_FORMAT = re.compile(
    r"format|style|tag|xml|json|boxed|structure|template|syntax|marker|length|brev|concise|verbos|language|think|reason|repeti|parse",
    re.IGNORECASE,
)


class Part(NamedTuple):
    """One part of the reward. kind: accuracy, format or other, by its name."""

    name: str
    metric: str
    kind: str
    weight: float


def kind_of(name: str) -> str:
    """What a part rewards, by its name; format speaks first: `answer_format` is one."""
    return "format" if _FORMAT.search(name) else "accuracy" if _ACCURACY.search(name) else "other"


def parts_of(view: RunView) -> list[Part]:
    """The parts as logged, else as the rows have them, each with its weight in the reward (1 where no configuration says it)."""
    key = ("parts", view.attempt)
    found: list[Part] | None = view.data.memo.get(key)
    if found is None:
        names = view.data.metrics()
        logged = {
            m.removeprefix("reward.fn.").removesuffix(".mean"): m for m in names if m.startswith("reward.fn.") and m.endswith(".mean")
        }
        rows = {m.removeprefix("fact.reward.part."): m for m in names if m.startswith("fact.reward.part.")}
        chosen = logged if len(logged) > 1 else rows or logged
        weights = _weights(view, list(chosen))
        found = view.data.memo[key] = [Part(n, m, kind_of(n), weights.get(n, 1.0)) for n, m in sorted(chosen.items())]
    return found


def _weights(view: RunView, names: list[str]) -> Mapping[str, float]:
    """reward_weights of the configuration: by name, or in the order of the reward functions where these are named too."""
    raw = view.run.raw_config
    given = raw.get("reward_weights")
    if isinstance(given, dict):
        return {n: float(w) for n, w in given.items() if isinstance(w, (int, float))}
    functions = raw.get("reward_funcs") or raw.get("reward_functions")
    if isinstance(given, list) and isinstance(functions, list) and len(given) == len(functions):
        return {str(n): float(w) for n, w in zip(functions, given, strict=True) if isinstance(w, (int, float)) and str(n) in names}
    return {}


class Explained(NamedTuple):
    """How a rise of the reward is made up. share: 0..1+, what parts of format gave of it."""

    reward: Shift
    share: float
    formats: dict[str, Shift]
    accuracy: dict[str, Shift]


def explained(view: RunView, old: tuple[int, int], new: tuple[int, int]) -> Explained | None:
    """The reward's rise between two spans by its parts; None without a rise, without parts of both kinds, or without points."""
    known = parts_of(view)
    formats, accuracy = ([part for part in known if part.kind == kind] for kind in ("format", "accuracy"))
    metric = reward_metric(view)
    if not formats or not accuracy or metric is None:
        return None
    moves = {part.name: (part, found) for part in known if (found := shift(view, part.metric, old, new)) is not None}
    gain = shift(view, metric, old, new)
    if gain is None or any(part.name not in moves for part in (*formats, *accuracy)):
        return None
    by_format = sum(part.weight * found.change for part, found in moves.values() if part.kind == "format")
    # The reward may be shaped or scaled after its parts were added: then their own sum is what they explain.
    total = sum(part.weight * found.change for part, found in moves.values())
    whole = gain.change if abs(gain.change - total) <= 0.25 * max(abs(total), 1e-9) else total
    if gain.change <= 0 or whole <= 0:
        return None
    picked = ({p.name: moves[p.name][1] for p in group} for group in (formats, accuracy))
    return Explained(gain, by_format / whole, *picked)


def format_explains(view: RunView, finding: Finding) -> CheckResult:
    """A gain in format only: its parts make up the reward's rise since the onset, and accuracy is flat or falls."""
    known = parts_of(view)
    accuracy = [part for part in known if part.kind == "accuracy"]
    if not accuracy or not any(part.kind == "format" for part in known):
        return cannot("format_explains", "reward.fn.format.mean", "reward.fn.accuracy.mean", "reward_parts")
    span = max(30, view.step - finding.onset_step + 1)
    old, new = (finding.onset_step - span, finding.onset_step - 1), (finding.onset_step, view.step)
    found = explained(view, old, new)
    moves = [m for part in accuracy if (m := shift(view, part.metric, old, new)) is not None]
    if not moves:
        return cannot("format_explains", accuracy[0].metric)
    best = max(move.z for move in moves)
    share = found.share if found is not None else None
    length = shift(view, "length.response.mean", old, new) or shift(view, "fact.length.mean", old, new)
    against = _opposed(view, known, old[0])
    observed = {"format_share": share, "accuracy_z": best, "length_change": length.change if length else None, "correlation": against}
    note = (
        f"parts of format make up {share:.0%} of the rise; " if share is not None else "the reward did not rise; "
    ) + f"accuracy {best:+.1f} errors"
    return answer("format_explains", share is not None and share > 0.7 and best < 1, best > 3 or (share or 0) < 0.3, observed, note)


def _opposed(view: RunView, known: list[Part], first: int) -> float | None:
    """Correlation of the sums of format and of accuracy from a step on; None with fewer than 10 common points."""
    sums = []
    for kind in ("format", "accuracy"):
        chains = [finite(view.series(part.metric)).since(first) for part in known if part.kind == kind]
        if not chains or any(len(c) != len(chains[0]) for c in chains) or len(chains[0]) < 10:
            return None
        sums.append(np.sum([c.values for c in chains], axis=0))
    if len(sums[0]) != len(sums[1]) or not np.ptp(sums[0]) or not np.ptp(sums[1]):
        return None
    return float(np.corrcoef(sums[0], sums[1])[0, 1])


def accuracy_never_earned(view: RunView, finding: Finding) -> CheckResult:
    """A pattern that never matches: a part of accuracy is exactly 0 from the first step."""
    accuracy = [part for part in parts_of(view) if part.kind == "accuracy"]
    if not accuracy:
        return cannot("accuracy_never_earned", "reward.fn.accuracy.mean", "reward_parts")
    lowest = {part.name: float(finite(view.series(part.metric)).values.max(initial=0.0)) for part in accuracy}
    dead = [name for name, value in lowest.items() if value == 0.0]
    note = f"{', '.join(dead)} was never above 0" if dead else "every part of accuracy was earned at some step"
    return answer("accuracy_never_earned", bool(dead), not dead, lowest, note)
