"""Checks of single tokens: what a mismatch or a jump is made of, read from the newest token rows of an incident."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import finite
from server.queries.view import RunView

Floats = NDArray[np.float64]

MOST_ROWS = 256
"""Trajectories that a check reads; more would say the same and cost a person's patience."""
MOST_TOKENS = 400_000
FEWEST = 100
"""Tokens below which a share of tokens is not told."""
FEWEST_FOR_TAIL = 1000
"""Tokens of which the top .1 % is at least one."""
_DIFFERS = 1e-3
"""nats, a difference below it has no sign worth counting: rounding of the stored numbers."""


class Row(NamedTuple):
    """The policy's own tokens of one trajectory, those with a finite log-prob of both sides, in order.

    old, rollout [tokens] in nats; place [tokens] from the first own token; segment [tokens] counts the stretches of own
    tokens (tool output lies between); version [tokens] or None; update [tokens] is current - old, NaN where not written.
    """

    old: Floats
    rollout: Floats
    update: Floats
    place: NDArray[np.int64]
    segment: NDArray[np.int64]
    version: Floats | None
    fresh: bool
    own: bool
    ended: bool


def rows(view: RunView, finding: Finding) -> list[Row]:
    """Token rows of the newest steps since the onset, at most MOST_ROWS; those of the newest recorded step where it holds none."""
    key = ("token rows", finding.onset_step)
    found: list[Row] | None = view.scratch.get(key)
    if found is None:
        found = view.scratch[key] = _read(view, finding.onset_step)
    return found


def _read(view: RunView, onset: int) -> list[Row]:
    counts, lengths = view.series("fact.tokens.n"), view.series("fact.length.mean")
    first, taken, tokens = None, 0.0, 0.0
    each = float(lengths.values[-1]) if len(lengths) else 100.0
    for step, n in zip(counts.steps[::-1].tolist(), counts.values[::-1].tolist(), strict=True):
        if first is not None and (step < onset or taken + n > MOST_ROWS or tokens + n * each > MOST_TOKENS):
            break
        first, taken, tokens = step, taken + n, tokens + n * each
    if first is None:
        return []
    arrays = ("old_logprobs", "rollout_logprobs", "current_logprobs", "response_mask", "policy_versions")
    columns = ("prompt_tokens", "policy_lag", "policy_version_first", "policy_version_last", "trainer_version", "origin", "finish_reason")
    told = view.tokens(first, view.step, arrays, columns=columns)
    made = (_row(record) for record in told[:MOST_ROWS])
    return [row for row in made if row is not None and len(row.old)]


def _row(record: dict[str, object]) -> Row | None:
    old, rollout = record["old_logprobs"], record["rollout_logprobs"]
    if not isinstance(old, np.ndarray) or not isinstance(rollout, np.ndarray):
        return None
    n = min(len(old), len(rollout))
    mask = record["response_mask"]
    written = np.ones(n, bool)
    if isinstance(mask, np.ndarray):
        written = np.zeros(n, bool)
        written[: len(mask)] = mask[:n] == 1
    elif isinstance(record["prompt_tokens"], int):
        written[: record["prompt_tokens"]] = False
    segment = np.cumsum(np.diff(written.astype(np.int64), prepend=0) == 1)
    keep = written & np.isfinite(old[:n]) & np.isfinite(rollout[:n])
    if not keep.any():
        return None
    place = np.cumsum(written) - 1
    first, last, trainer = record["policy_version_first"], record["policy_version_last"], record["trainer_version"]
    lag = record["policy_lag"]
    if lag is None and isinstance(trainer, int) and isinstance(last, int):
        # The trainer's version may be counted before or after the update of the step: one apart may still be fresh.
        lag = max(0, trainer - last - 1)
    update = record["current_logprobs"]
    version = record["policy_versions"]
    return Row(
        old[:n][keep],
        rollout[:n][keep],
        (_fitted(update, n) - old[:n])[keep],
        place[keep],
        segment[keep],
        _fitted(version, n)[keep] if isinstance(version, np.ndarray) else None,
        lag in (None, 0) and first == last,
        record["origin"] in (None, "policy"),
        record["finish_reason"] in (None, "stop"),
    )


