"""Checks of identities that hold exactly in a sound run: advantages of a group, masks, and the order of the first NaN."""

from __future__ import annotations

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import level, mean_of, moved, since_onset
from server.checks.optimiser import WITHOUT_CRITIC
from server.queries.view import RunView, Series

_LOG_PROBS = ("kl.ref", "entropy.mean", "mismatch.logprob_diff.mean", "mismatch.kl", "ratio.mean")
_LOSS = ("loss.policy", "loss.total", "grad.norm")


def centred_in_groups(view: RunView) -> bool | None:
    """Whether the run's advantages must sum to 0 within groups; None: no configuration says it."""
    if view.run.algorithm in ("ppo", "gae") or view.has("value.explained_var", "loss.value"):
        return False
    advantage = view.run.raw_config.get("advantage")
    kind = advantage.get("kind") if isinstance(advantage, dict) else view.run.raw_config.get("adv")
    if isinstance(kind, str):
        return "group" in kind.lower() or kind.lower().replace("-", "_") in WITHOUT_CRITIC
    algorithm = view.run.algorithm
    return None if algorithm is None else algorithm.replace("-", "_") in WITHOUT_CRITIC


def groups_of_one(view: RunView, finding: Finding) -> CheckResult:
    """Groups of one have no baseline: the advantage is the reward and is never negative."""
    size, equal, negative = (level(view, m) for m in ("fact.group.size.median", "fact.advantage.equals_reward_frac", "adv.neg_frac"))
    if size is None and equal is None:
        return cannot("groups_of_one", "group_id", "advantage")
    alone = (size is not None and size <= 1) or (equal is not None and equal > 0.99 and negative == 0)
    note = f"median group of {size:g}" if size is not None else "no group ids"
    return answer("groups_of_one", alone, not alone, {"group_size": size, "equals_reward_frac": equal}, note)


def merged_groups(view: RunView, finding: Finding) -> CheckResult:
    """Groups larger than configured, or with several prompts, were merged."""
    size, mixed, expected = level(view, "fact.group.size.max"), level(view, "fact.group.mixed_prompt_frac"), view.config.get("group_size")
    if size is None:
        return cannot("merged_groups", "group_id")
    larger = isinstance(expected, (int, float)) and size > expected
    merged = larger or (mixed or 0) > 0
    observed = {"largest": size, "configured": expected if isinstance(expected, (int, float)) else None, "mixed_prompt_frac": mixed}
    return answer("merged_groups", merged, not merged, observed, f"largest group {size:g}, configured {expected}")


def rows_unrelated(view: RunView, finding: Finding) -> CheckResult:
    """Rewards or advantages that do not follow their own response: equal texts scored differently, advantages without order."""
    conflict, correlation = mean_of(view, "fact.reward.conflict_frac", 5), level(view, "fact.advantage.correlation")
    if conflict is None and correlation is None:
        return cannot("rows_unrelated", "response", "advantage", "group_id")
    wrong = (conflict is not None and conflict > 0.2) or (correlation is not None and abs(correlation) < 0.5)
    right = (conflict is None or conflict < 0.01) and (correlation is None or correlation > 0.9)
    observed = {"conflict_frac": conflict, "correlation": correlation}
    return answer("rows_unrelated", wrong, right, observed, "equal responses to one prompt compared, and advantage against reward")


def sign_reversed(view: RunView, finding: Finding) -> CheckResult:
    """Better responses with lower advantages, in the finding's slice or overall."""
    metric = "fact.advantage.reversed_frac" + (f".{finding.slice}" if finding.slice else "")
    share = since_onset(view, metric, finding.onset_step, 3)
    if share is None:
        return cannot("sign_reversed", "advantage", "group_id")
    return answer("sign_reversed", share > 0.5, share < 0.05, {"reversed_frac": share}, f"{share:.0%} of groups reversed")


def update_wrong_way(view: RunView, finding: Finding) -> CheckResult:
    """Whether the log-prob of samples with positive advantage rose relative to the others in the update."""
    metric = "fact.sign.separation" + (f".{finding.slice}" if finding.slice else "")
    value = since_onset(view, metric, finding.onset_step, 4)
    if value is None:
        return cannot("update_wrong_way", "old_logprobs", "current_logprobs", "advantage")
    return answer("update_wrong_way", value < -2, False, {"separation": value}, f"{value:.1f} standard errors")


def nothing_trained(view: RunView, finding: Finding) -> CheckResult:
    """Denominator of 0: no token or no varied group entered the loss of the step at which it began."""
    at = view.at(max(finding.onset_step, min((int(s.steps[0]) for m in _LOSS if len(s := view.series(m))), default=finding.onset_step)))
    trained, zero, empty = (level(at, m, 1) for m in ("tokens.trained", "group.zero_std_frac", "response.empty_frac"))
    if trained is None and empty is None:
        return cannot("nothing_trained", "tokens.trained", "response.empty_frac")
    none = trained == 0 or (empty or 0.0) >= 1.0
    observed = {"tokens_trained": trained, "zero_std_frac": zero, "empty_frac": empty}
    note = f"{trained:g} tokens were trained" if trained is not None else f"{empty or 0:.0%} of the responses are empty"
    return answer("nothing_trained", none, not none, observed, note)


