"""Runs as files, for commands that read them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from frontend.cli import main


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A run of 60 steps whose loss is not a number from a step on (None: never)."""

    def make(name: str = "grpo-small", nan_from: int | None = 40, folder: str = "logs") -> Path:
        place = tmp_path / folder / name
        place.mkdir(parents=True)
        rows = [
            {
                "step": step,
                "reward.mean": 0.5 + 0.01 * (step % 5),
                "grad.norm": 1.0 + 0.02 * (step % 3),
                "loss.policy": float("nan") if nan_from is not None and step >= nan_from else 0.1,
            }
            for step in range(1, 61)
        ]
        (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (place / "config.json").write_text('{"algorithm": "grpo", "group": 8}')
        return place

    return make


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command in this process that must exit with 2 and print one sentence, which is returned."""
    for name in [name for name in os.environ if name.startswith("RLVITALS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RLVITALS_HOME", str(tmp_path / "home"))

    def run(*arguments: object) -> str:
        try:
            code: object = main([str(word) for word in arguments])
        except SystemExit as stop:
            code = stop.code
        said = capsys.readouterr()
        assert (code, said.out, said.err.count("\n")) == (2, "", 1), (arguments, code, said)
        return said.err

    return run