def _fitted(values: object, n: int) -> Floats:
    """The array cut or filled with NaN to n elements; all NaN where it was not written."""
    result = np.full(n, np.nan)
    if isinstance(values, np.ndarray):
        result[: len(values)] = values[:n]
    return result


def _compared(view: RunView, finding: Finding) -> list[Row]:
    """Rows in which trainer and engine can be compared on the same weights: fresh, by the policy, and not one number twice."""
    found = [row for row in rows(view, finding) if row.fresh and row.own]
    return found if any((row.old != row.rollout).any() for row in found) else []


def _gaps(found: list[Row]) -> tuple[Floats, Floats]:
    """old - rollout and rollout over all tokens of the rows."""
    old = np.concatenate([row.old for row in found]) if found else np.empty(0)
    rollout = np.concatenate([row.rollout for row in found]) if found else np.empty(0)
    return old - rollout, rollout


_MISALIGNED = ("unrelated_frac", "shifted_frac")
_MISSING = ("old_logprobs", "rollout_logprobs")


def _too_few(id: str, tokens: int) -> CheckResult:
    return cannot(id, *_MISSING, note=f"{tokens} fresh tokens since the onset carry both log-probs, {FEWEST} are needed")


def few_tokens(view: RunView, finding: Finding) -> CheckResult:
    """Whether the top .1 % of tokens carry more than half of the ratios' distance from 1, rare ones and not the end token.

    Without token rows the largest and the mean difference of log-probs bound that share from above.
    """
    found = rows(view, finding)
    moved = [row for row in found if np.nansum(np.abs(row.update)) > 0]
    parts = [(row.update, row) for row in moved] or [(row.old - row.rollout, row) for row in found]
    values = np.concatenate([part for part, _ in parts]) if parts else np.empty(0)
    if np.isfinite(values).sum() < FEWEST_FOR_TAIL or not np.nansum(np.abs(values)) > 0:
        return _bounded(view, finding)
    chance = np.concatenate([np.exp(row.rollout) for _, row in parts])
    end = np.concatenate([_is_last(row) for _, row in parts])
    known = np.isfinite(values)
    distance = np.abs(np.expm1(np.clip(values[known], -20.0, 20.0)))
    chance, end = chance[known], end[known]
    k = max(1, math.ceil(0.001 * len(distance)))
    top = np.argsort(distance)[-k:]
    weight = distance[top] / distance[top].sum()
    share, usual, ends = float(distance[top].sum() / distance.sum()), float(weight @ chance[top]), float(weight @ end[top])
    observed = {"share": share, "tokens": k, "of": len(distance), "engine_probability": usual, "end_tokens": ends}
    note = f"{k} of {len(distance)} tokens carry {share:.0%} of the ratios' distance from 1, at an engine probability of {usual:.2g}"
    return answer("few_tokens", share > 0.5 and usual < 0.05 and ends < 0.5, share < 0.3, observed, note)


def _is_last(row: Row) -> NDArray[np.bool_]:
    last = np.zeros(len(row.old), bool)
    last[-1] = row.ended
    return last


def _bounded(view: RunView, finding: Finding) -> CheckResult:
    mean, most = (finite(view.series(f"mismatch.logprob_diff.{kind}").since(finding.onset_step)).values[-5:] for kind in ("mean", "max"))
    if not len(mean) or not len(most) or not mean.mean() > 0:
        return cannot("few_tokens", "current_logprobs", *_MISSING, note=f"token rows of fewer than {FEWEST_FOR_TAIL} tokens in reach")
    times = float(most.max() / mean.mean())
    bound = 0.001 * times
    note = f"the largest difference is {times:.0f} times the mean one, so the top .1 % of tokens carry at most {min(bound, 1):.0%}"
    return answer("few_tokens", False, bound < 0.3, {"share_at_most": min(bound, 1.0)}, note)


