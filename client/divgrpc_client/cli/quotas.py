"""The options for quotas and groups: --max-each, --min-each, --quota, --group-by, --on-infeasible.

--quota has the bounds for one value in one of these forms; "absent" stands for points without a
value:

    source:own=1..3     at least 1 and at most 3 results
    source:own=1..      at least 1
    source:own=..3      at most 3
    source:own=2        exactly 2
"""

import argparse
import re
from typing import Any, Final

from divgrpc.errors import invalid
from divgrpc.types.quotas import GroupBy, Quota, QuotaRule
from divgrpc_client.cli.where import value_of_text

_EACH_VALUE: Final = re.compile(r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<count>[0-9]+)\s*")
_RULE: Final = re.compile(
    r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*:(?P<value>.+)="
    r"\s*(?:(?P<low>[0-9]*)\.\.(?P<high>[0-9]*)|(?P<exact>[0-9]+))\s*",
    re.DOTALL,
)
_GROUPS: Final = re.compile(
    r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<groups>[0-9]+)\s*(?:x\s*(?P<size>[0-9]+)\s*)?"
)


def add_quotas(verb: argparse.ArgumentParser) -> None:
    """Add the options for quotas and groups to a command."""
    group = verb.add_argument_group("quotas and groups")
    for flag, word in (("--max-each", "most"), ("--min-each", "least")):
        group.add_argument(
            flag,
            metavar="ATTRIBUTE=N",
            action="append",
            help=f"Return at {word} N results with each value of the attribute. May be repeated.",
        )
    group.add_argument(
        "--quota",
        metavar="ATTRIBUTE:VALUE=MIN..MAX",
        action="append",
        help="Return MIN to MAX results with this value, such as source:own=1..3, ..3, 1.. or 2; "
        "the value absent stands for points without one. May be repeated.",
    )
    group.add_argument(
        "--group-by",
        metavar="ATTRIBUTE=GROUPSxN",
        help="Return results in groups with the same value, such as brand=5x2: at most 5 brands "
        "with at most 2 results each. Sets -k.",
    )
    group.add_argument(
        "--on-infeasible",
        metavar="{fail,relax}",
        help="If no results meet the quotas, fail, or return results that miss them by as little "
        "as possible (default fail).",
    )


def quotas_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments `quotas`, `group_by` and `on_infeasible` of a query.

    Raises `InvalidArgumentError` with the option as its field.
    """
    bounds_of: dict[str, dict[str, Any]] = {}
    for option in ("max_each", "min_each"):
        for text in getattr(arguments, option) or ():
            match = _EACH_VALUE.fullmatch(text)
            if match is None:
                raise invalid(option, f"must be ATTRIBUTE=N, such as brand=2, got {text!r:.80}")
            bounds = bounds_of.setdefault(match["name"], {})
            if option in bounds:
                raise invalid(option, f"is set twice for {match['name']!r}")
            bounds[option] = int(match["count"])
    for text in arguments.quota or ():
        name, rule = _rule(text)
        bounds_of.setdefault(name, {}).setdefault("rules", []).append(rule)
    fields: dict[str, Any] = {}
    if bounds_of:
        fields["quotas"] = [Quota(name, **bounds) for name, bounds in bounds_of.items()]
    if arguments.group_by is not None:
        fields["group_by"] = _groups(arguments.group_by)
    if arguments.on_infeasible is not None:
        fields["on_infeasible"] = arguments.on_infeasible
    return fields


def names_of(fields: dict[str, Any]) -> list[str]:
    """Return the names of the attributes in the arguments of `quotas_of`."""
    names = [quota.attribute for quota in fields.get("quotas", ())]
    if "group_by" in fields:
        names.append(fields["group_by"].attribute)
    return names


def _rule(text: str) -> tuple[str, QuotaRule]:
    match = _RULE.fullmatch(text)
    if match is None or (not match["exact"] and not (match["low"] or match["high"])):
        raise invalid("quota", f"must be such as source:own=1..3, got {text!r:.80}")
    bounds = (match["exact"],) * 2 if match["exact"] else (match["low"], match["high"])
    low, high = (int(bound) if bound else None for bound in bounds)
    value = match["value"].strip()
    return match["name"], QuotaRule(None if value == "absent" else value_of_text(value), low, high)


def _groups(text: str) -> GroupBy:
    match = _GROUPS.fullmatch(text)
    if match is None:
        raise invalid("group_by", f"must be such as brand=5x2, got {text!r:.80}")
    return GroupBy(match["name"], int(match["groups"]), int(match["size"] or 1))
