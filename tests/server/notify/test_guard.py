"""Where messages may go."""

from __future__ import annotations

import socket

import pytest

from server.notify.guard import Refused, Target, Unresolved, check, hint, redacted, resolve


@pytest.mark.parametrize("address", [
    "127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254",
    "fe80::1", "fd00:ec2::254",
    "100.100.100.200", "224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
    "64:ff9b::a00:1",
    "2002:7f00:1::",
])  # fmt: skip
def test_addresses_inside_are_refused(address: str) -> None:
    with pytest.raises(Refused, match="private address"):
        check([address], ())


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_addresses_outside_are_allowed(address: str) -> None:
    check([address], ())


def test_an_allowed_network_lets_its_own_addresses_in_and_no_others() -> None:
    check(["10.1.2.3"], ("10.1.2.0/24",))
    check(["::ffff:10.1.2.3"], ("10.1.2.0/24",))
    with pytest.raises(Refused):
        check(["10.1.3.3"], ("10.1.2.0/24", "fd00::/8"))


def test_one_bad_address_among_good_ones_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in ("8.8.8.8", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_named: found)
    with pytest.raises(Refused):
        resolve(Target("mixed.example", 443, True, "/"), ())


def test_a_name_without_an_address_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_args: object, **_named: object) -> None:
        raise socket.gaierror(-2, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unresolved):
        resolve(Target("nowhere.example", 443, True, "/"), ())


@pytest.mark.parametrize("url", [
    "ftp://host/x", "file:///etc/passwd", "javascript:alert(1)", "host/path", "", "http://", "https://user:pass@host/x", "http://host:x/",
    "http://host:99999/", "http://[::1", "http://host/a b", "http://host/\n", "https://host/" + "a" * 2048, "http://host/ü",
])  # fmt: skip
def test_addresses_that_cannot_be_posted_to_are_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(Refused) as refused:
        Target.of(url)
    assert "pass@" not in str(refused.value) and "/etc/passwd" not in str(refused.value)


def test_the_hint_shows_the_host_and_four_characters() -> None:
    assert hint("https://hooks.slack.com/services/T000/B000/sEcReTpArT9876") == "hooks.slack.com …9876"


def test_replies_that_echo_the_address_are_redacted() -> None:
    url = "https://hooks.example/services/T0001/sEcReT?key=aBcDeF"
    shown = redacted(f"no route for {url}; path /services/T0001/sEcReT, key aBcDeF, part sEcReT", url)
    assert "sEcReT" not in shown and "aBcDeF" not in shown and "T0001" not in shown
