"""A short row of coloured tokens, for lists of trajectories; the full map is drawn by assets/tokens.js."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from frontend.components.text import visible_line
from server.queries.tokens import TokenArrays

LIMIT_NATS = 6.0
STRONG = 0.62
SHOWN = 14
_BEFORE = 4


def ground(value: float | None, limit: float = LIMIT_NATS) -> tuple[str, str]:
    """CSS background and class names of a value on the diverging scale; the same formula as in tokens.js."""
    if value is None:
        return "", "tok is-bare"
    if not math.isfinite(value):
        return "var(--rlv-critical-soft)", "tok is-odd"
    share = min(1.0, abs(value) / limit) ** 0.55
    end = "trainer-lower" if value < 0 else "trainer-higher"
    background = f"color-mix(in srgb, var(--rlv-{end}) {round(share * 100)}%, var(--rlv-diverging-middle))"
    return background, "tok is-strong" if share > STRONG else "tok"


def token_row(tokens: TokenArrays, diverges_at: int | None, finish: str | None, most: int = SHOWN) -> Component:
    """The response's tokens around the place where it diverges, coloured by trainer minus engine.

    A thin line stands before the first token that differs; what is left out is counted.
    """
    first, count = tokens.prompt_tokens, tokens.count
    start = first
    if diverges_at is not None and diverges_at - first >= most - _BEFORE:
        start = diverges_at - _BEFORE
    end = min(count, start + most)
    differences = tokens.differences()
    cells: list[Component | str] = []
    if start > first:
        cells.append(html.Span(f"+{start - first}", className="tok-more"))
    for index in range(start, end):
        background, names = ground(differences[index] if own(tokens, index) else None)
        mark = " is-first-different" if index == diverges_at else ""
        text = token_text(tokens, index, finish)
        narrow = " is-word" if len(text) > 1 else ""
        cells.append(html.Span(text, className=f"{names} tok-mini{mark}{narrow}", style={"background": background} if background else None))
    if diverges_at is not None and diverges_at >= end:
        cells.append(html.Span(className="tok-mini-end is-first-different"))
    if end < count:
        cells.append(html.Span(f"+{count - end}", className="tok-more"))
    return html.Span(cells, className="tok-minis")


def own(tokens: TokenArrays, index: int) -> bool:
    """Whether the policy wrote the token; what a tool answered has no difference to show."""
    return not tokens.response_mask or bool(tokens.response_mask[index])


def token_text(tokens: TokenArrays, index: int, finish: str | None) -> str:
    """What stands for a token: its text, eos for a derived row's last one, else its id."""
    text: Sequence[str | None] = tokens.texts or ()
    found = text[index] if index < len(text) else None
    if found is not None:
        return visible_line(found).replace(" ", "␣")
    if tokens.derived_texts and index == tokens.count - 1 and finish == "stop":
        return "eos"
    return "?" if tokens.ids is None or tokens.ids[index] is None else f"#{tokens.ids[index]}"
