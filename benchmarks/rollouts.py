"""A seeded rollout file with token arrays, and the same file with lines that must not be stored as they stand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_POOL = 400_000
_GROUP = 8
_PER_STEP = 64
_EVERY = 10_000
"""Each case occurs once in this many lines, and at least once."""


@dataclass(frozen=True)
class Case:
    """A kind of line that a hasty reader would change in silence. kept: it is stored (exactly), else it is a reject."""

    name: str
    kept: bool
    spoil: Callable[[str], str]


def _put(name: str, raw: str) -> Callable[[str], str]:
    """Replaces the value of a scalar field by other JSON text."""

    def spoil(line: str) -> str:
        start = line.index(f'"{name}": ') + len(name) + 4
        end = min(i for i in (line.find(", ", start), line.find("}", start)) if i >= 0)
        return line[:start] + raw + line[end:]

    return spoil


def _put_first(name: str, raw: str) -> Callable[[str], str]:
    """Replaces the first element of an array by other JSON text."""

    def spoil(line: str) -> str:
        start = line.index(f'"{name}": [') + len(name) + 5
        return line[:start] + raw + line[line.index(",", start) :]

    return spoil


def _prefix(text: str) -> Callable[[str], str]:
    return lambda line: "{" + text + line[1:]


CASES: tuple[Case, ...] = (
    Case("a fraction in an integer column", False, _put("response_tokens", "3.7")),
    Case("a fraction in an integer array", False, _put_first("token_ids", "3.7")),
    Case("a boolean as a number", False, _put("reward", "true")),
    Case("a boolean in an array of numbers", False, _put_first("response_mask", "true")),
    Case("a finite literal beyond a double", False, _put("reward", "1e400")),
    Case("a finite literal beyond a double in an array", False, _put_first("old_logprobs", "1e400")),
    Case("an object as text", False, _put("task", '{"a": 1}')),
    Case("a number as text", False, _put("finish_reason", "5")),
    Case("a duplicate key", False, _prefix('"reward": 0.125, ')),
    Case("a line that breaks off", False, lambda line: line[: len(line) // 2]),
    Case("an unknown key", True, _prefix('"unheard_of": [1, {"b": true}], ')),
    Case("a number written as a text", True, _put("reward", '"0.5"')),
    Case("a literal NaN", True, _put("reward", "NaN")),
    Case("a literal NaN in an array", True, _put_first("old_logprobs", "NaN")),
)


@dataclass(frozen=True)
class Made:
    """The two files, the number of sound lines in both, and which line (from 1) of the spoiled one holds which case."""

    sound: Path
    spoiled: Path
    lines: int
    cases: dict[int, Case]


def make_files(folder: Path, megabytes: int, seed: int = 17, tokens: int = 1000) -> Made:
    """Writes both files; `megabytes` is the size of the sound one, roughly."""
    sound, spoiled = folder / "sound.jsonl", folder / "run" / "rollouts.jsonl"
    spoiled.parent.mkdir(parents=True, exist_ok=True)
    size = megabytes * 1_000_000
    lines = 0
    cases: dict[int, Case] = {}
    chooser = random.Random(seed)
    with sound.open("w") as clean, spoiled.open("w") as dirty:
        written, number, due = 0, 0, _places(chooser)
        for place, line in enumerate(_lines(seed, tokens)):
            if written >= size and not due:
                break
            number += 1
            dirty.write(line + "\n")
            written += clean.write(line + "\n")
            lines += 1
            for case in [case for case, at in due if at <= place or written >= size]:
                number += 1
                spare = line.replace(f'"t{place}"', f'"case {number}"', 1)
                dirty.write(case.spoil(spare) + "\n")
                cases[number] = case
            due = [] if written >= size else [(case, at) for case, at in due if at > place]
            if place and place % _EVERY == 0:
                due += [(case, at + place) for case, at in _places(chooser)]
    return Made(sound, spoiled, lines, cases)


def _places(chooser: random.Random) -> list[tuple[Case, int]]:
    return [(case, chooser.randrange(_EVERY // 4)) for case in CASES]


def _lines(seed: int, tokens: int) -> Iterator[str]:
    """Lines without end: steps of 64 trajectories in groups of 8, about 1,000 tokens with 5 arrays each."""
    draw = random.Random(seed)
    ids = [str(draw.randrange(150_000)) for _ in range(_POOL)]
    logs = [f"{-draw.expovariate(2.0):.6g}" for _ in range(_POOL)]
    entropies = [repr(round(draw.expovariate(1.5), 6)) for _ in range(_POOL)]
    words = ["so", "the", "answer", "is", "let", "me", "check", "x", "=", "12", "therefore", "\n", "wait,", '"quoted"', "é"]
    place = 0
    while True:
        count = max(20, int(draw.gauss(tokens, tokens / 3)))
        at = draw.randrange(_POOL - 8 * tokens)
        head = {
            "step": place // _PER_STEP,
            "trajectory_id": f"t{place}",
            "group_id": f"g{place // _GROUP}",
            "task": draw.choice(("math", "code", "logic")),
            "prompt": "What is " + " + ".join(str(draw.randrange(1000)) for _ in range(8)) + "?",
            "response": " ".join(draw.choices(words, k=count // 2)),
            "reward": draw.random(),
            "reward_parts": {"format": draw.random(), "answer": float(draw.randrange(2))},
            "response_tokens": count,
            "finish_reason": "stop",
            "policy_version": place // _PER_STEP,
        }
        arrays = {
            "token_ids": ids[at : at + count],
            "response_mask": ["1"] * count,
            "rollout_logprobs": logs[at : at + count],
            "old_logprobs": logs[at + 7 : at + 7 + count],
            "entropies": entropies[at : at + count],
        }
        yield json.dumps(head)[:-1] + "".join(f', "{name}": [{", ".join(values)}]' for name, values in arrays.items()) + "}"
        place += 1
