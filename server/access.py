"""The one door: token, host name, origin and security headers for every request and every websocket.

A pure ASGI layer, because middleware made for HTTP never sees a websocket. `/healthz` and `/readyz` alone are open.
"""

from __future__ import annotations

import hmac
import html
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.settings import Settings

COOKIE = "rlvitals"
COOKIE_SECONDS = 365 * 24 * 3600
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_log = logging.getLogger(__name__)

ScriptHashes = Callable[[], Sequence[str]]


class Access:
    """Lets a request through if it names a known host, comes from our own pages and carries the token.

    token: None only with settings.no_token. script_hashes: called at the first answer for the hashes of the page's
    inline scripts (`'sha256-...'`), so that pages can be added after this layer.
    """

    def __init__(self, app: ASGIApp, settings: Settings, token: str | None, script_hashes: ScriptHashes = lambda: ()) -> None:
        if token is None and not settings.no_token:
            raise ValueError("A token is needed unless no_token is set.")
        self.app = app
        self.settings = settings
        self._token = None if settings.no_token else token
        self._script_hashes = script_hashes
        self._headers: list[tuple[bytes, bytes]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or refuses by itself, or hands on to the app with the headers added to its answer."""
        if scope["type"] == "http":
            await self._http(scope, receive, self._with_headers(send))
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(scope)
        if scope["path"] in OPEN_PATHS:
            await self._run(scope, receive, send)
        elif not self._known_host(request):
            await _refuse(request, send, 421, _FOREIGN_HOST)
        elif self._foreign(request):
            await _refuse(request, send, 403, _FOREIGN_ORIGIN)
        elif self._has_token(request):
            await self._run(scope, receive, send)
        elif self._shows_token(request):
            await self._welcome(request, send)
        else:
            await _refuse(request, send, 401, _NO_TOKEN)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(scope)
        if self._known_host(request) and not self._foreign(request) and self._has_token(request):
            await self.app(scope, receive, send)
        else:
            await receive()
            # Closing before accepting makes the server answer the handshake with 403.
            await send({"type": "websocket.close", "code": 4403, "reason": ""})

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception:
            if started:
                raise
            _log.exception("%s %s failed", scope["method"], scope["path"])
            await _refuse(_Request(scope), send, 500, _FAILED)

    def _known_host(self, request: _Request) -> bool:
        hosts = request.all("host")
        return len(hosts) == 1 and _host_name(hosts[0]) in self.settings.host_names

    def _foreign(self, request: _Request) -> bool:
        """Whether a page of another origin is behind the request; only what changes something or opens a socket is asked."""
        if request.method in _SAFE_METHODS:
            return False
        origins = request.all("origin")
        if not origins:
            return (request.first("sec-fetch-site") or "none") not in ("same-origin", "none")
        public = self.settings.public_url
        own = {(request.first("host") or "").lower()}
        if public is not None:
            own.add(urlsplit(public).netloc.lower())
        return len(origins) != 1 or urlsplit(origins[0]).scheme not in ("http", "https") or urlsplit(origins[0]).netloc.lower() not in own

    def _has_token(self, request: _Request) -> bool:
        return self._token is None or any(self._same(candidate) for candidate in request.tokens())

    def _same(self, candidate: str) -> bool:
        return self._token is not None and hmac.compare_digest(candidate.encode("utf-8", "replace"), self._token.encode())

    def _shows_token(self, request: _Request) -> bool:
        """Whether this is a page whose address carries the right token."""
        page = request.method in ("GET", "HEAD") and not request.path.startswith("/api/")
        return page and any(self._same(value) for name, value in request.query if name == "token")

    async def _welcome(self, request: _Request, send: Send) -> None:
        """Moves the token from the address into a cookie, so that it stays in no history and no link."""
        rest = urlencode([(name, value) for name, value in request.query if name != "token"])
        # A path that begins with two slashes would be read as another host.
        target = "/" + request.raw_path.lstrip("/\\") + (f"?{rest}" if rest else "")
        # Lax, not Strict: with Strict a link opened from a chat in the browser arrives without the cookie.
        cookie = f"{COOKIE}={self._token}; Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Lax"
        if request.scheme == "https":
            cookie += "; Secure"
        headers = [(b"location", target.encode("latin-1", "replace")), (b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
        await _answer(send, 303, headers, b"")

    def _with_headers(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = self._security_headers()
                names = {name for name, _ in ours}
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in names]
                message = {**message, "headers": [*kept, *ours]}
            await send(message)

        return sending

    def _security_headers(self) -> list[tuple[bytes, bytes]]:
        if self._headers is None:
            self._headers = [
                (b"content-security-policy", content_security_policy(self._script_hashes()).encode()),
                (b"x-content-type-options", b"nosniff"),
                # no-referrer would make browsers send `Origin: null` with our own pages' requests.
                (b"referrer-policy", b"same-origin"),
                (b"x-frame-options", b"DENY"),
                (b"cross-origin-opener-policy", b"same-origin"),
            ]
        return self._headers


def content_security_policy(script_hashes: Iterable[str]) -> str:
    """The policy of every answer. Plotly and Mantine write style tags, hence 'unsafe-inline' for styles alone."""
    return "; ".join(
        (
            "default-src 'self'",
            " ".join(("script-src 'self'", *script_hashes)),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "worker-src 'self' blob:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


class _Request:
    """What the door looks at in a scope."""

    def __init__(self, scope: Scope) -> None:
        self.path: str = scope["path"]
        self.raw_path = (scope.get("raw_path") or self.path.encode()).decode("latin-1")
        # A websocket's handshake is a GET, but it opens a way to change things.
        self.method: str = scope["method"] if scope["type"] == "http" else "WEBSOCKET"
        self.scheme: str = scope.get("scheme", "http")
        self.query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        self._headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]

    def all(self, name: str) -> list[str]:
        return [value for found, value in self._headers if found == name]

    def first(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    def tokens(self) -> list[str]:
        """Every token in the headers: bearer and cookie."""
        found = [value[7:].strip() for value in self.all("authorization") if value[:7].lower() == "bearer "]
        for header in self.all("cookie"):
            try:
                jar = SimpleCookie(header)
            except CookieError:
                continue
            if COOKIE in jar:
                found.append(jar[COOKIE].value)
        return found

    @property
    def wants_page(self) -> bool:
        return "text/html" in (self.first("accept") or "") and not self.path.startswith("/api/")


def _host_name(header: str) -> str:
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


_NO_TOKEN = (
    "This RLVitals asks for its access token.",
    "Open the address that `rlvitals serve` printed when it started: it carries the token. "
    "Or read the file `token` in the home folder (~/.rlvitals unless another was given) and add ?token=... to this address. "
    "Programs send it as `Authorization: Bearer ...`.",
)
_FOREIGN_HOST = (
    "This RLVitals does not go by that host name.",
    "Open it as localhost, or start it with --allow-host and the name that stands in the browser's address.",
)
_FOREIGN_ORIGIN = (
    "This request comes from a page of another site.",
    "RLVitals takes changes from its own pages only. Behind a proxy, start it with --public-url and the address that people open.",
)
_FAILED = ("This request failed inside RLVitals.", "The reason is in the server's log.")


async def _refuse(request: _Request, send: Send, status: int, words: tuple[str, str]) -> None:
    headers = [(b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if request.wants_page:
        kind, body = b"text/html; charset=utf-8", _page(*words)
    else:
        kind, body = b"application/json", json.dumps({"error": words[0], "hint": words[1]})
    await _answer(send, status, [(b"content-type", kind), *headers], b"" if request.method == "HEAD" else body.encode())


def _page(title: str, text: str) -> str:
    title, text = html.escape(title), html.escape(text)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>RLVitals</title><style>:root{{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}}"
        "main{max-width:34rem;margin:18vh auto;padding:0 24px}h1{font-size:17px}</style></head>"
        f"<body><main><h1>{title}</h1><p>{text}</p></main></body></html>"
    )


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", str(len(body)).encode()), *headers]})
    await send({"type": "http.response.body", "body": body})
