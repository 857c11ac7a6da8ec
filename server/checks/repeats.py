"""Checks of repeated rows: a batch that comes twice, a prompt in every spike, and what is dropped before training."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from ingest.store.connection import Columns
from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.optimiser import jumps
from server.queries.view import RunView

_LOOK_BACK = 12
"""Steps before the onset in which a repeated batch is looked for."""
_MOST_STEPS = 3
_QUIET_STEPS = 30


def duplicated(view: RunView, finding: Finding) -> CheckResult:
    """Rows that are there twice: every text an even number of times in its group, or the batch of an earlier step once more.

    Low diversity repeats texts too, but not all of them an even number of times, and not the prompts of another step.
    """
    first = max(finding.onset_step - _LOOK_BACK, 0)
    last = min(view.step, finding.onset_step + _MOST_STEPS)
    columns = view.trajectories(first, last, ("group_id", "prompt", "prompt_messages", "response"))
    batches = _batches(columns)
    newest = [step for step in batches if step >= finding.onset_step]
    if not newest:
        return cannot("duplicated", "prompt", "response")
    even = max((_even_share(batches[step]) for step in newest), default=0.0)
    again, of = max(((_seen(batches[step], batches[old]), old) for step in newest for old in batches if old < step), default=(0.0, None))
    observed = {"groups_all_even": even, "seen_before": again, "earlier_step": of}
    text = f"; {again:.0%} of a batch was there at step {of}" if again > 0 else ""
    note = f"{even:.0%} of the varied groups hold every text an even number of times{text}"
    return answer("duplicated", even > 0.9 or again > 0.8, even < 0.5 and again < 0.2, observed, note)


def _batches(columns: Columns) -> dict[int, list[tuple[Any, str, str]]]:
    """(group, prompt, response) of every row with a text, by step."""
    result: dict[int, list[tuple[Any, str, str]]] = defaultdict(list)
    names = ("step", "group_id", "prompt", "prompt_messages", "response")
    for step, group, prompt, messages, response in zip(*(columns[name].tolist() for name in names), strict=True):
        asked = prompt if prompt is not None else messages
        if asked is not None and response:
            result[int(step)].append((group, str(asked), str(response)))
    return result


def _even_share(batch: list[tuple[Any, str, str]]) -> float:
    """Share of groups with at least three different texts in which each occurs an even number of times; 0 below three groups."""
    groups: dict[Any, Counter[str]] = defaultdict(Counter)
    for group, prompt, response in batch:
        groups[group if group is not None else prompt][response] += 1
    varied = [texts for texts in groups.values() if len(texts) >= 3]
    return sum(all(n % 2 == 0 for n in texts.values()) for texts in varied) / len(varied) if len(varied) >= 3 else 0.0


def _seen(new: list[tuple[Any, str, str]], old: list[tuple[Any, str, str]]) -> float:
    """Share of the batch's different (prompt, text) pairs that the older one holds; 0 below ten pairs."""
    pairs = {(prompt, response) for _, prompt, response in new}
    return len(pairs & {(prompt, response) for _, prompt, response in old}) / len(pairs) if len(pairs) >= 10 else 0.0


def same_prompt(view: RunView, finding: Finding) -> CheckResult:
    """A data outlier: one prompt in every spike of the gradient norm, and hardly in the steps between."""
    series, hits, _ = jumps(view, "grad.norm", view.params.get("z", 6.0), view.params.get("factor", 3.0))
    spikes = series.steps[hits].tolist()[-6:]
    if len(spikes) < 3:
        return cannot("same_prompt", "grad.norm", note=f"{len(spikes)} spikes of the gradient norm; three are needed")
    quiet = [step for step in series.steps.tolist() if spikes[0] - _QUIET_STEPS <= step and step not in spikes][:_QUIET_STEPS]
    asked = {step: _prompts(view, step) for step in (*spikes, *quiet)}
    spiky, calm = [asked[s] for s in spikes if asked[s]], [asked[s] for s in quiet if asked[s]]
    if len(spiky) < 3 or len(calm) < 3:
        return cannot("same_prompt", "prompt")
    counts = Counter(prompt for prompts in spiky for prompt in prompts)
    prompt, most = max(counts.items(), key=lambda item: item[1])
    share, usual = most / len(spiky), sum(prompt in prompts for prompts in calm) / len(calm)
    note = f"the commonest prompt is in {most} of {len(spiky)} spikes and in {usual:.0%} of {len(calm)} steps between"
    return answer("same_prompt", share > 0.99 and usual < 0.3, share < 0.6, {"share": share, "usual": usual}, note)


def _prompts(view: RunView, step: int) -> set[str]:
    columns = view.trajectories(step, step, ("prompt", "prompt_messages"))
    pairs = zip(columns["prompt"].tolist(), columns["prompt_messages"].tolist(), strict=True)
    return {str(prompt if prompt is not None else messages) for prompt, messages in pairs if prompt is not None or messages is not None}


def dropped_differ(view: RunView, finding: Finding) -> CheckResult:
    """Filtering: responses that were dropped are longer, older or of other tasks than those that were trained on."""
    columns = view.trajectories(max(finding.onset_step, view.step - 5), view.step, ("kept", "response_tokens", "task"))
    written, tokens = (columns[name].astype(np.float64) for name in ("kept", "response_tokens"))
    if not np.isfinite(written).any():
        return cannot("dropped_differ", "kept")
    kept = written != 0
    share = float(1 - kept.mean())
    if share < 0.02:
        return answer("dropped_differ", False, True, {"dropped_frac": share}, f"{share:.1%} of the trajectories are dropped")
    if np.isfinite(tokens[kept]).sum() < 20 or np.isfinite(tokens[~kept]).sum() < 20:
        return answer("dropped_differ", False, False, {"dropped_frac": share}, f"{share:.1%} dropped, too few to compare")
    ratio = float(np.nanmean(tokens[~kept]) / max(float(np.nanmean(tokens[kept])), 1e-9))
    tasks = _distance([str(t) for t in columns["task"].tolist()], kept)
    note = f"{share:.0%} dropped; these are {ratio:.2f} times as long as the kept ones, stability index of tasks {tasks:.2f}"
    far = ratio > 1.3 or ratio < 0.77 or tasks > 0.2
    near = 0.9 < ratio < 1.1 and tasks < 0.1
    return answer("dropped_differ", far, near, {"dropped_frac": share, "length_ratio": ratio, "psi": tasks}, note)


def _distance(tasks: list[str], kept: np.ndarray) -> float:
    """Population stability index of the tasks of all rows against those of kept ones."""
    total = 0.0
    for task in set(tasks):
        of = np.array([name == task for name in tasks])
        a, b = max(float(of.mean()), 1e-3), max(float(of[kept].mean()), 1e-3)
        total += (b - a) * float(np.log(b / a))
    return total
