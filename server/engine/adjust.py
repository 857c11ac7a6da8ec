"""Names and values that people give for rules: the rule that is meant, and parameters that lie in their ranges."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence

from ingest.errors import SettingsError
from server.rules import RULES
from server.rules.base import Param, Rule


def rule_named(name: str, rules: Sequence[Rule] = RULES) -> Rule:
    """The rule of that name or code.

    Raises:
        SettingsError: there is none; names the nearest.
    """
    wanted = name.strip().lower()
    for rule in rules:
        if wanted in (rule.name, rule.code.lower()):
            return rule
    raise SettingsError(f"There is no rule {name}. " + _nearest(wanted, [r.name for r in rules], "`rlvitals rules` lists them."))


def checked(rule: Rule, values: Mapping[str, float | str]) -> dict[str, float]:
    """The parameters as numbers.

    Raises:
        SettingsError: an unknown name (with the nearest), no number, or a number outside the parameter's range.
    """
    return {name: _number(param_named(rule, name), value, rule) for name, value in values.items()}


def param_named(rule: Rule, name: str) -> Param:
    """The parameter of that name.

    Raises:
        SettingsError: the rule has none of that name; names the nearest.
    """
    for param in rule.params:
        if param.name == name:
            return param
    known = [param.name for param in rule.params]
    listed = f"It has {', '.join(known)}." if known else "It has no parameters."
    raise SettingsError(f"The rule {rule.name} has no parameter {name}. " + _nearest(name, known, listed))


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """`name=value` texts as names and values.

    Raises:
        SettingsError: one of them has no equals sign.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise SettingsError(f"{text!r} is no assignment: write name=value.")
        found[name.strip()] = value.strip()
    return found


def proposals(texts: Sequence[str], rules: Sequence[Rule] = RULES) -> dict[str, dict[str, float]]:
    """`RULE.param=value` texts, checked, by rule code and name.

    Raises:
        SettingsError: a text of another form, an unknown rule or parameter, a value outside the range.
    """
    found: dict[str, dict[str, float]] = {}
    for place, value in assignments(texts).items():
        name, dot, param = place.partition(".")
        if not dot:
            raise SettingsError(f"{place}={value} names no rule: write RULE.param=value, for example truncation.warn=0.1.")
        rule = rule_named(name, rules)
        found.setdefault(rule.code, {}).update(checked(rule, {param: value}))
    return found


def _number(param: Param, value: float | str, rule: Rule) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise SettingsError(f"{rule.name}.{param.name} needs a number, and {value!r} is none.")
    if not param.low <= number <= param.high:
        raise SettingsError(f"{rule.name}.{param.name} lies between {param.low:g} and {param.high:g} ({param.unit}); {number:g} does not.")
    return number


def _nearest(word: str, known: Sequence[str], otherwise: str) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"Did you mean {near[0]}?" if near else otherwise
