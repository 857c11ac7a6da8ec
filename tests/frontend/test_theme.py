"""One set of colours: Python, style sheet and script agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frontend import theme

ASSETS = Path(theme.__file__).parent / "assets"


def test_generated_files_are_current() -> None:
    for path, text in theme.generated().items():
        assert path.read_text(encoding="utf-8") == text, f"run python -m frontend.theme: {path.name} is old"


@pytest.mark.parametrize("scheme", theme.SCHEMES)
def test_a_drawn_chart_can_be_recoloured_because_no_two_tokens_share_a_value(scheme: theme.Scheme) -> None:
    values = [*theme.colours(scheme).values(), *theme.heat(scheme)]
    assert len(values) == len(set(values))


def test_swapping_twice_gives_the_colour_back() -> None:
    swaps = theme.swaps()
    assert all(swaps["light"][dark] == light for light, dark in swaps["dark"].items())


@pytest.mark.parametrize("scheme", theme.SCHEMES)
@pytest.mark.parametrize("ground", ["surface", "surface-2"])
def test_text_reaches_four_and_a_half_to_one(scheme: theme.Scheme, ground: str) -> None:
    for text in ("text-1", "text-2", "text-3"):
        assert _contrast(theme.colour(text, scheme), theme.colour(ground, scheme)) >= 4.5, text


@pytest.mark.parametrize("scheme", theme.SCHEMES)
def test_severity_words_can_be_read_on_their_ground(scheme: theme.Scheme) -> None:
    for name in ("watch", "warn", "critical", "quiet", "supported"):
        assert _contrast(theme.colour(f"{name}-text", scheme), theme.colour(f"{name}-soft", scheme)) >= 4.5, name


@pytest.mark.parametrize("scheme", theme.SCHEMES)
def test_series_stand_out_from_the_card(scheme: theme.Scheme) -> None:
    for index in range(8):
        assert _contrast(theme.series_colour(index, scheme), theme.colour("surface", scheme)) >= 3.0, index


def test_style_sheets_use_only_tokens_that_exist() -> None:
    known = set(re.findall(r"(--rlv-[\w-]+):", theme.stylesheet()))
    for sheet in ASSETS.glob("*.css"):
        used = set(re.findall(r"var\((--rlv-[\w-]+)", sheet.read_text(encoding="utf-8")))
        own = set(re.findall(r"(--rlv-[\w-]+):", sheet.read_text(encoding="utf-8")))
        assert used <= known | own, f"{sheet.name}: {sorted(used - known - own)}"


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