def mask_covers_tools(view: RunView, finding: Finding) -> CheckResult:
    """Trained tokens behind the prompt that the policy did not write: tool output."""
    extra, prompt = (since_onset(view, f"fact.mask.{m}_frac", finding.onset_step, 3) for m in ("extra", "prompt"))
    if extra is None:
        return cannot("mask_covers_tools", "loss_mask", "response_mask")
    tools = extra > 0.001 and (prompt or 0) < extra / 2 and view.has("turns.mean", "tools.calls_per_sample", "tokens.env")
    observed = {"extra_frac": extra, "prompt_frac": prompt}
    return answer("mask_covers_tools", tools, not tools, observed, f"{extra:.1%} of trained tokens are not the policy's")


def mask_covers_prompt(view: RunView, finding: Finding) -> CheckResult:
    """Trained tokens of the prompt or padding, or an end token that is left out."""
    extra, prompt, end = (since_onset(view, f"fact.mask.{m}_frac", finding.onset_step, 3) for m in ("extra", "prompt", "last_missing"))
    if extra is None:
        return cannot("mask_covers_prompt", "loss_mask", "response_mask")
    tools = view.has("turns.mean", "tools.calls_per_sample", "tokens.env")
    wrong = (prompt or 0) > 0.001 or (end or 0) > 0.5 or (extra > 0.001 and not tools)
    observed = {"extra_frac": extra, "prompt_frac": prompt, "last_missing_frac": end}
    return answer("mask_covers_prompt", wrong, not wrong, observed, "loss mask compared with response mask token by token")


def entropy_artefact(view: RunView, finding: Finding) -> CheckResult:
    """Whether the entropy of trained tokens differs from that of the policy's own tokens."""
    loss, own = level(view, "fact.entropy.loss", 1), level(view, "fact.entropy.response", 1)
    if loss is None or own is None:
        return cannot("entropy_artefact", "entropies", "loss_mask")
    other = abs(loss - own) > 0.1 * max(own, 0.01)
    return answer(
        "entropy_artefact", other, not other, {"trained": loss, "policy": own}, f"{loss:.3f} over trained, {own:.3f} over own tokens"
    )


def first_not_finite(series: Series) -> int | None:
    """Step of the first NaN or infinity; None without one."""
    bad = np.flatnonzero(~np.isfinite(series.values))
    return int(series.steps[bad[0]]) if len(bad) else None


def born_suddenly(view: RunView, finding: Finding) -> CheckResult:
    """Numerics: the value breaks off without any growth in gradient or KL before it."""
    growth = _growth_before(view, finding.onset_step)
    if not growth:
        return cannot("born_suddenly", "grad.norm", "kl.old")
    largest = max(growth.values())
    calm = largest < 4
    return answer("born_suddenly", calm, largest > 8, growth, f"largest deviation before it {largest:.1f} spreads")


def grew_before(view: RunView, finding: Finding) -> CheckResult:
    """Step size: gradient norm or KL had already left its band before."""
    growth = _growth_before(view, finding.onset_step)
    if not growth:
        return cannot("grew_before", "grad.norm", "kl.old")
    largest = max(growth.values())
    return answer("grew_before", largest > 6, largest < 4, growth, f"largest deviation before it {largest:.1f} spreads")


def _growth_before(view: RunView, step: int) -> dict[str, float]:
    first = min((int(s.steps[0]) for m in ("grad.norm", "kl.old", "loss.policy") if len(s := view.series(m))), default=step)
    if step - 1 < first:
        return {}
    before = view.at(step - 1)
    found = {metric: moved(before, metric, newest=3, floor=0.2) for metric in ("grad.norm", "kl.old", "kl.ref")}
    return {metric: max(0.0, value.z) for metric, value in found.items() if value is not None}


def born_in_log_probs(view: RunView, finding: Finding) -> CheckResult:
    """Numerics by the order of the first NaN: log-probs point to the forward pass or the engine, a gradient beside a finite loss
    to the backward pass (as an overflow of half precision). A reward that is not finite brings NaN from outside."""
    since = {m: view.series(m).since(finding.onset_step) for m in (*_LOG_PROBS, *_LOSS, "reward.mean")}
    firsts = {m: s for m, series in since.items() if (s := first_not_finite(series)) is not None}
    if not firsts:
        return cannot("born_in_log_probs", *_LOG_PROBS)
    start = min(firsts.values())
    early = sorted(m for m, s in firsts.items() if s == start)
    from_outside = "reward.mean" in early
    loss_known = any(len(since[m]) for m in ("loss.policy", "loss.total"))
    backward = "grad.norm" in early and loss_known and not {"loss.policy", "loss.total"} & set(early)
    forward = bool(set(early) & set(_LOG_PROBS))
    note = f"first at step {start}: {', '.join(early)}" + ("; the loss was finite" if backward else "")
    return answer("born_in_log_probs", (forward or backward) and not from_outside, from_outside, {m: firsts[m] for m in early}, note)
