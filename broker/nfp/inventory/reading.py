"""YAML -> plain values that JSON can write, under limits; errors name file and line.

PyYAML's safe loader, so that scalars mean what they mean in deployed NorFab. What JSON has not becomes text: dates and
times in ISO 8601, bytes in base64, keys that are no text as JSON would write their value; sets become lists.
"""

from __future__ import annotations

import datetime as dt
import math
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.errors import ConfigError

if TYPE_CHECKING:
    import yaml

DEPTH_MAX: Final = 64
"""Mappings and lists inside one another, aliases followed."""
NODES_MAX: Final = 1_000_000
"""Values in one file, aliases followed: a few lines of them can stand for billions."""
EVENTS_MAX: Final = 2 * NODES_MAX
"""Values, and the beginnings and ends of collections."""
CHARS_MAX: Final = 64 << 20
"""Characters of those values together, aliases followed."""
NOTES_MAX: Final = 100
"""Of one file."""
INTEGER_BITS_MAX: Final = 63
_TOO_DEEP: Final = f"nested deeper than {DEPTH_MAX}"
SHOWN_CHARS: Final = 64

Path = tuple[str | int, ...]


class Source(NamedTuple):
    """What is read, for errors."""

    name: str
    rendered: bool
    """Lines are counted after rendering: they may not be those of the file."""

    def fault(self, line: int, text: str) -> ConfigError:
        """The error about ``line``, from 1."""
        return ConfigError(f"{self.name}:{line}: {text}{' (line after rendering)' if self.rendered else ''}")


class Document(NamedTuple):
    """A file's mapping, with the nodes it was made of."""

    value: dict[str, Any]
    root: Any
    source: Source
    notes: tuple[str, ...]
    """What is odd and read nevertheless, one line each."""

    def fault(self, path: Path, text: str) -> ConfigError:
        """The error about what is at ``path``."""
        return self.source.fault(_line_at(self.root, path), text)


EMPTY: Final = Document({}, None, Source("", False), ())
"""No file."""


def read(text: str, source: Source) -> Document:
    """The mapping that ``text`` is; nothing but comments is an empty one.

    Raises:
        ConfigError: not YAML, not a mapping, too large, too deep, or it contains itself.
    """
    import yaml

    loader = None
    try:
        _check_depth(text, source)
        loader = _loader()(text)
        root = loader.get_single_node()
        notes: list[str] = []
        if root is not None:
            weighing = _Weighing(source, notes.append)
            weighing.weigh(root, 1)
            loader.keys = weighing.keys
        raw = None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        raise _of_yaml(error, text, source) from error
    finally:
        if loader is not None:
            loader.dispose()
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise source.fault(1, f"saw of type {type(raw).__name__}, expected a mapping")
    return Document(_plain(raw), root, source, tuple(notes[:NOTES_MAX]))


def _of_yaml(error: yaml.YAMLError, text: str, source: Source) -> ConfigError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    position = getattr(error, "position", None)
    if mark is not None:
        line = min(mark.line, text.count("\n")) + 1  # the end of the file may be called the line after it
    else:
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else 1
    said = str(getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__)
    if "nesting depth" in said:
        said = _TOO_DEEP  # PyYAML 6.0.4 has a limit of its own, and its scanner reads ahead of the events
    return source.fault(line, said[:200])


