"""Compression: once for what never changes, never twice, never around whoever refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from frontend.compression import Compressed, fill_cache

SCRIPT = b"var a = 1;\n" * 500


async def script(request: Request) -> Response:
    if request.headers.get("authorization") != "yes":
        return PlainTextResponse("no", 401)
    if request.headers.get("if-none-match") == '"tag"':
        return Response(status_code=304)
    return Response(SCRIPT, media_type="text/javascript", headers={"etag": '"tag"'})


async def data(_request: Request) -> Response:
    return JSONResponse({"rows": list(range(2000))})


def get(cache: Path, path: str, **headers: str) -> httpx.Response:
    app = Compressed(Starlette(routes=[Route("/assets/a.js", script), Route("/data", data)]), cache)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as session:
            return await session.get(path, headers={"authorization": "yes", **headers})

    return asyncio.run(ask())


@pytest.mark.parametrize("encoding", ["br", "gzip"])
def test_a_script_arrives_compressed_and_whole(tmp_path: Path, encoding: str) -> None:
    answer = get(tmp_path, "/assets/a.js", **{"accept-encoding": encoding})
    assert answer.headers["content-encoding"] == encoding
    assert answer.content == SCRIPT
    assert int(answer.headers["content-length"]) < 200


def test_the_cache_made_at_set_up_is_what_is_sent(tmp_path: Path) -> None:
    assert fill_cache([SCRIPT, b"short"], tmp_path) == 1
    assert fill_cache([SCRIPT], tmp_path) == 0
    (stored,) = tmp_path.iterdir()
    assert brotli.decompress(stored.read_bytes()) == SCRIPT
    stored.write_bytes(brotli.compress(b"from the cache" * 200))
    assert get(tmp_path, "/assets/a.js", **{"accept-encoding": "br"}).content == b"from the cache" * 200


def test_whoever_refuses_inside_is_not_passed_by(tmp_path: Path) -> None:
    assert get(tmp_path, "/assets/a.js", authorization="no").status_code == 401


def test_a_known_tag_is_answered_with_not_modified(tmp_path: Path) -> None:
    first = get(tmp_path, "/assets/a.js", **{"accept-encoding": "br"})
    assert first.headers["etag"] == '"tag-br"'
    again = get(tmp_path, "/assets/a.js", **{"accept-encoding": "br", "if-none-match": first.headers["etag"]})
    assert again.status_code == 304


def test_only_addresses_with_a_version_are_kept_for_long(tmp_path: Path) -> None:
    assert "cache-control" not in get(tmp_path, "/assets/a.js").headers
    assert "immutable" in get(tmp_path, "/assets/a.js?m=1").headers["cache-control"]


def test_answers_with_data_are_compressed_and_not_kept(tmp_path: Path) -> None:
    answer: Any = get(tmp_path, "/data", **{"accept-encoding": "br"})
    assert answer.headers["content-encoding"] == "br"
    assert answer.json()["rows"][-1] == 1999
    assert list(tmp_path.iterdir()) == []


def test_a_browser_that_takes_no_encoding_gets_the_plain_bytes(tmp_path: Path) -> None:
    answer = get(tmp_path, "/assets/a.js", **{"accept-encoding": "identity"})
    assert "content-encoding" not in answer.headers
    assert answer.content == SCRIPT
