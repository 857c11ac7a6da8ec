"""A long history is judged in pieces, with the same outcome as at once."""

from __future__ import annotations

import json
from pathlib import Path

from ingest.report import ingest_once
from ingest.store.connection import Store
from server.control.incidents import open_incidents
from server.control.models import Control
from server.engine.advance import Engine


def test_judging_in_pieces_finds_what_judging_at_once_finds(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "a-run"
    folder.mkdir(parents=True)
    values = [float("nan") if step >= 115 else 0.1 for step in range(120)]
    lines = [json.dumps({"step": step, "loss.policy": value, "grad.norm": 1.0}) for step, value in enumerate(values)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    store = Store(None)
    run_id = ingest_once(store, [folder]).runs[0].run_id
    later = 1e12  # every stream has fallen silent
    found = []
    for name, most in (("whole", None), ("pieces", 7)):
        control = Control(f"sqlite:///{tmp_path / name}.sqlite")
        control.migrate()
        engine = Engine(store, control, clock=lambda: later)
        engine.advance(run_id, most)
        calls = 1
        while engine.behind(run_id):
            engine.advance(run_id, most)
            calls += 1
            assert calls < 100
        assert (calls > 10) == (most is not None)
        with control.session(write=False) as session:
            found.append([(i.symptom, i.onset_step, i.detected_step, i.last_step, i.severity) for i in open_incidents(session, run_id)])
        control.close()
    store.close()
    assert found[0], "the rules must have found the values that are no numbers"
    assert found[0] == found[1]
