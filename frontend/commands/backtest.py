"""rlvitals backtest: what the rules would have raised on runs that are known, also with other parameters."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontend.commands.diagnose import SEVERITIES, run_id_named
from frontend.terminal import Counter, out, out_json, plural, say, table
from ingest.errors import NoRunFound
from ingest.text import visible_line

if TYPE_CHECKING:
    from server.engine.backtest import Backtest, Subject
    from server.rules.base import Rule

_MOST_LISTED = 20


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("backtest", help="replay the rules over known runs, also with other parameters")
    parser.add_argument("targets", nargs="+", metavar="RUN_OR_PATH", help="folders or files (may hold many runs), or runs of the home")
    parser.add_argument("--rule", action="append", default=[], metavar="NAME", help="only this rule, judged alone; may be given again")
    parser.add_argument("--set", action="append", default=[], metavar="NAME.PARAM=VALUE", help="parameter to try; may be given again")
    parser.add_argument("--severity", choices=SEVERITIES, default="warn", help="count incidents from this severity on (default: warn)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replays and prints one line a rule; 0 whatever was found."""
    from server.engine.adjust import proposals, rule_named
    from server.rules import RULES

    proposed = proposals(args.set)
    rules = [rule_named(name) for name in args.rule] or list(RULES)
    missing = [rule for rule in RULES if rule.code in proposed and rule not in rules]
    rules = [rule for rule in RULES if rule in (*rules, *missing)]
    paths = [Path(target) for target in args.targets if Path(target).exists()]
    names = [target for target in args.targets if not Path(target).exists()]
    told = _asked(args, names, paths, rules, proposed)
    if args.json:
        out_json(told)
    else:
        _print(told)
    return 0


