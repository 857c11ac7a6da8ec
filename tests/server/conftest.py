"""A started service with a home of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from server.app import create_api
from server.service import Service
from server.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", webhook_allow=("127.0.0.0/8",))


@pytest.fixture
def service(settings: Settings) -> Iterator[Service]:
    started = Service(settings)
    started.start()
    yield started
    started.stop()


@pytest.fixture
def api(service: Service) -> Iterator[httpx.Client]:
    """The API over a real socket as a program with the token sees it."""
    server = uvicorn.Server(uvicorn.Config(create_api(service), port=0, log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.01)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {service.token}"}, trust_env=False, timeout=20) as client:
        yield client
    server.should_exit = True
    thread.join(20)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A small native run with a secret in its configuration and hostile text in a trajectory."""
    folder = tmp_path / "team" / "grpo-small"
    folder.mkdir(parents=True)
    records = [{"step": step, "reward.mean": 0.1 * step, "my/own": step, "=1+1": 2.0} for step in range(1, 21)]
    records[4]["reward.mean"] = float("nan")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    rollout = {"step": 1, "trajectory_id": "t1", "group_id": "g1", "prompt": "2+2", "response": "<script>alert(1)</script>", "reward": 1.0,
               "token_ids": [5, 6], "rollout_logprobs": [-0.5, None], "response_mask": [1, 1]}  # fmt: skip
    (folder / "rollouts.jsonl").write_text(json.dumps(rollout) + "\n" + "not json\n")
    (folder / "config.json").write_text(json.dumps({"algorithm": "grpo", "wandb_api_key": "SECRETKEY"}))
    return folder


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits, at most twenty seconds, until something holds."""

    def waiting(holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < end, "it did not come to hold"
            time.sleep(0.02)

    return waiting
