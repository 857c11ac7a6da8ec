"""docs/metrics.md, written from the vocabulary: `python -m ingest.schema.document [--check] [PATH]`."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from ingest.schema.aliases import PLAIN, TRL, VERL, VERL_BY_TRAINER, Alias
from ingest.schema.metrics import METRICS, Metric

_INTRO = """# Metrics

Written from `ingest/schema/metric_table.py` and `ingest/schema/aliases.py`; do not edit by hand.

One name has one definition. A key that is not listed is stored and can be plotted under its own name. A key whose meaning
changed between versions of its trainer keeps its own name until the version is known.
"""


def metrics_markdown() -> str:
    """The page: one table a family with id, unit, range, definition and the trainers' spellings."""
    parts = [_INTRO]
    for family, rows in groupby(METRICS.values(), key=lambda row: row.family):
        parts.append(f"\n## {family.capitalize()}\n\n| metric | unit | range | definition | logged as |\n|---|---|---|---|---|\n")
        parts.extend(_row(row) for row in rows)
    return "".join(parts)


def _row(row: Metric) -> str:
    low, high = row.range
    bounds = "any" if low is None and high is None else f"{'' if low is None else f'{low:g}'} .. {'' if high is None else f'{high:g}'}"
    return f"| `{row.id}` | {row.unit} | {bounds} | {row.definition} | {_spellings(row.id)} |\n"


def _spellings(id: str) -> str:
    """Every spelling of a metric, with its trainer; a transform and an estimator are named where there is one."""
    found = [f"verl `{key}`{_about(alias)}" for key, alias in VERL.items() if alias.metric == id]
    for key, by_trainer in VERL_BY_TRAINER.items():
        found += [f"verl {trainer} `{key}`" for trainer, alias in by_trainer.items() if alias.metric == id]
    found += [f"TRL `{key}`{_about(alias)}" for key, alias in TRL.items() if alias.metric == id]
    found += [f"`{key}`" for key, alias in PLAIN.items() if alias.metric == id and key not in TRL]
    return ", ".join(found)


def _about(alias: Alias) -> str:
    notes = [n for n in (alias.estimator, None if alias.transform == "identity" else alias.transform) if n]
    return f" ({', '.join(notes)})" if notes else ""


def main(arguments: list[str]) -> int:
    """Writes the page, or with --check says whether it is current (exit code 1: it is not)."""
    check = "--check" in arguments
    places = [a for a in arguments if not a.startswith("--")]
    path = Path(places[0] if places else "docs/metrics.md")
    text = metrics_markdown()
    if not check:
        path.write_text(text, encoding="utf-8")
        return 0
    current = path.exists() and path.read_text(encoding="utf-8") == text
    if not current:
        sys.stderr.write(f"{path} is not what the vocabulary says. Run: python -m ingest.schema.document {path}\n")
    return 0 if current else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
