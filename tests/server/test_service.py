"""One home, one owner: starting, stopping, reading, judging, telling."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest.errors import StoreNewer, StoreOwned
from server.control.models import Control
from server.home import running_server
from server.service import Service
from server.settings import Settings

ROOT = Path(__file__).parents[2]
Until = Callable[[Callable[[], bool]], None]


def test_a_start_makes_a_closed_home_and_a_stop_gives_it_back(settings: Settings) -> None:
    service = Service(settings)
    service.start(8421)
    assert service.ready() and service.address == "http://127.0.0.1:8421"
    assert service.open_address == f"http://127.0.0.1:8421/?token={service.token}"
    for name in ("token", "server.json", "control.sqlite"):
        assert (settings.home / name).stat().st_mode & 0o777 == 0o600
    service.stop()
    service.stop()
    assert running_server(settings.home) is None and not service.ready()
    again = Service(settings)
    again.start()
    assert again.token == service.token
    again.stop()


def test_a_home_of_another_process_is_refused_with_its_address(settings: Settings) -> None:
    script = (
        "import sys, time; from pathlib import Path; from server.service import Service; from server.settings import Settings; "
        "Service(Settings(home=Path(sys.argv[1]))).start(8499); print('up', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", script, str(settings.home)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "up\n"
        with pytest.raises(StoreOwned, match=rf"belongs to the RLVitals at http://127.0.0.1:8499 \(process {other.pid}\)"):
            Service(settings).start()
        assert running_server(settings.home) is not None
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait(20)
        other.stdout.close() if other.stdout else None
    # What a killed server left behind stops nobody.
    assert (settings.home / "server.json").exists() and running_server(settings.home) is None
    service = Service(settings)
    service.start()
    assert service.ready()
    service.stop()


def test_a_control_store_of_a_newer_program_is_refused_and_the_home_is_free_again(settings: Settings) -> None:
    settings.home.mkdir()
    control = Control(settings.control_url)
    control.migrate()
    with control.session() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for _ in range(2):
        with pytest.raises(StoreNewer):
            Service(settings).start()
    assert running_server(settings.home) is None
    control.close()


def test_a_job_reads_paths_and_keeps_its_report(service: Service, run_folder: Path, until: Until) -> None:
    job_id = service.ingest([run_folder])

    def done() -> bool:
        job = service.job(job_id)
        assert job is not None
        return job.state != "running"

    until(done)
    job = service.job(job_id)
    assert job is not None and (job.state, job.exit_code, job.files) == ("done", 1, 3)
    assert job.report is not None and job.bytes == job.total_bytes > 0
    assert "SECRETKEY" not in json.dumps(job.report)


def test_a_missing_path_fails_with_a_sentence(service: Service, tmp_path: Path, until: Until) -> None:
    job_id = service.ingest([tmp_path / "none"])
    until(lambda: getattr(service.job(job_id), "state", "running") != "running")
    job = service.job(job_id)
    assert job is not None and job.state == "failed" and str(tmp_path / "none") in str(job.error) and job.exit_code == 2


def test_an_unknown_job_is_none(service: Service) -> None:
    assert service.job("job_000000000000") is None


def test_a_followed_folder_is_read_and_judged(settings: Settings, run_folder: Path, until: Until) -> None:
    from server.control.incidents import judged
    from server.queries.runs import run_summaries

    service = Service(settings.model_copy(update={"watch": (run_folder,)}))
    service.start()
    try:
        until(lambda: bool(run_summaries(service.store)))
        run_id = run_summaries(service.store)[0].run_id

        def judged_up_to() -> int:
            with service.control.session(write=False) as session:
                found = judged(session, run_id)
            return -1 if found is None else found.step

        until(lambda: judged_up_to() >= 1)
        with (run_folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 21, "reward.mean": 1.0}\n')
        until(lambda: run_summaries(service.store)[0].newest_step == 21)
    finally:
        service.stop()


def test_the_process_holds_no_lock_after_a_stop(service: Service, settings: Settings) -> None:
    service.stop()
    code = "import sys; from pathlib import Path; from ingest.store.connection import Store; Store(Path(sys.argv[1])).close()"
    subprocess.run([sys.executable, "-c", code, str(settings.telemetry_path)], cwd=ROOT, check=True, timeout=60, env={**os.environ})
