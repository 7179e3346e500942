"""Which workers of a service a request is for (NFP, POST frame 4).

Four spellings are read: ``all``, ``any``, comma separated names (the text), a JSON array of names or one exact name
(deployed NorFab). An empty frame is the text's default, all (see ``frames``).
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import msgspec

from broker.errors import ConfigError
from broker.nesting import decoder
from broker.nfp.names import NAME_BYTES_MAX

Kind = Literal["all", "any", "name", "list"]
NAMES_MAX: Final = 4096
"""Names in one target: more than workers anyone runs, few enough to hold."""


class Target(NamedTuple):
    """``names`` is empty for all and any; ``list`` keeps the order given and no name twice."""

    kind: Kind
    names: tuple[str, ...] = ()


Targeting = str | Iterable[str] | Target
"""How callers name a target: ``"all"``, ``"any"``, a worker's name, or several."""
ALL: Final = Target("all")
ANY: Final = Target("any")
CACHED_CHARS_MAX: Final = 256
"""Longest text of a target that is remembered: a few names, so that the cache stays within half a MiB."""
_array: Final = decoder(list[str])


def parse(text: str) -> Target | None:
    """The target that ``text`` spells; None when it names nobody, or holds what no worker can be called.

    >>> parse("w1,w2"), parse('["w1"]'), parse("any"), parse("[]")
    (Target(kind='list', names=('w1', 'w2')), Target(kind='list', names=('w1',)), Target(kind='any', names=()), None)
    """
    return _parse_short(text) if len(text) <= CACHED_CHARS_MAX else _parse(text)


def target_of(given: Targeting) -> Target:
    """The target that a caller names.

    Raises:
        ConfigError: it names nobody, or holds what no worker can be called.
    """
    if isinstance(given, Target):
        return given
    if not isinstance(given, str):
        names: list[Any] = list(given)
        listed = _listed(names) if all(isinstance(name, str) and name for name in names) else None
        if listed is None:
            raise ConfigError(f"target {names!r:.100}, expected names of workers")
        return listed
    chosen = parse(given)
    if chosen is None:
        raise ConfigError(f"target {given[:100]!r}, expected all, any or names of workers")
    return chosen


def _parse(text: str) -> Target | None:
    if text == "all":
        return ALL
    if text == "any":
        return ANY
    if text.startswith("["):
        try:
            names = _array(text)
        except (msgspec.MsgspecError, UnicodeError):
            return None
        return _listed(names)
    if "," in text:
        return _listed([name.strip() for name in text.split(",")])
    return Target("name", (text,)) if text and _is_name(text) else None


_parse_short = lru_cache(maxsize=1024)(_parse)


def _listed(names: list[str]) -> Target | None:
    unique = tuple(dict.fromkeys(name for name in names if name))
    return Target("list", unique) if 0 < len(unique) <= NAMES_MAX and all(map(_is_name, unique)) else None


def _is_name(text: str) -> bool:
    """Printable, and short enough for a ZeroMQ identity."""
    return text.isprintable() and len(text.encode()) <= NAME_BYTES_MAX


def render(target: Target, *, array: bool) -> str:
    """The text of ``target``; ``array`` writes lists as deployed NorFab does, else with commas where they mean it."""
    if target.kind in ("all", "any"):
        return target.kind
    if target.kind == "name":
        return target.names[0]
    if array or any(
        name in ("all", "any") or "," in name or name[0] in "[ " or name[-1] == " " for name in target.names
    ):
        return msgspec.json.encode(target.names).decode()
    return ",".join(target.names)
