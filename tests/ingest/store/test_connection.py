"""Opening the store: new, old, too new, owned by another process, broken; and writing it on a full disk."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from ingest.errors import StoreError, StoreNewer, StoreOwned
from ingest.report import ingest_once
from ingest.schema import tables
from ingest.store.connection import Store


def old_store(path: Path) -> None:
    """A store as version 0 left it: a source had no time stamp."""
    connection = duckdb.connect(str(path))
    for statement in tables.TABLES.values():
        connection.execute(statement)
    connection.execute("ALTER TABLE source DROP COLUMN mtime_ns")
    connection.execute("INSERT INTO meta VALUES ('schema_version', '0'), ('created', '0')")
    connection.execute("INSERT INTO run VALUES ('0123456789ab', 'p', 'n', 'native', NULL, '/x', NULL, 0, 0, 0)")
    connection.execute(
        """INSERT INTO source (source_id, run_id, path, reader, growth, cursor_offset, cursor_line, cursor_state, state, bytes, rows,
               rejected, updated) VALUES (1, '0123456789ab', '/x/metrics.jsonl', 'native', 'append', 7, 1, '{}', 'read', 7, 1, 0, 0)"""
    )
    connection.close()


def test_an_old_store_is_brought_forward_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.duckdb"
    old_store(path)
    for _ in range(2):
        store = Store(path)
        assert store.rows("SELECT value FROM meta WHERE key = 'schema_version'") == [(str(tables.SCHEMA_VERSION),)]
        assert store.rows("SELECT path, cursor_offset, mtime_ns FROM source") == [("/x/metrics.jsonl", 7, None)]
        store.close()


def test_a_store_brought_forward_has_the_columns_of_a_new_one(tmp_path: Path) -> None:
    old_store(tmp_path / "old.duckdb")
    shapes = []
    for name in ("old.duckdb", "new.duckdb"):
        store = Store(tmp_path / name)
        query = """SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns()
                   WHERE database_name = 'telemetry' ORDER BY ALL"""
        shapes.append(store.rows(query))
        store.close()
    assert shapes[0] == shapes[1]


def test_a_migration_that_fails_leaves_the_old_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "telemetry.duckdb"
    old_store(path)
    monkeypatch.setitem(tables.MIGRATIONS, 0, ("ALTER TABLE source ADD COLUMN mtime_ns BIGINT", "SELECT * FROM nowhere"))
    with pytest.raises(StoreError, match=r"telemetry\.duckdb"):
        Store(path)
    monkeypatch.undo()
    Store(path).close()


def test_a_store_of_a_newer_program_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.duckdb"
    store = Store(path)
    with store.transaction() as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    store.close()
    with pytest.raises(StoreNewer, match=r"newer RLVitals \(schema 999.*Install the newer version"):
        Store(path)


def test_a_store_that_another_process_owns_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.duckdb"
    with subprocess.Popen([sys.executable, "-c", _OWNER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(StoreOwned, match="open in another process"):
            Store(path)
        owner.communicate("")
    Store(path).close()


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.duckdb"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match=r"telemetry\.duckdb"):
        Store(path)


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "telemetry.duckdb")
    with pytest.raises(RuntimeError), store.transaction() as connection:
        connection.execute("INSERT INTO meta VALUES ('a', 'b')")
        raise RuntimeError
    assert store.rows("SELECT count(*) FROM meta WHERE key = 'a'") == [(0,)]
    store.close()


_OWNER = """
import sys
from pathlib import Path
from ingest.store.connection import Store
store = Store(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""

_FULL = """
import resource, sys
from pathlib import Path
from ingest.errors import StoreError
from ingest.report import ingest_once
from ingest.store.connection import Store
store = Store(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    ingest_once(store, [Path(sys.argv[2])])
except StoreError as error:
    print(error)
    sys.exit(2)
"""


def test_a_full_disk_is_one_sentence_and_what_was_committed_stays(tmp_path: Path) -> None:
    run = tmp_path / "project" / "run"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps({"step": s, "reward.mean": s / 7}) + "\n" for s in range(50)))
    draw = random.Random(5)
    with (run / "rollouts.jsonl").open("w") as out:
        for number in range(3000):
            row = {"step": number, "trajectory_id": f"t{number}", "group_id": "g", "response": draw.randbytes(800).hex()}
            out.write(json.dumps(row) + "\n")
    path = tmp_path / "telemetry.duckdb"
    # A limit on the size of files stands for a disk that fills: the system refuses the write in the same place.
    limit = 900_000
    found = subprocess.run([sys.executable, "-c", _FULL, str(path), str(run), str(limit)], capture_output=True, text=True, timeout=120)
    assert found.returncode == 2, found.stderr[-2000:]
    (sentence,) = found.stdout.splitlines()
    assert "disk is full" in sentence
    assert "rollouts.jsonl" in sentence
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    store = Store(path)
    assert store.rows("SELECT count(*) FROM point") == [(50,)]
    assert store.rows("SELECT count(*) FROM trajectory") == [(0,)]
    assert ingest_once(store, [run]).exit_code == 0
    assert store.rows("SELECT count(*), count(DISTINCT trajectory_id) FROM trajectory") == [(3000, 3000)]
    store.close()
