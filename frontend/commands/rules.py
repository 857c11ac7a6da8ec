"""rlvitals rules: the rules, the page of one, and the pages in docs/rules."""

from __future__ import annotations

import argparse
import difflib
import inspect
from typing import Any

from frontend.terminal import out, out_json, table
from ingest.errors import SettingsError


def add_parser(subparsers: Any) -> None:
    """Declares the command and what can be asked of rules."""
    parser: argparse.ArgumentParser = subparsers.add_parser("rules", help="list the rules, explain one, or write their pages")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    explain = actions.add_parser("explain", help="print the page of a rule")
    explain.add_argument("name", metavar="NAME", help="name or code of the rule")
    explain.set_defaults(run=run_explain)
    docs = actions.add_parser("docs", help="write docs/rules/ of a source folder")
    docs.add_argument("--check", action="store_true", help="only say whether docs/rules/ is current (exit code 1: it is not)")
    docs.set_defaults(run=run_docs)
    for action in (explain, docs):
        action.set_defaults(parser=action)


def run(args: argparse.Namespace) -> int:
    """Prints every rule."""
    from server.rules import RULES

    if args.json:
        out_json({"schema": 1, "rules": [_json(rule) for rule in RULES]})
    else:
        rows = [
            (rule.code, rule.name, rule.status, " and ".join(" or ".join(some) for some in rule.needs), _summary(rule)) for rule in RULES
        ]
        table(("code", "rule", "status", "needs", "what it observes"), rows)
    return 0


def run_explain(args: argparse.Namespace) -> int:
    """Prints the page of one rule.

    Raises:
        SettingsError: there is no such rule; names the nearest.
    """
    from server.rules import RULES
    from server.rules.document import rule_markdown

    for rule in RULES:
        if args.name.lower() in (rule.name, rule.code.lower()):
            out(rule_markdown(rule))
            return 0
    near = difflib.get_close_matches(args.name, [rule.name for rule in RULES], n=1)
    raise SettingsError(f"There is no rule {args.name}. " + (f"Did you mean {near[0]}?" if near else "`rlvitals rules` lists them."))


def run_docs(args: argparse.Namespace) -> int:
    """Writes the pages of all rules, or says whether they are current."""
    from server.rules.document import main

    return main(["--check"] if args.check else [])


def _summary(rule: object) -> str:
    return (inspect.getdoc(type(rule)) or "").split("\n")[0]


def _json(rule: Any) -> dict[str, Any]:
    return {
        "code": rule.code,
        "name": rule.name,
        "family": rule.family,
        "status": rule.status,
        "version": rule.version,
        "summary": _summary(rule),
        "needs": [list(alternatives) for alternatives in rule.needs],
        "hold_points": rule.hold_points,
        "params": [
            {"name": p.name, "default": p.default, "unit": p.unit, "low": p.low, "high": p.high, "source": p.source, "help": p.help}
            for p in rule.params
        ],
        "hypotheses": [{"id": h.id, "title": h.title, "computable_from": h.computable_from} for h in rule.hypotheses],
    }
