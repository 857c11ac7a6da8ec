"""One trajectory down to its tokens: its fields, its turns, its arrays, its group and its neighbours."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest.schema.records import Json
from ingest.schema.tables import TOKEN_ARRAYS
from ingest.store.connection import Store
from server.queries.rollouts import newest_attempt

MOST_MEMBERS = 64
MOST_OCCURRENCES = 400


@dataclass(frozen=True)
class Trajectory:
    """One trajectory with every field its trainer wrote; null: not written. JSON columns are parsed."""

    run_id: str
    step: int
    n: int
    attempt: int
    has_tokens: bool
    trajectory_id: str | None
    group_id: str | None
    sample_index: int | None
    split: str | None
    task: str | None
    difficulty: str | None
    origin: str | None
    prompt: str | None
    response: str | None
    reward: float | None
    reward_parts: Mapping[str, Json] | None
    advantage: float | None
    prompt_tokens: int | None
    response_tokens: int | None
    finish_reason: str | None
    failure_type: str | None
    policy_version_first: int | None
    policy_version_last: int | None
    trainer_version: int | None
    policy_lag: int | None
    kept: bool | None
    drop_reason: str | None
    verifier_name: str | None
    verifier_version: str | None
    verifier_status: str | None
    verifier_seconds: float | None
    sampling: Mapping[str, Json] | None
    seconds: Mapping[str, Json] | None
    extra: Mapping[str, Json] | None

    @property
    def truncated(self) -> bool | None:
        """Whether the length cap stopped it; None where no finish reason is written."""
        return None if self.finish_reason is None else self.finish_reason == "length"


@dataclass(frozen=True)
class TokenArrays:
    """The arrays of one trajectory, each of shape [tokens] or None where not written; a None element: no value there.

    texts: what stands for each token. derived_texts: they were not written but cut from prompt and response, one
    character a token, which is done only where the same id gives the same character throughout the group.
    prompt_tokens: leading tokens that belong to the prompt.
    """

    ids: tuple[int | None, ...] | None
    texts: tuple[str | None, ...] | None
    derived_texts: bool
    prompt_tokens: int
    response_mask: tuple[int | None, ...] | None
    loss_mask: tuple[int | None, ...] | None
    rollout_logprobs: tuple[float | None, ...] | None
    old_logprobs: tuple[float | None, ...] | None
    current_logprobs: tuple[float | None, ...] | None
    ref_logprobs: tuple[float | None, ...] | None
    entropies: tuple[float | None, ...] | None
    advantages: tuple[float | None, ...] | None
    policy_versions: tuple[int | None, ...] | None

    @property
    def count(self) -> int:
        """Number of tokens."""
        return next((len(a) for a in (self.ids, self.texts, self.rollout_logprobs, self.old_logprobs, self.entropies) if a is not None), 0)

    @property
    def trainer_logprobs(self) -> tuple[float | None, ...] | None:
        """The trainer's own: recomputed before the update, else of the policy being updated."""
        return self.old_logprobs if self.old_logprobs is not None else self.current_logprobs

    def differences(self) -> tuple[float | None, ...]:
        """Trainer minus engine in nats, None where either is missing."""
        return _combined(self.trainer_logprobs, self.rollout_logprobs, self.count, lambda a, b: a - b)


