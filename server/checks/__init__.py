"""Checks: what raises or lowers a hypothesis, one function a kind of check."""
