"""Numbers, ages and changes as people read them."""

from __future__ import annotations

import math

MINUS = "\u2212"
TIMES = "\u00d7"


def number(value: float | None) -> str:
    """Three significant digits, thousands with commas, a true minus sign; a dash for nothing; NaN and infinity by name."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    size = abs(value)
    if size == 0:
        text = "0"
    elif size >= 1e6 or size < 1e-4:
        text = _power(size)
    elif size >= 100:
        text = f"{size:,.0f}"
    else:
        text = f"{size:.{max(0, 2 - math.floor(math.log10(size)))}f}"
    return MINUS + text if value < 0 and text != "0" else text


def _power(size: float) -> str:
    digits, exponent = f"{size:.2e}".split("e")
    return f"{digits}e{int(exponent)}".replace("e-", f"e{MINUS}")


def count(value: float | None) -> str:
    """A count: thousands with commas, from 100,000 on with k, M, G and three digits."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if size >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.3g} {unit}" if abs(scaled) < 1000 else f"{scaled:,.0f} {unit}"
    return f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """A duration: 0.4 s, 18 min, 3 h, 2 d."""
    if value is None or not math.isfinite(value):
        return "–"
    if value < 10:
        return f"{max(value, 0):.2g} s"
    for limit, size, unit in ((100, 1, "s"), (100 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if value < limit:
            return f"{value / size:.0f} {unit}"
    return f"{value / 86400:.0f} d"


def age(value: float) -> str:
    """Like a duration, but calm: whole seconds below a minute."""
    return seconds(value) if value >= 10 else f"{max(value, 0):.0f} s"


def change(before: float | None, after: float | None, *, score: bool = False) -> str:
    """What became of a value: a ratio from 1.5 on, a signed difference for scores, percent for the rest."""
    if before is None or after is None or not (math.isfinite(before) and math.isfinite(after)):
        return "–"
    if score:
        return signed(after - before)
    if before == 0:
        return f"0 → {number(after)}" if after else "no change"
    ratio = after / before
    if ratio >= 1.5:
        return f"{TIMES}{number(ratio)}"
    percent = 100 * (ratio - 1)
    return f"{'+' if percent >= 0 else MINUS}{abs(percent):.0f} %"


def signed(value: float) -> str:
    """A difference with its sign."""
    return f"+{number(value)}" if value > 0 else number(value)


def sentence(text: str) -> str:
    """Starts with a capital, unless a metric id comes first, and ends with a full stop."""
    text = text.strip()
    if not text:
        return ""
    start = text[0] if "." in text.split(" ", 1)[0][:-1] else text[0].upper()
    return start + text[1:] + ("" if text[-1] in ".!?" else ".")