@dataclass(frozen=True)
class Member:
    """One trajectory of a group beside the one shown. diverges_at: index of the first token that differs, None: none does
    or there are no tokens to compare."""

    step: int
    n: int
    trajectory_id: str | None
    response: str | None
    reward: float | None
    advantage: float | None
    response_tokens: int | None
    finish_reason: str | None
    tokens: TokenArrays | None
    diverges_at: int | None


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation with tools; null: not written."""

    turn: int
    role: str | None
    content: str | None
    tool_name: str | None
    tool_args: Json
    is_error: bool | None
    seconds: float | None
    policy_version: int | None
    given_tokens: int | None
    own_tokens: int | None


@dataclass(frozen=True)
class Neighbours:
    """Steps with something to look at before and after; None: there is none."""

    before: int | None
    after: int | None


@dataclass(frozen=True)
class Occurrence:
    """The same prompt at one step: mean reward of n rollouts."""

    step: int
    reward: float | None
    n: int


_FIELDS = tuple(name for name in Trajectory.__dataclass_fields__)
_JSON_FIELDS = {"reward_parts", "sampling", "seconds", "extra"}


def trajectory(store: Store, run_id: str, step: int, n: int) -> Trajectory | None:
    """The trajectory with our running number n within the step, or None."""
    rows = store.rows(f"SELECT {', '.join(_FIELDS)} FROM trajectory WHERE run_id = ? AND step = ? AND n = ?", [run_id, step, n])
    if not rows:
        return None
    values = {name: _parsed(value) if name in _JSON_FIELDS else value for name, value in zip(_FIELDS, rows[0], strict=True)}
    return Trajectory(**values)


def _parsed(text: Any) -> Any:
    if text is None:
        return None
    value = json.loads(text)
    return value if isinstance(value, dict) else {"value": value}


def token_arrays(store: Store, run_id: str, step: int, n: int) -> TokenArrays | None:
    """The arrays of one trajectory, or None where none were written.

    Texts that were not written are derived only if the trajectory's group confirms them, see TokenArrays.
    """
    shown = trajectory(store, run_id, step, n)
    if shown is None or not shown.has_tokens:
        return None
    return next((member.tokens for member in group_members(store, shown) if member.n == n), None)


def group_members(store: Store, shown: Trajectory) -> tuple[Member, ...]:
    """The trajectories of the same step, attempt and group in order of sampling, the shown one among them.

    At most MOST_MEMBERS; a trajectory without a group is alone.
    """
    values: dict[str, object] = {"run_id": shown.run_id, "step": shown.step}
    if shown.group_id is None:
        same, values["n"] = "t.n = $n", shown.n
    else:
        same = "t.attempt = $attempt AND t.group_id = $group"
        values |= {"attempt": shown.attempt, "group": shown.group_id}
    rows = store.rows(
        f"""
        SELECT t.n, t.trajectory_id, t.prompt, t.response, t.reward, t.advantage, t.response_tokens, t.finish_reason, t.prompt_tokens,
               t.has_tokens, {", ".join("k." + name for name in TOKEN_ARRAYS)}
        FROM trajectory t LEFT JOIN
             (SELECT * FROM token WHERE run_id = $run_id AND step = $step) k ON k.n = t.n
        WHERE t.run_id = $run_id AND t.step = $step AND {same} ORDER BY t.sample_index NULLS LAST, t.n LIMIT {MOST_MEMBERS}""",
        values,
    )
    letters = _letters([(dict(zip(TOKEN_ARRAYS, row[10:], strict=True)), row[2], row[3]) for row in rows if row[9]])
    found = [(row, _arrays(dict(zip(TOKEN_ARRAYS, row[10:], strict=True)), row[8], letters) if row[9] else None) for row in rows]
    own = next((tokens for row, tokens in found if row[0] == shown.n), None)
    return tuple(
        Member(
            shown.step, row[0], row[1], row[3], row[4], row[5], row[6], row[7], tokens,
            None if row[0] == shown.n else _divergence(own, tokens),
        )
        for row, tokens in found
    )  # fmt: skip


def _divergence(own: TokenArrays | None, other: TokenArrays | None) -> int | None:
    """Index of the first differing token after the prompt; the end of the shorter one where one begins the other."""
    if own is None or other is None:
        return None
    a, b = (tokens.ids if tokens.ids is not None else tokens.texts for tokens in (own, other))
    if a is None or b is None:
        return None
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b)) if len(a) != len(b) else None


def _arrays(raw: Mapping[str, Sequence[Any] | None], prompt_tokens: int | None, letters: Mapping[int, str] | None) -> TokenArrays:
    ids = raw["token_ids"]
    texts = raw["token_texts"]
    derived = texts is None and ids is not None and letters is not None
    if derived and ids is not None and letters is not None:
        texts = [letters.get(i) for i in ids]
    rest = [name for name in TOKEN_ARRAYS if name not in ("token_ids", "token_texts")]
    arrays = {name: None if raw[name] is None else tuple(raw[name] or ()) for name in rest}
    return TokenArrays(
        None if ids is None else tuple(ids),
        None if texts is None else tuple(texts),
        derived,
        _prompt_length(arrays["response_mask"], prompt_tokens),
        **arrays,
    )


def _prompt_length(mask: Sequence[int | None] | None, prompt_tokens: int | None) -> int:
    """Leading tokens outside the response; prompt tokens are in the arrays only where the mask says 0."""
    if mask is None:
        return 0
    leading = next((index for index, value in enumerate(mask) if value), len(mask))
    return min(leading, prompt_tokens) if prompt_tokens else leading


def _letters(members: Sequence[tuple[Mapping[str, Sequence[Any] | None], str | None, str | None]]) -> Mapping[int, str] | None:
    """Token id to character, if prompt + response of every member have one character a token (an end token may lack one)."""
    found: dict[int, str] = {}
    for raw, prompt, response in members:
        ids, mask = raw["token_ids"], raw["response_mask"]
        if ids is None or response is None or raw["token_texts"] is not None:
            return None
        lead = _prompt_length(mask, None)
        text = (prompt or "")[:lead] + response if lead and lead == len(prompt or "") else response
        if len(ids) - len(text) not in (0, 1) or (lead and lead != len(prompt or "")):
            return None
        for token, letter in zip(ids, text, strict=False):
            if found.setdefault(token, letter) != letter:
                return None
    # Two ids that look alike are no proof of a wrong cut, but one letter for many ids is.
    return found if found and len(set(found.values())) == len(found) else None


def turns(store: Store, run_id: str, step: int, n: int) -> tuple[Turn, ...]:
    """The turns of a trajectory in order; empty where the trainer writes none."""
    rows = store.rows(
        """SELECT turn, role, content, tool_name, tool_args, is_error, seconds, policy_version, len(prompt_token_ids), len(token_ids)
           FROM turn WHERE run_id = ? AND step = ? AND n = ? ORDER BY turn""",
        [run_id, step, n],
    )
    return tuple(
        Turn(row[0], row[1], row[2], row[3], None if row[4] is None else json.loads(row[4]), row[5], row[6], row[7], row[8], row[9])
        for row in rows
    )


def neighbour_steps(store: Store, shown: Trajectory) -> Neighbours:
    """The nearest steps with rollouts of the same split, with token arrays if the shown one has them."""
    row = store.rows(
        """SELECT max(step) FILTER (step < $step), min(step) FILTER (step > $step) FROM trajectory
           WHERE run_id = $run_id AND coalesce(split, 'train') = $split AND (has_tokens OR NOT $tokens)""",
        {"run_id": shown.run_id, "step": shown.step, "split": shown.split or "train", "tokens": shown.has_tokens},
    )[0]
    return Neighbours(row[0], row[1])


def first_at(store: Store, run_id: str, step: int, *, tokens: bool, task: str | None = None) -> int | None:
    """The running number to open at a step: the first of the same task if there is one, with token arrays if asked for."""
    row = store.rows(
        """SELECT arg_min(n, n) FILTER (task IS NOT DISTINCT FROM $task), min(n) FROM trajectory
           WHERE run_id = $run_id AND step = $step AND (has_tokens OR NOT $tokens)""",
        {"run_id": run_id, "step": step, "tokens": tokens, "task": task},
    )[0]
    found: int | None = row[0] if row[0] is not None else row[1]
    return found


def token_steps_near(store: Store, run_id: str, step: int) -> Neighbours:
    """The nearest steps at which trajectories with token arrays exist."""
    row = store.rows(
        "SELECT max(step) FILTER (step < $step), min(step) FILTER (step > $step) FROM trajectory WHERE run_id = $run_id AND has_tokens",
        {"run_id": run_id, "step": step},
    )[0]
    return Neighbours(row[0], row[1])


def same_prompt(store: Store, shown: Trajectory) -> tuple[Occurrence, ...]:
    """Every step at which this prompt was used (newest attempt), the shown one included; empty without a prompt."""
    if not shown.prompt:
        return ()
    rows = store.rows(
        f"""SELECT step, avg(reward), count(*) FROM trajectory
            WHERE run_id = $run_id AND prompt = $prompt AND coalesce(split, 'train') = $split AND {newest_attempt(store, shown.run_id)}
            GROUP BY step ORDER BY step LIMIT {MOST_OCCURRENCES}""",
        {"run_id": shown.run_id, "prompt": shown.prompt, "split": shown.split or "train"},
    )
    return tuple(Occurrence(*row) for row in rows)


def place_of(store: Store, run_id: str, trajectory_id: str) -> tuple[int, int] | None:
    """(step, n) of the newest trajectory with the writer's own id, or None."""
    rows = store.rows(
        "SELECT step, n FROM trajectory WHERE run_id = ? AND trajectory_id = ? ORDER BY attempt DESC, step DESC, n LIMIT 1",
        [run_id, trajectory_id],
    )
    return (rows[0][0], rows[0][1]) if rows else None


