"""How ``oslo status`` shows what it was told: rooms with their sockets, counters, the nodes of the directory.

What a room says of itself is JSON that may grow: sockets are the objects in it with a ``type`` and an ``endpoint``,
counters are in ``counts``; nothing else is expected to be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from broker.cli.screen import Screen
from broker.oslo.records import State

SOCKET_HEADS: Final = ("room", "socket", "endpoint", "in", "out", "waiting", "refused")
ROOM_HEADS: Final = ("room", "state", "listeners", "counters")
NODE_HEADS: Final = ("node", "pipeline", "endpoint", "listeners", "topics", "secrecy", "version")
_COUNTERS_SHOWN: Final = 12
"""Per room, the largest ones: a table is for a screen, ``--json`` has all."""
_OF_ROOMS: Final = frozenset(
    {"states", "records", "denied", "malformed", "other_version", "refused", "queries", "pending", "lapsed"}
)
_PARTS: Final = ("counts", "registry", "replica")
"""Where a room has its counters: some beside everything else, most in objects of these names."""
SILENT: Final = "no answer"


class NodeStatus(NamedTuple):
    """What was there at one time."""

    folder: str
    rooms: dict[str, dict[str, Any] | None]
    """Room -> what it says; None: it did not answer."""
    states: list[State] | None
    """What the directory knows; None: none answered."""

    @property
    def silent(self) -> list[str]:
        """Rooms that have a socket and do not answer."""
        return [room for room, said in self.rooms.items() if said is None]

    def value(self) -> dict[str, Any]:
        """For ``--json``."""
        nodes = None if self.states is None else [node_value(state) for state in self.states]
        return {"ipc_dir": self.folder, "rooms": self.rooms, "silent": self.silent, "nodes": nodes}

    def show(self, screen: Screen) -> None:
        """Print it: tables, or one JSON object."""
        if screen.as_json:
            screen.value(self.value())
            return
        screen.line(
            f"{self.folder}: {len(self.rooms) - len(self.silent)} of {len(self.rooms)} rooms answer", "bold"
        )
        sockets = [row for room, said in self.rooms.items() for row in socket_rows(room, said)]
        if sockets:
            screen.table(SOCKET_HEADS, sockets, _socket_style)
        screen.line("")
        screen.table(ROOM_HEADS, [room_row(room, said) for room, said in self.rooms.items()], _room_style)
        for endpoint in silent_uplinks(self.rooms.get("directory")):
            screen.line(
                f"no answer from the directory {endpoint}; the proxy's log says what was expected", "yellow"
            )
        screen.line("")
        if self.states is None:
            screen.line("no directory answers", "red")
        elif self.states:
            screen.table(NODE_HEADS, [node_row(state) for state in self.states])
        else:
            screen.line("the directory knows no node")


def sockets_in(said: Any) -> Iterator[dict[str, Any]]:
    """The sockets in what a room says, wherever they stand."""
    if isinstance(said, dict):
        if isinstance(said.get("type"), str) and isinstance(said.get("endpoint"), str):
            yield said
        else:
            for value in said.values():
                yield from sockets_in(value)
    elif isinstance(said, list):
        for value in said:
            yield from sockets_in(value)


def socket_rows(room: str, said: dict[str, Any] | None) -> list[tuple[str, ...]]:
    """A row of ``SOCKET_HEADS`` for each socket."""
    return [
        (
            room,
            each["type"],
            each["endpoint"],
            *(str(each.get(name, "")) for name in ("in", "out", "waiting", "refused")),
        )
        for each in sockets_in(said)
    ]


def silent_uplinks(said: dict[str, Any] | None) -> list[str]:
    """Other directories that this node's directory has no answer from.

    >>> silent_uplinks({"uplinks": [{"endpoint": "tcp://a:9500", "alive": False}, {"endpoint": "x", "alive": True}]})
    ['tcp://a:9500']
    """
    links = said.get("uplinks") if said is not None else None
    return [
        str(each.get("endpoint"))
        for each in (links if isinstance(links, list) else ())
        if isinstance(each, dict) and each.get("alive") is False and not each.get("closed")
    ]


def room_row(room: str, said: dict[str, Any] | None) -> tuple[str, ...]:
    """A row of ``ROOM_HEADS``."""
    if said is None:
        return (room, SILENT, "", "")
    listeners = said.get("listeners", "")
    if isinstance(listeners, (list, dict)):
        listeners = len(listeners)
    rejoining = said.get("rejoining", 0)
    state = f"waits for {rejoining} server processes" if rejoining else "up"
    return (room, state, str(listeners), counters(said))


def counters(said: dict[str, Any]) -> str:
    """What a room has counted, the most first.

    >>> counters({"counts": {"delivered": 3, "dropped_malformed": 1, "late": 0}})
    'delivered=3 dropped_malformed=1'
    """
    counts = {name: value for name, value in said.items() if name in _OF_ROOMS and value}
    for part in _PARTS:
        found = said.get(part)
        if isinstance(found, dict):
            counts.update({key: n for key, n in found.items() if n and type(n) is int and key != "version"})
    shown = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    more = len(shown) - _COUNTERS_SHOWN
    text = " ".join(f"{name}={value}" for name, value in shown[:_COUNTERS_SHOWN])
    return f"{text} (and {more} more)" if more > 0 else text


def node_row(state: State) -> tuple[str, ...]:
    """A row of ``NODE_HEADS``."""
    value = node_value(state)
    return (
        state.node,
        state.pipeline,
        state.endpoint or "this node only",
        str(value["listeners"]),
        str(value["topics"]),
        "CURVE" if state.key else "plaintext",
        str(state.version),
    )


def node_value(state: State) -> dict[str, Any]:
    """What one pipeline of one node offers, in figures."""
    return {
        "node": state.node,
        "pipeline": state.pipeline,
        "endpoint": state.endpoint,
        "key": state.key,
        "incarnation": state.incarnation,
        "version": state.version,
        "listeners": len({record.listener for record in state.records if record.listener}),
        "topics": len({(record.exchange, record.topic) for record in state.records}),
    }


def _socket_style(row: Sequence[str]) -> str:
    return "yellow" if row[5] not in ("", "0") else ""


def _room_style(row: Sequence[str]) -> str:
    return "red" if row[1] == SILENT else ""
