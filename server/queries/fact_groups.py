"""Facts of groups: sizes, prompts, equal rewards, duplicates and the exact identities of group advantages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from server.queries.fact_rows import FactSeries, as_series
from server.queries.fact_table import NONE, Hashes, Labels, Table
from server.queries.reductions import Flags, Floats, Groups, Ints, ratio
from server.queries.view import RunData

_ROUNDING = 5e-3
"""Advantages are often written with three or four digits; their sum over a group may be off by that much."""
_ROUNDING_EACH = 1e-3
"""An absolute mean below it is rounding, however small the advantages are (symptoms 14)."""
_NOTHING = 0.02
"""Advantages below it come from equal rewards: their rounding over a deviation of 0 plus a small constant."""
_NEAR_BEST = 0.02
"""Parts of the reward's range within which a reward is as good as the best."""


@dataclass(frozen=True)
class _Rows:
    """Trajectories that have a group, [rows], and their groups, [groups]. steps: each group's step in the table's index."""

    table: Table
    rows: Ints
    groups: Groups
    steps: Groups
    reward: Floats
    advantage: Floats
    tokens: Floats
    size: Floats
    lowest: Floats
    """Lowest reward of the run up to the group's step; highest likewise."""
    highest: Floats

    def hashes(self, name: str) -> Hashes:
        """Hashes of the rows."""
        return self.table.hashes[name][self.rows]

    @cached_property
    def rewarded(self) -> Flags:
        """Rows with a reward."""
        return np.isfinite(self.reward)

    @cached_property
    def good(self) -> Flags:
        """Rows whose reward is about the best of the run so far."""
        low, high = self.lowest[self.groups.of], self.highest[self.groups.of]
        return (high > low) & (self.reward >= high - _NEAR_BEST * (high - low))

    @cached_property
    def bad(self) -> Flags:
        """Rows with another reward."""
        return self.rewarded & ~self.good

    @cached_property
    def spread(self) -> Floats:
        """Highest less lowest reward of each group."""
        return self.groups.most(self.reward) - self.groups.least(self.reward)


def group_facts(data: RunData, table: Table) -> FactSeries:
    """Facts of groups, reduced to steps; absent without group ids."""
    rows, groups, of_group = table.by("group_hash", where=table.hashes["group_hash"] != NONE)
    if not len(rows):
        return {}
    lowest, highest = _range_so_far(data, table)
    size = groups.count(np.ones(len(rows), np.bool_))
    steps = Groups(of_group, table.index.size)
    reward, advantage, tokens = (table[name][rows] for name in ("reward", "advantage", "tokens"))
    x = _Rows(table, rows, groups, steps, reward, advantage, tokens, size, lowest[of_group], highest[of_group])
    number = steps.count(size > 0)
    prompt = x.hashes("prompt_hash")
    prompts = groups.distinct(prompt, prompt != NONE)
    result = {
        "fact.group.n": np.where(number > 0, number, np.nan),
        "fact.group.size.min": steps.least(size),
        "fact.group.size.max": steps.most(size),
        "fact.group.size.median": steps.quantile(size, 0.5),
        "fact.group.mixed_prompt_frac": steps.mean((prompts > 1).astype(np.float64), prompts > 0),
        **_rewards(x),
        **_texts(x),
        **_advantages(data, x),
    }
    return table.index.series(result) | _reversed_by_task(x)


def _range_so_far(data: RunData, table: Table) -> tuple[Floats, Floats]:
    """Lowest and highest reward of the run up to each step, in the order in which a live run meets its steps.

    What lies before the table is that of the facts of trajectories, which are derived before those of groups.
    """
    before = (int(table.attempts[0]), int(table.steps[0]) - 1)
    least, most = data.extreme("fact.reward.min", before, np.min), data.extreme("fact.reward.max", before, np.max)
    low, high = table.index.least(table["reward"]), table.index.most(table["reward"])
    lowest = np.fmin.accumulate(np.append(np.nan if least is None else least, low))[1:]
    highest = np.fmax.accumulate(np.append(np.nan if most is None else most, high))[1:]
    return lowest, highest


def _rewards(x: _Rows) -> dict[str, Floats]:
    spread = x.highest - x.lowest
    low, high = x.groups.least(x.reward), x.groups.most(x.reward)
    judged = (x.groups.count(x.rewarded) == x.size) & (x.size > 1)
    equal = judged & (high - low < 1e-9)
    margin = _NEAR_BEST * spread
    longer_by = x.tokens - x.groups.quantile(x.tokens, 0.5)[x.groups.of]
    middle = ((x.lowest + x.highest) / 2)[x.groups.of]
    success = np.where(x.rewarded, (x.reward > middle).astype(np.float64), np.nan)
    gain = x.groups.mean(success, longer_by > 0) - x.groups.mean(success, longer_by <= 0)
    varied = (x.spread > 1e-6) & (x.groups.most(x.tokens) > x.groups.least(x.tokens))
    by_length = np.where(varied, x.groups.correlation(x.reward, x.tokens), np.nan)
    return {
        "fact.group.zero_std_frac": x.steps.mean(equal.astype(np.float64), judged),
        "fact.group.all_low_frac": x.steps.mean((equal & (low <= x.lowest + margin)).astype(np.float64), judged & (spread > 0)),
        "fact.group.all_high_frac": x.steps.mean((equal & (high >= x.highest - margin)).astype(np.float64), judged & (spread > 0)),
        "fact.length.reward_correlation": x.steps.mean(by_length),
        "fact.length.paired_gain": x.steps.mean(gain, spread > 0),
    }


