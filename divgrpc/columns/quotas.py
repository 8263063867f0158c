"""Checks of quotas and groups, of themselves and for the attributes of an index."""

import contextlib
import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, get_args

from divgrpc.columns.filters import plain_scalar
from divgrpc.columns.values import Column, columns_of, unknown_attribute
from divgrpc.errors import invalid
from divgrpc.parameters import LIMITS, QueryOptions
from divgrpc.parameters.diversify import DiversifyOptions
from divgrpc.types import OnInfeasible
from divgrpc.types.quotas import (
    GroupBy,
    Quota,
    QuotaRule,
    Quotas,
    QuotasLike,
)
from divgrpc.types.records import Attribute, AttributesLike, AttributeType, Scalar

OptionsT = TypeVar("OptionsT", QueryOptions, DiversifyOptions)

# Maximum number of cached quotas without rules, and of characters of their attributes.
_CACHED_QUOTAS_MAX: Final = 1_024
_CACHED_CHARACTERS_MAX: Final = 256
_KINDS: Final[Mapping[AttributeType, tuple[type, ...]]] = {
    "keyword": (str,),
    "bool": (bool,),
    "integer": (int,),
    "float": (int, float),
}
_ON_INFEASIBLE: Final = get_args(OnInfeasible)
_NOUNS: Final[Mapping[AttributeType, str]] = {
    "keyword": "texts",
    "bool": "true or false",
    "integer": "integers",
    "float": "numbers",
}


def as_quotas(
    quotas: QuotasLike = None,
    group_by: GroupBy | None = None,
    on_infeasible: OnInfeasible = "fail",
) -> Quotas | None:
    """Return what results must meet, with plain values, or None if there is nothing.

    Raises `InvalidArgumentError` with the field `quotas`, `group_by` or `on_infeasible`.
    """
    if not isinstance(on_infeasible, str) or on_infeasible not in _ON_INFEASIBLE:
        raise invalid("on_infeasible", f"must be fail or relax, got {on_infeasible!r:.80}")
    items = [quotas] if isinstance(quotas, Quota) else quotas
    if items is not None and (isinstance(items, str | Mapping) or not isinstance(items, Iterable)):
        raise invalid(
            "quotas", f'must be a list such as [Quota("brand", max_each=2)], got {items!r:.80}'
        )
    checked = tuple(_checked(item) for item in items or ())
    if len(checked) > LIMITS["quotas_max"]:
        raise invalid("quotas", f"must be at most {LIMITS['quotas_max']}, got {len(checked)}")
    names = [quota.attribute for quota in checked]
    for name in names if len(names) > 1 else ():
        if names.count(name) > 1:
            raise invalid("quotas", f"has {name!r:.80} twice: put all rules into one quota")
    if sum(len(rules_of(quota)) for quota in checked) > LIMITS["quota_rules_max"]:
        raise invalid("quotas", f"must have at most {LIMITS['quota_rules_max']} rules")
    if group_by is not None:
        if checked:
            raise invalid("group_by", "does not go with quotas: set one of the two")
        group_by = _checked_groups(group_by)
    if not checked and group_by is None:
        return None
    return Quotas(checked, group_by, on_infeasible)


def rules_of(quota: Quota) -> tuple[QuotaRule, ...]:
    """Return the rules of a quota, which keeps them as a tuple."""
    return quota.rules  # type: ignore[return-value]  # see `Quota.__post_init__`


def check_k(quotas: Quotas, k: int) -> None:
    """Raise `InvalidArgumentError` for a least number of results above k."""
    for quota in quotas.quotas:
        if not (quota.min_each or quota.rules):
            continue
        lows = [quota.min_each, *(rule.min for rule in rules_of(quota))]
        least = max(low or 0 for low in lows)
        if least > k:
            raise invalid("quotas", f"must ask for at most k = {k} results, got {least}")


