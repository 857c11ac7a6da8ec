"""Derived columns that RunView.trajectories can be asked for beside those of the table: hashes instead of texts, which may be long."""

from __future__ import annotations

_PROMPT_TEXT = "coalesce(prompt, prompt_messages::VARCHAR)"

PROMPT_HASH = f"hash({_PROMPT_TEXT}) AS item"
"""Column `item`: equal for equal prompts; null where no prompt is written."""
TEXT_HASH = "hash(lower(trim(regexp_replace(response, '\\s+', ' ', 'g')))) AS text"
"""Column `text`: equal for responses that differ in white space and case only; null where none is written."""
HEAD_HASH = f"hash(regexp_replace(left({_PROMPT_TEXT}, 48), '[0-9]+', '0', 'g')) AS head"
"""Column `head`: equal for prompts that begin alike but for numbers, which is what differs between prompts of one template."""
PROMPT_SIZE = "coalesce(prompt_tokens, length(prompt)) AS size"
"""Column `size`: prompt tokens (characters where these are not written)."""
VERIFIER_STATUS = "coalesce(verifier_status, 'ok') AS status"
"""Column `status`: as written; ok where it is not."""
