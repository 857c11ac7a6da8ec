"""Text from elsewhere made safe to read: what cannot be seen, or would re-order its neighbours, gets a visible mark."""

from __future__ import annotations

import re

_KEPT = "\n\t"
_CONTROL_PICTURES = 0x2400
_NAMES = {
    0x00AD: "SHY", 0x061C: "ALM", 0x180E: "MVS", 0x200B: "ZWSP", 0x200E: "LRM", 0x200F: "RLM", 0x2028: "LS", 0x2029: "PS",
    0x202A: "LRE", 0x202B: "RLE", 0x202C: "PDF", 0x202D: "LRO", 0x202E: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI",
    0x2069: "PDI", 0xFEFF: "BOM", 0xFFF9: "IAA", 0xFFFA: "IAS", 0xFFFB: "IAT",
}  # fmt: skip
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """The text with every control, bidirectional, zero-width, tag and lone surrogate character replaced by a mark.

    C0 controls become their control pictures (ESC is shown as U+241B), the others their short name or code point in
    angle brackets. Newline and tab stay; joiners inside words (ZWJ, ZWNJ) stay because scripts need them.
    """
    return _HIDDEN.sub(lambda match: _mark(ord(match.group())), text)


def visible_line(text: str) -> str:
    """The same for one line of a table or a header: newlines and tabs become marks too."""
    return visible(text).replace("\n", "\u240a").replace("\t", "\u2409")


def _mark(code: int) -> str:
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    if code == 0x7F:
        return "\u2421"
    return f"\u27e8{_NAMES.get(code) or f'U+{code:04X}'}\u27e9"
