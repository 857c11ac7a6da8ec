"""Tables of the control store and the one class that opens it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import JSON, Float, ForeignKey, Index, String, create_engine, event, func
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from ingest.errors import StoreError
from server.control.migrate import upgrade

BUSY_MILLISECONDS = 10_000


class Base(DeclarativeBase):
    """All control tables."""


class IncidentRow(Base):
    """One incident: opened, updated and closed by the findings of one rule. Times are Unix seconds."""

    __tablename__ = "incident"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    """"in_" and 12 hex digits."""
    run_id: Mapped[str] = mapped_column(String(32), index=True)
    attempt: Mapped[int]
    symptom: Mapped[str] = mapped_column(String(64))
    rule_code: Mapped[str] = mapped_column(String(16))
    rule_version: Mapped[str] = mapped_column(String(32))
    slice: Mapped[str | None] = mapped_column(String(200))
    """Null: the whole batch."""
    metric: Mapped[str | None] = mapped_column(String(200))
    severity: Mapped[str] = mapped_column(String(16))
    """Highest reached: info, watch, warn, critical."""
    status: Mapped[str] = mapped_column(String(16), index=True)
    """open or recovered."""
    onset_step: Mapped[int]
    detected_step: Mapped[int]
    last_step: Mapped[int]
    steps_by_severity: Mapped[dict[str, Any]] = mapped_column(JSON)
    summary: Mapped[str]
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    """evidence, hypotheses, next_checks, trajectories, absorbed, in the form of `diagnose --json`."""
    opened_at: Mapped[float] = mapped_column(Float)
    updated_at: Mapped[float] = mapped_column(Float)
    closed_at: Mapped[float | None] = mapped_column(Float)
    acknowledged_at: Mapped[float | None] = mapped_column(Float)
    snoozed_until: Mapped[float | None] = mapped_column(Float)
    feedback: Mapped[str | None] = mapped_column(String(32))
    absorbed_by: Mapped[str | None] = mapped_column(String(16))
    """Id of the joint incident that tells this one's story."""


# A null slice must count as equal to itself here, which a plain unique constraint does not do.
Index(
    "incident_identity",
    IncidentRow.run_id,
    IncidentRow.attempt,
    IncidentRow.symptom,
    IncidentRow.rule_code,
    func.coalesce(IncidentRow.slice, ""),
    IncidentRow.onset_step,
    unique=True,
)


class JudgedRow(Base):
    """How far the rules have judged a run; moves in the transaction of what they found."""

    __tablename__ = "judged"

    run_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    attempt: Mapped[int]
    step: Mapped[int]
    state: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """What the engine must remember; null: nothing."""
    updated_at: Mapped[float] = mapped_column(Float)


class ChannelRow(Base):
    """Where messages go. The address is the credential: written once, shown only as its hint."""

    __tablename__ = "channel"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    """slack or webhook."""
    name: Mapped[str] = mapped_column(String(100))
    url_secret: Mapped[str] = mapped_column(String(2048))
    url_hint: Mapped[str] = mapped_column(String(300))
    """Host and last four characters."""
    secret: Mapped[str | None] = mapped_column(String(200))
    """Signing secret (whsec_...) of a webhook; null for chat."""
    min_severity: Mapped[str] = mapped_column(String(16))
    enabled: Mapped[bool]
    created_at: Mapped[float] = mapped_column(Float)
    off_reason: Mapped[str | None]
    """Why it was switched off by us; null: it was not."""
    failures_in_row: Mapped[int] = mapped_column(default=0)
    preview: Mapped[bool] = mapped_column(default=False)
    """Whether it also hears of rules that are previews."""

    def __repr__(self) -> str:
        return f"ChannelRow({self.id}, {self.kind}, {self.url_hint})"


