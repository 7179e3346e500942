"""Mappings into one, as deployed NorFab merges them (pure)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any


def merged(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping of all, later ones over earlier ones; the sources stay as they are.

    Mappings are merged key by key. Of a list, the elements that are not there yet are appended to the earlier list.
    Anything else replaces what was there.

    >>> merged({"a": {"x": 1}, "b": [1]}, {"a": {"y": 2}, "b": [2, 1], "c": 3})
    {'a': {'x': 1, 'y': 2}, 'b': [1, 2], 'c': 3}
    """
    whole: dict[str, Any] = {}
    for source in sources:
        _merge(whole, source)
    return whole


def _merge(whole: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        there = whole.get(key)
        if isinstance(there, list) and isinstance(value, list):
            _append(there, value)
        elif isinstance(there, dict) and isinstance(value, dict):
            _merge(there, value)
        else:
            whole[key] = copied(value)


def _append(there: list[Any], more: list[Any]) -> None:
    seen = {_frozen(element) for element in there}
    for element in more:
        frozen = _frozen(element)
        if frozen not in seen:
            seen.add(frozen)
            there.append(copied(element))


def _frozen(value: Any) -> Hashable:
    """Equal for equal values: finds an element among thousands without comparing it to each."""
    if isinstance(value, dict):
        return "mapping", frozenset((key, _frozen(below)) for key, below in value.items())
    if isinstance(value, list):
        return "list", tuple(_frozen(below) for below in value)
    return value  # type: ignore[no-any-return]


def copied(value: Any) -> Any:
    """A deep copy of mappings and lists."""
    if isinstance(value, dict):
        return {key: copied(below) for key, below in value.items()}
    if isinstance(value, list):
        return [copied(below) for below in value]
    return value
