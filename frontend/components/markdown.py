"""The rules' own pages as elements: the few forms of Markdown that server.rules.document writes, and no others.

For text of ours only. What comes from a run is shown as text (components.text).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

_INLINE = re.compile(r"(`[^`]+`|\*\*.+?\*\*)")


def sections(text: str) -> dict[str, str]:
    """The text below each heading of the second order, by heading; what stands before the first one under the empty name."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return {"": parts[0].strip(), **{name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}}


def without_title(text: str) -> str:
    """The text behind the page's title and the note below it, which say nothing to who has come from there."""
    return "\n\n".join(re.split(r"\n\s*\n", text)[2:])


def blocks(text: str) -> list[Component]:
    """Headings, paragraphs, lists and tables in order."""
    return [_block(part.strip()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _block(part: str) -> Component:
    lines = part.split("\n")
    if part.startswith("#"):
        return html.H3(part.lstrip("# "))
    if all(line.startswith("|") for line in lines):
        return _table(lines)
    if lines[0].startswith("- "):
        items = re.split(r"^- ", part, flags=re.MULTILINE)[1:]
        return html.Ul([html.Li(_inline(" ".join(item.split()))) for item in items])
    return html.P(_inline(" ".join(part.split())))


def _table(lines: Sequence[str]) -> Component:
    rows = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines if not set(line) <= set("|- ")]
    head = html.Thead(html.Tr([html.Th(name[:1].upper() + name[1:], scope="col") for name in rows[0]]))
    return html.Table([head, html.Tbody([html.Tr([html.Td(_inline(cell)) for cell in row]) for row in rows[1:]])], className="rlv-table")


def _inline(text: str) -> list[Component | str]:
    """Text with `code` and **strong** words."""
    found: list[Component | str] = []
    for part in _INLINE.split(text):
        if part.startswith("`") and len(part) > 2:
            found.append(html.Code(part[1:-1], className="rlv-mono"))
        elif part.startswith("**"):
            found.append(html.B(part[2:-2]))
        elif part:
            found.append(part)
    return found
