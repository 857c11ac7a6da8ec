"""The shell: addresses, two apps in one process, the private parts of Dash that it leans on."""

from __future__ import annotations

import base64
import hashlib
import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from dash import html
from fastapi import FastAPI

from frontend.address import NoSuchPage, address, match_path, query_of
from frontend.app import mount, page_for, static_files
from frontend.pages import PAGES
from ingest.errors import StoreError


def client(api: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://localhost")


async def fetch(api: FastAPI, path: str, **headers: str) -> httpx.Response:
    async with client(api) as session:
        return await session.get(path, headers=headers)


def get(api: FastAPI, path: str, **headers: str) -> httpx.Response:
    import asyncio

    return asyncio.run(fetch(api, path, **headers))


@pytest.fixture
def api(service: Any) -> FastAPI:
    made = FastAPI()
    mount(made, service)
    return made


def test_paths_give_their_varying_parts() -> None:
    assert match_path("/r/<run>/t/<place>", "/r/abc/t/12.0") == {"run": "abc", "place": "12.0"}
    assert match_path("/r/<run>", "/r/abc/slices") is None
    assert query_of("?q=a%20b&empty=&q=c") == {"q": "c"}
    assert address("/r/<run>", {"s": "a/b c", "q": ""}, run="x/y") == "/r/x%2Fy?s=a%2Fb+c"


def test_the_start_leads_to_the_runs(api: FastAPI) -> None:
    answer = get(api, "/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/runs")


@pytest.mark.parametrize("path", ["/runs", "/r/0123456789ab", "/incidents/in_1", "/no/such/page"])
def test_a_pasted_address_is_answered_by_the_page_that_loads_the_scripts(api: FastAPI, path: str) -> None:
    answer = get(api, path)
    assert answer.status_code == 200
    assert "_dash-renderer" in answer.text


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/assets/nothing.js", "/live/nothing"])
def test_what_is_no_page_is_not_found(api: FastAPI, path: str) -> None:
    assert get(api, path).status_code == 404


def test_two_apps_in_one_process_each_answer_their_own_addresses(service: Any) -> None:
    first, second = FastAPI(), FastAPI()
    one, two = mount(first, service), mount(second, service)
    assert get(first, "/r/0123456789ab").status_code == get(second, "/r/0123456789ab").status_code == 200
    assert one.callback_map.keys() == two.callback_map.keys()


def test_every_inline_script_of_the_page_has_its_hash(api: FastAPI) -> None:
    page = get(api, "/runs").text
    inline = [
        body
        for head, body in re.findall(r"<script([^>]*)>(.*?)</script>", page, re.S)
        if "src=" not in head and "application/json" not in head
    ]
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" for body in inline}
    assert inline
    assert hashes <= set(api.state.script_hashes())


def test_the_page_asks_nothing_of_another_machine(api: FastAPI) -> None:
    page = get(api, "/r/0123456789ab").text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert loaded
    assert [url for url in loaded if not url.startswith("/")] == []


def test_plotly_is_served_at_the_address_that_is_loaded_ahead(api: FastAPI) -> None:
    found = re.search(r'rel="preload" href="([^"]+plotly[^"]+)"', get(api, "/r/0123456789ab").text)
    assert found is not None
    answer = get(api, found.group(1))
    assert answer.status_code == 200
    assert len(answer.content) > 1_000_000
    assert "plotly.min.js" not in get(api, "/runs").text


def test_static_files_are_those_a_page_loads() -> None:
    names = {path.name for path in static_files()}
    assert {"plotly.min.js", "dash_renderer.min.js", "dash_mantine_components.js", "rlv.css", "charts.js"} <= names


def test_the_top_bar_names_only_pages_that_exist() -> None:
    paths = [page.PATH for page in PAGES]
    assert len(paths) == len(set(paths))
    assert {"/runs", "/r/<run>", "/sources"} <= set(paths)


def test_an_address_without_a_page_gets_a_sentence(service: Any, words_of: Any) -> None:
    content, title = page_for(service, PAGES, "/nowhere", "")
    assert title == "Not found"
    assert "There is no page at /nowhere" in words_of(content)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoSuchPage("There is no run x."), "There is no run x."),
        (StoreError("The disk is full."), "The disk is full."),
        (ValueError("secret"), "server's log"),
    ],
)
def test_a_page_that_fails_says_so_and_keeps_the_frame(service: Any, words_of: Any, error: Exception, said: str) -> None:
    def layout(_service: Any, **_query: str) -> html.Div:
        raise error

    page: Any = SimpleNamespace(PATH="/x", TITLE="X", layout=layout)
    content, _ = page_for(service, (page,), "/x", "?a=1")
    assert said in words_of(content)
    assert "secret" not in words_of(content)
