"""A started service with a home of its own, and runs in memory for engine, rules and checks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import pytest
import uvicorn

from ingest.store.connection import Store
from server.app import create_api
from server.queries.view import Event, RunData, RunFacts
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


@pytest.fixture(scope="session")
def memory() -> Iterator[Store]:
    store = Store(None)
    yield store
    store.close()


Make = Callable[..., RunData]


@pytest.fixture
def make_run(memory: Store) -> Make:
    """A run in memory: each metric a list of values from step 1 (None: no point) or a mapping of step to value."""

    def make(
        series: Mapping[str, Sequence[float | None] | Mapping[int, float]],
        *,
        events: Sequence[Event] = (),
        config: Mapping[str, object] | None = None,
        second: Mapping[str, Mapping[int, float]] | None = None,
    ) -> RunData:
        starts = {1: 1}
        if second:
            starts[2] = min(min(points) for points in second.values())
        facts = RunFacts("0123456789ab", "tests", "made", "native", None, dict(config or {}), {})  # type: ignore[arg-type]
        data = RunData(memory, facts, tuple(events), starts)
        for metric in {*series, *(second or {})}:
            given = series.get(metric, {})
            points = given if isinstance(given, Mapping) else {step: v for step, v in enumerate(given, 1) if v is not None}
            later = (second or {}).get(metric, {})
            data.add(metric, [1] * len(points) + [2] * len(later), [*points, *later], [*points.values(), *later.values()])
        return data

    return make
