"""The rules, in the order of their codes."""

from server.rules.base import Rule

RULES: tuple[Rule, ...] = ()