@cache
def _loader() -> Any:
    """The safe loader, the one in C where PyYAML has it; a scalar that is no value of ours tells its line."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        keys: frozenset[int] | set[int] = frozenset()
        """Nodes that are keys of mappings, which become texts."""

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            try:
                value = super().construct_object(node, deep=deep)
                bits = value.bit_length() if isinstance(value, int) else 0
                if bits > INTEGER_BITS_MAX and id(node) not in self.keys:
                    raise ValueError(f"a number of {bits} bits, expected at most {INTEGER_BITS_MAX}")
                return value
            except (ValueError, OverflowError, TypeError) as error:
                raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error

    return Loader


def _check_depth(text: str, source: Source) -> None:
    """Before anything is built: building recurses."""
    import yaml

    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_loader())):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_MAX:
            raise source.fault(_line_of(event), _TOO_DEEP)
        if count > EVENTS_MAX:
            raise source.fault(_line_of(event), f"more than {NODES_MAX} values")


def _line_of(marked: Any) -> int:
    return int(marked.start_mark.line) + 1


class _Weight(NamedTuple):
    nodes: int
    chars: int
    height: int


class _Weighing:
    """What a tree of nodes amounts to when its aliases are followed, each node looked at once."""

    def __init__(self, source: Source, note: Callable[[str], None]) -> None:
        self._source = source
        self._note = note
        self._known: dict[int, _Weight] = {}
        self._above: set[int] = set()
        self.keys: set[int] = set()
        """Of the nodes that are keys of mappings."""

    def weigh(self, node: yaml.Node, depth: int) -> _Weight:
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = self._weighed(node, depth)
        line = _line_of(node)
        if depth + known.height > DEPTH_MAX + 1:
            raise self._source.fault(line, _TOO_DEEP)
        if known.nodes > NODES_MAX or known.chars > CHARS_MAX:
            raise self._source.fault(
                line, f"more than {NODES_MAX} values or {CHARS_MAX} characters, aliases followed"
            )
        return known

    def _weighed(self, node: yaml.Node, depth: int) -> _Weight:
        if isinstance(node.value, str):
            return _Weight(1, len(node.value), 0)
        if id(node) in self._above:
            raise self._source.fault(_line_of(node), "an alias inside of what it stands for")
        self._above.add(id(node))
        below = [self.weigh(child, depth + 1) for child in self._children(node)]
        self._above.discard(id(node))
        return _Weight(
            1 + sum(each.nodes for each in below),
            sum(each.chars for each in below),
            1 + max((each.height for each in below), default=0),
        )

    def _children(self, node: yaml.Node) -> list[yaml.Node]:
        if not node.value or not isinstance(node.value[0], tuple):
            return list(node.value)
        keys: dict[str, int] = {}
        self.keys.update(id(key) for key, _ in node.value)
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value != "<<":
                line = _line_of(key)
                if key.value in keys:
                    said = f"{key.value[:SHOWN_CHARS]!r} again, first in line {keys[key.value]}: the last one counts"
                    self._note(str(self._source.fault(line, said)))
                keys.setdefault(key.value, line)
        return [child for pair in node.value for child in pair]


def _plain(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {_key(key): _plain(below) for key, below in raw.items()}
    if isinstance(raw, (list, tuple)):
        return [_plain(below) for below in raw]
    if isinstance(raw, set):
        return sorted((_plain(below) for below in raw), key=str)
    return None if isinstance(raw, float) and not math.isfinite(raw) else _scalar(raw)


def _key(raw: Any) -> str:
    if raw is None or isinstance(raw, bool):
        return {None: "null", True: "true", False: "false"}[raw]
    return str(_scalar(raw))


def _scalar(raw: Any) -> Any:
    if isinstance(raw, (dt.date, dt.datetime)):
        return raw.isoformat()
    return b64encode(raw).decode() if isinstance(raw, bytes) else raw


def _line_at(node: Any, path: Path) -> int:
    """The line of what is at ``path``, or of the deepest there is above it."""
    line = 1 if node is None else _line_of(node)
    for step in path:
        below = node.value if node is not None and isinstance(node.value, list) else []
        found = [pair for pair in below if isinstance(pair, tuple) and pair[0].value == step]
        if found:
            key, node = found[0]
            line = _line_of(key)
        elif isinstance(step, int) and step < len(below) and not isinstance(below[step], tuple):
            node = below[step]
            line = _line_of(node)
        else:
            break
    return line