def tail_of_rare_tokens(view: RunView, finding: Finding) -> CheckResult:
    """Numerics: differences of either sign, mostly on tokens that the engine found unlikely, and no confident disagreement."""
    gap, rollout = _gaps(_compared(view, finding))
    if len(gap) < FEWEST:
        return _too_few("tail_of_rare_tokens", len(gap))
    size = np.abs(gap)
    reversed_share = _reversed(gap, rollout)
    side = abs(float(gap.mean())) / float(size.mean())
    unsure = float(size[rollout < math.log(0.9)].sum() / size.sum())
    observed = {"unsure_share": unsure, "one_sided": side, "confident_disagreement": reversed_share, "tokens": len(gap)}
    note = (
        f"{unsure:.0%} of the difference on tokens below p = .9, bias {side:.0%} of its size, {reversed_share:.2%} confident disagreement"
    )
    fits = unsure > 0.7 and side < 0.5 and reversed_share < 1e-3
    # Where most tokens differ much, some confident ones do so by any cause.
    flips = reversed_share > 0.01 and float(np.median(size)) < 0.05
    return answer("tail_of_rare_tokens", fits, flips or side > 0.9, observed, note)


def _reversed(gap: Floats, rollout: Floats) -> float:
    """Share of tokens that the engine gave more than .9 and the trainer less than .1."""
    return float(((rollout > math.log(0.9)) & (rollout + gap < math.log(0.1))).mean())


def disagrees_confidently(view: RunView, finding: Finding) -> CheckResult:
    """Other weights: tokens that the engine was sure of (p > .9) and the trainer all but excludes (p < .1), at any position."""
    found = _compared(view, finding)
    gap, rollout = _gaps(found)
    if len(gap) < FEWEST:
        return _too_few("disagrees_confidently", len(gap))
    share = _reversed(gap, rollout)
    note = f"{share:.2%} of {len(gap)} tokens have p > .9 in the engine and p < .1 in the trainer"
    elsewhere = _border(found) is not None or any((view.series(f"fact.mismatch.{m}").tail(3).values > 0.1).any() for m in _MISALIGNED)
    return answer(
        "disagrees_confidently",
        share > 0.01 and not elsewhere,
        share < 1e-3 and len(gap) >= FEWEST_FOR_TAIL,
        {"share": share, "tokens": len(gap)},
        note,
    )


def differs_from_a_border(view: RunView, finding: Finding) -> CheckResult:
    """Template or tokenisation: agreement up to one position (or the first tool output), disagreement from there on."""
    found = _compared(view, finding)
    tokens = sum(len(row.old) for row in found)
    if tokens < FEWEST or len(found) < 8:
        return _too_few("differs_from_a_border", tokens)
    border = _border(found)
    if border is not None:
        where, before, after = border
        note = f"{before:.4f} nats before {where} and {after:.3f} from there on"
        return answer("differs_from_a_border", True, False, {"before": before, "after": after}, note)
    size = float(np.mean(np.abs(_gaps(found)[0])))
    first = float(np.median([abs(row.old[0] - row.rollout[0]) for row in found]))
    note = f"no position from which it differs; {first:.4f} nats at the first token, {size:.4f} on average"
    return answer("differs_from_a_border", False, first < 0.1, {"first_token": first, "mean": size}, note)


def _border(found: list[Row]) -> tuple[str, float, float] | None:
    """Where agreement ends for good: name, median difference before and after (nats); None: nowhere."""
    gapped = [row for row in found if row.segment[-1] > row.segment[0]]
    if len(gapped) >= 8:
        first = [float(np.abs(r.old - r.rollout)[r.segment == r.segment[0]].mean()) for r in gapped]
        later = [float(np.abs(r.old - r.rollout)[r.segment > r.segment[0]].mean()) for r in gapped]
        before, after = float(np.median(first)), float(np.median(later))
        if after > 0.1 and after > 10 * before:
            return "the first tokens that others wrote", before, after
    profile = _profile(found)
    for place in range(1, len(profile) - 1):
        before, rest = float(np.max(profile[:place])), profile[place:]
        if before < 0.05 and float(np.min(rest)) > max(0.1, 5 * before):
            return f"token {place}", before, float(np.median(rest))
    return None


