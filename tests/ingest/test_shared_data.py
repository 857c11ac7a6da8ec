"""Real logs of real runs, kept beside the project: every file of a known format is read, and every other has a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.report import IngestReport, ingest_once
from ingest.store.connection import Store


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store(None)
    yield opened
    opened.close()


def _counts(store: Store) -> dict[str, tuple[str, int, int]]:
    """Run name -> framework, number of different steps with a metric, trajectories."""
    rows = store.rows(
        """SELECT r.name, r.framework,
                  (SELECT count(DISTINCT step) FROM point JOIN series s USING (series_id) WHERE s.run_id = r.run_id),
                  (SELECT count(*) FROM trajectory t WHERE t.run_id = r.run_id) FROM run r"""
    )
    return {name: (framework, steps, trajectories) for name, framework, steps, trajectories in rows}


def _sound(report: IngestReport) -> None:
    """Nothing crashed: every file has a state, and what was not read has a reason."""
    assert {file.state for file in report.files} <= {"read", "ignored"}
    assert [file.path for file in report.files if file.state != "read" and not file.reason] == []
    assert report.rejected == ()


def test_a_real_trl_run_has_its_history_its_rollouts_and_its_evaluations(shared_data: Path, store: Store) -> None:
    report = ingest_once(store, [shared_data / "trl" / "healthy-offpolicy-resumed-s1"])
    _sound(report)
    assert report.exit_code == 0
    assert _counts(store) == {"healthy-offpolicy-resumed-s1": ("trl", 121, 37 * 128)}
    # 30 generations of four steps each, and evaluations at 0, 20, ... 120.
    assert store.rows("SELECT split, count(DISTINCT step) FROM trajectory GROUP BY 1 ORDER BY 1") == [("eval", 7), ("train", 30)]
    logged = store.rows("SELECT value FROM point JOIN series USING (series_id) WHERE source_key = 'reward' AND step = 21")
    derived = store.rows("SELECT avg(reward) FROM trajectory WHERE step = 21")
    assert derived[0][0] == pytest.approx(logged[0][0], abs=1e-4)
    ignored = {file.path.name: file.reason for file in report.files if file.state == "ignored"}
    assert ignored["label.json"] == "not a log of a run"
    assert all("TensorBoard" in str(reason) for name, reason in ignored.items() if name.startswith("events.out"))


@pytest.mark.parametrize(
    ("run", "steps", "attempts"),
    [("labelled/entropy-collapse-s0", 200, 1), ("labelled/nan-s0", 200, 1), ("labelled2/healthy-resume-overlap-s0", 180, 2)],
)
def test_a_labelled_run_is_native_and_whole(run: str, steps: int, attempts: int, shared_data: Path, store: Store) -> None:
    report = ingest_once(store, [shared_data / run])
    _sound(report)
    name = Path(run).name
    framework, found, trajectories = _counts(store)[name]
    assert framework == "native"
    assert found in (steps, steps + 1)
    assert trajectories > 1000
    assert store.rows("SELECT max(attempt) FROM point") == [(attempts,)]
    unknown = store.rows("SELECT source_key FROM series WHERE metric IS NULL")
    assert unknown == []


PLAIN = {
    "countdown-grpo": {"qwen15b_baseline_metrics": (300, 0), "qwen3b_a100_metrics": (227, 0), "qwen15b_tuned_partial_metrics": (26, 0)},
    "rh-entropy-tinker": {
        "llama-1b_Easy": (45, 0),
        "llama-3b_Hard-g-llmjudge": (29, 0),
        "llama-3b_Medium-g-llmjudge": (27, 0),
        "Llama-3B_g_Hard": (35, 0),
        "Llama-3B_100f_g_Hard": (35, 0),
        "llama-3b_g_entropy_bin_3": (36, 0),
    },
    "wordle-gemma": {"20250820_rank16": (500, 0), "20250824_rank64": (500, 0), "20250826_rank128": (180, 0)},
    "wordle-cas": {"trainer_state_4090_checkpoint-400": (400, 0), "trainer_state_stage2_checkpoint-160": (160, 0)},
    "sentinel-openenv": {"proof_pack": (200, 0), "rft_phase1_100": (0, 100)},
    "machiavelli": {"logs": (30, 195)},
    "omni-support": {"omni-support": (123, 1098)},
    "math-grpo-lora": {"math-grpo-lora": (120, 300)},
    "panacea": {"data": (0, 1238)},
    "rlvr-probe": {"results_2048_batched": (0, 240), "step-100": (0, 240), "step-1000": (0, 240)},
    "medical-triage": {"medical-triage": (0, 5)},
    "enterprise-arena": {"enterprise-arena": (0, 3)},
    "zyqiu-verl-dev": {"rollout_data": (0, 128)},
    "nla-grpo": {"nla-grpo": (200, 0)},
    "swarm-os": {"swarm-os": (59, 0)},
    "rookworld": {"rookworld": (2, 0)},
    "rlhf-systems-kit": {"logs": (50, 0)},
    "unsloth-grpo": {"unsloth-grpo": (250, 0)},
    "gemma3-gsm8k": {"gemma3-gsm8k": (25, 0)},
    "glaive-tool-grpo": {"glaive-tool-grpo": (20, 0)},
    "gameplay-json": {"gameplay-json": (50, 0)},
    "chaos-economy": {"chaos-economy": (50, 0)},
}
"""Folder -> run -> steps with metrics, trajectories; as counted when the files were collected."""


def test_public_runs_of_other_people_are_read_as_they_were_counted(shared_data: Path, store: Store) -> None:
    report = ingest_once(store, [shared_data / "real" / folder for folder in PLAIN])
    _sound(report)
    expected = {name: counts for runs in PLAIN.values() for name, counts in runs.items()}
    found = store.rows(
        """SELECT r.project, r.name,
                  (SELECT count(DISTINCT step) FROM point JOIN series s USING (series_id) WHERE s.run_id = r.run_id),
                  (SELECT count(*) FROM trajectory t WHERE t.run_id = r.run_id) FROM run r"""
    )
    # Two projects have a run called "logs".
    assert sorted((name, steps, rows) for project, name, steps, rows in found if name != "logs") == sorted(
        (name, *counts) for name, counts in expected.items() if name != "logs"
    )
    assert sorted((project, steps, rows) for project, name, steps, rows in found if name == "logs") == [
        ("machiavelli", 30, 195),
        ("run_20250828_211717", 50, 0),
    ]


def test_restarts_in_a_public_log_are_attempts(shared_data: Path, store: Store) -> None:
    ingest_once(store, [shared_data / "real" / "sentinel-openenv" / "proof_pack"])
    assert store.rows("SELECT max(attempt) FROM point") == [(6,)]
    assert store.rows("SELECT count(*) FROM event WHERE kind = 'resume'") == [(5,)]


def test_token_records_of_two_trainers_keep_their_trainers_names(shared_data: Path, store: Store) -> None:
    folder = shared_data / "real" / "token-records"
    _sound(ingest_once(store, [folder]))
    versions = dict(store.rows("SELECT name, framework_version FROM run"))
    assert versions["verl-091-vllm-t4-fp16"] == "verl v0"
    assert versions["trl-113-vllm-a10g-bf16"] == "trl"
    assert store.rows("SELECT count(*) FROM token") == [(64 + 76 + 64 + 512,)]
    names = dict(store.rows("SELECT source_key, metric FROM series JOIN run USING (run_id) WHERE name = 'verl-091-vllm-t4-fp16'"))
    assert names["critic/score/mean"] == "reward.mean"
    assert names["response_length/clip_ratio"] == "length.response.truncated_frac"


def test_series_of_public_threads_are_read_and_tables_that_are_no_runs_are_not(shared_data: Path, store: Store) -> None:
    report = ingest_once(store, [shared_data / "cases" / "threads", shared_data / "cases" / "gd-a-rho0.10-s42"])
    _sound(report)
    counts = _counts(store)
    assert counts["gd-a-rho0.10-s42"] == ("plain", 40, 0)
    assert counts["trl-3452"] == ("plain", 8, 0)
    ignored = {file.path.name for file in report.files if file.state == "ignored"}
    assert {"marin-8955.csv", "trl-6789.csv", "trl-7269.csv", "vime-64.csv", "textpolicy-47.jsonl", "verl-7412.txt"} <= ignored
