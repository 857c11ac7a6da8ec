"""Controls whose values are the address: a change writes the query string, and the page is drawn from that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc
from dash.development.base_component import Component

from frontend.components.text import visible_line
from server.queries.runs import RunSummary

_MOST_OPTIONS = 100


def address_state(page: str, query: Mapping[str, Any], defaults: Mapping[str, Any]) -> Component:
    """What the controls of a page were drawn from.

    query: keys that stand in the address; defaults: values that are left out of it.
    """
    texts = ({key: str(value) for key, value in part.items()} for part in (query, defaults))
    return dcc.Store(id={"type": f"{page}-address", "key": "state"}, data=dict(zip(("query", "defaults"), texts, strict=True)))


def register_controls(app: Dash, page: str) -> None:
    """Lets the controls of a page write the address."""
    app.clientside_callback(
        ClientsideFunction("rlv_pages", "address"),
        Output("url", "search", allow_duplicate=True),
        Input({"type": f"{page}-control", "key": ALL}, "value"),
        State({"type": f"{page}-control", "key": ALL}, "id"),
        # By pattern, because the controls of a page that is left call back once more, when nothing of it is there.
        State({"type": f"{page}-address", "key": ALL}, "data"),
        prevent_initial_call=True,
    )


def choice(
    page: str,
    key: str,
    label: str,
    value: str,
    options: Sequence[tuple[str, str]],
    *,
    width: int = 150,
    anything: str | None = None,
) -> Component:
    """One of several (value, text). anything: the word for no restriction, its value is empty."""
    listed = [("", anything), *options] if anything is not None else list(options)
    known = {option for option, _ in listed}
    if value not in known:
        listed.append((value, value))
    return dmc.Select(
        id={"type": f"{page}-control", "key": key},
        # Mantine takes an empty string for "nothing chosen", so no restriction has a name of its own.
        data=[{"value": option or "*", "label": visible_line(text or "")} for option, text in listed],
        value=value or "*",
        allowDeselect=False,
        size="xs",
        w=width,
        leftSection=label,
        leftSectionWidth=_label_width(label),
        className="rlv-control",
        checkIconPosition="right",
        comboboxProps={"withinPortal": True, "width": "max-content"},
        **{"aria-label": label},
    )


def run_choice(page: str, key: str, label: str, value: str, others: Sequence[RunSummary], run: RunSummary) -> Component:
    """One of other runs, in the order given, found by typing a part of its name; empty: none is chosen.

    run: the one they stand beside; what differs from it is written behind a name, and its project's runs form a group.
    """
    names = Counter((other.project, other.name) for other in others)

    def option(other: RunSummary) -> dict[str, str]:
        kind = [f"{other.framework} {other.algorithm or ''}".strip()] if _kind(other) != _kind(run) else []
        own = [other.run_id] if names[other.project, other.name] > 1 else []
        name = other.name if other.project == run.project else f"{other.project} / {other.name}"
        return {"value": other.run_id, "label": visible_line(" · ".join([name, *kind, *own]))}

    near, far = ([option(other) for other in others if (other.project == run.project) is same] for same in (True, False))
    groups = ((f"Project {run.project}", near), ("Other projects", far))
    return dmc.Select(
        id={"type": f"{page}-control", "key": key},
        data=[{"group": visible_line(title), "items": items} for title, items in groups if items],
        value=value or None,
        searchable=True,
        clearable=True,
        limit=_MOST_OPTIONS,
        placeholder="type or choose a name",
        nothingFoundMessage="No other run of that name holds a step.",
        size="xs",
        leftSection=label,
        leftSectionWidth=_label_width(label),
        className="rlv-control",
        checkIconPosition="right",
        clearButtonProps={"aria-label": "Choose none", "aria-hidden": "false", "tabIndex": 0},
        **{"aria-label": label},
    )


def _kind(run: RunSummary) -> tuple[str, str | None]:
    return run.framework, run.algorithm


def text_field(
    page: str, key: str, label: str, value: str, *, width: int = 120, placeholder: str = "", error: str | None = None
) -> Component:
    """Text that is taken when the field is left or Enter is pressed."""
    return dmc.TextInput(
        id={"type": f"{page}-control", "key": key},
        value=value,
        debounce=True,
        size="xs",
        w=width,
        leftSection=label,
        leftSectionWidth=_label_width(label),
        placeholder=placeholder,
        error=error,
        className="rlv-control",
        **{"aria-label": label},
    )


def _label_width(label: str) -> int:
    return 14 + round(6.1 * len(label))
