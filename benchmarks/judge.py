"""The program's side of the replay measurement: one way of judging a stored run, in a process of its own.

    python -m benchmarks.judge ANSWER replay STORE
    python -m benchmarks.judge ANSWER live STORE STEPS TRAJECTORIES TOKENS REPEATS

ANSWER is the file that one JSON object is written to.

replay tells the CPU seconds of reading, of facts and of judging. live lets the engine judge the run as it is, then writes one
new step after the other and tells the CPU seconds that the engine takes for each (not those of writing it).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmarks import history
from ingest.store.connection import Store
from server.control.models import Control
from server.engine.advance import Engine
from server.engine.judge import RuleSet
from server.engine.replay import diagnose
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.rules import RULES

Result = TypeVar("Result")


def main() -> int:
    """Writes the answer."""
    answer, way, path, *numbers = sys.argv[1:]
    store = Store(Path(path))
    told = _replay(store) if way == "replay" else _live(store, *map(int, numbers))
    Path(answer).write_text(json.dumps(told))
    store.close()
    return 0


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def _replay(store: Store) -> dict[str, object]:
    reading, data = _timed(lambda: load_run(store, history.RUN_ID))
    facts, _ = _timed(lambda: add_facts(data))
    rules = RuleSet(RULES, strict=True)
    judging, told = _timed(lambda: diagnose(data, None, rules))
    return {
        "reading": reading,
        "facts": facts,
        "judging": judging,
        "rules": len(RULES),
        "not judged": [item["symptom"] for item in told.not_judged],
        "incidents": [f"{case.symptom} {case.severity}" for case in told.cases],
    }


def _live(store: Store, steps: int, trajectories: int, tokens: int, repeats: int) -> dict[str, object]:
    metrics = store.rows("SELECT count(*) FROM series WHERE run_id = ?", [history.RUN_ID])[0][0]
    later = time.time() + 1e6  # every stream counts as silent: the newest step is not waited for
    with tempfile.TemporaryDirectory(prefix="rlvitals-bench-") as folder:
        control = Control(f"sqlite:///{folder}/control.sqlite")
        control.migrate()
        engine = Engine(store, control, rules=RULES, clock=lambda: later)
        engine.advance(history.RUN_ID)
        found = []
        # The first live step also meets what a start leaves to be done once.
        for step in range(steps + 1, steps + repeats + 2):
            history.add(store, range(step, step + 1), metrics=metrics, trajectories=trajectories, tokens=tokens)
            found.append(_timed(lambda: engine.advance(history.RUN_ID))[0])
        control.close()
    return {"live": found[1:]}


if __name__ == "__main__":
    sys.exit(main())
