"""What is shipped: the built wheel holds the three packages and everything they need at run time, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in a wheel that is built from the project as it stands."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=out)
    assert built.returncode == 0, built.stderr[-2000:]
    (file,) = out.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        return archive.namelist()


def test_the_wheel_installs_exactly_our_three_names(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel if ".dist-info/" not in name}
    assert tops == {"server", "frontend", "ingest"}


def test_the_wheel_carries_migrations_demo_and_assets(wheel: list[str]) -> None:
    assert "server/_migrations/env.py" in wheel
    assert any(name.startswith("server/_migrations/versions/") for name in wheel)
    assert "frontend/demo_data/healthy/rollouts.jsonl.gz" in wheel
    assert any(name.startswith("frontend/assets/") and name.endswith(".css") for name in wheel)
    assert any(name.startswith("frontend/assets/") and name.endswith(".js") for name in wheel)


def test_the_wheel_carries_no_tests_labels_or_caches(wheel: list[str]) -> None:
    assert not [name for name in wheel if "__pycache__" in name or "/tests/" in name or name.endswith("label.json")]


def test_the_demo_stays_small() -> None:
    sizes = [path.stat().st_size for path in (ROOT / "frontend" / "demo_data").rglob("*") if path.is_file()]
    assert 1_000_000 < sum(sizes) < 8_000_000
