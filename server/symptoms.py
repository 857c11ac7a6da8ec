"""The closed table of symptoms: names, titles, families and what to look at next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symptom:
    """One name of the closed list. section: number in the knowledge base."""

    name: str
    title: str
    section: int
    family: str
    next_checks: tuple[str, ...] = ()


_TABLE: tuple[Symptom, ...] = (
    Symptom(
        "reward-flat",
        "Reward does not move",
        1,
        "quality",
        (
            "Read ten failed responses and say why each failed.",
            "Train on a handful of easy tasks: if the reward rises there, difficulty or data is the limit.",
            "Re-score 50 stored responses with an independent grader.",
        ),
    ),
    Symptom(
        "eval-not-following-reward",
        "Training reward rises, evaluation does not",
        2,
        "quality",
        (
            "Re-score the newest high-reward responses with a second, stricter grader.",
            "Read the 20 responses with the highest reward, the shortest and the longest ones.",
            "Evaluate the training prompts at evaluation settings, and the held-out prompts at training settings.",
        ),
    ),
    Symptom(
        "near-identical-responses",
        "Responses are nearly the same",
        3,
        "distribution",
        (
            "Compare eight responses to five prompts now and at the start.",
            "Check that every sample of a group has its own seed and a temperature above 0.",
            "Compare pass@G with the mean reward over time.",
        ),
    ),
    Symptom(
        "entropy-collapse",
        "Entropy has fallen away",
        3,
        "distribution",
        (
            "Compare eight responses to five prompts now and at the start.",
            "Compare pass@G with the mean reward: where they meet, sampling more brings nothing.",
            "Count updates per batch and the share clipped on the high side.",
        ),
    ),
    Symptom(
        "entropy-explosion",
        "Entropy is running away",
        3,
        "distribution",
        (
            "Read five of the newest responses: gibberish or another language points to damage.",
            "Check the share of negative samples and the engine mismatch at the step where entropy left its band.",
            "Keep the checkpoint from before the onset.",
        ),
    ),
    Symptom(
        "length-growth",
        "Responses keep growing",
        4,
        "shape",
        (
            "Plot accuracy and length by correctness on a fixed set of prompts.",
            "Read the five longest responses to the end.",
            "Check how often a complete answer goes on after it.",
        ),
    ),
    Symptom(
        "length-collapse",
        "Responses shrink to almost nothing",
        4,
        "shape",
        (
            "Read five short responses and their reward parts.",
            "Compare the reward of short and of longer responses to the same prompts.",
            "Look for a length penalty, a lower cap or masked truncated samples in the configuration.",
        ),
    ),
    Symptom(
        "spike",
        "A jump in loss, ratio, KL or gradient norm",
        5,
        "optimiser",
        (
            "Save and read the batch of the spike: its longest response, its smallest group, its prompt ids.",
            "Recompute its log-probs with one process in fp32 and compare them token by token.",
            "Look at the learning rate, the batch size and events around the step.",
        ),
    ),
    Symptom(
        "non-finite",
        "NaN or infinity",
        5,
        "integrity",
        (
            "Find the first metric that is not finite: log-probs point to the forward pass or the engine, the gradient to the loss.",
            "Recompute the batch of that step in fp32.",
            "Look for fully masked rows, empty responses and empty groups in it.",
        ),
    ),
    Symptom(
        "staleness-harm",
        "Stale samples do harm",
        6,
        "engine",
        (
            "Plot reward, ratio and clipping by policy lag within the same steps.",
            "Run a short synchronous control at equal samples.",
            "Lower the bound on the lag, or record log-probs per segment and correct for them.",
        ),
    ),
    Symptom(
        "engine-mismatch",
        "Trainer and inference engine disagree",
        7,
        "engine",
        (
            "Freeze test: recompute one stored batch twice with frozen weights.",
            "Repeat it at temperature 1 and top_p 1, then with equal micro-batch sizes, then with an fp32 head.",
            "Compare the engine's weight version or a checksum with the trainer's after a synchronisation.",
        ),
    ),
    Symptom(
        "clip-while-on-policy",
        "Tokens are clipped although every batch is fresh",
        7,
        "optimiser",
        (
            "Recompute the log-probs of one stored batch twice with frozen weights: they must be equal.",
            "Repeat it with equal micro-batch sizes for the log-prob pass and the update, and with dropout off.",
            "Check that old log-probs and the update use the same mask, temperature and precision.",
        ),
    ),
    Symptom(
        "joint-collapse",
        "Everything falls at once",
        8,
        "joint",
        (
            "Stop, and keep the checkpoint from ten steps before the first family moved.",
            "Replay three batches around the onset.",
            "Restart with one change only.",
        ),
    ),
    Symptom(
        "reward-drop",
        "The reward has fallen",
        8,
        "quality",
        (
            "Re-score responses from before the fall: if the scores change, it is the grader, else the policy.",
            "Read ten responses from before and ten from after.",
            "Look at what moved first: length, entropy, mismatch or gradient.",
        ),
    ),
    Symptom(
        "zero-variance-groups",
        "Groups carry no signal",
        9,
        "groups",
        (
            "Draw the histogram of pass rates over prompts.",
            "Drop mastered prompts or mix in harder ones; for all-fail groups easier ones or a larger group.",
            "Check that the members of a group really differ.",
        ),
    ),
    Symptom(
        "truncation",
        "Responses are cut by the token budget",
        10,
        "shape",
        (
            "Read the last lines of five cut responses: unfinished reasoning, or an answer that goes on?",
            "Check stop tokens and the chat template.",
            "Compare the cap with twice the 99th percentile of correct responses.",
        ),
    ),
    Symptom(
        "repetition",
        "Responses repeat themselves",
        10,
        "shape",
        (
            "Read the last lines of five repetitive responses.",
            "Compare the weight that they have in the loss with their number.",
            "Check stop tokens and sampling at the step where it began; from the first step on it is the set-up.",
        ),
    ),
    Symptom(
        "negative-samples-dominate",
        "Negative samples dominate the loss",
        11,
        "optimiser",
        (
            "Split the gradient norm by the sign of the advantage.",
            "Raise the weight of positive samples, drop groups without a success, or mask stale negatives.",
            "Compare the log-probs of positive samples on a fixed batch before and after an update.",
        ),
    ),
    Symptom(
        "critic-unreliable",
        "The critic explains nothing",
        12,
        "value",
        (
            "Plot predicted value against return, by position in the response.",
            "Compare with the group mean as a baseline: if it gives the lower advantage variance, the critic costs more than it brings.",
            "Check that explained variance is computed over the whole batch, not averaged over micro-batches.",
        ),
    ),
    Symptom(
        "verifier-fault",
        "The verifier is at fault",
        13,
        "verifier",
        (
            "Re-score 100 stored responses of before and after; a change means the grader changed, not the policy.",
            "Quarantine the steps: exclude unanswered gradings from the loss instead of counting them as 0.",
            "Split errors by worker, by time and by response length.",
        ),
    ),
    Symptom(
        "advantage-or-mask-fault",
        "Advantages or masks break an identity",
        14,
        "integrity",
        (
            "Compute the advantages of one group by hand and compare.",
            "Print one trained sequence with its loss mask under the tokens.",
            "Stop: training on wrong advantages or masks cannot be repaired afterwards.",
        ),
    ),
    Symptom(
        "resume-discontinuity",
        "A jump at a resume",
        15,
        "integrity",
        (
            "Compare the configurations of before and after, and the checksum of the loaded weights.",
            "Evaluate the checkpoint of before the resume once more.",
            "Check that optimiser state, learning-rate schedule, data cursor and seeds were restored.",
        ),
    ),
    Symptom(
        "pipeline-inefficiency",
        "The pipeline wastes time",
        16,
        "cost",
        (
            "Read the stage times of one step side by side: the longest bounds what the others can bring.",
            "Look at the longest requests of a generation phase and at what ran beside them.",
            "Compare tokens generated with tokens trained.",
        ),
    ),
    Symptom(
        "agent-loop-fault",
        "Agents loop or their tools fail",
        17,
        "shape",
        (
            "Replay one failed trajectory in the sandbox.",
            "Read the turns of five trajectories that ended by the turn limit.",
            "Split tool errors by tool, host and time; exclude failures of the environment instead of scoring them 0.",
        ),
    ),
    Symptom(
        "context-rewritten",
        "Earlier turns were rewritten",
        18,
        "integrity",
        (
            "Print the prompt tokens of two consecutive turns up to the first difference.",
            "Train on what the engine was given: token ids in, token ids out, no second rendering.",
            "Compare the log-probs of a stored response under both contexts.",
        ),
    ),
    Symptom(
        "slice-regression",
        "One slice gets worse",
        19,
        "quality",
        (
            "Evaluate the slice's prompts with the checkpoint from before the onset.",
            "Read ten responses of the slice from before and ten from after.",
            "Re-score stored responses of the slice: if the scores change, it is the labels or the grader.",
        ),
    ),
    Symptom(
        "mix-drift",
        "The mix of tasks drifts",
        19,
        "groups",
        (
            "Compare the tasks that were issued with those that were trained on.",
            "Recompute the reward at the mix of the first steps.",
            "Look at the sampler, the filters and the data order at the step where the shares moved.",
        ),
    ),
    Symptom(
        "eval-budget-changed",
        "The evaluation changed",
        20,
        "quality",
        (
            "Compare samples, temperature, top_p, cap, template, grader and item set of the evaluations before and after.",
            "Evaluate an old checkpoint under the new settings.",
            "Do not compare values across the change; start a new line.",
        ),
    ),
    Symptom(
        "format-only-gain",
        "Only the format improves",
        20,
        "quality",
        (
            "Plot the parts of the reward one by one.",
            "Read ten responses whose format part is full and whose answer is wrong.",
            "Compare the accuracy of the evaluation with the format share.",
        ),
    ),
    Symptom(
        "language-mixing",
        "Languages are mixed",
        20,
        "distribution",
        (
            "Read five responses that switch languages.",
            "Compare the accuracy of responses with and without foreign script.",
            "Check rare tokens, entropy and mismatch at the step where it began.",
        ),
    ),
    Symptom(
        "run-stalled",
        "The run stands still",
        16,
        "engine",
        (
            "Look at the trainer's process and its newest lines of output.",
            "Look for a verifier call, a tool or an environment that does not answer.",
            "Check the engine's queue and the disks that the log is written to.",
        ),
    ),
)

SYMPTOMS: Mapping[str, Symptom] = {symptom.name: symptom for symptom in _TABLE}
