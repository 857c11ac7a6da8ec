"""Settings from the command line, the environment and the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest.errors import SettingsError
from server.settings import Settings, is_loopback, load_settings, settings_table


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("RLVITALS_")]:
        monkeypatch.delenv(name)


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVITALS_PORT", "9000")
    monkeypatch.setenv("RLVITALS_WATCH", "/a, /b")
    assert load_settings().port == 9000 and load_settings().watch == (Path("/a"), Path("/b"))
    assert load_settings({"port": 9001, "host": None}).port == 9001
    origins = {row.name: row.origin for row in settings_table(load_settings({"host": "localhost"}), {"host": "localhost"})}
    assert (origins["host"], origins["port"], origins["home"]) == ("command line", "environment", "default")


def test_an_unknown_name_is_an_error_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="Did you mean port"):
        load_settings({"prot": 1})
    monkeypatch.setenv("RLVITALS_HOMME", "/x")
    with pytest.raises(SettingsError, match=r"RLVITALS_HOMME is no setting\. Did you mean RLVITALS_HOME"):
        load_settings()


def test_the_variable_of_the_remote_token_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVITALS_TOKEN", "x")
    load_settings()


@pytest.mark.parametrize(("given", "words"), [
    ({"port": 99999}, "port"), ({"host": "0.0.0.0"}, "allow_host must name"), ({"host": "0.0.0.0", "no_token": True}, "loopback only"),
    ({"webhook_allow": ("10.0.0.0/99",)}, "is no network"), ({"public_url": "vitals.example"}, "is no address"),
    ({"allow_host": ("*",)}, "is no host name"),
    ({"allow_host": ("http://x",)}, "is no host name"),
])  # fmt: skip
def test_values_that_cannot_be_used_are_errors_with_a_sentence(given: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as error:
        load_settings(given)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_beyond_loopback_with_a_named_host_is_allowed() -> None:
    settings = load_settings({"host": "0.0.0.0", "allow_host": ("Vitals.Example",), "public_url": "https://other.example/"})
    assert settings.host_names == {"localhost", "127.0.0.1", "::1", "vitals.example", "other.example"}
    assert settings.public_url == "https://other.example"


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("example.com", False)])  # fmt: skip  # noqa: E501
def test_loopback_is_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_every_setting_has_a_help_text() -> None:
    assert all(row.help.endswith(".") for row in settings_table(Settings()))
