"""rlvitals diagnose: replays the rules over a run and says what went wrong, since when, and why."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from frontend.terminal import out, out_json, plural, say
from ingest.errors import NoRunFound, RLVitalsError
from ingest.text import visible, visible_line

if TYPE_CHECKING:
    from ingest.discover import FoundRun
    from ingest.store.connection import Store
    from server.engine.ruleset import Changed
    from server.queries.view import RunData
    from server.settings import Settings

SEVERITIES = ("info", "watch", "warn", "critical")
_IN_MEMORY_BYTES = 256 << 20
"""Files up to this size are read into memory, larger ones into a file that is deleted afterwards."""
_REPLAY_SECONDS = 1800.0
"""How long a server that owns the home may take to replay a run."""


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("diagnose", help="replay the rules over a run and say what went wrong")
    parser.add_argument("target", metavar="RUN_OR_PATH", help="folder or file of a run (needs no home), or id or name of a run in the home")
    parser.add_argument("--run", dest="name", metavar="NAME", help="which run, where the path holds several")
    parser.add_argument("--baseline", metavar="RUN_OR_PATH", help="run to compare with")
    parser.add_argument("--until", type=int, metavar="STEP", help="look at nothing behind this step")
    parser.add_argument("--fail-on", choices=SEVERITIES, default="warn", help="exit with 1 from this severity on (default: warn)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Diagnoses one run; the exit code of contracts.md."""
    path = Path(args.target)
    told = _of_path(path, args) if path.exists() else _of_home(args)
    if args.json:
        out_json(told)
    else:
        _print(told)
    least = SEVERITIES.index(args.fail_on)
    return int(any(SEVERITIES.index(incident["severity"]) >= least for incident in told["incidents"]))


def _of_path(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    from server.engine.replay import replay

    with ExitStack() as closing:
        store, run_id = _read(path, args.name, closing)
        return replay(store, run_id, args.until, _second(args, closing)).to_json()


def _read(path: Path, name: str | None, closing: ExitStack) -> tuple[Store, str]:
    """The one run of a path in a store of its own, which lives as long as `closing`, and its id."""
    import tempfile

    from ingest.discover import discover
    from ingest.load import identify, load_run
    from ingest.store.connection import Store

    found = _chosen(discover([path])[0], path, name)
    place = None
    if sum(file.path.stat().st_size for file in found.files) > _IN_MEMORY_BYTES:
        place = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="rlvitals-")), "telemetry.duckdb")
    store = Store(place)
    closing.callback(store.close)
    for result in load_run(store, found):
        if result.rejected or result.state == "rejected":
            reason = f": {result.reason}" if result.reason else ""
            say(f"rlvitals: {result.path}: {plural(result.rejected, 'row')} rejected{reason}")
    return store, identify(store, found).run_id


def _second(args: argparse.Namespace, closing: ExitStack) -> RunData | None:
    """The run of --baseline in memory: of a path, else of the home, where nothing else owns it."""
    if args.baseline is None:
        return None
    from server.engine.replay import in_memory

    path = Path(args.baseline)
    if path.exists():
        return in_memory(*_read(path, None, closing))
    from frontend.owner import owner_of
    from server.settings import load_settings

    settings = load_settings({"home": getattr(args, "home", None)})
    if owner_of(settings) is not None:
        raise NoRunFound(f"{args.baseline}: no such path, and a running server has the home {settings.home}. Give the baseline as a path.")
    store, runs = _stored(args.baseline, settings, closing)
    return in_memory(store, run_id_named(runs, args.baseline, settings))


def _chosen(runs: Sequence[FoundRun], path: Path, name: str | None) -> FoundRun:
    """The one run of the path, or the one that was named.

    Raises:
        NoRunFound: none, several without a name, or none of that name.
    """
    names = ", ".join(sorted(found.name for found in runs))
    fitting = [found for found in runs if name is None or name in (found.name, found.run_id, str(found.root))]
    if not runs:
        raise NoRunFound(f"{path} holds no run that a reader knows. `rlvitals readers` lists the formats.")
    if not fitting:
        raise NoRunFound(f"{path} holds no run {name!r}; there is {names}.")
    if len(fitting) > 1:
        raise NoRunFound(f"{path} holds {len(fitting)} runs: {names}. Name one with --run.")
    return fitting[0]


def _of_home(args: argparse.Namespace) -> dict[str, Any]:
    from frontend.owner import owner_of
    from server.settings import load_settings

    settings = load_settings({"home": getattr(args, "home", None)})
    owner = owner_of(settings)
    if owner is None:
        return _of_stored(settings, args)
    runs = owner.get("/api/v1/runs")["runs"]
    run_id = run_id_named(runs, args.name or args.target, settings)
    if args.baseline is not None and Path(args.baseline).exists():
        raise NoRunFound(f"{args.baseline}: a running server has the home {settings.home}. Ingest the baseline and give its name or id.")
    second = None if args.baseline is None else run_id_named(runs, args.baseline, settings)
    asked = {"until": args.until, "baseline": second}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    told: dict[str, Any] = owner.get(f"/api/v1/runs/{run_id}/diagnosis?{query}", _REPLAY_SECONDS)
    return told


