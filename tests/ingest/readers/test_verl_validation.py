from __future__ import annotations

from pathlib import Path
from typing import Any

from ingest.discover import FoundFile, take


def test_a_dump_in_a_validation_folder_is_an_evaluation(data: Path, read: Any) -> None:
    for place, step in (("v0-run/validation/5.jsonl", 5), ("v1-run/validation/0.jsonl", 0)):
        taken = read(data / "verl" / place)
        assert {(row.step, row.fields["split"]) for row in taken.trajectories} == {(step, "eval")}


def test_an_evaluation_is_known_by_its_second_reward_wherever_it_lies(data: Path, tmp_path: Path) -> None:
    for source, name in (("v0-run/validation/5.jsonl", "verl-validation"), ("v0-run/rollouts/1.jsonl", "verl-rollouts")):
        path = tmp_path / Path(source).name
        path.write_bytes((data / "verl" / source).read_bytes())
        found = take(path)
        assert isinstance(found, FoundFile)
        assert found.reader.name == name
