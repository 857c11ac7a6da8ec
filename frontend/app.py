"""The place where all parts are put together: the API, Dash on it, and the pages."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, ctx, dcc, html
from dash.backends._fastapi import reset_current_request, set_current_request
from dash.exceptions import PreventUpdate
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.requests import Request
from starlette.responses import Response

from frontend import live, theme
from frontend.address import NoSuchPage, match_path, query_of
from frontend.components import frame, states
from frontend.compression import Compressed
from ingest.errors import RLVitalsError
from server.access import Access
from server.queries.runs import newest_attempt, run_summary

ASSETS = Path(__file__).parent / "assets"
_NO_PAGES = ("api/", "_dash", "assets/", "live/")
_WITH_CHARTS = ("r/", "incidents/")
# Plotly is most of what a page loads, and Dash asks for it only when the first chart is there.
_PLOTLY = '<link rel="preload" href="/_dash-component-suites/plotly/package_data/plotly.min.js" as="script">'
_LOG = logging.getLogger(__name__)
_INDEX = """<!DOCTYPE html>
<html lang="en" data-mantine-color-scheme="light">
<head>{%metas%}<title>RLVitals</title>{%favicon%}
<script src="/assets/early.js"></script>
<link rel="preload" href="/assets/fonts/inter-latin-wght-normal.woff2" as="font" type="font/woff2" crossorigin>
{%css%}<!--preload--></head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""


def create_app(service: Any) -> FastAPI:
    """The whole program as one ASGI application. `service` is server.service.Service, or an object like it."""
    from server.app import create_api

    api = create_api(service)
    mount(api, service)
    return api


def mount(api: FastAPI, service: Any) -> Dash:
    """Puts the dashboard on an API; nothing may be added to the API afterwards, the last route takes every address.

    `api.state.script_hashes` gives the hashes of Dash's inline scripts to the content security policy.
    """
    from frontend.pages import PAGES

    app = _dash(api)
    bar = [(page.PATH, page.TITLE) for page in sorted(PAGES, key=lambda page: int(page.ORDER)) if "<" not in page.PATH and page.ORDER < 100]
    app.layout = _layout()
    _register_router(app, service, PAGES)
    _register_bar(app, service, bar)
    _register_run_header(app, service)
    live.register(app, service)
    for page in PAGES:
        page.register(app, service)
    app.clientside_callback(ClientsideFunction("rlv", "live"), Output("rlv-connection", "data-live"), Input(live.STORE_ID, "data"))
    _add_page_routes(api, app)
    api.add_middleware(Compressed)
    # What was added last stands outermost, but nothing may be read or answered before the door has let it in.
    api.user_middleware.sort(key=lambda entry: getattr(entry.cls, "__name__", "") != Access.__name__)
    # Every callback is known now, so the inline scripts are too.
    app._setup_server()
    hashes = tuple(app.csp_hashes())
    api.state.script_hashes = lambda: hashes
    return app


def _dash(api: FastAPI) -> Dash:
    return Dash(
        "rlvitals",
        server=api,
        assets_folder=str(ASSETS),
        assets_ignore=r"early\.js|.*LICENSE.*",
        suppress_callback_exceptions=True,
        serve_locally=True,
        update_title="",
        title="RLVitals",
        index_string=_INDEX,
        add_log_handler=False,
        on_error=_logged,
    )


def _logged(error: Exception) -> None:
    # Dash answers a failing callback with a bare 500 and writes nothing; the reason must be somewhere.
    _LOG.error("a callback failed", exc_info=error)
    raise error


def _layout() -> Any:
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id=live.STORE_ID),
            dcc.Store(id="page-title"),
            dcc.Store(id="redraw"),
            dmc.AppShell(
                [
                    dmc.AppShellHeader(html.Div(id="top-bar", className="rlv-top"), withBorder=False),
                    dmc.AppShellMain(html.Div(states.waiting(), id="page")),
                ],
                header={"height": 44},
                padding=0,
            ),
        ],
        theme=theme.mantine(),
        defaultColorScheme="auto",
    )


def _register_router(app: Dash, service: Any, pages: tuple[ModuleType, ...]) -> None:
    @app.callback(
        Output("page", "children"), Output("page-title", "data"), Input("url", "pathname"), Input("url", "search"), Input("redraw", "data")
    )
    async def show(path: str, search: str | None, _again: object) -> tuple[Any, str]:
        theme.choose(ctx.cookies.get("rlv-scheme"))
        return await asyncio.to_thread(contextvars.copy_context().run, page_for, service, pages, path, search)

    app.clientside_callback(ClientsideFunction("rlv", "title"), Output("page-title", "storage_type"), Input("page-title", "data"))


