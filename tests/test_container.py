"""The container files: parsed, and the same command started without containers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

ROOT = Path(__file__).parents[1]
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """Instruction and argument of each line of the Dockerfile, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_the_image_runs_as_nobody_special_and_checks_its_health(instructions: list[tuple[str, str]]) -> None:
    users = [argument for name, argument in instructions if name == "USER"]
    assert users == ["rlvitals"]
    assert any("/healthz" in argument for name, argument in instructions if name == "HEALTHCHECK")
    assert all(argument.startswith("python:3.11-slim") for name, argument in instructions if name == "FROM")


def test_the_image_copies_only_what_is_there(instructions: list[tuple[str, str]]) -> None:
    for name, argument in instructions:
        if name == "COPY" and "--from" not in argument:
            assert all((ROOT / source).exists() for source in argument.split()[:-1]), argument


def test_the_port_is_published_on_loopback_and_the_token_is_a_secret(compose: dict[str, Any]) -> None:
    service = compose["services"]["rlvitals"]
    assert service["ports"] == ["127.0.0.1:8420:8420"]
    assert service["secrets"] == ["rlvitals_token"]
    assert set(compose["secrets"]["rlvitals_token"]) == {"file"}
    assert "--token-file" in service["command"] and "--allow-host" in service["command"]
    assert "environment" not in service


def test_every_named_volume_is_declared_and_the_logs_are_read_only(compose: dict[str, Any]) -> None:
    volumes = compose["services"]["rlvitals"]["volumes"]
    named = {volume.split(":")[0] for volume in volumes if not volume.startswith((".", "/", "$"))}
    assert named == set(compose["volumes"])
    assert any(volume.endswith(":/logs:ro") for volume in volumes)


def test_the_command_of_the_image_is_known_to_the_program(instructions: list[tuple[str, str]]) -> None:
    from frontend.cli import parse

    words = [shlex.split(re.sub(r'[\[\],"]', " ", argument)) for name, argument in instructions if name == "CMD"]
    assert parse(words[-1]).run is not None


def test_the_command_of_the_compose_file_serves_with_the_token_of_the_file(
    compose: dict[str, Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    token, logs = tmp_path / "token.txt", tmp_path / "logs"
    token.write_text(TOKEN + "\n")
    logs.mkdir()
    moved = {"/run/secrets/rlvitals_token": str(token), "/logs": str(logs), "8420": "0", "0.0.0.0": "0.0.0.0"}
    server = start(*(moved.get(word, word) for word in compose["services"]["rlvitals"]["command"]))
    base = f"http://127.0.0.1:{httpx.URL(server.base).port}"
    assert httpx.get(f"{base}/healthz", trust_env=False).status_code == 200
    assert httpx.get(f"{base}/api/v1/runs", trust_env=False).status_code == 401
    answer = httpx.get(f"{base}/api/v1/runs", headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False)
    assert answer.json()["runs"] == []
    foreign = httpx.get(f"{base}/api/v1/runs", headers={"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}, trust_env=False)
    assert foreign.status_code == 421
    assert not (tmp_path / "home" / "token").exists()
