"""What a rule can be judged on: which of its needs a run has logged, and at which steps it has a point."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np

from server.queries.view import RunView
from server.rules.base import Rule

_CONFIG = "config."


def missing(rule: Rule, view: RunView) -> list[str]:
    """Of each set of needs that nothing fulfils up to the step, the first alternative; empty: the rule can be judged."""
    return [alternatives[0] for alternatives in rule.needs if not any(_known(name, view) for name in alternatives)]


def has_point(rule: Rule, view: RunView) -> bool:
    """Whether the judged step itself counts for the rule: every set of its needs has a value there."""
    return all(any(_at_step(name, view) for name in alternatives) for alternatives in rule.needs)


def _known(name: str, view: RunView) -> bool:
    if name.startswith(_CONFIG):
        return view.config.get(name.removeprefix(_CONFIG)) is not None
    return any(view.has(metric) for metric in _matching(name, view))


def _at_step(name: str, view: RunView) -> bool:
    if name.startswith(_CONFIG):
        return view.config.get(name.removeprefix(_CONFIG)) is not None
    for metric in _matching(name, view):
        steps = view.data.chain(metric, view.attempt).steps
        position = int(np.searchsorted(steps, view.step))
        if position < steps.size and steps[position] == view.step:
            return True
    return False


def _matching(name: str, view: RunView) -> Sequence[str]:
    if "*" not in name:
        return (name,)
    key = ("needs", name)
    found: list[str] | None = view.data.memo.get(key)
    if found is None:
        found = view.data.memo[key] = [metric for metric in view.data.metrics() if fnmatchcase(metric, name)]
    return found
