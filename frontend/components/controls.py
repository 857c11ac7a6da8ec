"""Controls whose values are the address: a change writes the query string, and the page is drawn from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc
from dash.development.base_component import Component

from frontend.components.text import visible_line

STATE_ID = "address-state"


def address_state(query: Mapping[str, Any], defaults: Mapping[str, Any]) -> Component:
    """What the controls below were drawn from; a page with controls has exactly one.

    query: keys that stand in the address; defaults: values that are left out of it.
    """
    return dcc.Store(id=STATE_ID, data={"query": {k: str(v) for k, v in query.items()}, "defaults": {k: str(v) for k, v in defaults.items()}})


def control_id(key: str) -> dict[str, str]:
    """The id of the control of one key of the query string."""
    return {"type": "address-control", "key": key}


def choice(key: str, label: str, value: str, options: Sequence[tuple[str, str]], *, width: int = 150, anything: str | None = None) -> Component:
    """One of several (value, text). anything: the word for no restriction, its value is empty."""
    listed = [("", anything), *options] if anything is not None else list(options)
    known = {option for option, _ in listed}
    if value not in known:
        listed.append((value, value))
    return dmc.Select(
        id=control_id(key),
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


def text_field(key: str, label: str, value: str, *, width: int = 120, placeholder: str = "", error: str | None = None) -> Component:
    """Text that is taken when the field is left or Enter is pressed."""
    return dmc.TextInput(
        id=control_id(key),
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
