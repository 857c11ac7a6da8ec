"""Series derived from trajectory and token rows (`fact.*`), one value an (attempt, step), where their fields are written.

Only training trajectories count (split train, or no split). A fact whose fields a run does not write is absent, never 0.
FACTS says what each one means; the queries are in the fact_* modules beside this one.
"""

from __future__ import annotations

from server.queries.fact_context import context_facts
from server.queries.fact_eval import eval_facts
from server.queries.fact_groups import group_facts
from server.queries.fact_mix import fixed_mix_facts, mix_facts
from server.queries.fact_parts import part_facts
from server.queries.fact_repeats import repeat_facts
from server.queries.fact_script import script_facts
from server.queries.fact_text import text_facts
from server.queries.fact_times import time_facts
from server.queries.fact_tokens import token_facts
from server.queries.fact_trajectories import trajectory_facts
from server.queries.fact_turns import turn_facts
from server.queries.view import Position, RunData

_PARTS = (
    trajectory_facts,
    mix_facts,
    group_facts,
    token_facts,
    text_facts,
    turn_facts,
    context_facts,
    script_facts,
    fixed_mix_facts,
    part_facts,
    eval_facts,
)
FACTS: dict[str, str] = {
    "fact.n": "trajectories of the step",
    "fact.reward.mean": "mean reward of the trajectories",
    "fact.reward.std": "standard deviation of their rewards",
    "fact.reward.distinct": "number of different rewards in the step",
    "fact.reward.truncated.mean": "mean reward of responses cut by the token budget",
    "fact.reward.terminated.mean": "mean reward of responses that ended by themselves",
    "fact.reward.graded.mean": "mean reward where the verifier answered (status ok)",
    "fact.reward.failed.mean": "mean reward where the verifier timed out or failed",
    "fact.reward.prompt_noise": "standard deviation of the prompts' mean rewards over the root of their number: noise of the step's mean",
    "fact.reward.conflict_frac": "0..1, responses with a twin (same prompt, same text, same step) whose reward differs",
    "fact.reward.twin_n": "responses that have a twin of the same prompt and text in the step",
    "fact.verifier.timeout_frac": "0..1, trajectories whose verifier timed out, of those with a status",
    "fact.verifier.error_frac": "0..1, trajectories whose verifier failed, of those with a status",
    "fact.verifier.zero_frac": "0..1, trajectories whose verifier did not answer and whose reward is the step's lowest",
    "fact.verifier.seconds.mean": "mean seconds of the verifier",
    "fact.verifier.length_ratio": "mean response tokens where the verifier did not answer over those where it did",
    "fact.truncated_frac": "0..1, responses with finish_reason length, of those with a reason",
    "fact.kept_frac": "0..1, trajectories that were kept for training",
    "fact.lag.mean": "mean policy lag in versions",
    "fact.lag.max": "largest policy lag in versions",
    "fact.lag.span.max": "most versions within one trajectory",
    "fact.length.mean": "mean response tokens",
    "fact.length.median": "median response tokens",
    "fact.length.p95": "95th percentile of response tokens",
    "fact.length.max": "longest response in tokens",
    "fact.length.correct.mean": "mean tokens of responses rewarded above the middle of the step's range",
    "fact.length.wrong.mean": "mean tokens of responses rewarded below it",
    "fact.length.reward_correlation": "correlation of reward and length within groups",
    "fact.length.correct_correlation": "correlation of reward and length among responses above the middle of the step's range",
    "fact.loss_share.truncated": "0..1, weight in the loss of truncated responses under the run's aggregation",
    "fact.loss_share.repetitive": "0..1, weight in the loss of responses whose tail repeats itself",
    "fact.loss_share.outliers": "0..1, weight in the loss of truncated or repetitive responses",
    "fact.loss_share.largest": "0..1, weight in the loss of the heaviest response",
    "fact.repetitive_frac": "0..1, responses whose tail repeats itself, of those long enough to tell",
    "fact.similarity.within": "0..1, mean Jaccard similarity of 5-character shingles between responses to one prompt",
    "fact.similarity.across": "0..1, the same between responses to different prompts",
    "fact.duplicate.across_frac": "0..1, responses whose text also answers another prompt of the step",
    "fact.length.characters": "mean characters of a response",
    "fact.group.n": "groups of the step",
    "fact.group.size.min": "trajectories in the smallest group",
    "fact.group.size.max": "trajectories in the largest group",
    "fact.group.size.median": "median trajectories of a group",
    "fact.group.mixed_prompt_frac": "0..1, groups that hold more than one prompt",
    "fact.group.zero_std_frac": "0..1, groups of at least two whose rewards are all equal",
    "fact.group.all_low_frac": "0..1, groups whose rewards are all the run's lowest so far",
    "fact.group.all_high_frac": "0..1, groups whose rewards are all the run's highest so far",
    "fact.group.duplicate_frac": "0..1, 1 - different responses over responses, mean over groups",
    "fact.group.duplicate_wrong_frac": "0..1, the same among responses below full reward, mean over groups with at least two of them",
    "fact.group.duplicated_frac": "0..1, groups in which more than half of the responses repeat another",
    "fact.group.distinct_positive_frac": "0..1, different full-reward responses over full-reward responses, mean over groups",
    "fact.advantage.group_mean": "largest absolute mean advantage of a full group, in units of its largest absolute advantage",
    "fact.advantage.off_frac": "0..1, full groups whose advantages do not sum to 0",
    "fact.advantage.excess": "largest absolute advantage over its bound in groups with two different rewards; above 1 is impossible",
    "fact.advantage.reversed_frac": "0..1, groups with different rewards in which the better response got the lower advantage",
    "fact.advantage.correlation": "correlation of reward and advantage within groups, mean over groups with different rewards",
    "fact.advantage.equals_reward_frac": "0..1, trajectories whose advantage is their reward",
    "fact.advantage.negative_frac": "0..1, trajectories with negative advantage",
    "fact.prompt.length": "mean prompt tokens (characters where tokens are not written)",
    "fact.difficulty": "mean of difficulty where it is a number",
    "fact.tokens.n": "trajectories with token rows",
    "fact.mismatch.mean": "nats, mean over tokens of abs(old - rollout log-prob)",
    "fact.mismatch.signed": "nats, mean over tokens of rollout - old log-prob (k1)",
    "fact.mismatch.lag0": "nats, mean abs(old - rollout) over trajectories of lag 0 within one version",
    "fact.mismatch.lagged": "nats, the same over trajectories of lag 1 and more",
    "fact.mismatch.lag_correlation": "rank correlation over trajectories of lag and mean abs(old - rollout)",
    "fact.mismatch.policy": "nats, the same mean over trajectories the policy wrote by itself",
    "fact.mismatch.other": "nats, over trajectories of another origin (synthetic, replay, demonstration)",
    "fact.mismatch.rare_share": "0..1, share of the total abs(old - rollout) on tokens the engine gave less than 5 %",
    "fact.mismatch.correlation": "median over trajectories of the correlation of old and rollout log-probs",
    "fact.mismatch.unrelated_frac": "0..1, fresh trajectories of 6 tokens or more with a correlation below 0.5 by more than single tokens",
    "fact.mismatch.shifted_frac": "0..1, fresh trajectories whose correlation is far better when moved by one token",
    "fact.mismatch.worst_frac": "0..1, trajectories of whose mean abs(old - rollout) exceeds ten times the median",
    "fact.update.mean": "nats, mean over tokens of abs(current - old log-prob)",
    "fact.update.sd": "standard deviation over tokens of current - old log-prob, nats",
    "fact.update.signed": "nats, mean over tokens of current - old log-prob",
    "fact.update.engine": "nats, mean over tokens of abs(current - rollout log-prob)",
    "fact.update.outside_frac": "0..1, tokens whose ratio exp(current - old) lies outside 0.9 to 1.1",
    "fact.update.positive": "nats, mean over trajectories with positive advantage of current - old",
    "fact.update.negative": "nats, the same with negative advantage",
    "fact.sign.separation": "positive minus negative, over the pooled standard error; negative: the update went the wrong way",
    "fact.sign.n": "trajectories with advantage and a changed log-prob",
    "fact.mask.extra_frac": "0..1, trained tokens that the policy did not write",
    "fact.mask.missing_frac": "0..1, policy tokens left out of the loss in trajectories that are trained",
    "fact.mask.last_missing_frac": "0..1, trained, self-ended trajectories whose last policy token is left out of the loss",
    "fact.mask.prompt_frac": "0..1, trained tokens within the prompt",
    "fact.entropy.response": "nats, mean entropy over the policy's tokens",
    "fact.entropy.loss": "nats, mean entropy over trained tokens",
    "fact.logprob.rollout": "nats, mean rollout log-prob of the policy's tokens",
    "fact.turns.n": "trajectories with turns",
    "fact.turns.mean": "mean turns of the policy in a trajectory",
    "fact.turns.max": "most turns of the policy in a trajectory",
    "fact.turns.calls": "mean answered calls of a trajectory",
    "fact.turns.loop_frac": "0..1, trajectories with three or more identical calls (tool and arguments) in a row",
    "fact.turns.stuck_frac": "0..1, those of them whose first two calls met the same observation",
    "fact.turns.loop.example": "n of the first such trajectory",
    "fact.turns.repeated_frac": "0..1, calls identical to the one before, of calls after the first",
    "fact.turns.same_text_frac": "0..1, turns with the same text as the one before, of turns after the first",
    "fact.turns.same_observation_frac": "0..1, identical calls in a row that met the same observation, of those with two observations",
    "fact.turns.repeat_after_error_frac": "0..1, identical calls in a row of which the first had failed, of those where is_error says it",
    "fact.turns.retry_ok_frac": "0..1, identical calls right after a failed one that succeeded",
    "fact.turns.limit_frac": "0..1, trajectories aborted at the step's largest number of turns, of those with a finish_reason",
    "fact.turns.limit.example": "n of the first such trajectory",
    "fact.turns.no_answer_frac": "0..1, trajectories that end with an observation or an empty turn",
    "fact.turns.unparsed_frac": "0..1, turns that hold a marked call which was neither read nor answered, of turns with a marked call",
    "fact.turns.garbage_frac": "0..1, trajectories with a turn of exclamation marks or NaN, as an engine writes on broken numbers",
    "fact.turns.goal.first": "0..1, words of the task's end that the first turn names; 16 trajectories of three turns or more",
    "fact.turns.goal.last": "0..1, the same in the last turn",
    "fact.turns.calls_correct_correlation": "correlation of calls and reward among responses above the middle of the step's range",
    "fact.turns.calls_reward_correlation": "correlation of calls and reward within groups",
    "fact.tools.error_frac": "0..1, tool turns with is_error, of those that say it",
    "fact.tools.error.example": "n of the first trajectory with such a turn",
    "fact.tools.error_parser_frac": "0..1, error texts that tell of a call that was not understood, of errors with a text",
    "fact.context.n": "trajectories whose turns were tested (32 a step at most)",
    "fact.context.rewritten_frac": "0..1, trajectories in which a turn's prompt does not begin with prompt and output of the turn before",
    "fact.context.rewritten.example": "n of the first such trajectory",
    "fact.context.rewritten.turn": "mean number of the turn that the next prompt changed first",
    "fact.context.segments": "pieces into which a trajectory falls by the test, mean; 1 where nothing was rewritten",
    "fact.context.empty_delta_frac": "0..1, turns whose prompt is no longer than what came before although something was observed between",
    "fact.context.trainer_differs_frac": "0..1, trajectories whose trained tokens are not what the engine had before it in the last turn",
    "fact.context.goal_kept_frac": "0..1, trajectories whose later prompts all begin with the first one",
    "fact.context.prompt_tokens": "tokens of a trajectory's longest prompt, mean",
    "fact.context.think_frac": "0..1, rewritten turns that differ first where thinking opens and are shorter; two turns a step are read",
    "fact.context.retokenised_frac": "0..1, the same text with other ids",
    "fact.context.reserialised_frac": "0..1, the same characters with other white space or in another order",
    "fact.context.compacted_frac": "0..1, much was dropped and something was put in",
    "fact.context.left_frac": "0..1, much was dropped and nothing put in",
    "fact.context.other_frac": "0..1, something else",
    "fact.context.short_frac": "0..1, a difference of a few tokens whose texts are not written",
    "fact.context.position": "tokens in common before the first difference, mean",
    "fact.context.dropped": "tokens dropped at the first difference, mean",
    "fact.seconds.rollout.tail": "seconds of the slowest response over the median one, of eight or more",
    "fact.seconds.rollout.last_tenth": "0..1, share of the slowest response's seconds after nine tenths are done",
    "fact.seconds.environment.share": "0..1, seconds in tools and environments over those of the rollouts",
    "fact.repeat.prompts": "different prompts of the step",
    "fact.repeat.prompt_frac": "0..1, prompts of the step that an earlier step of the run had",
    "fact.repeat.block_frac": "0..1, prompts of the step whose newest earlier use was in one and the same step",
    "fact.repeat.distance": "steps back to that step",
    "fact.repeat.response_frac": "0..1, responses with the very text that an earlier step gave to the same prompt",
    "fact.repeat.attempt_frac": "0..1, responses with the text that an earlier attempt gave to the same prompt at the same step",
    "fact.repeat.duplicate_frac": "0..1, trajectories whose id occurs more than once in the step",
}
"""What every fact means. Besides: `fact.mix.task.{task}` and `fact.mix.lengths` shares, `fact.sign.separation.{task}`."""


def add_facts(data: RunData, after: Position | None = None) -> None:
    """Derives every fact of the run and adds it to the run's series; after: only for steps behind that place.

    Reads the tables in one pass each, groups in the database and keeps one number a step, so that memory does not grow
    with the length of responses.
    """
    for part in (trajectory_facts, mix_facts, group_facts, token_facts, text_facts, repeat_facts, time_facts):
        for name, (attempts, steps, values) in part(data, after).items():
            data.add(name, attempts, steps, values, after=after)
