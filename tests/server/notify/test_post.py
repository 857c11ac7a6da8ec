"""One request to a receiver that answers in every way it may."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from server.notify.base import Outgoing, Reply, retry_after
from server.notify.post import post

if TYPE_CHECKING:
    from tests.server.notify.conftest import Receiver

LOOPBACK = ("127.0.0.0/8",)
MESSAGE = Outgoing(b'{"text":"x"}', {"Content-Type": "application/json; charset=utf-8"})


def test_the_body_and_headers_arrive(receiver: Receiver) -> None:
    reply = post(receiver.url, MESSAGE, 5, LOOPBACK)
    path, headers, body = receiver.requests[0]
    assert (reply.status, reply.body) == (200, "ok")
    assert path == "/services/T000/B000/sEcReTpArT9876" and body == MESSAGE.body
    assert headers["host"] == f"127.0.0.1:{receiver.port}" and headers["content-type"] == "application/json; charset=utf-8"


def test_loopback_is_refused_unless_allowed(receiver: Receiver) -> None:
    reply = post(receiver.url, MESSAGE, 5, ())
    assert reply.refused and reply.status is None and not receiver.requests


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.will(302, "", location=f"http://127.0.0.1:{receiver.port}/other")
    assert post(receiver.url, MESSAGE, 5, LOOPBACK).status == 302
    assert len(receiver.requests) == 1


def test_a_receiver_that_says_nothing_is_left_after_the_time_limit(receiver: Receiver) -> None:
    answer = receiver.will_hold()
    started = time.monotonic()
    reply = post(receiver.url, MESSAGE, 0.3, LOOPBACK)
    answer.set()
    assert time.monotonic() - started < 3
    assert reply.status is None and reply.error == "nothing came within 0.3 s"


def test_an_answer_that_drips_is_left_after_the_time_limit() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not stop.wait(0.05):
                try:
                    connection.sendall(b"o")
                except OSError:
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    started = time.monotonic()
    reply = post(f"http://127.0.0.1:{listener.getsockname()[1]}/hook", MESSAGE, 0.4, LOOPBACK)
    took = time.monotonic() - started
    stop.set()
    thread.join(5)
    listener.close()
    assert reply.status is None and took < 3


def test_a_cut_connection_is_an_error_without_the_address(receiver: Receiver) -> None:
    receiver.will(cut=True)
    reply = post(receiver.url, MESSAGE, 5, LOOPBACK)
    assert reply.status is None and reply.error == "the connection was cut"


def test_a_closed_port_is_an_error_without_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    reply = post(f"http://127.0.0.1:{port}/sEcReT", MESSAGE, 5, LOOPBACK)
    assert reply.error == "nothing listens there"


def test_a_huge_reply_is_cut_and_control_characters_are_made_visible(receiver: Receiver) -> None:
    receiver.will(400, "\x1b[31m" + "x" * 200_000)
    reply = post(receiver.url, MESSAGE, 5, LOOPBACK)
    assert len(reply.body) == 500 and "\x1b" not in reply.body


def test_a_reply_that_echoes_the_address_is_redacted(receiver: Receiver) -> None:
    receiver.will(404, "no hook sEcReTpArT9876")
    assert post(receiver.url, MESSAGE, 5, LOOPBACK).body == "no hook [address]"


def test_a_proxy_of_the_environment_is_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{receiver.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    reply = post("http://chat.example/hook", MESSAGE, 5, ())
    assert reply.status == 200
    assert receiver.requests[0][0] == "http://chat.example/hook" and receiver.requests[0][1]["host"] == "chat.example"


def test_a_proxy_is_no_way_around_the_guard(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{receiver.port}")
    monkeypatch.setenv("no_proxy", "")
    assert post("http://169.254.169.254/latest", MESSAGE, 5, ()).refused
    assert not receiver.requests


@pytest.mark.parametrize(("text", "seconds"), [
    ("3", 3.0), ("0.5", 0.5), ("100000", 900.0), ("-5", 0.0), ("Sun, 29 Nov 2026 02:14:37 GMT", 30.0),
    ("Sun, 29 Nov 2020 00:00:00 GMT", 0.0),
    ("soon", None), ("", None), ("nan", None), ("inf", 900.0),
])  # fmt: skip
def test_retry_after_is_read_in_seconds_and_as_a_date(text: str, seconds: float | None) -> None:
    assert retry_after(Reply(429, "", {"retry-after": text}, 0.1), now=1795918447.0) == seconds