class OutboxRow(Base):
    """One message to one channel, written in the transaction of the incident's change and kept as the delivery log."""

    __tablename__ = "outbox"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Message id, the same in every attempt: the receiver's key against doubles."""
    channel_id: Mapped[str] = mapped_column(ForeignKey("channel.id", ondelete="CASCADE"), index=True)
    incident_id: Mapped[str | None] = mapped_column(String(16), index=True)
    type: Mapped[str] = mapped_column(String(32))
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The event in the form of contracts "Webhook body"; chat messages are drawn from it when they are sent."""
    attempt: Mapped[int] = mapped_column(default=0)
    """Attempts made so far."""
    next_at: Mapped[float] = mapped_column(Float, index=True)
    state: Mapped[str] = mapped_column(String(16), index=True)
    """waiting, sending, delivered, failed."""
    lease_until: Mapped[float | None] = mapped_column(Float)
    last_status: Mapped[int | None]
    """HTTP status of the last attempt; null: none came."""
    last_reply: Mapped[str | None]
    """First 500 characters of the reply or the error, without the address."""
    created_at: Mapped[float] = mapped_column(Float)
    updated_at: Mapped[float] = mapped_column(Float)


class SettingRow(Base):
    """One value that people change while the server runs."""

    __tablename__ = "setting"

    key: Mapped[str] = mapped_column(String(100), primary_key=True)
    value: Mapped[Any] = mapped_column(JSON)


class RuleSettingRow(Base):
    """What people changed about one rule in one scope. Null: not set here."""

    __tablename__ = "rule_setting"

    scope: Mapped[str] = mapped_column(String(8), primary_key=True)
    """all, project or run."""
    target: Mapped[str] = mapped_column(String(200), primary_key=True)
    """Empty for all runs, a project's name, a run's id."""
    rule_code: Mapped[str] = mapped_column(String(16), primary_key=True)
    enabled: Mapped[bool | None]
    params: Mapped[dict[str, float]] = mapped_column(JSON)
    """Parameters with a value of their own, by name."""
    status: Mapped[str | None] = mapped_column(String(16))
    """preview or stable."""
    updated_at: Mapped[float] = mapped_column(Float)


def new_id(prefix: str) -> str:
    """A fresh identifier: prefix, underscore, 12 hex digits."""
    return f"{prefix}_{secrets.token_hex(6)}"


class Control:
    """The control store behind a SQLAlchemy address (`sqlite://` alone: in memory, for tests).

    Raises:
        StoreError: from migrate(), when the store cannot be opened or written.
        StoreNewer: from migrate(), when a newer program wrote it.
    """

    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        in_memory = self.url.get_backend_name() == "sqlite" and self.url.database in (None, "", ":memory:")
        options: dict[str, Any] = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}} if in_memory else {}
        self.engine = create_engine(self.url, **options)
        if self.url.get_backend_name() == "sqlite":
            event.listen(self.engine, "connect", _configure_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    def migrate(self) -> None:
        """Brings the tables to this program's version."""
        try:
            with self.engine.connect() as connection:
                upgrade(connection, self._shown)
        except SQLAlchemyError as error:
            reason = getattr(error, "orig", None) or error
            raise StoreError(f"{self._shown} cannot be used as the control store: {reason}. Check the file and the free space.") from error

    @contextmanager
    def session(self, write: bool = True) -> Iterator[Session]:
        """One transaction: committed when the block ends, rolled back when it raises.

        write=False only reads and never waits for a writer; a page that just shows something should say so.
        """
        with self.engine.connect() as plain:
            connection = plain.execution_options(rlvitals_write=write)
            with Session(bind=connection, expire_on_commit=False) as session, session.begin():
                yield session

    def close(self) -> None:
        """Closes every connection."""
        self.engine.dispose()

    @property
    def _shown(self) -> str:
        return str(self.url.database) if self.url.get_backend_name() == "sqlite" else self.url.render_as_string(hide_password=True)


def _configure_sqlite(connection: Any, _record: object) -> None:
    # The driver must not begin transactions by itself: _begin_sqlite does, and says whether it will write.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY_MILLISECONDS}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once if another one wrote in between, whatever the
    # busy timeout; taking the write lock at the start waits in line instead.
    write = connection.get_execution_options().get("rlvitals_write", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