def _texts(x: _Rows) -> dict[str, Floats]:
    text = x.hashes("response_hash")
    written = text != NONE
    texts, wrong, positive = (x.groups.count(written & some) for some in (np.True_, x.bad, x.good))
    duplicate = 1 - ratio(x.groups.distinct(text, written), texts)
    duplicate_wrong = 1 - ratio(x.groups.distinct(text, written & x.bad), wrong)
    distinct_positive = ratio(x.groups.distinct(text, written & x.good), positive)
    judged = (texts == x.size) & (x.size > 1)
    return {
        "fact.group.duplicate_frac": x.steps.mean(duplicate, judged),
        "fact.group.duplicate_wrong_frac": x.steps.mean(duplicate_wrong, judged & (wrong > 1)),
        "fact.group.duplicated_frac": x.steps.mean((duplicate > 0.5).astype(np.float64), judged),
        "fact.group.distinct_positive_frac": x.steps.mean(distinct_positive, judged & (positive > 0)),
        **_answers(x, judged),
    }


def _answers(x: _Rows, judged: Flags) -> dict[str, Floats]:
    answer = x.hashes("answer_hash")
    written = answer != NONE
    answers, accepted = x.groups.count(written), x.groups.count(written & x.good)
    differ = x.groups.distinct(answer, written & x.good) > 1
    comparable = judged & (accepted > 1)
    counted = x.steps.count(comparable)
    return {
        "fact.group.accepted_n": np.where(x.steps.count(judged & (answers > 0)) > 0, counted, np.nan),
        "fact.group.accepted_differ_frac": x.steps.mean(differ.astype(np.float64), comparable),
        "fact.group.answer_frac": x.steps.mean(ratio(x.groups.distinct(answer, written), answers), judged & (answers > 1)),
    }


def _advantages(data: RunData, x: _Rows) -> dict[str, Floats]:
    known = (x.groups.count(np.isfinite(x.advantage)) == x.size) & (x.size > 1)
    configured = data.run.config.get("group_size")
    # A dump may hold a part of a group; its advantages need not sum to 0. Without a configured size the largest of the step counts.
    largest = x.steps.most(x.size)
    expected = np.full(len(x.size), float(configured)) if isinstance(configured, (int, float)) else largest[x.steps.of]
    full = known & (x.size >= expected)
    mean, most = x.groups.mean(x.advantage), x.groups.most(np.abs(x.advantage))
    off = np.abs(mean) / np.fmax(most, 1e-9)
    two = known & (x.groups.distinct(x.reward, x.rewarded) == 2) & full
    bound = np.sqrt(np.maximum(x.size - 1, 1))
    covariance = _covariance(x)
    told = (x.spread > 1e-6) & (x.groups.deviation(x.advantage) > 1e-9)
    correlation = np.where(told, x.groups.correlation(x.advantage, x.reward), np.nan)
    both = np.isfinite(x.advantage) & x.rewarded
    equal = x.groups.mean((np.abs(x.advantage - x.reward) < 1e-4).astype(np.float64), both)
    some = known & np.isfinite(covariance)
    return {
        "fact.advantage.group_mean": x.steps.most(np.where((np.abs(mean) < _ROUNDING_EACH) | (most < _NOTHING), 0.0, off), full),
        "fact.advantage.off_frac": x.steps.mean(
            ((off > _ROUNDING) & (np.abs(mean) > _ROUNDING_EACH) & (most > _NOTHING)).astype(np.float64), full
        ),
        "fact.advantage.excess": x.steps.most(most / bound, two),
        "fact.advantage.reversed_frac": x.steps.mean((covariance < 0).astype(np.float64), some),
        "fact.advantage.correlation": x.steps.mean(correlation, known),
        "fact.advantage.equals_reward_frac": x.steps.mean(equal),
    }


def _covariance(x: _Rows) -> Floats:
    """Of advantage and reward within each group; NaN where all rewards are equal."""
    return np.where(x.spread > 1e-6, x.groups.covariance(x.advantage, x.reward), np.nan)


def _reversed_by_task(x: _Rows) -> FactSeries:
    """Share of groups of each task in which the better response got the lower advantage."""
    result: FactSeries = {}
    covariance = _covariance(x)
    judged = np.isfinite(covariance)
    tasks: Labels = np.empty(x.groups.size, np.object_)
    tasks[x.groups.of] = x.table.labels["task"][x.rows]
    index = x.table.index
    for task in sorted({str(task) for task in tasks[judged] if task is not None}):
        name = f"fact.advantage.reversed_frac.{task}"
        values = x.steps.mean((covariance < 0).astype(np.float64), judged & (tasks == task))
        result |= as_series({"attempt": index.attempts, "step": index.steps, name: values}, [name])
    return result
