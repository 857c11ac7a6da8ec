"""The folder that one server owns: its rights, the token, server.json, and the listening socket."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from ingest.errors import RLVitalsError, SettingsError
from server.settings import Settings

SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class ServerInfo:
    """What server.json says about the process that owns a home."""

    address: str
    """Where it listens, reachable from this machine, without a trailing slash."""
    pid: int
    started: str | None = None
    """Start of the process as the system counts it; null: the system does not say. Tells a re-used pid apart."""


def prepare_home(home: Path) -> None:
    """Makes the folder, readable by its owner only.

    Raises:
        RLVitalsError: it cannot be made or written.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if home.stat().st_mode & 0o777 != 0o700:
            home.chmod(0o700)
        probe = home / f".write-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise RLVitalsError(f"The home {home} cannot be written: {error.strerror}. Give another folder with --home.") from None


def ensure_token(settings: Settings) -> str:
    """The access token; made at the first start in a file that only its owner can read.

    Raises:
        RLVitalsError: the file cannot be read or written.
        SettingsError: a token given by file is shorter than 16 characters.
    """
    path = settings.token_path
    try:
        if settings.token_file is None:
            _make_token(path)
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise RLVitalsError(f"The token file {path} cannot be read: {reason}.") from None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token or ";" in token:
        raise SettingsError(f"The token in {path} must be at least {SHORTEST_TOKEN} plain characters without spaces or semicolons.")
    return token


def _make_token(path: Path) -> None:
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        if path.stat().st_size:
            return
        # A kill between making and filling the file left it empty.
        handle = os.open(path, os.O_WRONLY)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(secrets.token_urlsafe(32) + "\n")


def write_server_json(settings: Settings, address: str) -> None:
    """Says in the home which process owns it and where it listens."""
    info = ServerInfo(address, os.getpid(), _process_start(os.getpid()))
    fresh = settings.server_json.with_suffix(f".{os.getpid()}")
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(asdict(info)) + "\n", encoding="utf-8")
    fresh.replace(settings.server_json)


def remove_server_json(settings: Settings) -> None:
    """Removes server.json if it is this process's own."""
    info = _read_server_json(settings.server_json)
    if info is not None and info.pid == os.getpid():
        settings.server_json.unlink(missing_ok=True)


def running_server(home: Path) -> ServerInfo | None:
    """The living process that owns the home, or None (no file, an unreadable one, or one left by a process that died)."""
    info = _read_server_json(home / "server.json")
    return info if info is not None and _alive(info) else None


def _read_server_json(path: Path) -> ServerInfo | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        started = found.get("started")
        return ServerInfo(str(found["address"]), int(found["pid"]), str(started) if started is not None else None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _alive(info: ServerInfo) -> bool:
    if info.pid <= 0:
        return False
    try:
        os.kill(info.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    now = _process_start(info.pid)
    return info.started is None or now is None or now == info.started


def _process_start(pid: int) -> str | None:
    try:
        # The command name in parentheses may hold spaces; start time is the 20th field after it (proc(5)).
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def bind(settings: Settings) -> socket.socket:
    """The listening socket, taken before anything else starts.

    Raises:
        RLVitalsError: the port is in use or the address is not this machine's.
    """
    host = settings.host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise RLVitalsError(f"The host {settings.host} has no address on this machine. Give one with --host.") from None
        raise RLVitalsError(
            f"Port {settings.port} on {settings.host} cannot be used: {error.strerror}. Stop what uses it, or give another with --port."
        ) from None
    return listener


def local_address(settings: Settings, port: int) -> str:
    """The address at which this machine reaches the server."""
    host = settings.host.strip("[]")
    if host in ("0.0.0.0", "localhost", ""):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
