"""The folder of one server: rights, token, server.json, and the port."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.errors import RLVitalsError, SettingsError
from server.home import bind, ensure_token, prepare_home, remove_server_json, running_server, write_server_json
from server.settings import Settings


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_home_and_its_token_are_for_the_owner_only(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "a" / "home")
    prepare_home(settings.home)
    token = ensure_token(settings)
    assert mode(settings.home) == 0o700 and mode(settings.token_path) == 0o600
    assert len(token) >= 40 and ensure_token(settings) == token


def test_a_home_that_others_could_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o755)
    prepare_home(tmp_path / "home")
    assert mode(tmp_path / "home") == 0o700


def test_a_token_file_left_empty_by_a_kill_is_filled(tmp_path: Path) -> None:
    (tmp_path / "token").touch(mode=0o644)
    assert ensure_token(Settings(home=tmp_path)) and mode(tmp_path / "token") == 0o600


@pytest.mark.parametrize("text", ["short", "with spaces inside it all", "semi;colon;semi;colon;semi", "ünïcödé-ünïcödé-ünïcödé"])
def test_a_given_token_that_no_header_can_carry_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    with pytest.raises(SettingsError):
        ensure_token(Settings(home=tmp_path, token_file=tmp_path / "secret"))


def test_a_given_token_file_is_read_and_not_touched(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-given-token-of-some-length\n")
    (tmp_path / "secret").chmod(0o444)
    assert ensure_token(Settings(home=tmp_path, token_file=tmp_path / "secret")) == "a-given-token-of-some-length"
    assert mode(tmp_path / "secret") == 0o444


def test_a_missing_token_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RLVitalsError, match="cannot be read"):
        ensure_token(Settings(home=tmp_path, token_file=tmp_path / "none"))


def test_a_home_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RLVitalsError, match="cannot be written: Not a directory"):
        prepare_home(tmp_path / "file" / "home")


def test_server_json_names_this_process_and_goes_with_it(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    write_server_json(settings, "http://127.0.0.1:8420")
    found = running_server(tmp_path)
    assert found is not None and (found.address, found.pid) == ("http://127.0.0.1:8420", os.getpid())
    assert mode(settings.server_json) == 0o600
    remove_server_json(settings)
    assert running_server(tmp_path) is None and not settings.server_json.exists()


def test_server_json_of_a_dead_process_counts_as_none(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(20)
    (tmp_path / "server.json").write_text(json.dumps({"address": "http://127.0.0.1:1", "pid": process.pid}))
    assert running_server(tmp_path) is None


def test_a_process_number_used_again_by_another_program_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text(json.dumps({"address": "http://127.0.0.1:1", "pid": os.getpid(), "started": "1"}))
    assert running_server(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"address": "x", "pid": "y"}', "\x00"])
def test_a_broken_server_json_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    assert running_server(tmp_path) is None


def test_server_json_of_another_process_is_left_alone(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    settings.server_json.write_text(json.dumps({"address": "http://127.0.0.1:1", "pid": 1}))
    remove_server_json(settings)
    assert settings.server_json.exists()


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(RLVitalsError, match=r"Port \d+ on 127.0.0.1 cannot be used: Address already in use"),
    ):
        bind(Settings(home=tmp_path, port=other.getsockname()[1]))


def test_a_host_that_is_not_this_machine_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RLVitalsError, match="cannot be used"):
        bind(Settings(home=tmp_path, host="192.0.2.1", allow_host=("x.example",)))
