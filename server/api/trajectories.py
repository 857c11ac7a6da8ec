"""Trajectories of a run: a filtered list, one with all its text, and its token arrays."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from pydantic import Field

from server.api.deps import Failure, Model, TheRun, TheService
from server.queries.rollouts import SORTS, RolloutFilter, rollout_page
from server.queries.tokens import Trajectory, token_arrays, trajectory, turns
from server.service import Service

router = APIRouter(prefix="/api/v1/runs/{run_id}/trajectories", tags=["trajectories"], responses={404: {"model": Failure}})


class TrajectoryItem(Model):
    """One trajectory in a list; prompt and response are previews. Null: the trainer does not write it."""

    step: int
    n: int
    trajectory_id: str | None
    group_id: str | None
    split: str | None
    task: str | None
    difficulty: str | None
    prompt: str | None
    response: str | None
    reward: float | None
    advantage: float | None
    response_tokens: int | None
    policy_lag: int | None
    finish_reason: str | None
    verifier_status: str | None
    verifier_seconds: float | None
    has_tokens: bool


class TrajectoryList(Model):
    """One page of `total` matching trajectories."""

    trajectories: list[TrajectoryItem]
    total: int


class TurnItem(Model):
    """One turn of a conversation with tools."""

    turn: int
    role: str | None
    content: str | None
    tool_name: str | None
    tool_args: Any
    is_error: bool | None
    seconds: float | None
    policy_version: int | None


class TrajectoryDetail(Model):
    """One trajectory with every field its trainer wrote, and its turns. All text is untrusted: show it as text."""

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
    reward_parts: dict[str, Any] | None
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
    sampling: dict[str, Any] | None
    seconds: dict[str, Any] | None
    extra: dict[str, Any] | None
    turns: list[TurnItem] = Field(default_factory=list)


class TokenAnswer(Model):
    """Arrays over the same tokens. Null array: not written; null element: no value there.

    derived_texts: the texts were not written but cut from prompt and response.
    """

    ids: list[int | None] | None
    texts: list[str | None] | None
    derived_texts: bool
    prompt_tokens: int
    response_mask: list[int | None] | None
    loss_mask: list[int | None] | None
    rollout_logprobs: list[float | None] | None
    old_logprobs: list[float | None] | None
    current_logprobs: list[float | None] | None
    ref_logprobs: list[float | None] | None
    entropies: list[float | None] | None
    advantages: list[float | None] | None
    policy_versions: list[int | None] | None


@router.get("")
def list_trajectories(
    run: TheRun,
    service: TheService,
    step_from: int | None = None,
    step_to: int | None = None,
    split: Literal["train", "eval"] | None = None,
    task: str | None = None,
    finish: str | None = None,
    group: str | None = None,
    text: str | None = None,
    sort: str = "step",
    descending: bool = True,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> TrajectoryList:
    """Matching trajectories of the newest attempt of each step. text: contained in prompt, response or the writer's id."""
    if sort not in SORTS:
        raise HTTPException(422, f"sort is one of {', '.join(SORTS)}.")
    chosen = RolloutFilter(step=(step_from, step_to), split=split, task=task, finish=finish, group=group, text=text)
    page = rollout_page(service.store, run.run_id, chosen, sort=sort, descending=descending, offset=offset, limit=limit)
    return TrajectoryList(trajectories=[TrajectoryItem.model_validate(row) for row in page.rows], total=page.total)


@router.get("/{step}/{n}")
def get_trajectory(run: TheRun, service: TheService, step: int, n: int) -> TrajectoryDetail:
    """One trajectory; n is the running number within its step."""
    found = TrajectoryDetail.model_validate(_trajectory(service, run.run_id, step, n))
    found.turns = [TurnItem.model_validate(turn) for turn in turns(service.store, run.run_id, step, n)]
    return found


@router.get("/{step}/{n}/tokens")
def get_tokens(run: TheRun, service: TheService, step: int, n: int) -> TokenAnswer:
    """The token arrays of one trajectory."""
    _trajectory(service, run.run_id, step, n)
    arrays = token_arrays(service.store, run.run_id, step, n)
    if arrays is None:
        raise HTTPException(404, f"Trajectory {step}.{n} of run {run.run_id} has no token arrays: its trainer did not write them.")
    return TokenAnswer.model_validate(arrays)


def _trajectory(service: Service, run_id: str, step: int, n: int) -> Trajectory:
    found = trajectory(service.store, run_id, step, n)
    if found is None:
        raise HTTPException(404, f"Run {run_id} has no trajectory {n} at step {step}.")
    return found
