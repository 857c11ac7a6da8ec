"""What cannot be seen, or would re-order its neighbours, is shown as a mark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingest.text import visible, visible_line

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"


def test_terminal_escapes_and_direction_changes_get_names() -> None:
    assert visible("\x1b[31mred\x07") == "\u241b[31mred\u2407"
    assert visible("safe\u202edesrever\u202c") == "safe⟨RLO⟩desrever⟨PDF⟩"
    assert visible("\x9b1m") == "⟨U+009B⟩1m"


def test_plain_text_of_any_script_stays_as_it_is() -> None:
    for text in ("a\n\tb", "mañana", "日本語", "שלום", "👩\u200d👧", "क\u200dष"):
        assert visible(text) == text


def test_one_line_stays_one_line() -> None:
    assert visible_line("a\nb\tc\rd") == "a␊b␉c␍d"


@given(st.text())
def test_nothing_hidden_is_left_and_a_second_pass_changes_nothing(text: str) -> None:
    shown = visible(text)
    assert not any(c in shown for c in BIDI)
    assert all(ord(c) >= 0x20 or c in "\n\t" for c in shown)
    assert not any(0x7F <= ord(c) < 0xA0 for c in shown)
    assert visible(shown) == shown
    shown.encode("utf-8")
