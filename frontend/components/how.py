"""What to switch on in each trainer so that a page has something to show. Sources: the trainers' own option names."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

_NATIVE = "write one JSON object a trajectory to rollouts.jsonl beside metrics.jsonl, with step, prompt, response and reward"

_ROLLOUTS: dict[str, tuple[str, str]] = {
    "verl": ("verl, one JSONL file a step, and one an evaluation:", "trainer.rollout_data_dir=DIR trainer.validation_data_dir=DIR"),
    "trl": ("TRL 0.28 or later, written to completions/ below output_dir:", "log_completions=True"),
    "native": ("Native format:", _NATIVE),
}
_TOKENS: dict[str, str] = {
    "verl": "verl's JSONL dumps hold text only; its token ids and log-probabilities reach RLVitals through the native format: ",
    "trl": "TRL's completion files hold text only; token ids and log-probabilities reach RLVitals through the native format: ",
}
_ARRAYS = "token_ids, response_mask, rollout_logprobs, old_logprobs and advantages in each line of rollouts.jsonl"


def rollouts_how(framework: str) -> tuple[str, str]:
    """How this trainer writes its rollouts: words, then the option and what it does."""
    return _ROLLOUTS.get(framework, ("Any trainer:", _NATIVE))


def no_rollouts(framework: str) -> Component:
    """The empty state of a run of which no rollout was ever read."""
    lead, option = rollouts_how(framework)
    return html.Div(
        [
            html.H2("No rollouts were read for this run", className="rlv-note-title"),
            html.P("Curves need only metrics; slices, rollouts and tokens need the answers themselves."),
            html.P([f"{lead} ", html.Code(option, className="rlv-command")]),
            html.P(["Rollouts in another folder: ", html.Code("rlvitals ingest DIR --project P --run NAME", className="rlv-command")]),
        ],
        className="rlv-note",
    )


def tokens_sentence(framework: str, before: int | None, after: int | None) -> str:
    """Why a trajectory has no token arrays, where the nearest are, and how to get them."""
    near = [str(step) for step in (before, after) if step is not None]
    nearest = f" Nearest steps with them: {' and '.join(near)}." if near else ""
    how = "" if near else f" {_TOKENS.get(framework, 'They come with the native format: ')}{_ARRAYS}."
    return f"No token arrays were written for this trajectory.{nearest}{how}"
