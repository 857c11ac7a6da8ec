"""Secrets of a configuration never reach the store."""

from __future__ import annotations

import pytest

from ingest.redact import REMOVED, without_secrets
from ingest.schema.records import Json


@pytest.mark.parametrize("key", [
    "api_key", "wandb_api_key", "OPENAI_API_KEY", "key", "hf_token", "token", "auth.token", "access-token", "client_secret", "password",
    "passwd", "authorization", "Authorization", "webhook", "webhook_url", "slack_webhook_url", "credentials", "trainer.logger.token",
    "private_key", "tokens", "apikey", "secret_value",
])  # fmt: skip
def test_text_under_a_secret_key_is_removed(key: str) -> None:
    assert without_secrets({key: "SECRET"}) == {key: REMOVED}


@pytest.mark.parametrize(("key", "value"), [
    ("max_tokens", 2048), ("eos_token", "</s>"), ("pad_token", "<pad>"), ("stop_tokens", "\n"), ("special_tokens", "<x>"),
    ("tokenizer", "qwen"),
    ("tokenizer.path", "/models/qwen"), ("keyboard", "us"), ("monkey", "yes"), ("use_auth_token", True), ("api_key", None), ("api_key", ""),
    ("model.path", "qwen"), ("token_level_loss", True), ("kl_coef", 0.1),
])  # fmt: skip
def test_what_is_no_secret_stays(key: str, value: Json) -> None:
    assert without_secrets({key: value}) == {key: value}


def test_secrets_are_found_at_any_depth_and_in_lists() -> None:
    config: Json = {"a": {"b": [{"token": "SECRET", "x": 1}]}, "keys": ["SECRET"], "wandb": {"init": {"api_key": "SECRET"}}}
    assert without_secrets(config) == {"a": {"b": [{"token": REMOVED, "x": 1}]}, "keys": [REMOVED], "wandb": {"init": {"api_key": REMOVED}}}


def test_the_given_configuration_is_not_changed() -> None:
    config: Json = {"token": "SECRET"}
    without_secrets(config)
    assert config == {"token": "SECRET"}
