"""Removal of secrets from configurations before they are stored."""

from __future__ import annotations

import re

from ingest.schema.records import Json

REMOVED = "[removed]"
_SECRET = re.compile(
    r"(^|[_\-.])(api_?key|key|token|secret|password|passwd|authorization|webhook|credential)s?($|[_\-.](url|id|value))", re.I
)
_SPECIAL_TOKEN = re.compile(r"(eos|bos|pad|unk|sep|cls|mask|stop|image|special|additional|end|begin)[_\-.]?\w*tokens?", re.I)


def without_secrets(value: Json, key: str = "") -> Json:
    """The same configuration with the texts under secret-looking keys replaced by `[removed]`.

    Numbers and switches stay (`max_tokens: 2048` is no secret); special tokens such as `eos_token` stay.
    """
    if isinstance(value, dict):
        return {name: without_secrets(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item, key) for item in value]
    leaf = key.rsplit("/", 1)[-1]
    if isinstance(value, str) and value and _SECRET.search(leaf) and not _SPECIAL_TOKEN.search(leaf):
        return REMOVED
    return value
