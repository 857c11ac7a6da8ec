"""Colours, sizes and type: the only place with a colour literal.

`assets/theme.css` and `assets/theme.js` are written from this file by `python -m frontend.theme`; a test checks that
they agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import plotly.graph_objects as go
import plotly.io as pio

Scheme: TypeAlias = Literal["light", "dark"]
SCHEMES: tuple[Scheme, Scheme] = ("light", "dark")

_PAIRS: dict[str, tuple[str, str]] = {
    # name: (light, dark)
    "bg": ("#F5F6F8", "#0E1115"),
    "surface": ("#FFFFFF", "#15191F"),
    "surface-2": ("#F0F2F5", "#1D232B"),
    "border": ("#E2E6EB", "#272E38"),
    "border-strong": ("#C9D0D9", "#3A4450"),
    "grid": ("#ECEFF3", "#20262E"),
    "text-1": ("#171B22", "#E7EAEF"),
    "text-2": ("#46505F", "#B3BCC8"),
    "text-3": ("#5F6978", "#8A95A4"),
    "accent": ("#2F5FD0", "#7FA6FF"),
    "accent-soft": ("#E9EFFC", "#1B2740"),
    "on-accent": ("#FFFFFE", "#0B1220"),
    "window": ("rgba(232,118,10,.07)", "rgba(255,148,64,.065)"),
    "band": ("rgba(104,114,130,.13)", "rgba(138,149,164,.17)"),
    "quiet-text": ("#28715C", "#62C3A6"),
    "quiet-fill": ("#4BA88F", "#3F9E84"),
    "quiet-soft": ("#E8F3F0", "#15251F"),
    "info-text": ("#2F5FD1", "#7FA6FE"),
    "info-fill": ("#2F5FD2", "#7FA6FD"),
    "info-soft": ("#E9EFFB", "#1B2741"),
    "watch-text": ("#806400", "#E6C34A"),
    "watch-fill": ("#E3B505", "#E6C34B"),
    "watch-soft": ("#FBF5DC", "#2A2512"),
    "warn-text": ("#A84B06", "#FFA35C"),
    "warn-fill": ("#E8760A", "#FF9440"),
    "warn-soft": ("#FDEFE0", "#2E2013"),
    "critical-text": ("#B4233C", "#FF7B88"),
    "critical-fill": ("#C9283E", "#FF5F70"),
    "critical-soft": ("#FCE9EB", "#33191E"),
    "supported-text": ("#1F6F4A", "#6FD3A4"),
    "supported-soft": ("#E8F4F0", "#142621"),
    "series-1": ("#2C6ACF", "#6FA4FC"),
    "series-2": ("#B78416", "#B9AF1B"),
    "series-3": ("#510A9D", "#7F5CE6"),
    "series-4": ("#449FB3", "#ADFE90"),
    "series-5": ("#97527F", "#DA869E"),
    "series-6": ("#174258", "#F3D2F7"),
    "series-7": ("#705D1D", "#9E6609"),
    "series-8": ("#750816", "#BE2B85"),
    "trainer-lower": ("#F0852E", "#F0852F"),
    "diverging-middle": ("#F0F2F6", "#222932"),
    "trainer-higher": ("#8B6BEA", "#8B6BEB"),
    "heat-text-low": ("#2A3140", "#FFFFFD"),
    "heat-text-high": ("#FFFFFC", "#2A3141"),
    "shadow": ("rgba(20,26,36,.14)", "rgba(0,0,0,.5)"),
}
"""Every token. No two values of one scheme are equal, so that a drawn figure can be re-coloured by its values."""

HEAT: tuple[str, ...] = ("#F4EFE6", "#E9D9B8", "#C9CFA0", "#8DBB9B", "#4B9E9C", "#2A7A98", "#215588", "#1E2F66")
"""Sequential steps in the light theme, pale is low; the dark theme reads the list backwards."""

FONT = "'Inter Variable', system-ui, sans-serif"
MONO = "'JetBrains Mono Variable', ui-monospace, monospace"
SIZES = {"title": 17, "sentence": 15, "body": 13, "table": 12.5, "section": 12, "label": 11, "axis": 10}
SPACE = {"xs": 4, "sm": 8, "md": 12, "lg": 16, "xl": 24}
RADIUS = {"cell": 2, "chip": 5, "control": 6, "token": 6, "card": 8}
MARGIN_SMALL = {"l": 38, "r": 8, "t": 6, "b": 16}
MARGIN_LARGE = {"l": 44, "r": 12, "t": 8, "b": 22}
RAW_OPACITY = 0.34
OLD_ATTEMPT_OPACITY = 0.22

_chosen: ContextVar[Scheme] = ContextVar("scheme", default="light")
_ASSETS = Path(__file__).parent / "assets"


def colours(scheme: Scheme) -> Mapping[str, str]:
    """Token name to colour in one scheme."""
    return {name: pair[SCHEMES.index(scheme)] for name, pair in _PAIRS.items()}


def colour(name: str, scheme: Scheme = "light") -> str:
    """One token's colour. Raises KeyError for an unknown token."""
    return _PAIRS[name][SCHEMES.index(scheme)]