def page_for(service: Any, pages: tuple[ModuleType, ...], path: str, search: str | None) -> tuple[Any, str]:
    """The content and the title for an address; an address that names nothing gets a page that says so."""
    for page in pages:
        parts = match_path(page.PATH, path)
        if parts is None:
            continue
        try:
            return page.layout(service, **{**query_of(search), **parts}), str(page.TITLE)
        except NoSuchPage as error:
            return states.note(str(error), title="Not found"), "Not found"
        except RLVitalsError as error:
            return states.failed(str(error)), str(page.TITLE)
        except Exception:
            _LOG.exception("page %s failed for %s?%s", page.PATH, path, search)
            return states.failed("An error in RLVitals; the server's log has the details. Reload, or go back to Runs."), str(page.TITLE)
    return states.note(f"There is no page at {path}. Runs, incidents and sources are in the bar above.", title="Not found"), "Not found"


def _register_bar(app: Dash, service: Any, bar: list[tuple[str, str]]) -> None:
    @app.callback(Output("top-bar", "children"), Input("url", "pathname"), Input(live.STORE_ID, "data"))
    async def draw(path: str, message: dict[str, Any] | None) -> Any:
        if ctx.triggered_id == live.STORE_ID and not (message or {}).get("incidents"):
            raise PreventUpdate
        current = "/runs" if path.startswith("/r/") else "/" + path.split("/")[1]
        return frame.top_bar(bar, current, await asyncio.to_thread(open_incidents, service), bool(service.settings.demo))


def _register_run_header(app: Dash, service: Any) -> None:
    @app.callback(Output("run-state", "children"), Output("run-facts", "children"), Input("run-id", "data"), Input(live.STORE_ID, "data"))
    async def draw(run_id: str, message: dict[str, Any] | None) -> Any:
        # A beat without rows still matters: a run may have fallen silent.
        if ctx.triggered_id == live.STORE_ID and (message or {}).get("rows") and run_id not in (message or {})["rows"]:
            raise PreventUpdate
        return await asyncio.to_thread(run_header, service, run_id)


def run_header(service: Any, run_id: str) -> tuple[Any, Any]:
    """State chip and line of facts of a run."""
    run = run_summary(service.store, run_id)
    if run is None:
        raise PreventUpdate
    return frame.state_chip(run), frame.run_facts(run, newest_attempt(service.store, run_id))


def open_incidents(service: Any) -> int:
    """How many incidents are open over all runs."""
    from server.control.incidents import count_open_by_run

    with service.control.session(write=False) as session:
        return sum(count_open_by_run(session).values())


def _add_page_routes(api: FastAPI, app: Dash) -> None:
    # Dash adds its own catch-all to whichever app was made last in the process; this one belongs to this app.
    @api.get("/{path:path}", include_in_schema=False)
    async def index(path: str, request: Request) -> Response:
        if path.startswith(_NO_PAGES):
            raise HTTPException(404)
        page = index_of(app, request)
        return HTMLResponse(page.replace("<!--preload-->", _PLOTLY if path.startswith(_WITH_CHARTS) else ""))

    @api.get("/", include_in_schema=False)
    async def home() -> RedirectResponse:
        return RedirectResponse("/runs")

    # Dash has taken "/" for its index; routes are asked in order.
    api.router.routes.insert(0, api.router.routes.pop())


def index_of(app: Dash, request: Request) -> str:
    """The page without content that loads every script; Dash reads the request from a variable of its own."""
    token = set_current_request(request)
    try:
        return str(app.index())
    finally:
        reset_current_request(token)


def static_files() -> Iterator[Path]:
    """Every script and style sheet on disk that a page may load."""
    app = mount(FastAPI(), None)
    index_of(app, Request({"type": "http", "headers": [], "query_string": b"", "path": "/", "method": "GET"}))
    for package, paths in app.registered_paths.items():
        folder = Path(str(import_module(package).__file__)).parent
        for path in sorted(paths):
            file = folder / path
            if file.suffix in (".js", ".css") and file.is_file():
                yield file
    yield from (file for file in sorted(ASSETS.rglob("*")) if file.suffix in (".js", ".css"))
