"""RS141 advantage-or-mask-fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import server.checks.engine as engine
import server.checks.integrity as integrity
import server.checks.repeats as repeats
import server.checks.second as second
from server.checks.measure import beyond_for, finding, fresh, history, level, mean_of, points
from server.detectors.middle import median
from server.queries.view import EMPTY, RunView, Series
from server.rules.base import Finding, Hypothesis, Param, Status, hypothesis
from server.symptoms import SYMPTOMS

_REVERSED = "fact.advantage.reversed_frac"


class AdvantageOrMaskFault:
    """An identity that advantages, groups or masks obey exactly is broken.

    What it observes:
        I1 no group is larger than configured. I2 the advantages of a full group sum to 0 (GRPO, Dr. GRPO, RLOO, DAPO, GSPO).
        I3 abs(A) <= sqrt(G - 1) where a group has two different rewards. I5 a group has one prompt. I6 trained tokens are the
        policy's tokens: none of the prompt, of tool output or padding, and the last one is trained. I9 within a group the better
        response has the higher advantage, and after the update log-probs of samples with positive advantage rose relative to the others.
        Each also by task. Besides: advantages that are the reward itself and never negative, more tokens trained than generated in
        the same steps, and a gradient of exactly 0 while most groups differ. Any violation is critical at once; the change of
        log-probs is a statistic, needs four points and speaks only while the reward does not rise. Not computed, for want of what
        they compare with: I4 and I11 (re-scoring), I7 (denominators inside the trainer), I8 beyond doubled groups, I10.

    Why it matters:
        The trainer optimises something else than intended, and no metric of learning shows it at once.

    Hypotheses:
        H14d wrong sign or coefficient: better responses have the lower advantage, updates lower their log-probs.
        H14h the mask covers the prompt or padding, or leaves out the end token: masks compared token by token.
        H14f the mask covers tool output: trained tokens behind the prompt that the policy did not write.
        H14a groups of one; H14b merged groups; H14c rows assigned wrongly: equal texts with other rewards, log-probs that do not fit.
        H14g duplicates: every text twice in its group, or an earlier batch once more. H14e denominator of one rank: against a second
        run with another world size.
        H3i the entropy over trained tokens differs from that over the policy's own.

    When it is wrong:
        Normalisation over the batch (REINFORCE++), PPO and leave-one-out variants with other baselines break I2 and I3 by design: the
        configuration is read, and without one the run's own past decides. Dumps that hold a part of a group are not judged. Rewards
        shaped after they were written can reverse single pairs; most groups of a task must be reversed. Responses that are left out of
        the loss as a whole are no mask fault.

    Sources:
        symptoms 14; rllm issue 776 (groups of one), NeMo-RL issue 3882 (merged groups), ToolRL issue 52 (sign).
    """

    code = "RS141"
    name = "advantage-or-mask-fault"
    family = "integrity"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (
        ("fact.advantage.group_mean", _REVERSED, "fact.mask.extra_frac", "fact.sign.separation", "fact.group.size.max", "tokens.trained"),
    )
    params: tuple[Param, ...] = (
        Param("off_frac", 0.2, "0..1", 0, 1, "default of ours", "full groups whose advantages do not sum to 0"),
        Param("excess", 1.01, "ratio", 1, 2, "symptoms 0.2", "largest advantage over its bound"),
        Param("reversed_frac", 0.8, "0..1", 0.5, 1, "default of ours", "groups with the order reversed, mean of three points"),
        Param("mask_frac", 0.001, "0..1", 0, 1, "symptoms 14", "trained tokens that are not the policy's"),
        Param("last_missing_frac", 0.5, "0..1", 0, 1, "default of ours"),
        Param("separation", -4, "standard errors", -20, -2, "default of ours", "median of four points, each below half of it"),
        Param(
            "history", 10, "points", 3, 100, "default of ours", "sound points before, where no configuration says how advantages are made"
        ),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H14d", "trajectories", integrity.sign_reversed, integrity.update_wrong_way, second.brake_reversed),
        hypothesis("H14h", "tokens", integrity.mask_covers_prompt),
        hypothesis("H14f", "tokens", integrity.mask_covers_tools),
        hypothesis("H14a", "trajectories", integrity.groups_of_one),
        hypothesis("H14g", "trajectories", repeats.duplicated),  # before merged groups, which doubled rows look like
        hypothesis("H14b", "trajectories", integrity.merged_groups),
        hypothesis("H14c", "trajectories", integrity.rows_unrelated, engine.rows_misaligned),
        hypothesis(
            "H14e",
            "second_run",
            second.denominator,
            action="Train one fixed batch with another world size and accumulation: the gradient norm must stay.",
            prior=0.8,
        ),
        hypothesis("H3i", "tokens", integrity.entropy_artefact, prior=0.5),
    )
    next_checks = SYMPTOMS["advantage-or-mask-fault"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The first broken identity of the run as a whole, and reversed signs by task."""
        whole = next(iter(self._whole(view)), None)
        slices = [] if whole is not None and whole.metric == _REVERSED else list(self._by_task(view))
        return (*((whole,) if whole is not None else ()), *slices)

    def _whole(self, view: RunView) -> Iterator[Finding]:
        p = view.params
        if self._must_be_centred(view) and (off := level(view, "fact.advantage.off_frac", 1) or 0.0) > p["off_frac"]:
            yield self._broken(view, "fact.advantage.off_frac", p["off_frac"], f"the advantages of {off:.0%} of the groups do not sum to 0")
        if self._must_be_centred(view) and (excess := level(view, "fact.advantage.excess", 1) or 0.0) > p["excess"]:
            yield self._broken(view, "fact.advantage.excess", p["excess"], f"an advantage is {excess:.2f} times its bound")
        if (mixed := level(view, "fact.group.mixed_prompt_frac", 1) or 0.0) > 0:
            yield self._broken(view, "fact.group.mixed_prompt_frac", 0.0, f"{mixed:.0%} of the groups hold several prompts")
        expected, largest = view.config.get("group_size"), level(view, "fact.group.size.max", 1)
        if isinstance(expected, (int, float)) and largest is not None and largest > expected and not view.has("turns.mean"):
            yield self._broken(
                view, "fact.group.size.max", float(expected), f"a group has {largest:g} members, {expected:g} are configured"
            )
        yield from self._alone(view)
        yield from self._masks(view)
        yield from self._order(view)
        yield from self._nothing(view)

    def _alone(self, view: RunView) -> Iterator[Finding]:
        """Groups of one: where advantages must be centred, all of them are the reward itself and none is negative."""
        equal = points(view, "fact.advantage.equals_reward_frac").tail(3)
        if len(equal) < 3 or not fresh(view, equal) or not (equal.values > 0.99).all() or integrity.centred_in_groups(view) is not True:
            return
        negative, mean = mean_of(view, "fact.advantage.negative_frac", 3), mean_of(view, "fact.reward.mean", 3)
        if negative == 0 and mean is not None and mean > 0 and (level(view, "fact.reward.distinct") or 0) > 1:
            text = "every advantage is the reward itself and none is negative, as in groups of one"
            yield self._broken(view, "fact.advantage.equals_reward_frac", 0.99, text)

    def _masks(self, view: RunView) -> Iterator[Finding]:
        p = view.params
        extra, end = level(view, "fact.mask.extra_frac", 1), level(view, "fact.mask.last_missing_frac", 1)
        if extra is not None and extra > p["mask_frac"]:
            yield self._broken(view, "fact.mask.extra_frac", p["mask_frac"], f"{extra:.1%} of the trained tokens are not the policy's")
        if end is not None and end > p["last_missing_frac"]:
            text = f"in {end:.0%} of the trained responses the last token is left out of the loss"
            yield self._broken(view, "fact.mask.last_missing_frac", p["last_missing_frac"], text)
        yield from self._counts(view)

    def _counts(self, view: RunView) -> Iterator[Finding]:
        """More tokens trained than generated in the same steps."""
        if (level(view, "lag.policy.max") or 0.0) > 0:
            return
        share = points(view, "tokens.trained_over_generated").tail(3)
        if not len(share):
            share = self._ratio_of_counts(view)
        if len(share) == 3 and fresh(view, share) and bool((share.values > 1.02).all()):
            onset, times = int(share.steps[0]), float(share.values.mean())
            summary = f"{times:.2f} times as many tokens are trained as were generated, since step {onset}"
            yield finding(view, self.name, "critical", onset, summary, "tokens.trained", "entropy.mean", hard=True)

    def _ratio_of_counts(self, view: RunView) -> Series:
        """Trained over generated tokens of the newest three rows; empty where the two do not count the same steps.

        A row that stands for many steps may hold the mean of one count and the last value of the other; a mean of whole
        numbers is hardly ever whole, so only whole counts are compared.
        """
        trained, made = (points(view, m).tail(3) for m in ("tokens.trained", "tokens.generated"))
        if len(trained) != 3 or len(made) != 3 or not (trained.steps == made.steps).all() or not (made.values > 0).all():
            return EMPTY
        if not all((part.values % 1 == 0).all() for part in (trained, made)):
            return EMPTY
        return Series(trained.steps, trained.values / made.values)

    def _nothing(self, view: RunView) -> Iterator[Finding]:
        """A gradient of exactly 0 although groups differ: nothing that was sampled reaches the weights."""
        norm, equal = points(view, "grad.norm").tail(3), points(view, "group.zero_std_frac").tail(3)
        alike = len(norm) == len(equal) == 3 and bool((norm.steps == equal.steps).all()) and fresh(view, norm)
        # Rows that stand for several steps may show the gradient of one and the groups of all of them.
        if alike and int(norm.steps[-1] - norm.steps[0]) == 2 and bool((norm.values == 0).all() and (equal.values < 0.5).all()):
            onset = int(norm.steps[0])
            summary = (
                f"the gradient is exactly 0 since step {onset} although {1 - equal.values.mean():.0%} of the groups have different rewards"
            )
            yield finding(view, self.name, "critical", onset, summary, "grad.norm", "group.zero_std_frac", "tokens.trained", hard=True)

    def _order(self, view: RunView) -> Iterator[Finding]:
        p = view.params
        reverse = mean_of(view, _REVERSED, 3)
        if self._comparable(view) and reverse is not None and reverse > p["reversed_frac"] and len(points(view, _REVERSED)) >= 3:
            yield self._broken(view, _REVERSED, 0.5, f"in {reverse:.0%} of the groups the better response has the lower advantage")
        series = points(view, "fact.sign.separation").tail(4)
        if len(series) < 4 or not fresh(view, series):
            return
        separation = median(series.values)
        # A statistic, not an identity: while the reward still rises the updates cannot go the wrong way.
        if separation < p["separation"] and bool((series.values < p["separation"] / 2).all()) and engine.reward_trend(view) <= 0:
            text = f"log-probs of samples with positive advantage fell against the others by {-separation:.1f} standard errors"
            yield finding(view, self.name, "critical", int(series.steps[0]), text, "fact.sign.separation", hard=True)

    def _by_task(self, view: RunView) -> Iterator[Finding]:
        if not self._comparable(view):
            return
        key = ("reversed by task", self.code)
        if key not in view.data.memo:
            view.data.memo[key] = [metric for metric in view.data.metrics() if metric.startswith(_REVERSED + ".")]
        for metric in view.data.memo[key]:
            share = mean_of(view, metric, 3)
            if share is not None and share > view.params["reversed_frac"] and len(points(view, metric)) >= 3:
                task = metric.removeprefix(_REVERSED + ".")
                onset = beyond_for(view, metric, 0.5, allowed=1)
                summary = f"in {share:.0%} of the groups of task {task} the better response has the lower advantage, since step {onset}"
                own = f"reward.task.{task}.mean"
                yield finding(view, self.name, "critical", onset, summary, metric, own, "reward.mean", slice=task, newest=3, hard=True)

    def _broken(self, view: RunView, metric: str, limit: float, text: str) -> Finding:
        onset = beyond_for(view, metric, limit, allowed=1)
        return finding(view, self.name, "critical", onset, f"{text}, since step {onset}", metric, newest=1, hard=True)

    def _must_be_centred(self, view: RunView) -> bool:
        known = integrity.centred_in_groups(view)
        if known is not None:
            return known
        series = history(view, "fact.advantage.off_frac")
        earlier = series.values[: int(view.params["history"])]
        return len(series) > view.params["history"] and bool((earlier < 1e-9).all())

    def _comparable(self, view: RunView) -> bool:
        """Whether a response's advantage must follow its reward: not with a critic, whose values enter it."""
        return view.run.algorithm not in ("ppo", "gae") and not view.has("value.explained_var")