def _combined(left: Any, right: Any, count: int, join: Any) -> tuple[float | None, ...]:
    if left is None or right is None:
        return (None,) * count
    return tuple(None if a is None or b is None else float(join(a, b)) for a, b in zip(left, right, strict=True))


def _finite(value: float | None) -> Json:
    """A number for JSON: what JSON cannot say goes as its name."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def tokens_json(tokens: TokenArrays) -> dict[str, Json]:
    """The arrays for the browser: names of contracts, numbers rounded to 5 digits, NaN and infinities by name."""
    arrays: dict[str, Json] = {"count": tokens.count, "prompt_tokens": tokens.prompt_tokens, "derived_texts": tokens.derived_texts}
    arrays["token_ids"] = None if tokens.ids is None else list(tokens.ids)
    arrays["token_texts"] = None if tokens.texts is None else list(tokens.texts)
    for name in TOKEN_ARRAYS:
        if name in ("token_ids", "token_texts"):
            continue
        values = getattr(tokens, name)
        arrays[name] = None if values is None else [_finite(_rounded(v)) for v in values]
    return arrays


def _rounded(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) and math.isfinite(value) else value


@dataclass(frozen=True)
class TokenSummary:
    """What the arrays of one trajectory say in one line; None where the arrays for it are missing.

    mean_difference: mean |trainer - engine| over response tokens, nats; below_half: response tokens whose
    behaviour ratio exp(trainer - engine) is below 0.5; compared: tokens with both values; worst: indices of the
    largest |difference|, largest first.
    """

    mean_difference: float | None
    below_half: int
    compared: int
    worst: tuple[int, ...]


def summary(tokens: TokenArrays, most: int = 4) -> TokenSummary:
    """The one-line facts of a token row."""
    mask = tokens.response_mask
    pairs = [(i, d) for i, d in enumerate(tokens.differences()) if d is not None and math.isfinite(d) and (mask is None or mask[i])]
    if not pairs:
        return TokenSummary(None, 0, 0, ())
    sizes = np.array([abs(d) for _, d in pairs])
    worst = [pairs[i][0] for i in np.argsort(-sizes, kind="stable")[:most] if sizes[i] > 0]
    return TokenSummary(float(sizes.mean()), sum(d < math.log(0.5) for _, d in pairs), len(pairs), tuple(worst))
