"""Checks of rewritten context: what the difference looks like, and whether trainer and engine saw different contexts."""

from __future__ import annotations

from collections.abc import Mapping

from ingest.schema.records import Json
from server.checks.base import Check, CheckResult, Finding, answer, cannot
from server.checks.measure import mean_of, since_onset
from server.queries.view import RunView

REWRITTEN = "fact.context.rewritten_frac"
DIFFERS = "fact.context.trainer_differs_frac"
_UNITS = ("sample_unit", "train_unit", "training_unit")
_APART = ("turn", "segment", "message")


def trained_apart(view: RunView) -> bool:
    """Whether every turn is trained on with the context the engine had: by configuration, or by the trainer's own tokens."""
    unit = _unit(view.run.raw_config)
    if unit is not None and any(name in unit for name in _APART):
        return True
    differs = mean_of(view, DIFFERS, 3)
    return differs is not None and differs == 0


def _unit(config: Mapping[str, Json]) -> str | None:
    """What one training sample is, as the configuration says it, at any depth of it."""
    for key, value in config.items():
        if isinstance(value, dict):
            found = _unit(value)
            if found is not None:
                return found
        elif isinstance(value, str) and key in _UNITS:
            return value.lower()
    return None


def _share(id: str, metric: str, text: str, *missing: str) -> Check:
    """A check by the share of the differences read that are of one kind; more than half supports, less than 5 % refutes."""

    def check(view: RunView, finding: Finding) -> CheckResult:
        share = since_onset(view, metric, finding.onset_step, 5)
        if share is None:
            return cannot(id, *missing)
        position, dropped = (since_onset(view, f"fact.context.{m}", finding.onset_step, 5) for m in ("position", "dropped"))
        observed = {"share": share, "position": position, "dropped": dropped}
        note = f"{share:.0%} {text}; after {position or 0:.0f} tokens in common, {dropped or 0:.0f} dropped"
        return answer(id, share > 0.5, share < 0.05, observed, note)

    check.__name__ = id
    return check


_IDS = ("prompt_token_ids", "token_ids")
think_removed = _share("think_removed", "fact.context.think_frac", "of the differences begin where thinking opens", *_IDS)
compacted = _share("compacted", "fact.context.compacted_frac", "of the differences drop much and put something in", *_IDS)
cut_from_left = _share("cut_from_left", "fact.context.left_frac", "of the differences drop much and put nothing in", *_IDS)


def _short(id: str, metric: str, text: str) -> Check:
    """As above for differences of a few tokens, which only their texts tell apart."""
    by_share = _share(id, metric, text, *_IDS)

    def check(view: RunView, finding: Finding) -> CheckResult:
        unread = since_onset(view, "fact.context.short_frac", finding.onset_step, 5)
        if unread is not None and unread > 0.5:
            return cannot(id, "token_texts", note=f"{unread:.0%} of the differences are short and their texts are not written")
        return by_share(view, finding)

    check.__name__ = id
    return check


retokenised = _short("retokenised", "fact.context.retokenised_frac", "of the differences are the same text in other ids")
reserialised = _short("reserialised", "fact.context.reserialised_frac", "of the differences are other white space or another order")


def mismatch_after_first_turn(view: RunView, finding: Finding) -> CheckResult:
    """Log-probs of trainer and engine agree in the first turn and not in those after it, whose context was rendered twice."""
    first, later = (since_onset(view, f"fact.mismatch.turn.{m}", finding.onset_step, 5) for m in ("first", "later"))
    if first is None or later is None:
        return cannot("mismatch_after_first_turn", "old_logprobs", "rollout_logprobs", "response_mask")
    observed = {"first_turn": first, "later_turns": later}
    note = f"mean difference of log-probs {first:.2g} in the first turn, {later:.2g} after it"
    return answer("mismatch_after_first_turn", later > 0.01 and later > 3 * first, later < 1.5 * first or later < 0.005, observed, note)