def _of_stored(settings: Settings, args: argparse.Namespace) -> dict[str, Any]:
    from server.engine.replay import in_memory, replay

    with ExitStack() as closing:
        store, runs = _stored(args.target, settings, closing)
        run_id = run_id_named(runs, args.name or args.target, settings)
        if args.baseline is None or Path(args.baseline).exists():
            second = _second(args, closing)
        else:
            second = in_memory(store, run_id_named(runs, args.baseline, settings))
        project = next(found["project"] for found in runs if found["run_id"] == run_id)
        return replay(store, run_id, args.until, second, changed=_changed(settings, run_id, project)).to_json()


def _stored(wanted: str, settings: Settings, closing: ExitStack) -> tuple[Store, list[dict[str, Any]]]:
    """The store of a home that nothing owns, and its runs."""
    if not settings.telemetry_path.exists():
        raise NoRunFound(f"{wanted}: no such file or folder, and the home {settings.home} holds no runs.")
    from ingest.store.connection import Store
    from server.queries.runs import run_summaries

    store = Store(settings.telemetry_path)
    closing.callback(store.close)
    return store, [{"run_id": found.run_id, "name": found.name, "project": found.project} for found in run_summaries(store)]


def _changed(settings: Settings, run_id: str, project: str) -> Mapping[str, Changed]:
    """What people set for the rules on the run, so that the replay finds what the live engine would."""
    from server.control.models import Control
    from server.engine.settings import changed_rules

    if not (settings.home / "control.sqlite").exists():
        return {}
    control = Control(settings.control_url)
    try:
        control.migrate()
        with control.session(write=False) as session:
            return changed_rules(session, run_id, project)
    finally:
        control.close()


def run_id_named(runs: Sequence[Mapping[str, Any]], name: str, settings: Settings) -> str:
    """The id of the run of the home with that id or name.

    Raises:
        NoRunFound: none, or several; names what there is.
    """
    fitting = [str(found["run_id"]) for found in runs if name in (found["run_id"], found["name"])]
    if not fitting:
        known = ", ".join(sorted(str(found["name"]) for found in runs)) or "none"
        raise NoRunFound(f"{name!r} is neither a path nor a run of the home {settings.home}, which holds: {known}.")
    if len(fitting) > 1:
        raise NoRunFound(f"The home {settings.home} holds {len(fitting)} runs named {name!r}. Give one of their ids: {', '.join(fitting)}.")
    return fitting[0]


def _print(told: Mapping[str, Any]) -> None:
    run_, steps = told["run"], told["steps"]
    kind = " ".join(filter(None, (run_["framework"], run_["algorithm"])))
    out(visible_line(f"{run_['name']} ({kind}), steps {steps['first']} to {steps['last']}"))
    if not told["incidents"]:
        out("No incident.")
    for incident in told["incidents"]:
        out()
        _print_incident(incident)
    if told["not_judged"]:
        out()
        out("Cannot tell (log what is missing):")
        for item in told["not_judged"]:
            out(visible_line(f"  {item['symptom']}: {item['how']}"))
    for note in told.get("notes", ()):
        out(visible_line(f"Note: {note}"))
    if "baseline" in told:
        out()
        out(visible_line(f"Compared with {told['baseline']['name']}."))


def _print_incident(incident: Mapping[str, Any]) -> None:
    where = f" [{incident['slice']}]" if incident["slice"] else ""
    now = "open" if incident["status"] == "open" else f"recovered after step {incident['last_step']}"
    out(visible_line(f"{incident['severity'].upper()} {incident['symptom']}{where}: since step {incident['onset_step']}, {now}"))
    out(visible_line(f"  {incident['summary']}"))
    raised = ", ".join(f"{name} at {step}" for name, step in sorted(incident["steps_by_severity"].items(), key=lambda item: item[1]))
    out(visible_line(f"  raised: {raised}"))
    for note in incident.get("notes", ()):
        out(visible_line(f"  {note}"))
    for part in incident["absorbed"]:
        out(visible_line(f"  part: {part['symptom']} since step {part['onset_step']}"))
    for row in incident["evidence"]:
        out(visible_line(f"  {row['metric']}: {_number(row['before'])} -> {_number(row['after'])} {row['note']}".rstrip()))
    for hypothesis in incident["hypotheses"]:
        out(visible_line(f"  {hypothesis['rank']}. {hypothesis['verdict']:<13} {hypothesis['id']} {hypothesis['title']}"))
        for check in hypothesis["checks"]:
            said = check.get("note") or check["id"]
            out(visible(f"       {said}{_lacks(check['missing'])}"))
    for check in incident["next_checks"]:
        out(visible_line(f"  next: {check}"))


def _lacks(missing: Sequence[str]) -> str:
    """What a check could not be computed for, in brackets."""
    from server.checks.base import SECOND_RUN

    logged = ", ".join(name for name in missing if name != SECOND_RUN)
    told = [f"not logged: {logged}" if logged else "", "choose one with --baseline" if SECOND_RUN in missing else ""]
    return f" ({'; '.join(filter(None, told))})" if missing else ""


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


def main() -> int:
    """`python -m frontend.commands.diagnose ...`, the same as `rlvitals diagnose ...`."""
    parser = argparse.ArgumentParser(prog="rlvitals")
    add_parser(parser.add_subparsers(dest="command"))
    args = parser.parse_args(["diagnose", *sys.argv[1:]])
    args.home = None
    try:
        return run(args)
    except RLVitalsError as error:
        say(f"rlvitals: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
