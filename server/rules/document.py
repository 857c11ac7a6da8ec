"""The rules' pages in docs/rules, written from the rules themselves: docstring, needs, parameters, hypotheses, next checks."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from server.hypotheses import HYPOTHESES
from server.rules import RULES
from server.rules.base import ComputableFrom, Hypothesis, Param, Rule
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
    also = "What can explain a symptom, and from what that is decided: [hypotheses](hypotheses.md)."
    return "\n".join(["# Rules", "", _NOTE, "", also, "", "| rule | code | status | what it observes |", "|---|---|---|---|", *rows]) + "\n"


@dataclass(frozen=True)
class Explanation:
    """One hypothesis over all rules. kinds, how and rules are in the order of decision, each without repeats.

    Without rules: a joint collapse is explained by the hypotheses of the part that moved first, which say the same.
    """

    id: str
    title: str
    kinds: tuple[ComputableFrom, ...]
    how: tuple[str, ...]
    rules: tuple[str, ...]


def explanations() -> list[Explanation]:
    """Every hypothesis of the closed table with the rules that name it, in the table's order."""
    named = [(rule, one) for rule in RULES for one in rule.hypotheses]
    found = []
    for code, title in HYPOTHESES.items():
        own = [(rule.name, one) for rule, one in named if one.id == code]
        kinds = tuple(dict.fromkeys(one.computable_from for _, one in own))
        how = tuple(dict.fromkeys(part for _, one in own for part in _ways(one))) or ("the hypotheses of the part that moved first",)
        found.append(Explanation(code, title, kinds, how, tuple(dict.fromkeys(name for name, _ in own))))
    return found


def by_kind(found: Sequence[Explanation]) -> dict[str, int]:
    """How many hypotheses are decided from each kind of input; one that rules decide from several kinds counts for the first."""
    return {kind: sum(one.kinds[:1] == (kind,) for one in found) for kind in get_args(ComputableFrom)}


def hypotheses_markdown() -> str:
    """The page that lists all hypotheses."""
    found = explanations()
    counts = "\n".join(f"| {kind} | {count} |" for kind, count in by_kind(found).items())
    rows = []
    for one in found:
        rules = ", ".join(f"[{name}]({name}.md)" for name in one.rules)
        rows.append(f"| {one.id} | {one.title} | {', '.join(one.kinds)} | {', '.join(one.how)} | {rules} |")
    head = [
        "# Hypotheses",
        "",
        _NOTE,
        "",
        f"{len(found)} competing explanations, by what decides them:",
        "",
        "| decided from | hypotheses |",
    ]
    middle = ["", "| code | explanation | decided from | by | named by |", "|---|---|---|---|---|"]
    return "\n".join([*head, "|---|---|", counts, *middle, *rows]) + "\n"


def pages() -> dict[str, str]:
    """Every page by file name."""
    rules = {f"{rule.name}.md": rule_markdown(rule) for rule in RULES}
    return {"README.md": index_markdown(), "hypotheses.md": hypotheses_markdown(), **rules}


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
    return ", ".join(_ways(hypothesis))


def _ways(hypothesis: Hypothesis) -> list[str]:
    if hypothesis.checks:
        return [f"`{getattr(check, '__name__', 'check')}`" for check in hypothesis.checks]
    return [hypothesis.action or "a person"]
