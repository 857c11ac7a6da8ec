"""Writes the verl samples beside this file by calling verl's own writers. Development only; see SOURCE.md.

Needs an environment of its own (not the project's): `pip install --no-deps verl==0.9.1`, then numpy, orjson, packaging
and omegaconf. Torch, Ray and the rest of the trainer's imports are replaced by empty modules: the writers do not use
them. The numbers are made up by a seeded generator, the key names are those of the trainer.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import random
import shutil
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _make(name)

    def __getitem__(cls, _item: object) -> Any:
        return cls

    def __or__(cls, _other: object) -> Any:
        return cls

    __ror__ = __or__


def _make(name: str) -> Any:
    def __new__(cls: type, *args: Any, **_: Any) -> Any:
        # Used as a decorator it hands the function back.
        return args[0] if len(args) == 1 and callable(args[0]) and cls.__module__ == "stub" else object.__new__(cls)

    return _Anything(
        name,
        (),
        {"__module__": "stub", "__new__": __new__, "__init__": lambda self, *a, **k: None, "__call__": lambda self, f=None, *a, **k: f},
    )


class _Stub(types.ModuleType):
    __version__ = "99.0.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _make(name)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for every module that is not installed."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] in ("verl", *sys.stdlib_module_names):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def _trainers() -> tuple[Any, Any, Any]:
    sys.meta_path.append(_Finder())
    v0 = importlib.import_module("verl.trainer.ppo.ray_trainer")
    base = importlib.import_module("verl.trainer.ppo.v1.trainer_base")
    tracking = importlib.import_module("verl.utils.tracking")
    v1 = next(c for c in vars(base).values() if isinstance(c, type) and "_write_generations" in vars(c))
    return tracking.FileLogger, v0.RayPPOTrainer, v1


def _log(logger: Any, folder: Path, steps: range, more: dict[str, float], nan_at: int | None = None) -> None:
    path = folder / "metrics.jsonl"
    os.environ["VERL_FILE_LOGGER_PATH"] = str(path)
    file = logger("fixture", folder.name)
    draw = random.Random(7)
    if steps.start == 0:
        file.log({"val-core/openai/gsm8k/reward/mean@1": 0.25, "val-aux/num_turns/mean": 2.0}, 0)
    for step in steps:
        if step == 0:
            continue
        data = {
            "training/global_step": step,
            "training/epoch": 0,
            "critic/score/mean": round(0.3 + 0.01 * step + draw.uniform(-0.02, 0.02), 4),
            "critic/score/max": 1.0,
            "critic/score/min": 0.0,
            "actor/entropy": round(0.5 - 0.005 * step, 4),
            "actor/pg_clipfrac": 0.001,
            "actor/ppo_kl": round(draw.uniform(-1e-4, 1e-4), 8),
            "actor/grad_norm": float("nan") if step == nan_at else round(draw.uniform(0.2, 0.4), 4),
            "actor/lr": 1e-6,
            "response_length/mean": round(draw.uniform(90, 110), 2),
            "response_length/max": 180,
            "response_length/clip_ratio": 0.0625,
            "prompt_length/clip_ratio": 0.0,
            "timing_s/gen": 4.5,
            "timing_s/step": 11.0,
            **more,
        }
        if step % 5 == 0:
            data["val-core/openai/gsm8k/reward/mean@1"] = round(0.25 + 0.01 * step, 4)
            data["timing_s/testing"] = 3.0
        file.log(data, step)
    file.finish()


def _dump(trainer: Any, folder: Path, step: int, rows: list[dict[str, Any]], extras: list[str]) -> None:
    """Calls the trainer's own _dump_generations on an object that has only what the function asks for."""
    columns = {key: [row[key] for row in rows] for key in ("input", "output", "gts", "score")}
    like = SimpleNamespace(
        global_steps=step, _dump_executor=ThreadPoolExecutor(1), _dump_futures=[], _write_generations=trainer._write_generations
    )
    trainer._dump_generations(
        like,
        columns["input"],
        columns["output"],
        columns["gts"],
        columns["score"],
        {key: [row[key] for row in rows] for key in extras},
        str(folder),
    )
    for future in like._dump_futures:
        future.result()
    like._dump_executor.shutdown(wait=True)


def _samples(step: int, groups: int, members: int, v1: bool) -> list[dict[str, Any]]:
    draw = random.Random(step)
    rows = []
    for g in range(groups):
        a, b = draw.randrange(2, 9), draw.randrange(2, 9)
        for m in range(members):
            right = draw.random() < 0.5
            answer = a + b if right else a + b + 1
            rows.append(
                {
                    "input": f"user\nWhat is {a}+{b}?\nassistant\n",
                    "output": f"{a}+{b} is {answer}. #### {answer}",
                    "gts": str(a + b),
                    "score": float(right),
                    "reward": float(right),
                    "acc": right,
                    "pred": str(answer),
                    "format": 1.0,
                    "uid": f"{step:04x}{g:04x}-aaaa-4bbb-8ccc-0123456789ab_{m}_0",
                }
            )
    if v1:
        pad = {**rows[0], "output": "!", "score": 0.0, "reward": 0.0, "uid": "pad" + "0123456789abcdef" * 2 + "_0_0"}
        return [*rows, pad, {**pad, "uid": "pad" + "fedcba9876543210" * 2 + "_0_0"}]
    draw.shuffle(rows)
    return rows


def main() -> None:
    logger, v0, v1 = _trainers()
    for name in ("v0-file-logger", "v1-file-logger", "v1-run", "v0-run"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
    v0_more = {"perf/mfu/actor_infer": 0.0, "num_turns/mean": 2.0}
    v1_more = {
        "training/off_policy/trajectory_staleness/mean": 0.5,
        "training/off_policy/trajectory_staleness/max": 1.0,
        "training/off_policy/trajectory_staleness_worst/mean": 0.75,
        "training/off_policy/trajectory_spans/mean": 1.25,
        "training/num_turns/mean": 2.0,
    }
    _log(logger, HERE / "v0-file-logger", range(1, 21), v0_more, nan_at=13)
    _log(logger, HERE / "v1-file-logger", range(21), v1_more)
    _log(logger, HERE / "v0-run", range(1, 6), v0_more)
    _log(logger, HERE / "v1-run", range(6), v1_more)
    for step in (1, 2, 3):
        _dump(v0, HERE / "v0-run" / "rollouts", step, _samples(step, 4, 4, False), ["acc", "pred", "format"])
        _dump(v1, HERE / "v1-run" / "rollouts", step, _samples(step, 4, 4, True), ["uid"])
    _dump(v0, HERE / "v0-run" / "validation", 5, _samples(105, 6, 1, False), ["reward", "acc", "pred"])
    _dump(v1, HERE / "v1-run" / "validation", 0, _samples(100, 6, 1, False), ["reward", "acc", "uid"])


if __name__ == "__main__":
    main()
