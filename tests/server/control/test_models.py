"""The control store: migrations, transactions, concurrency, and refusal of what it cannot read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from ingest.errors import StoreError, StoreNewer
from server.control.migrate import migrations_folder
from server.control.models import Base, Control, IncidentRow, OutboxRow, SettingRow


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    store = Control(f"sqlite:///{tmp_path / 'control.sqlite'}")
    store.migrate()
    yield store
    store.close()


def pragma(connection: Connection, name: str) -> object:
    return connection.exec_driver_sql(f"PRAGMA {name}").scalar()


def test_the_migrations_make_the_tables_that_the_models_describe(control: Control) -> None:
    found = inspect(control.engine)
    assert set(found.get_table_names()) - {"alembic_version"} == set(Base.metadata.tables)
    for name, table in Base.metadata.tables.items():
        stored = {column["name"]: (str(column["type"]), column["nullable"]) for column in found.get_columns(name)}
        described = {column.name: (str(column.type.compile(control.engine.dialect)), column.nullable) for column in table.columns}
        assert stored == described, name


def test_migrating_again_changes_nothing(control: Control) -> None:
    with control.session() as session:
        session.add(SettingRow(key="a", value={"b": 1}))
    control.migrate()
    with control.session(write=False) as session:
        assert session.get_one(SettingRow, "a").value == {"b": 1}


def test_sqlite_keeps_a_write_ahead_log_and_checks_foreign_keys(control: Control) -> None:
    with control.engine.connect() as connection:
        assert (pragma(connection, "journal_mode"), pragma(connection, "foreign_keys")) == ("wal", 1)
    with pytest.raises(IntegrityError), control.session() as session:
        session.add(
            OutboxRow(id="m", channel_id="none", type="x", payload={}, attempt=0, next_at=0, state="waiting", created_at=0, updated_at=0)
        )


def test_a_store_of_a_newer_program_is_refused_with_a_sentence(control: Control) -> None:
    with control.session() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreNewer, match=r"control\.sqlite was written by a newer RLVitals \(revision 9999 is unknown here\)"):
        control.migrate()


def test_a_file_that_is_no_database_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "control.sqlite").write_text("this is no database at all, " * 50)
    with pytest.raises(StoreError, match="cannot be used as the control store: file is not a database"):
        Control(f"sqlite:///{tmp_path / 'control.sqlite'}").migrate()


def test_an_error_takes_back_the_whole_transaction(control: Control) -> None:
    with pytest.raises(RuntimeError), control.session() as session:
        session.add(SettingRow(key="a", value=1))
        session.flush()
        raise RuntimeError
    with control.session(write=False) as session:
        assert session.scalars(select(SettingRow)).all() == []


def test_threads_that_read_and_then_write_wait_for_each_other(control: Control) -> None:
    with control.session() as session:
        session.add(SettingRow(key="n", value=0))
    errors: list[Exception] = []

    def count() -> None:
        try:
            for _ in range(10):
                with control.session() as session:
                    row = session.get_one(SettingRow, "n")
                    row.value = row.value + 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with control.session(write=False) as session:
        assert (errors, session.get_one(SettingRow, "n").value) == ([], 40)


def test_a_reader_does_not_wait_for_a_writer(control: Control) -> None:
    with control.session() as writer:
        writer.add(SettingRow(key="a", value=1))
        writer.flush()
        with control.session(write=False) as reader:
            assert reader.scalars(select(SettingRow)).all() == []


def incident(**changes: object) -> IncidentRow:
    values: dict[str, object] = dict.fromkeys(
        ("metric", "slice", "closed_at", "acknowledged_at", "snoozed_until", "feedback", "absorbed_by")
    )
    values |= {
        "id": "in_1", "run_id": "r", "attempt": 1, "symptom": "spike", "rule_code": "RS051", "rule_version": "1", "severity": "warn",
        "status": "open", "onset_step": 5, "detected_step": 6, "last_step": 7, "steps_by_severity": {}, "summary": "s", "body": {},
        "opened_at": 0.0, "updated_at": 0.0,
    }  # fmt: skip
    return IncidentRow(**{**values, **changes})


@pytest.mark.parametrize("slice_", [None, "length 4k-8k"])
def test_the_same_incident_cannot_be_stored_twice(control: Control, slice_: str | None) -> None:
    with control.session() as session:
        session.add(incident(slice=slice_))
    with pytest.raises(IntegrityError), control.session() as session:
        session.add(incident(id="in_2", slice=slice_))
    with control.session() as session:
        session.add(incident(id="in_3", slice="other"))


def test_the_migrations_are_found_in_the_source_tree() -> None:
    assert (migrations_folder() / "versions").is_dir() and not (migrations_folder() / "__init__.py").exists()
