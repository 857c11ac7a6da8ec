"""Compression of everything the server sends: scripts from a cache made once at set-up, the rest on the way."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import sys
from collections.abc import Iterable, MutableMapping
from pathlib import Path

import brotli  # type: ignore[import-untyped]
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CACHE = Path(sys.prefix) / "share" / "rlvitals" / "static"
STATIC_PREFIXES = ("/_dash-component-suites/", "/assets/")
_COMPRESSIBLE = ("text/html", "text/css", "text/plain", "text/javascript", "application/javascript", "application/json", "image/svg+xml")
_LEAST = 1000
_LONG = "public, max-age=31536000, immutable"


class Compressed:
    """Compresses responses by what the browser accepts; a static file is compressed once in the life of its content.

    The inner application answers first, so whoever refuses a request inside is never by-passed by the cache.
    """

    def __init__(self, app: ASGIApp, cache: Path = CACHE) -> None:
        self.app = app
        self.cache = cache
        self._memory: MutableMapping[str, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry; anything but http passes through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        accepted = Headers(scope=scope).get("accept-encoding", "")
        encoding = "br" if "br" in accepted else "gzip" if "gzip" in accepted else None
        if encoding is None:
            await self.app(scope, receive, send)
            return
        await _Answer(self, _with_plain_tags(scope, encoding), send, encoding).run(receive)

    def compressed(self, body: bytes, encoding: str, static: bool) -> bytes:
        """The body in that encoding; static bodies come from the cache by their digest."""
        if not static:
            return brotli.compress(body, quality=4) if encoding == "br" else gzip.compress(body, 4)
        key = f"{hashlib.sha256(body).hexdigest()}.{encoding}"
        if key not in self._memory:
            stored = self.cache / key
            self._memory[key] = stored.read_bytes() if stored.is_file() else _quick(body, encoding)
        return self._memory[key]


class _Answer:
    """One response on its way: the start is held back until the body is whole, unless it is not to be compressed."""

    def __init__(self, layer: Compressed, scope: Scope, send: Send, encoding: str) -> None:
        self.layer, self.scope, self.send, self.encoding = layer, scope, send, encoding
        self.start: Message | None = None
        self.body = bytearray()

    async def run(self, receive: Receive) -> None:
        await self.layer.app(self.scope, receive, self._take)

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            kind = headers.get("content-type", "").split(";")[0]
            if message["status"] == 200 and kind in _COMPRESSIBLE and "content-encoding" not in headers:
                self.start = message
                return
        elif message["type"] == "http.response.body" and self.start is not None:
            self.body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish(self.start)
            return
        await self.send(message)

    async def _finish(self, start: Message) -> None:
        body = bytes(self.body)
        headers = MutableHeaders(raw=start["headers"])
        static = self.scope["path"].startswith(STATIC_PREFIXES)
        if len(body) >= _LEAST:
            body = await asyncio.to_thread(self.layer.compressed, body, self.encoding, static)
            headers["content-encoding"] = self.encoding
            headers.add_vary_header("accept-encoding")
            if "etag" in headers:
                # The same tag must not stand for two encodings of one file.
                tag = headers["etag"]
                headers["etag"] = f'{tag[:-1]}-{self.encoding}"' if tag.endswith('"') else f"{tag}-{self.encoding}"
        if static and self.scope.get("query_string", b"").startswith(b"m="):
            headers["cache-control"] = _LONG
        headers["content-length"] = str(len(body))
        await self.send({**start, "headers": headers.raw})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})


def _with_plain_tags(scope: Scope, encoding: str) -> Scope:
    """The request with the inner application's own tags, so that it can answer "not modified"."""
    suffix = f"-{encoding}".encode()
    headers = [
        (name, value.replace(suffix + b'"', b'"').removesuffix(suffix)) if name == b"if-none-match" else (name, value)
        for name, value in scope["headers"]
    ]
    return {**scope, "headers": headers}


def _quick(body: bytes, encoding: str) -> bytes:
    return brotli.compress(body, quality=5) if encoding == "br" else gzip.compress(body, 6)


def fill_cache(bodies: Iterable[bytes], cache: Path = CACHE) -> int:
    """Compresses what is not in the cache yet at the highest level; the number of files added."""
    cache.mkdir(parents=True, exist_ok=True)
    added = 0
    for body in bodies:
        target = cache / f"{hashlib.sha256(body).hexdigest()}.br"
        if len(body) >= _LEAST and not target.exists():
            part = target.with_suffix(".part")
            part.write_bytes(brotli.compress(body, quality=11))
            part.rename(target)
            added += 1
    return added
