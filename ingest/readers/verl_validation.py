"""Reader of verl's `trainer.validation_data_dir`: the same rows as a rollout dump, of held-out prompts (split eval).

Told apart from training rollouts by the folder's name or by the key `reward`, which only the validation writes beside
`score` (verl/trainer/ppo/ray_trainer.py: _validate; v1/trainer_base.py: _validate). Step 0 is before training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest.readers.base import Head
from ingest.readers.verl_rollouts import is_dump, is_validation, read_dump
from ingest.schema.records import Cursor, Growth, Item


@dataclass(frozen=True)
class VerlValidationReader:
    """Validation samples of one step."""

    name: str = "verl-validation"
    framework: str = "verl"
    precedence: int = 50
    growth: Growth = "whole"

    def sniff(self, head: Head) -> float:
        """Confidence that the file is this format, from its name and first bytes."""
        return 0.9 if is_dump(head) and is_validation(head) else 0.0

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor on; see `Reader.read`."""
        yield from read_dump(path, cursor, "eval")