def _asked(
    args: argparse.Namespace,
    names: Sequence[str],
    paths: Sequence[Path],
    rules: Sequence[Rule],
    proposed: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """The answer for paths and runs of the home together; a server that owns the home is asked for its runs."""
    from frontend.owner import owner_of
    from ingest.discover import discover
    from server.engine.backtest import backtest_json, run_backtest
    from server.engine.subjects import of_paths
    from server.settings import load_settings

    found = discover(paths)[0] if paths else []
    if paths and not found:
        raise NoRunFound(f"{', '.join(map(str, paths))}: no run that a reader knows. `rlvitals readers` lists the formats.")
    settings = load_settings({"home": args.home})
    owner = owner_of(settings) if names else None
    if owner is not None:
        if paths:
            raise NoRunFound(f"{', '.join(names)}: the server at {owner.address} owns these runs; ask for them without paths.")
        return _of_owner(owner, args, names, rules, proposed, settings)
    failed: list[tuple[str, str]] = []

    def on_failed(name: str, reason: str) -> None:
        failed.append((name, reason))
        say(f"rlvitals: {visible_line(name)}: {visible_line(reason)}")

    total = len(found) + len(names)
    counter = Counter()

    def on_run(done: Backtest) -> None:
        counter.show(len(done.before) + len(failed), total, done.before[-1].name)

    of_home: Iterator[Subject] = (
        _of_stored(settings, names, [rule.code for rule in rules] if args.rule else [], on_failed) if names else iter(())
    )
    done = run_backtest(chain(of_paths(found, on_failed), of_home), rules, proposed, args.severity, on_run=on_run)
    counter.close()
    if not done.before:
        raise NoRunFound("None of the runs could be replayed: " + "; ".join(f"{name}: {reason}" for name, reason in failed))
    done.failed = failed
    return backtest_json(done)


def _of_stored(settings: Any, names: Sequence[str], forced: Sequence[str], on_failed: Any) -> Iterator[Any]:
    from ingest.store.connection import Store
    from server.control.models import Control
    from server.engine.subjects import of_home, what_people_said
    from server.queries.runs import run_summaries

    if not settings.telemetry_path.exists():
        raise NoRunFound(f"{', '.join(names)}: no such file or folder, and the home {settings.home} holds no runs.")
    store, control = Store(settings.telemetry_path), Control(settings.control_url)
    try:
        control.migrate()
        known = [{"run_id": found.run_id, "name": found.name} for found in run_summaries(store)]
        run_ids = [run_id_named(known, name, settings) for name in names]
        labels, changed = what_people_said(control, forced)
        yield from of_home(store, run_ids, labels, changed, on_failed)
    finally:
        control.close()
        store.close()


def _of_owner(
    owner: Any,
    args: argparse.Namespace,
    names: Sequence[str],
    rules: Sequence[Rule],
    proposed: Mapping[str, Mapping[str, float]],
    settings: Any,
) -> dict[str, Any]:
    known = owner.get("/api/v1/runs")["runs"]
    order = {
        "runs": [run_id_named(known, name, settings) for name in names],
        "rules": [rule.name for rule in rules] if args.rule else [],
        "changed": {rule.name: dict(proposed[rule.code]) for rule in rules if rule.code in proposed},
        "severity": args.severity,
    }
    counter = Counter()
    answer = owner.backtest(order, lambda state: counter.show(state["done"], state["total"], ""))
    counter.close()
    told: dict[str, Any] = answer["result"]
    return told


def _print(told: Mapping[str, Any]) -> None:
    labelled = [found for found in told["runs"] if found["label"]]
    steps = sum(0 if found["steps"] is None else found["steps"]["last"] - found["steps"]["first"] + 1 for found in told["runs"])
    quiet = f", {plural(len(labelled), 'run')} with a label" if labelled else ""
    out(f"{plural(len(told['runs']), 'run')}, {steps:,} steps{quiet}. Counted from {told['severity']} on.")
    out()
    _table(told)
    if "difference" in told:
        _difference(told)


def _table(told: Mapping[str, Any]) -> None:
    after = {row["name"]: row for row in told["with_changes"]["rules"]} if "with_changes" in told else {}
    labelled = any(row["quiet_steps"] for row in told["rules"])
    rate = "false_alarms_per_1000_quiet_steps" if labelled else "raised_per_1000_steps"
    heads = [
        "rule",
        "status",
        *SEVERITIES,
        "runs",
        "false alarms" if labelled else "raised",
        "per 1,000 quiet steps" if labelled else "per 1,000 steps",
    ]
    rows = []
    for row in told["rules"]:
        new = after.get(row["name"])
        pairs = [(row["incidents"][name], None if new is None else new["incidents"][name]) for name in SEVERITIES]
        pairs += [(row[key], None if new is None else new[key]) for key in ("runs", "false_alarms" if labelled else "raised", rate)]
        rows.append((row["name"], row["status"], *(_pair(*pair) for pair in pairs)))
    table(heads, rows, right=range(2, len(heads)))


def _pair(before: float | None, after: float | None) -> str:
    words = ["-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}" for value in (before, after)]
    return words[0] if after is None or words[0] == words[1] else f"{words[0]} -> {words[1]}"


def _difference(told: Mapping[str, Any]) -> None:
    tried = ", ".join(f"{rule}.{name}={value:g}" for rule, values in told["changed"].items() for name, value in values.items())
    lines = [line for change in told["difference"] for line in _lines(change)]
    out()
    out(
        f"With {tried}: "
        + ("nothing changes." if not lines else f"{plural(len(lines), 'incident')} {'differs' if len(lines) == 1 else 'differ'}.")
    )
    for line in lines[:_MOST_LISTED]:
        out(visible_line(line))
    if len(lines) > _MOST_LISTED:
        out(f"  and {len(lines) - _MOST_LISTED} more; --json lists all.")


def _lines(change: Mapping[str, Any]) -> Iterator[str]:
    for word in ("gained", "lost"):
        for one in change[word]:
            yield f"  {word:<7} {change['name']}: {one['severity']} {one['symptom']}{_where(one)} at step {one['raised_step']}{_known(one)}"
    for one in change["moved"]:
        severity = one["severity"] if one["severity"] == one["severity_before"] else f"{one['severity_before']} -> {one['severity']}"
        by = f" ({one['steps']:+d} steps)" if one["steps"] else ""
        yield f"  moved   {change['name']}: {severity} {one['symptom']}{_where(one)} at step {one['raised_step']}{by}{_known(one)}"


def _where(one: Mapping[str, Any]) -> str:
    return f" [{one['slice']}]" if one["slice"] else ""


def _known(one: Mapping[str, Any]) -> str:
    return ", a false alarm" if one["false_alarm"] else ""
