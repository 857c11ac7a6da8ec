"""The rlvitals command."""

from __future__ import annotations


def main() -> int:
    """Placeholder until the commands are wired."""
    return 2
