"""What the command line says to bad input: one clear sentence, the right exit code, and nothing lost that was good."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]

GOOD = '{"step": 1, "reward.mean": 0.5}\n{"step": 2, "reward.mean": 0.6}\n'


@pytest.fixture
def run_folder(tmp_path: Path) -> Callable[..., Path]:
    """A folder with one metrics file of the given text or bytes."""

    def make(content: str | bytes = GOOD, name: str = "metrics.jsonl") -> Path:
        folder = tmp_path / "logs" / "a-run"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return make


def sentence(found: subprocess.CompletedProcess[str]) -> str:
    """The one line that a refusal says."""
    lines = [line for line in found.stderr.splitlines() if line.startswith("rlvitals")]
    assert len(lines) == 1, found.stderr
    assert "Traceback" not in found.stderr
    return lines[0]


def report(found: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(found.stdout)
    return value


def test_a_missing_path_is_named(rlvitals: Command, tmp_path: Path) -> None:
    found = rlvitals("ingest", tmp_path / "nowhere")
    assert (found.returncode, found.stdout) == (2, "")
    assert sentence(found) == f"rlvitals: {tmp_path / 'nowhere'}: no such file or folder."


def test_a_folder_without_a_run_says_so(rlvitals: Command, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    found = rlvitals("ingest", tmp_path / "logs", "--json")
    assert found.returncode == 2
    assert sentence(found) == f"rlvitals: {tmp_path / 'logs'}: no run found, the folder holds no files."
    (tmp_path / "logs" / "notes.md").write_text("# nothing")
    (tmp_path / "logs" / "picture.bin").write_bytes(b"\x89\0\1\2" * 50)
    found = rlvitals("ingest", tmp_path / "logs", "--json")
    assert found.returncode == 2
    assert "no run found in 2 files" in sentence(found)
    assert all(file["reason"] for file in report(found)["files"])


def test_an_unreadable_file_says_what_is_missing(run_folder: Callable[..., Path], tmp_path: Path) -> None:
    file = run_folder() / "metrics.jsonl"
    file.chmod(0)
    words = [str(Path(sys.executable).parent / "rlvitals"), "ingest", str(file), "--home", str(tmp_path / "home")]
    if os.geteuid() == 0:
        # Root reads everything, unless it gives up the right to.
        if shutil.which("setpriv") is None:
            pytest.skip("root reads everything, and setpriv is not installed")
        rights = "-dac_override,-dac_read_search"
        words = ["setpriv", f"--inh-caps={rights}", f"--bounding-set={rights}", *words]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2, found.stderr
    assert "permission denied" in sentence(found).lower()
    assert str(file) in sentence(found)


def test_an_empty_file_holds_no_run(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    file = run_folder("") / "metrics.jsonl"
    found = rlvitals("ingest", file)
    assert found.returncode == 2
    assert sentence(found) == f"rlvitals: {file}: empty file. Nothing was read."


def test_an_empty_file_beside_good_ones_changes_nothing(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    folder = run_folder()
    (folder / "rollouts.jsonl").write_text("")
    found = rlvitals("ingest", folder, "--json")
    assert found.returncode == 0
    states = {Path(file["path"]).name: file["state"] for file in report(found)["files"]}
    assert states == {"metrics.jsonl": "read", "rollouts.jsonl": "ignored"}


def test_a_binary_file_is_called_binary(rlvitals: Command, tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(bytes(range(256)) * 40)
    found = rlvitals("ingest", file)
    assert found.returncode == 2
    assert "binary" in sentence(found)


def test_a_line_of_a_wrong_encoding_is_rejected_with_its_number(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    folder = run_folder(GOOD.encode() + '{"step": 3, "note": "é"}\n'.encode("latin-1") + b'{"step": 4, "reward.mean": 0.7}\n')
    found = rlvitals("ingest", folder, "--json")
    assert found.returncode == 1
    (reject,) = report(found)["rejected"]
    assert reject["line"] == 3
    assert "UTF-8" in reject["reason"] or "utf-8" in reject["reason"]
    assert report(found)["runs"][0]["steps"] == {"first": 1, "last": 4, "count": 3}


def test_a_file_in_utf16_is_no_crash(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    found = rlvitals("ingest", run_folder(GOOD.encode("utf-16")))
    assert found.returncode == 2
    assert sentence(found)


def test_a_half_written_last_line_is_no_reject_and_is_read_once_it_is_whole(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    folder = run_folder(GOOD + '{"step": 3, "rewar')
    found = rlvitals("ingest", folder, "--json")
    assert (found.returncode, report(found)["rejected"]) == (0, [])
    assert report(found)["runs"][0]["steps"]["last"] == 2
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('d.mean": 0.7}\n')
    found = rlvitals("ingest", folder, "--json")
    assert found.returncode == 0
    assert report(found)["runs"][0]["steps"] == {"first": 1, "last": 3, "count": 3}
    assert report(found)["runs"][0]["points"] == 3


def test_a_line_of_fifty_megabytes_is_read_and_a_longer_one_than_allowed_is_one_reject(
    rlvitals: Command, run_folder: Callable[..., Path]
) -> None:
    folder = run_folder(GOOD)
    with (folder / "rollouts.jsonl").open("w") as file:
        file.write('{"step": 1, "prompt": "p", "response": "' + "x" * (50 << 20) + '", "reward": 1.0}\n')
        file.write('{"step": 1, "prompt": "p", "response": "short", "reward": 0.0}\n')
        file.write('{"step": 2, "prompt": "p", "response": "' + "y" * (65 << 20) + '", "reward": 1.0}\n')
        file.write('{"step": 2, "prompt": "p", "response": "after", "reward": 0.0}\n')
    found = rlvitals("ingest", folder, "--json")
    assert found.returncode == 1
    (reject,) = report(found)["rejected"]
    assert (reject["line"], len(reject["sample"])) == (3, 200)
    assert report(found)["runs"][0]["trajectories"] == 3


def test_two_schemas_in_one_file_are_both_read(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    folder = run_folder(GOOD + '{"step": 3, "data": {"critic/score/mean": 0.1}}\n{"step": 4, "other": 1}\n')
    found = rlvitals("ingest", folder, "--json")
    assert found.returncode in (0, 1)
    assert report(found)["runs"][0]["steps"]["last"] == 4
    assert all(reject["reason"] and reject["line"] == 3 for reject in report(found)["rejected"])


def test_a_step_that_goes_back_begins_a_new_attempt(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    folder = run_folder(
        "".join(f'{{"step": {step}, "reward.mean": {value}}}\n' for step, value in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25), (3, 0.35)))
    )
    found = rlvitals("ingest", folder, "--json")
    assert found.returncode == 0
    assert report(found)["runs"][0]["attempts"] == 2
    assert report(found)["runs"][0]["points"] == 5


def test_a_second_read_adds_nothing(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    folder = run_folder()
    first, second = rlvitals("ingest", folder, "--json"), rlvitals("ingest", folder, "--json")
    assert (first.returncode, second.returncode) == (0, 0)
    assert [file["state"] for file in report(second)["files"]] == ["unchanged"]
    assert report(first)["runs"] == report(second)["runs"]


def test_a_disk_that_is_full_is_one_sentence(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    import resource

    folder = run_folder("".join(f'{{"step": {step}, "a": {step / 7}, "b": {step / 3}, "c": {step / 11}}}\n' for step in range(60_000)))
    # A limit on the size of files refuses writes as a full disk does, without one.
    found = rlvitals("ingest", folder, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000)))
    assert found.returncode == 2
    assert "could not be written" in sentence(found) or "cannot be" in sentence(found)
    found = rlvitals("ingest", folder, "--json")
    assert found.returncode == 0, found.stderr
    assert report(found)["runs"][0]["steps"]["count"] == 60_000
    assert report(found)["runs"][0]["points"] == 180_000


def test_a_home_that_cannot_be_made_is_one_sentence(rlvitals: Command, run_folder: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = rlvitals("ingest", run_folder(), "--home", tmp_path / "file")
    assert found.returncode == 2
    assert str(tmp_path / "file") in sentence(found)


def test_a_home_owned_by_a_process_that_does_not_answer_is_named(
    rlvitals: Command, run_folder: Callable[..., Path], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    (home / "server.json").write_text(json.dumps({"address": f"http://127.0.0.1:{port}", "pid": os.getpid()}))
    for words in (("ingest", run_folder()), ("runs",)):
        found = rlvitals(*words)
        assert found.returncode == 2
        assert f"process id {os.getpid()}" in sentence(found)
        assert "does not answer" in sentence(found)


def test_a_server_json_left_by_a_dead_process_is_ignored(rlvitals: Command, run_folder: Callable[..., Path], tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "server.json").write_text(json.dumps({"address": "http://127.0.0.1:9", "pid": int(dead.stdout)}))
    assert rlvitals("ingest", run_folder()).returncode == 0


def test_a_store_that_another_process_has_open_is_one_sentence(rlvitals: Command, run_folder: Callable[..., Path], tmp_path: Path) -> None:
    from ingest.store.connection import Store

    (tmp_path / "home").mkdir(mode=0o700)
    store = Store(tmp_path / "home" / "telemetry.duckdb")
    try:
        found = rlvitals("ingest", run_folder())
    finally:
        store.close()
    assert found.returncode == 2
    assert "another process" in sentence(found)


def test_a_store_of_a_newer_program_is_refused(rlvitals: Command, run_folder: Callable[..., Path], tmp_path: Path) -> None:
    from ingest.store.connection import Store

    folder = run_folder()
    assert rlvitals("ingest", folder).returncode == 0
    store = Store(tmp_path / "home" / "telemetry.duckdb")
    with store.transaction() as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    store.close()
    found = rlvitals("ingest", folder)
    assert found.returncode == 2
    assert "newer" in sentence(found)


def test_a_port_in_use_is_named_with_the_way_out(rlvitals: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = rlvitals("serve", "--port", port)
    assert found.returncode == 2
    assert f"Port {port}" in sentence(found) and "--port" in sentence(found)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ingest", "--projct", "p", "x"), "rlvitals ingest: there is no option --projct (did you mean --project?)"),
        (("serve", "--prot", "1"), "rlvitals serve: there is no option --prot (did you mean --port?)"),
        (("ingst", "x"), "rlvitals: there is no command ingst (did you mean ingest?)"),
        (("rules", "explain", "entropy-colapse"), "Did you mean entropy-collapse?"),
    ],
)
def test_an_unknown_option_or_name_gets_the_nearest(rlvitals: Command, words: tuple[str, ...], expected: str) -> None:
    found = rlvitals(*words)
    assert (found.returncode, found.stdout) == (2, "")
    assert expected in sentence(found)


def test_an_unknown_reader_names_those_there_are(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    found = rlvitals("ingest", run_folder(), "--reader", "verl")
    assert found.returncode == 2
    assert "verl-file-logger" in sentence(found)


def test_what_is_not_built_yet_says_so(rlvitals: Command, run_folder: Callable[..., Path]) -> None:
    for words in (("audit", "x"), ("budget", "x"), ("watch", "--to", "http://localhost", run_folder())):
        found = rlvitals(*words)
        assert (found.returncode, found.stdout) == (2, "")
        assert "not built yet" in sentence(found)
