"""The rules' pages in docs/rules, written from the rules themselves: docstring, needs, parameters, hypotheses, next checks."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from server.rules import RULES
from server.rules.base import Hypothesis, Param, Rule
from server.symptoms import SYMPTOMS

FOLDER = Path("docs/rules")
HEADINGS = ("What it observes", "Why it matters", "Hypotheses", "When it is wrong", "Sources")
"""The sections of a rule's docstring, in this order, after its summary line."""

_NOTE = "Written from the rule's code by `rlvitals rules docs`; do not edit by hand."


def summary(rule: Rule) -> str:
    """The first line of the rule's docstring."""
    return _text(rule).split("\n", 1)[0]


def sections(rule: Rule) -> dict[str, str]:
    """The docstring's sections by heading, each dedented, line breaks kept."""
    parts = re.split(r"^(" + "|".join(HEADINGS) + r"):\n", _text(rule), flags=re.MULTILINE)
    return {heading: inspect.cleandoc(body).strip() for heading, body in zip(parts[1::2], parts[2::2], strict=True)}


def rule_markdown(rule: Rule) -> str:
    """The page of one rule."""
    symptom = SYMPTOMS[rule.name]
    kind = f"`{rule.code}` · {rule.status} · family {rule.family} · version {rule.version}"
    facts = f"{kind} · closes after {rule.hold_points} points without a finding"
    parts = [f"# {rule.name}", _NOTE, facts, f"**{symptom.title}.** {summary(rule)}"]
    said = sections(rule)
    for heading in HEADINGS[:2]:
        parts += [f"## {heading}", said.get(heading, "")]
    parts += ["## Needs", _needs(rule), "## Parameters", _params(rule.params)]
    parts += ["## Hypotheses", said.get("Hypotheses", ""), _hypotheses(rule.hypotheses)]
    checks = rule.next_checks or symptom.next_checks
    parts += ["## What to check next", "\n".join(f"- {check}" for check in checks)]
    for heading in HEADINGS[3:]:
        parts += [f"## {heading}", said.get(heading, "")]
    return "\n\n".join(part for part in parts if part) + "\n"


def index_markdown() -> str:
    """The page that lists all rules."""
    rows = [f"| [{rule.name}]({rule.name}.md) | `{rule.code}` | {rule.status} | {summary(rule)} |" for rule in RULES]
    return "\n".join(["# Rules", "", _NOTE, "", "| rule | code | status | what it observes |", "|---|---|---|---|", *rows]) + "\n"


def pages() -> dict[str, str]:
    """Every page by file name."""
    return {"README.md": index_markdown(), **{f"{rule.name}.md": rule_markdown(rule) for rule in RULES}}


def main(arguments: Sequence[str], folder: Path = FOLDER) -> int:
    """Writes the pages, or with --check says which differ (exit code 1)."""
    wanted = pages()
    stored = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    if "--check" in arguments:
        wrong = sorted(name for name in {*wanted, *stored} if wanted.get(name) != stored.get(name))
        if wrong:
            sys.stderr.write(f"{folder} is not what the rules say ({', '.join(wrong)}). Run: rlvitals rules docs\n")
        return int(bool(wrong))
    folder.mkdir(parents=True, exist_ok=True)
    for name in stored.keys() - wanted.keys():
        (folder / name).unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


def _text(rule: Rule) -> str:
    return inspect.getdoc(type(rule)) or ""


def _needs(rule: Rule) -> str:
    if not rule.needs:
        return "Nothing by itself; each part of it says what it lacks."
    return "\n".join("- " + " or ".join(f"`{name}`" for name in some) for some in rule.needs)


def _params(params: Sequence[Param]) -> str:
    if not params:
        return "None."
    rows = [f"| `{p.name}` | {p.default:g} | {p.unit} | {p.low:g} to {p.high:g} | {p.help or '-'} | {p.source} |" for p in params]
    return "\n".join(["| name | default | unit | range | meaning | source |", "|---|---|---|---|---|---|", *rows])


def _hypotheses(hypotheses: Sequence[Hypothesis]) -> str:
    rows = [f"| {h.id} | {h.title} | {h.computable_from} | {_how(h)} |" for h in hypotheses]
    return "\n".join(["| code | explanation | decided from | by |", "|---|---|---|---|", *rows])


def _how(hypothesis: Hypothesis) -> str:
    if hypothesis.checks:
        return ", ".join(f"`{getattr(check, '__name__', 'check')}`" for check in hypothesis.checks)
    return hypothesis.action or "a person"