def check_attributes(quotas: Quotas, attributes: Sequence[Attribute], k: int) -> Quotas:
    """Return quotas whose values have the types of the attributes of an index.

    Raises `InvalidArgumentError` for attributes that the index does not declare, for values of
    another type, and for quotas that no results can meet.
    """
    declared = {attribute.name: attribute for attribute in attributes}
    if quotas.group_by is not None:
        attribute = _declared(quotas.group_by.attribute, declared, "group_by")
        if attribute.multi:
            rule = "must be an attribute with one value per point"
            raise invalid("group_by", f"{rule}, {attribute.name!r} has several")
        return quotas
    check_k(quotas, k)
    typed = tuple(_typed(quota, declared, k) for quota in quotas.quotas)
    return Quotas(typed, None, quotas.on_infeasible)


def _declared(name: str, declared: Mapping[str, Attribute], field: str) -> Attribute:
    if name not in declared:
        text = str(unknown_attribute(name, declared.values()))
        raise invalid(field, text.replace("attributes has no", "has no attribute", 1))
    return declared[name]


def _typed(quota: Quota, declared: Mapping[str, Attribute], k: int) -> Quota:
    attribute = _declared(quota.attribute, declared, "quotas")
    if not rules_of(quota):
        return quota
    rules = [replace(r, value=_of_type(r.value, attribute)) for r in rules_of(quota)]
    total = sum(rule.min or 0 for rule in rules)
    if total > k and not attribute.multi:
        rule = f"ask for at least {total} results with {attribute.name!r}, and k is {k}"
        raise invalid("quotas", f"contradict one another: they {rule}")
    values = [(isinstance(rule.value, bool), rule.value) for rule in rules]
    if len(set(values)) < len(values):
        raise invalid("quotas", f"has a value of {attribute.name!r} twice")
    return replace(quota, rules=rules)


def _of_type(value: Scalar | None, attribute: Attribute) -> Scalar | None:
    if value is None:
        return None
    if attribute.type == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    fits = isinstance(value, _KINDS[attribute.type])
    if not fits or (isinstance(value, bool) and attribute.type != "bool"):
        nouns = _NOUNS[attribute.type]
        raise invalid("quotas", f"must name {nouns} for {attribute.name!r}, got {_shown(value)}")
    return value


def _checked(quota: object) -> Quota:
    if not isinstance(quota, Quota):
        raise invalid(
            "quotas", f'must hold quotas such as Quota("brand", max_each=2), got {quota!r:.80}'
        )
    name = quota.attribute
    if not isinstance(name, str):
        raise invalid("quotas", f"must name attributes by texts, got {name!r:.80}")
    if not rules_of(quota) and len(name) <= _CACHED_CHARACTERS_MAX:
        # Most calls repeat such a quota. Bounds of other types may have no hash.
        with contextlib.suppress(TypeError):
            return _check_without_rules(name, quota.min_each, quota.max_each)
    return _check_parts(name, quota.min_each, quota.max_each, rules_of(quota))


@functools.lru_cache(maxsize=_CACHED_QUOTAS_MAX, typed=True)
def _check_without_rules(name: str, least: object, most: object) -> Quota:
    """Return a checked quota without rules."""
    return _check_parts(name, least, most, ())


def _check_parts(name: str, least: object, most: object, rules: Iterable[object]) -> Quota:
    """Return a checked quota."""
    low, high = _bounds(least, most, f"{name!r:.80}", ("min_each", "max_each"))
    checked = tuple(_checked_rule(rule, name) for rule in rules)
    if not checked and low is None and high is None:
        raise invalid("quotas", f"must have max_each, min_each or rules for {name!r:.80}")
    return Quota(name, min_each=low, max_each=high, rules=checked)


