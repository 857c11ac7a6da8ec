"""The vocabulary: every canonical metric, and the one place where a trainer's key gets its meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from ingest.schema.aliases import lookup
from ingest.schema.metric_table import TABLE, Metric

__all__ = ["METRICS", "Meaning", "Metric", "apply_transform", "eval_parts", "metric", "primary_eval", "resolve"]

METRICS: dict[str, Metric] = {row.id: row for row in TABLE}
"""Every metric and pattern by id, in the order of the vocabulary."""


SAMPLED_SUFFIXES = ("__MIN", "__MAX")
"""Endings of a wandb chart export's extremes."""


class Meaning(NamedTuple):
    """What a source key means; metric None: unknown, stored and plotted under its own name."""

    metric: str | None
    transform: str | None = "identity"
    estimator: str | None = None
    aggregation: str | None = None
    unit: str | None = None


_PLACE = re.compile(r"\{(\w+)\}")
# The more literal text a pattern has, the earlier it is asked: eval.{task}.length.mean before eval.{task}.score.
_PATTERNS = [
    (re.compile("^" + _PLACE.sub(r"(?P<\1>.+)", re.sub(r"([.@])", r"\\\1", row.id)) + "$"), row)
    for row in sorted((r for r in TABLE if "{" in r.id), key=lambda r: -len(_PLACE.sub("", r.id)))
]


@lru_cache(maxsize=8192)
def metric(id: str) -> Metric | None:
    """The metric of that id, patterns filled in (`reward.fn.format.mean`); None for an unknown id."""
    known = METRICS.get(id)
    if known is not None:
        return None if "{" in id else known
    for pattern, row in _PATTERNS:
        found = pattern.match(id)
        if found:
            return row._replace(id=id, title=row.title.format(**found.groupdict()))
    return None


def resolve(key: str, framework: str, version: str | None) -> Meaning:
    """The meaning of a source key as that framework logs it.

    version is what the reader could tell about the trainer: its release (`0.29.0`), verl's trainer generation (`v0`,
    `v1`, `fully_async`), or, for plain and native files, whose names the file uses (`verl v1`, `trl`). None: unknown;
    then a key whose meaning changed between versions keeps its own name (metric None) and no rule uses it.
    """
    if key.endswith(SAMPLED_SUFFIXES):
        # Extremes of the values behind one sampled point of a chart: no rule may take them for the metric itself.
        return resolve(key[:-5], framework, version)._replace(metric=None, aggregation=f"sampled_{key[-3:].lower()}")
    if framework == "native":
        own = metric(_NATIVE_ALIASES.get(key, key))
        if own is not None:
            return Meaning(own.id, unit=own.unit)
    alias = lookup(key, framework, version)
    if alias is None:
        return Meaning(None)
    known = metric(alias.metric)
    return Meaning(alias.metric, alias.transform, alias.estimator, alias.aggregation, known.unit if known else None)


_NATIVE_ALIASES = {"eval.length.mean": "eval.overall.length.mean"}


def apply_transform(transform: str | None, value: float) -> float:
    """A logged value in the unit of its metric; transforms are named in the series."""
    if transform == "negate":
        return -value
    if transform == "x-1":
        return value - 1.0
    if transform == "1-x":
        return 1.0 - value
    if transform == "x/100":
        return value / 100.0
    return value


_EVAL = re.compile(
    r"^eval\.(?P<task>.+?)\."
    r"(?P<metric>score|(?:mean|best|worst|maj|pass|std)@\d+|length\.mean|truncated_frac|tokens|attempts|tool_calls)$"
)


def eval_parts(id: str) -> tuple[str, str] | None:
    """(task, metric) of an evaluation id; the task may hold dots, slashes and `@`. None for any other id."""
    found = _EVAL.match(id)
    return (found.group("task"), found.group("metric")) if found else None


_INDEPENDENT = re.compile(r"acc|correct|exact|match|solve|answer|pass", re.IGNORECASE)


def primary_eval(ids: Iterable[str]) -> str | None:
    """The evaluation that held-out rules use, out of a run's metric ids; None: the run has no score of an evaluation.

    In this order: eval.heldout.score; one marked eval.primary.{task}; a score whose task says that it counts right
    answers (TRL logs one a reward function, among them those that reward a format or a length); eval.overall.score;
    another task's score; mean@k (smallest k). Of equals the first in name order, so that the choice never depends on
    the order of arrival.
    """
    known = sorted(set(ids))
    if "eval.heldout.score" in known:
        return "eval.heldout.score"
    marked = [i for i in known if i.startswith("eval.primary.")]
    scores = [i for i in known if (parts := eval_parts(i)) and parts[1] == "score"]
    scores.sort(key=lambda i: (not _INDEPENDENT.search(i.removesuffix(".score")), i != "eval.overall.score", i))
    means = [i for i in known if (parts := eval_parts(i)) and parts[1].startswith("mean@")]
    means.sort(key=lambda i: (int(i.rsplit("@", 1)[1]), i))
    return next(iter([*marked, *scores, *means]), None)