def choose(scheme: str | None) -> None:
    """Sets the scheme for what follows in this context; anything but "dark" is light."""
    _chosen.set("dark" if scheme == "dark" else "light")


def chosen() -> Scheme:
    """The scheme of the page that is being drawn. A chart in the wrong one is re-coloured by the browser."""
    return _chosen.get()


def series_colour(index: int, scheme: Scheme = "light") -> str:
    """Colour number `index` (from 0, eight of them, then from the start again)."""
    return colour(f"series-{index % 8 + 1}", scheme)


def heat(scheme: Scheme = "light") -> list[str]:
    """The sequential scale from low to high; the low end is the one near the surface."""
    return list(HEAT if scheme == "light" else reversed(HEAT))


def heat_scale(scheme: Scheme = "light") -> list[list[Any]]:
    """The sequential scale as a plotly colorscale."""
    steps = heat(scheme)
    return [[index / (len(steps) - 1), value] for index, value in enumerate(steps)]


def diverging_scale(scheme: Scheme = "light") -> list[list[Any]]:
    """Trainer lower, middle, trainer higher as a plotly colorscale."""
    return [[0.0, colour("trainer-lower", scheme)], [0.5, colour("diverging-middle", scheme)], [1.0, colour("trainer-higher", scheme)]]


def swaps() -> dict[str, dict[str, str]]:
    """For each scheme: the other scheme's colour to its own, over every token and the heat steps."""
    pairs = [*_PAIRS.values(), *zip(HEAT, reversed(HEAT), strict=True)]
    return {"dark": dict(pairs), "light": {dark: light for light, dark in pairs}}


def plotly_template(scheme: Scheme) -> go.layout.Template:
    """Grid, axes and type of every chart of a scheme."""
    c = colours(scheme)
    axis = {"zeroline": False, "automargin": False, "tickfont": {"size": SIZES["axis"], "color": c["text-3"]}, "title": {"standoff": 4}}
    return go.layout.Template(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": SIZES["axis"], "color": c["text-3"]},
            "colorway": [series_colour(i, scheme) for i in range(8)],
            "margin": MARGIN_SMALL,
            "showlegend": False,
            "hovermode": "x",
            "dragmode": "zoom",
            "hoverlabel": {"font": {"family": FONT, "size": SIZES["label"]}},
            "xaxis": {
                **axis,
                "showgrid": False,
                "showline": True,
                "linecolor": c["border-strong"],
                "linewidth": 1,
                "ticks": "outside",
                "ticklen": 3,
                "tickcolor": c["border-strong"],
            },
            "yaxis": {**axis, "showgrid": True, "gridcolor": c["grid"], "gridwidth": 1, "showline": False, "nticks": 4, "ticks": ""},
        }
    )


@lru_cache(maxsize=2)
def template_json(scheme: Scheme) -> dict[str, Any]:
    """The template as plain values, for figures that are plain dictionaries. Shared: never change it."""
    return dict(plotly_template(scheme).to_plotly_json())