def _checked_rule(rule: object, name: str) -> QuotaRule:
    if not isinstance(rule, QuotaRule):
        example = '{"own": (1, 3)}'
        raise invalid(
            "quotas", f"must have rules such as {example} for {name!r:.80}, got {rule!r:.80}"
        )
    value = None if rule.value is None else plain_scalar(rule.value, "quotas", name)
    subject = f"{name!r:.80} = {_shown(value)}"
    low, high = _bounds(rule.min, rule.max, subject, ("min", "max"))
    if low is None and high is None:
        raise invalid("quotas", f"must have a min or a max for {subject}")
    return QuotaRule(value, low, high)


def _bounds(
    low: object,
    high: object,
    subject: str,
    names: tuple[str, str],
) -> tuple[int | None, int | None]:
    """Return checked bounds; `names` are their names in errors."""
    least, most = (
        None if bound is None else _whole(bound, f"{name} for {subject}")
        for bound, name in zip((low, high), names, strict=True)
    )
    if least is not None and most is not None and least > most:
        rule = f"must have a {names[0]} of at most {names[1]} for {subject}"
        raise invalid("quotas", f"{rule}, got {least} and {most}")
    return least, most


def _whole(value: Any, subject: str, field: str = "quotas", least: int = 0) -> int:  # noqa: ANN401  # what callers pass
    """Return a whole number from `least` to `k_max`; `subject` is its name in errors."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    most = LIMITS["k_max"]
    if not least <= number <= most or isinstance(value, bool):
        raise invalid(field, f"must have a {subject} from {least} to {most}, got {_shown(value)}")
    return number


def _shown(value: object) -> str:
    """Return the beginning of a value as text."""
    try:
        return f"{value!r:.80}"
    except ValueError:
        # Python writes no integer of more than 4,300 digits.
        return "an integer of very many digits"


def _checked_groups(group_by: object) -> GroupBy:
    if not isinstance(group_by, GroupBy):
        example = 'GroupBy("brand", groups=5)'
        raise invalid("group_by", f"must be groups such as {example}, got {group_by!r:.80}")
    name = group_by.attribute
    if not isinstance(name, str):
        raise invalid("group_by", f"must name an attribute by a text, got {name!r:.80}")
    groups = _whole(group_by.groups, "number of groups", "group_by", 1)
    per_group = _whole(group_by.per_group, "per_group", "group_by", 1)
    if groups * per_group > LIMITS["k_max"]:
        rule = f"must have groups times per_group up to {LIMITS['k_max']}"
        raise invalid("group_by", f"{rule}, got {groups * per_group}")
    return GroupBy(name, groups, per_group)


def columns_within(
    quotas: Quotas, attributes: AttributesLike, count: int
) -> dict[Attribute, Column]:
    """Return the columns of the attributes that quotas name, of `count` candidates of a caller.

    Raises `InvalidArgumentError` with the field `attributes` or `attributes.NAME`.
    """
    attributes = {} if attributes is None else attributes
    if not isinstance(attributes, Mapping):
        # This names the rule that the argument breaks.
        return columns_of(attributes, count)
    for name in quotas.names:
        if name not in attributes:
            field = "quotas" if quotas.group_by is None else "group_by"
            raise invalid(field, f"must name one of the attributes of the call, got {name!r:.80}")
    named = {name: attributes[name] for name in quotas.names}
    # If all values are missing, they are of any type.
    types: dict[str, AttributeType] = {
        name: "keyword"
        for name, values in named.items()
        if isinstance(values, Sequence) and all(value is None for value in values)
    }
    return columns_of(named, count, types)


def k_of_groups(quotas: Quotas | None, options: OptionsT) -> OptionsT:
    """Return the options of a call, with the `k` of its groups, groups times per_group.

    Raises `InvalidArgumentError` with the field `k` if the call sets another one.
    """
    if quotas is None or quotas.group_by is None:
        return options
    k = quotas.group_by.groups * quotas.group_by.per_group
    if options.get("k", k) != k:
        raise invalid(
            "k", f"must be groups times per_group, {k}, or be left out; got {options['k']!r:.80}"
        )
    options = options.copy()
    options["k"] = k
    return options
