"""Runs for a backtest, one in memory at a time: of paths, or of the home with what people said about their incidents."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sqlalchemy.orm import Session

from ingest.discover import FoundRun
from ingest.errors import RLVitalsError
from ingest.load import identify
from ingest.load import load_run as read_files
from ingest.store.connection import Store
from server.control.incidents import Incident, incidents
from server.control.models import Control
from server.control.rule_settings import rule_settings
from server.engine.backtest import Label, Subject, label_of
from server.engine.ruleset import Changed
from server.engine.settings import changes_for
from server.engine.state import WARN, level
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.queries.view import RunFacts

IN_MEMORY_BYTES = 256 << 20
"""Files up to this size are read into memory, larger ones into a file that is deleted afterwards."""

OnFailed = Callable[[str, str], None]


def of_paths(found: Sequence[FoundRun], failed: OnFailed) -> Iterator[Subject]:
    """Each run of the paths, read into a store of its own. failed: told the run and the reason where one cannot be read."""
    for run in found:
        with ExitStack() as closing:
            try:
                label = label_of(run.root)
                store = _temporary(run, closing)
                for _ in read_files(store, run):
                    pass
                data = load_run(store, identify(store, run).run_id)
                add_facts(data)
            except RLVitalsError as error:
                failed(run.name, str(error))
                continue
            yield Subject(data, label)
            del data


def of_home(
    store: Store,
    run_ids: Sequence[str],
    labels: Mapping[str, Label],
    changed: Callable[[RunFacts], Mapping[str, Changed]],
    failed: OnFailed,
) -> Iterator[Subject]:
    """Each of the stored runs. labels: what feedback says, by run; changed: what people set for the rules on a run."""
    for run_id in run_ids:
        try:
            data = load_run(store, run_id)
            add_facts(data)
        except KeyError:
            failed(run_id, "the home holds no such run any more")
            continue
        yield Subject(data, labels.get(run_id), changed(data.run))
        del data


def healthy_by_feedback(session: Session) -> dict[str, Label]:
    """Runs on which people marked every incident at warn or above as a false alarm: they count as healthy."""
    by_run: dict[str, list[Incident]] = {}
    for incident in incidents(session):
        if level(incident.severity) >= WARN:
            by_run.setdefault(incident.run_id, []).append(incident)
    return {run: Label("feedback") for run, loud in by_run.items() if all(i.feedback == "false_alarm" for i in loud)}


def what_people_said(control: Control, forced: Sequence[str] = ()) -> tuple[dict[str, Label], Callable[[RunFacts], Mapping[str, Changed]]]:
    """Labels by run from feedback, and what is set for the rules on a run; forced: codes of rules that run though switched off."""
    with control.session(write=False) as session:
        labels, settings = healthy_by_feedback(session), rule_settings(session)

    def changed(run: RunFacts) -> Mapping[str, Changed]:
        found = changes_for(settings, run.run_id, run.project)
        return {code: replace(one, enabled=True) if code in forced else one for code, one in found.items()}

    return labels, changed


def _temporary(run: FoundRun, closing: ExitStack) -> Store:
    place = None
    if sum(file.path.stat().st_size for file in run.files) > IN_MEMORY_BYTES:
        place = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="rlvitals-")), "telemetry.duckdb")
    store = Store(place)
    closing.callback(store.close)
    return store
