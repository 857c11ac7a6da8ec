"""One POST to one resolved address: no redirects, a time limit over everything, nothing of the address in errors."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Sequence
from urllib.parse import urlsplit

from server.notify.base import Outgoing, Reply
from server.notify.guard import Refused, Target, Unresolved, check, redacted, resolve

LONGEST_REPLY = 65_536
KEPT_REPLY = 500


def post(url: str, outgoing: Outgoing, timeout_seconds: float, allowed: Sequence[str]) -> Reply:
    """Sends a message and reads the start of the answer; never raises for what the other side does."""
    started = time.monotonic()

    def failed(error: str, refused: bool = False) -> Reply:
        return Reply(None, "", {}, time.monotonic() - started, error, refused)

    try:
        target = Target.of(url)
        connection = _connection(target, timeout_seconds, allowed)
    except Refused as error:
        return failed(str(error), refused=True)
    except Unresolved as error:
        return failed(str(error))
    watchdog = threading.Timer(timeout_seconds, connection.cut)
    watchdog.daemon = True
    watchdog.start()
    try:
        status, headers, body = connection.exchange(target, outgoing)
    except (OSError, http.client.HTTPException) as error:
        return failed(redacted(_words(error, connection.was_cut, timeout_seconds), url))
    finally:
        watchdog.cancel()
        connection.close()
    if connection.was_cut:
        # The end of the answer is missing, so it proves nothing.
        return failed(_words(TimeoutError(), True, timeout_seconds))
    text = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in body.decode("utf-8", "replace"))
    return Reply(status, redacted(text, url)[:KEPT_REPLY], headers, time.monotonic() - started)


def _connection(target: Target, timeout: float, allowed: Sequence[str]) -> _Connection:
    proxy = _proxy(target)
    if proxy is None:
        return _Connection(target, resolve(target, allowed), target.port, timeout)
    # The proxy resolves the name, so only a literal address can be checked here.
    try:
        check([target.host], allowed)
    except ValueError:
        if target.host == "localhost" or target.host.endswith(".localhost"):
            raise Refused("The host is this machine, which a proxy cannot reach.") from None
    return _Connection(target, proxy[0], proxy[1], timeout, by_proxy=True)


def _proxy(target: Target) -> tuple[str, int] | None:
    address = urllib.request.getproxies().get("https" if target.tls else "http")
    if not address or urllib.request.proxy_bypass(target.host):
        return None
    parts = urlsplit(address if "://" in address else f"http://{address}")
    return (parts.hostname, parts.port or 80) if parts.hostname else None


class _Connection(http.client.HTTPConnection):
    """Connects to the address that was checked, whatever the name resolves to by now."""

    def __init__(self, target: Target, address: str, port: int, timeout: float, by_proxy: bool = False) -> None:
        super().__init__(target.host, target.port, timeout=timeout)
        self._target = target
        self._where = (address, port)
        self._by_proxy = by_proxy
        self.was_cut = False
        if by_proxy and target.tls:
            self.set_tunnel(target.host, target.port)

    def connect(self) -> None:
        """Opens the socket; with https the certificate must be the host's."""
        self.sock = socket.create_connection(self._where, self.timeout)
        if self._by_proxy and self._target.tls:
            self._tunnel()  # type: ignore[attr-defined]  # how http.client itself connects through a proxy
        if self._target.tls:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self._target.host)

    def exchange(self, target: Target, outgoing: Outgoing) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and the start of the body."""
        path = target.path
        if self._by_proxy and not target.tls:
            host = f"[{target.host}]" if ":" in target.host else target.host
            path = f"http://{host}{'' if target.port == 80 else f':{target.port}'}{path}"
        self.request("POST", path, outgoing.body, {**outgoing.headers, "User-Agent": "RLVitals", "Connection": "close"})
        response = self.getresponse()
        body = response.read(LONGEST_REPLY)
        return response.status, {name.lower(): value for name, value in response.getheaders()}, body

    def cut(self) -> None:
        """Ends an exchange that takes too long, also one whose bytes drip in."""
        self.was_cut = True
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


def _words(error: Exception, was_cut: bool, timeout_seconds: float) -> str:
    if was_cut or isinstance(error, TimeoutError):
        return f"nothing came within {timeout_seconds:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not good: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"the encrypted connection failed: {error.reason}"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, http.client.HTTPException | ConnectionError):
        return "the connection was cut"
    return str(error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__)
