"""rlvitals rules: the rules and how they stand, the page of one, their hypotheses, changes to one, and the pages in docs/rules."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from frontend.terminal import out, out_json, table
from ingest.errors import SettingsError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from server.engine.rule_state import RuleState
    from server.engine.settings import Place
    from server.settings import Settings


def add_parser(subparsers: Any) -> None:
    """Declares the command and what can be asked of rules."""
    parser: argparse.ArgumentParser = subparsers.add_parser("rules", help="list the rules, explain or change one, or write their pages")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--run", dest="of_run", metavar="RUN", help="as they stand for this run of the home")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    explain = actions.add_parser("explain", help="print the page of a rule")
    explain.add_argument("name", metavar="NAME", help="name or code of the rule")
    explain.set_defaults(run=run_explain)
    causes = actions.add_parser("hypotheses", help="list the competing explanations, and from what each is decided")
    causes.add_argument("--json", action="store_true", help="print JSON")
    causes.set_defaults(run=run_hypotheses)
    docs = actions.add_parser("docs", help="write docs/rules/ of a source folder")
    docs.add_argument("--check", action="store_true", help="only say whether docs/rules/ is current (exit code 1: it is not)")
    docs.set_defaults(run=run_docs)
    change = actions.add_parser("set", help="change a rule for all runs, a project or one run, from the next judged step on")
    change.add_argument("name", metavar="NAME", help="name or code of the rule")
    change.add_argument("params", nargs="*", metavar="PARAM=VALUE", help="parameters to change")
    switch = change.add_mutually_exclusive_group()
    switch.add_argument("--on", dest="enabled", action="store_const", const=True, help="switch it on")
    switch.add_argument("--off", dest="enabled", action="store_const", const=False, help="switch it off")
    change.add_argument("--status", choices=("preview", "stable"), help="only stable rules are told to channels that do not ask for more")
    change.set_defaults(run=run_set)
    forget = actions.add_parser("unset", help="take a change back")
    forget.add_argument("name", metavar="NAME", help="name or code of the rule")
    forget.add_argument("params", nargs="*", metavar="PARAM", help="only these parameters; without any, everything that was set")
    forget.set_defaults(run=run_unset)
    for action in (change, forget):
        action.set_defaults(rest="params")
        where = action.add_mutually_exclusive_group()
        where.add_argument("--run", dest="run_name", metavar="RUN", help="for this run of the home alone")
        where.add_argument("--project", metavar="PROJECT", help="for the runs of this project alone")
        action.add_argument("--home", metavar="DIR", default=argparse.SUPPRESS, help="folder with both stores")
    for action in (explain, causes, docs, change, forget):
        action.set_defaults(parser=action)


def run(args: argparse.Namespace) -> int:
    """Prints every rule as it stands."""
    from server.settings import load_settings

    states = _states(load_settings({"home": args.home}), args.of_run)
    if args.json:
        out_json({"schema": 1, "rules": [state.to_json() for state in states]})
    else:
        table(("code", "rule", "status", "on", "useful", "changed", "what it observes"), [_row(state) for state in states])
    return 0


def run_explain(args: argparse.Namespace) -> int:
    """Prints the page of one rule.

    Raises:
        SettingsError: there is no such rule; names the nearest.
    """
    from server.engine.adjust import rule_named
    from server.rules.document import rule_markdown

    out(rule_markdown(rule_named(args.name)))
    return 0


def run_hypotheses(args: argparse.Namespace) -> int:
    """Prints every hypothesis, and how many are decided from each kind of input."""
    from server.rules.document import by_kind, explanations

    found = explanations()
    if args.json:
        told = [{"id": e.id, "title": e.title, "computable_from": e.kinds, "by": e.how, "rules": e.rules} for e in found]
        out_json({"schema": 1, "hypotheses": told, "count_by_kind": by_kind(found)})
        return 0
    table(("code", "explanation", "decided from", "named by"), [(e.id, e.title, ", ".join(e.kinds), ", ".join(e.rules)) for e in found])
    out("")
    table(("decided from", "hypotheses"), list(by_kind(found).items()), right=(1,))
    return 0


def run_docs(args: argparse.Namespace) -> int:
    """Writes the pages of all rules, or says whether they are current."""
    from server.rules.document import main

    return main(["--check"] if args.check else [])


def run_set(args: argparse.Namespace) -> int:
    """Changes a rule and prints how it stands then.

    Raises:
        SettingsError: nothing to change, an unknown rule, parameter or run, or a value outside its range.
    """
    from server.engine.adjust import assignments, rule_named
    from server.engine.settings import KEEP, change_rule

    rule, params = rule_named(args.name), assignments(args.params)
    if not params and args.enabled is None and args.status is None:
        raise SettingsError(
            f"Nothing to change: give PARAM=VALUE, --on, --off or --status. `rlvitals rules explain {rule.name}` lists all."
        )
    enabled, status = KEEP if args.enabled is None else args.enabled, args.status or KEEP
    return _changed(args, rule, lambda session, place: change_rule(session, place, rule, params, enabled=enabled, status=status))


def run_unset(args: argparse.Namespace) -> int:
    """Takes back what one place sets for a rule, and prints how it stands then."""
    from server.engine.adjust import rule_named
    from server.engine.settings import change_rule, forget_rule

    rule = rule_named(args.name)

    def forget(session: Session, place: Place) -> None:
        if args.params:
            change_rule(session, place, rule, dict.fromkeys(args.params))
        else:
            forget_rule(session, place, rule)

    return _changed(args, rule, forget)


def _changed(args: argparse.Namespace, rule: Any, change: Callable[[Session, Place], object]) -> int:
    from server.engine.rule_state import rule_states
    from server.engine.settings import Place
    from server.home import prepare_home
    from server.settings import load_settings

    settings = load_settings({"home": args.home})
    run_id, project = _known_run(settings, args.run_name) if args.run_name else (None, args.project)
    place = Place("run", run_id) if run_id else Place("project", project) if project else Place()
    prepare_home(settings.home)
    with _session(settings, write=True) as session:
        for path in settings.home.glob("control.sqlite*"):
            path.chmod(0o600)
        change(session, place)
        state = next(one for one in rule_states(session, run_id, project) if one.rule.code == rule.code)
    words = f"run {args.run_name}" if run_id else place.words
    out(f"{rule.name}, {words}: {'on' if state.enabled else 'off'}, {state.status}.")
    rows = [(p.param.name, f"{p.param.default:g}", f"{p.value:g}", p.origin, f"{p.param.low:g} to {p.param.high:g}") for p in state.params]
    table(("parameter", "default", "in force", "set by", "range"), rows, right=(1, 2))
    return 0


def _states(settings: Settings, run_name: str | None) -> list[RuleState]:
    from server.engine.rule_state import as_written, rule_states

    run_id, project = _known_run(settings, run_name) if run_name else (None, None)
    if not (settings.home / "control.sqlite").exists():
        return as_written()
    with _session(settings, write=False) as session:
        return rule_states(session, run_id, project)


@contextmanager
def _session(settings: Settings, *, write: bool) -> Iterator[Session]:
    """The control store itself, also while a server owns the home: it lets several processes in, and the engine reads it at each step."""
    from server.control.models import Control

    control = Control(settings.control_url)
    try:
        control.migrate()
        with control.session(write=write) as session:
            yield session
    finally:
        control.close()


def _known_run(settings: Settings, name: str) -> tuple[str, str]:
    """Id and project of the run of the home with that id or name."""
    from frontend.commands.diagnose import run_id_named
    from frontend.commands.runs import listed_runs

    runs = listed_runs(settings)
    run_id = run_id_named(runs, name, settings)
    return run_id, next(str(found["project"]) for found in runs if found["run_id"] == run_id)


def _row(state: RuleState) -> tuple[object, ...]:
    rule, hits = state.rule, state.hits
    useful = f"{hits.useful} of {hits.judged}" if hits.judged else None
    changed = ", ".join(f"{p.param.name}={p.value:g}" for p in state.changed) or None
    from server.rules.document import summary

    return rule.code, rule.name, state.status, state.enabled, useful, changed, summary(rule)