def _profile(found: list[Row]) -> Floats:
    """Median absolute difference by position among own tokens, while at least half of the rows (eight at least) reach it; [positions]."""
    longest = max((int(row.place[-1]) for row in found), default=0) + 1
    least = max(8, len(found) / 2)
    table: list[list[float]] = [[] for _ in range(min(longest, 512))]
    for row in found:
        for place, gap in zip(row.place.tolist(), np.abs(row.old - row.rollout).tolist(), strict=True):
            if place < len(table):
                table[place].append(gap)
    filled = next((i for i, values in enumerate(table) if len(values) < least), len(table))
    return np.array([float(np.median(values)) for values in table[:filled]])


def sampling_shape(view: RunView, finding: Finding) -> CheckResult:
    """Log-probs before a sampling transform: a kept mass that lowers every token alike, or log-odds that are a multiple of the
    engine's, as another temperature makes them."""
    gap, rollout = _gaps(_compared(view, finding))
    if len(gap) < FEWEST:
        return _too_few("sampling_shape", len(gap))
    told = np.abs(gap) > _DIFFERS
    if told.mean() < 0.05:
        return answer("sampling_shape", False, True, {"differing": float(told.mean())}, "trainer and engine agree on most tokens")
    below, ratio = float((gap[told] < 0).mean()), float(np.exp(gap).mean())
    lowest, heat = float(np.quantile(np.exp(gap), 0.01)), _heat(gap, rollout)
    top_p = view.config.get("top_p")
    # The kept mass of nucleus sampling is never below top_p.
    within = not isinstance(top_p, (int, float)) or top_p >= 1 or lowest > float(top_p) - 0.02
    kept = below > 0.98 and 0.3 < ratio < 0.99 and lowest > 0.3 and within
    heated = heat is not None and abs(math.log(heat)) > 0.15
    observed = {"below_frac": below, "ratio_mean": ratio, "ratio_p01": lowest, "temperature": heat, "tokens": len(gap)}
    note = f"trainer below engine on {below:.0%} of the differing tokens, mean ratio {ratio:.3f}"
    note += f"; its log-odds are {heat:.2f} times the engine's" if heat is not None else "; no common factor of the log-odds"
    return answer("sampling_shape", kept or heated, not kept and not heated and below < 0.9, observed, note)


def _heat(gap: Floats, rollout: Floats) -> float | None:
    """Factor of the trainer's log-odds over the engine's on tokens that one other competes with; None where they do not line up.

    With two candidates the log-odds are the difference of logits over the temperature. The factor is that of the spreads,
    which errors of either side do not pull towards 0 as they do a slope.
    """
    old = rollout + gap
    unsure = (rollout > math.log(0.6)) & (rollout < math.log(0.999)) & (old < -1e-4)
    if unsure.sum() < 40:
        return None
    x, y = (np.log(np.expm1(-side[unsure])) for side in (rollout, old))
    if np.ptp(x) < 1 or float(np.corrcoef(x, y)[0, 1]) ** 2 < 0.8:
        return None
    return float(y.std() / x.std())


def jumps_at_versions(view: RunView, finding: Finding) -> CheckResult:
    """Within responses of several versions: the difference in tokens of their oldest version against the newest one."""
    pairs = []
    for row in rows(view, finding):
        if row.version is None or not np.isfinite(row.version).all() or np.ptp(row.version) == 0 or not (row.old != row.rollout).any():
            continue
        size = np.abs(row.old - row.rollout)
        pairs.append((float(size[row.version == row.version.min()].mean()), float(size[row.version == row.version.max()].mean())))
    if len(pairs) < 8:
        return cannot("jumps_at_versions", "policy_versions", *_MISSING, note="fewer than eight responses of several versions in reach")
    oldest, newest = (float(np.median(side)) for side in zip(*pairs, strict=True))
    more = float(np.mean([a > b for a, b in pairs]))
    observed = {"oldest": oldest, "newest": newest, "older_deviates_more": more, "responses": len(pairs)}
    note = f"{oldest:.4f} nats in tokens of the oldest version of a response, {newest:.4f} in those of the newest"
    jumps = oldest > 2 * newest and more > 0.75
    return answer("jumps_at_versions", jumps, oldest < 1.3 * newest, observed, note)
