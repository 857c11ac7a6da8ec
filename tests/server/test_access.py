"""The door, tried from outside over a real socket: who gets in, who does not, and what every answer carries."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from socket import create_connection
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, WebSocket
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from server.access import Access, content_security_policy
from server.settings import Settings

TOKEN = "correct-horse-battery-staple"
HASH = "'sha256-abc='"


def program(settings: Settings) -> FastAPI:
    """A little application behind the door."""
    api = FastAPI(openapi_url=None)
    api.add_middleware(Access, settings=settings, token=None if settings.no_token else TOKEN, script_hashes=lambda: [HASH])

    @api.get("/healthz")
    @api.get("/runs")
    @api.get("/assets/app.js")
    @api.get("/api/v1/runs")
    def get() -> dict[str, bool]:
        return {"inside": True}

    @api.post("/api/v1/paths")
    def post() -> dict[str, bool]:
        return {"inside": True}

    @api.get("/broken")
    def broken() -> None:
        raise RuntimeError("secret reason")

    @api.websocket("/live")
    async def live(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("inside")
        await socket.close()

    return api


@contextmanager
def running(settings: Settings) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(program(settings), port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < end
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(Settings(home=tmp_path_factory.mktemp("home"), allow_host=("vitals.example",))) as found:
        yield found


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, trust_env=False) as found:
        yield found


def bearer() -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKEN}"}


def socket(address: str, **headers: str) -> AbstractContextManager[Any]:
    """A websocket that names itself and its origin as told."""
    named = dict(headers)
    origin = named.pop("Origin", None)
    host = named.pop("Host", None)
    parts = urlsplit(address)
    plain = create_connection((parts.hostname or "", parts.port or 80))
    return connect(f"ws://{host or parts.netloc}/live", sock=plain, origin=cast(Any, origin), additional_headers=named, compression=None)


@pytest.mark.parametrize(
    "path", ["/runs", "/assets/app.js", "/api/v1/runs", "/unknown", "/metrics", "//runs", "/healthz/", "/healthz/x", "/%2e/runs"]
)
def test_nothing_is_shown_without_the_token(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 401 and "inside" not in answer.text and answer.headers["www-authenticate"] == "Bearer"


def test_a_wrong_token_is_refused_in_every_form(client: httpx.Client) -> None:
    assert client.get("/runs", headers={"Authorization": f"Bearer {TOKEN}x"}).status_code == 401
    assert client.get("/runs", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401
    assert client.get("/runs", headers={"Cookie": "rlvitals=wrong"}).status_code == 401
    assert client.get("/runs?token=wrong").status_code == 401
    assert client.get("/runs", headers=[(b"Authorization", b"Bearer \xff\xfe")]).status_code == 401


def test_bearer_and_cookie_let_in(client: httpx.Client) -> None:
    assert client.get("/runs", headers=bearer()).json() == {"inside": True}
    assert client.get("/assets/app.js", headers={"Cookie": f"other=1; rlvitals={TOKEN}"}).json() == {"inside": True}


def test_the_token_in_a_page_address_becomes_a_cookie_and_leaves_the_address(client: httpx.Client) -> None:
    answer = client.get(f"/runs?view=a%26b&token={TOKEN}&q=%C3%A9")
    assert answer.status_code == 303 and answer.headers["location"] == "/runs?view=a%26b&q=%C3%A9"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"rlvitals={TOKEN};") and "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Path=/" in cookie
    assert client.get(answer.headers["location"]).json() == {"inside": True}


def test_the_token_in_an_address_is_of_no_use_for_the_api_or_for_changes(client: httpx.Client) -> None:
    assert client.get(f"/api/v1/runs?token={TOKEN}").status_code == 401
    assert client.post(f"/api/v1/paths?token={TOKEN}").status_code == 401


def test_the_redirect_stays_on_this_server(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request("GET", f"//evil.example/x?token={TOKEN}")
    assert connection.getresponse().headers["location"] == "/evil.example/x"
    connection.close()


def test_a_browser_gets_a_page_that_says_how_to_get_the_address(client: httpx.Client) -> None:
    page = client.get("/runs", headers={"Accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html") and "rlvitals serve" in page.text and "<script" not in page.text
    api = client.get("/api/v1/runs", headers={"Accept": "text/html"})
    assert api.json()["error"] == "This RLVitals asks for its access token."


def test_health_is_open_and_says_nothing_else(client: httpx.Client) -> None:
    assert client.get("/healthz", headers={"Host": "10.1.2.3:8420"}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "", "10.0.0.1"])
def test_a_foreign_host_name_is_refused_even_with_the_token(client: httpx.Client, host: str) -> None:
    answer = client.get("/runs", headers={**bearer(), "Host": host})
    assert answer.status_code in (400, 421) and "inside" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8420", "127.0.0.1:1", "[::1]:8420", "vitals.example", "vitals.example.:443"])
def test_known_host_names_are_let_in(client: httpx.Client, host: str) -> None:
    assert client.get("/runs", headers={**bearer(), "Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:9", "http://127.0.0.1", "file://", "https://"])
def test_a_change_from_a_foreign_page_is_refused_even_with_the_token(client: httpx.Client, origin: str) -> None:
    answer = client.post("/api/v1/paths", headers={**bearer(), "Origin": origin})
    assert answer.status_code == 403 and "inside" not in answer.text


def test_a_cross_site_change_without_an_origin_is_refused(client: httpx.Client) -> None:
    assert client.post("/api/v1/paths", headers={**bearer(), "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.post("/api/v1/paths", headers={**bearer(), "Sec-Fetch-Site": "same-site"}).status_code == 403


def test_a_change_from_our_own_page_or_a_program_is_let_in(client: httpx.Client, address: str) -> None:
    assert client.post("/api/v1/paths", headers={**bearer(), "Origin": address, "Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert client.post("/api/v1/paths", headers=bearer()).status_code == 200


def test_every_answer_carries_the_policy(client: httpx.Client) -> None:
    for answer in (client.get("/healthz"), client.get("/runs"), client.get("/runs", headers=bearer()), client.get("/no", headers=bearer())):
        assert answer.headers["content-security-policy"] == content_security_policy([HASH])
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["referrer-policy"] == "same-origin"


def test_the_policy_is_the_one_that_was_agreed() -> None:
    assert content_security_policy([HASH]) == (
        f"default-src 'self'; script-src 'self' {HASH}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "worker-src 'self' blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
    )


def test_a_failure_inside_tells_nothing_and_keeps_the_policy(client: httpx.Client) -> None:
    answer = client.get("/broken", headers=bearer())
    assert answer.status_code == 500 and "secret reason" not in answer.text and "content-security-policy" in answer.headers


def test_a_websocket_opens_with_the_token_from_our_own_page(address: str) -> None:
    for headers in (bearer(), {"Cookie": f"rlvitals={TOKEN}"}):
        with socket(address, Origin=address, **headers) as opened:
            assert opened.recv() == "inside"


@pytest.mark.parametrize("headers", [
    {}, {"Cookie": "rlvitals=wrong"}, {"Authorization": "Bearer wrong"}, {"Cookie": f"rlvitals={TOKEN}", "Origin": "https://evil.example"},
    {"Cookie": f"rlvitals={TOKEN}", "Origin": "null"}, {"Cookie": f"rlvitals={TOKEN}", "Origin": "http://localhost:9"},
    {"Cookie": f"rlvitals={TOKEN}", "Host": "evil.example"}, {"Cookie": f"rlvitals={TOKEN}", "Host": "evil.example", "Origin": "http://evil.example"},
])  # fmt: skip
def test_a_websocket_is_refused_without_token_or_from_elsewhere(address: str, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as refused, socket(address, **headers):
        pass
    assert refused.value.response.status_code == 403


def test_without_a_token_on_loopback_host_and_origin_are_still_checked(tmp_path: Path) -> None:
    with running(Settings(home=tmp_path, no_token=True)) as address, httpx.Client(base_url=address, trust_env=False) as client:
        assert client.get("/runs").status_code == 200
        assert client.get("/runs", headers={"Host": "evil.example"}).status_code == 421
        assert client.post("/api/v1/paths", headers={"Origin": "https://evil.example"}).status_code == 403
        with pytest.raises(InvalidStatus), socket(address, Origin="https://evil.example"):
            pass


def test_behind_a_proxy_the_public_address_is_our_own_origin(tmp_path: Path) -> None:
    with (
        running(Settings(home=tmp_path, public_url="https://vitals.example")) as address,
        httpx.Client(base_url=address, trust_env=False) as client,
    ):
        assert client.post("/api/v1/paths", headers={**bearer(), "Origin": "https://vitals.example"}).status_code == 200
        assert client.get("/runs", headers={**bearer(), "Host": "vitals.example"}).status_code == 200


def test_the_layer_cannot_be_made_without_a_token_by_accident(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="token"):
        Access(FastAPI(), Settings(home=tmp_path), None)