def register_templates() -> None:
    """Makes `rlv-light` and `rlv-dark` known to plotly."""
    for scheme in SCHEMES:
        pio.templates[f"rlv-{scheme}"] = plotly_template(scheme)


register_templates()


def mantine() -> dict[str, Any]:
    """The theme object of MantineProvider. Colours that differ by scheme are CSS variables of theme.css."""
    light, dark = colours("light"), colours("dark")
    blues = [
        light["accent-soft"],
        "#D5E0F8",
        "#AEC4F1",
        dark["accent"],
        dark["accent"],
        "#4A76DC",
        light["accent"],
        "#2853BA",
        "#2247A1",
        "#1B3A86",
    ]
    return {
        "primaryColor": "rlv",
        "primaryShade": {"light": 6, "dark": 4},
        "colors": {"rlv": blues},
        "fontFamily": FONT,
        "fontFamilyMonospace": MONO,
        "fontSizes": {"xs": "11px", "sm": "12.5px", "md": "13px", "lg": "15px", "xl": "17px"},
        "lineHeights": {"xs": "14px", "sm": "18px", "md": "18px", "lg": "21px", "xl": "24px"},
        "spacing": {name: f"{size}px" for name, size in SPACE.items()},
        "radius": {"xs": "2px", "sm": "5px", "md": "6px", "lg": "8px", "xl": "12px"},
        "defaultRadius": "md",
        "headings": {"fontFamily": FONT, "fontWeight": "640", "sizes": {"h1": {"fontSize": "17px", "lineHeight": "24px"}}},
        "cursorType": "pointer",
        "respectReducedMotion": True,
        "autoContrast": False,
    }


_MANTINE_VARIABLES = {
    "--mantine-color-body": "surface",
    "--mantine-color-text": "text-1",
    "--mantine-color-dimmed": "text-3",
    "--mantine-color-default": "surface",
    "--mantine-color-default-hover": "surface-2",
    "--mantine-color-default-color": "text-1",
    "--mantine-color-default-border": "border-strong",
    "--mantine-color-placeholder": "text-3",
    "--mantine-color-anchor": "accent",
    "--mantine-color-bright": "text-1",
    "--mantine-primary-color-contrast": "on-accent",
}


def stylesheet() -> str:
    """The text of assets/theme.css."""
    lines = ["/* Written by `python -m frontend.theme`; edit frontend/theme.py instead. */"]
    for scheme in SCHEMES:
        lines.append(f':root[data-mantine-color-scheme="{scheme}"] {{')
        lines.append(f"  color-scheme: {scheme};")
        lines += [f"  --rlv-{name}: {value};" for name, value in colours(scheme).items()]
        lines += [f"  --rlv-heat-{index}: {value};" for index, value in enumerate(heat(scheme), 1)]
        lines.append("}")
        lines.append(f'html:root[data-mantine-color-scheme="{scheme}"] {{')
        lines += [f"  {variable}: var(--rlv-{token});" for variable, token in _MANTINE_VARIABLES.items()]
        lines.append("}")
    lines.append(":root {")
    lines += [f"  --rlv-size-{name}: {size}px;" for name, size in SIZES.items()]
    lines += [f"  --rlv-space-{name}: {size}px;" for name, size in SPACE.items()]
    lines += [f"  --rlv-radius-{name}: {size}px;" for name, size in RADIUS.items()]
    lines += [f"  --rlv-font: {FONT};", f"  --rlv-mono: {MONO};", "}", ""]
    return "\n".join(lines)


def script() -> str:
    """The text of assets/theme.js: which colour becomes which when the scheme changes."""
    head = "/* Written by `python -m frontend.theme`; edit frontend/theme.py instead. */"
    return f"{head}\nwindow.rlvTheme = {json.dumps({'swap': swaps(), 'font': FONT}, indent=1)};\n"


def generated() -> dict[Path, str]:
    """Every file that is written from this one, with its text."""
    return {_ASSETS / "theme.css": stylesheet(), _ASSETS / "theme.js": script()}


def main() -> None:
    """Writes the style sheet and the script."""
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
