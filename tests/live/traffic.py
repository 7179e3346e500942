"""Histories of messages as bronze rows, for the tests of tables: everything that makes matching hard, on purpose.

A history is what one or two brokers recorded: lists of dicts with the columns of bronze. ``histories`` draws
small ones with hypothesis; ``several`` puts many into one table, ranks told apart, so that one job of Spark
checks all of them.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from gateway.pipeline.schema import MESSAGES

MIDNIGHT_NS = 1_772_409_600 * 10**9
"""2026-03-02 00:00 UTC; histories lie around it."""
S = 10**9
NORESPONSE, PRIVATE, STREAMING = 0x04, 0x20, 0x40
WRAP = 0xFFFFFFFF
PROVIDERS = {"kvs": ("own", "broker"), "job": ("client", "provider-90"), "plain": ("parent", "rank 901")}
"""Service -> role and name of who serves it, peers from 90 on: the broker itself, a client, whoever is upstream."""
CLIENTS = {1: ("client", "client-1"), 2: ("client", "client-2"), 3: ("child", "rank 903")}
"""Who asks: the third one is a broker below, which passes on what its own clients ask."""

Row = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Writer:
    """One writer of one broker: numbers, runs, the clock."""

    rank: int = 0
    name: str = ""
    both: bool = False
    seq: int = 0
    now_ns: int = MIDNIGHT_NS
    run: str = ""
    rows: list[Row] = field(default_factory=list)
    sequence: int = 1

    def __post_init__(self) -> None:
        self.name = self.name or f"rank{self.rank}"
        self.restart()

    def restart(self) -> None:
        """A new run: numbers go on, peers and event numbers begin anew."""
        self.run = f"{self.rank:016x}{self.seq:016x}"

    def add(self, **values: Any) -> Row:
        """One record, now."""
        self.seq += 1
        row: Row = dict.fromkeys(MESSAGES.names)
        row |= {
            "seq": self.seq,
            "ts_ns": self.now_ns,
            "rank": self.rank,
            "writer": self.name,
            "run": self.run,
            "capture": "both" if self.both else "in",
        }
        row |= {
            "transport": "unix",
            "direction": "in",
            "reason": 0,
            "kind": "flux",
            "claimed": WRAP,
            "routes": 0,
        }
        row |= {"peer_id": 0, "via_id": 0, "payload_len": 0, "wire_len": 20}
        row |= values
        row["ts"] = _EPOCH + timedelta(microseconds=self.now_ns // 1000)
        row["dt"] = row["ts"].date()
        row["service"] = None if row["topic"] is None else row["topic"].partition(".")[0]
        self.rows.append(row)
        return row

    def state(self, topic: str, detail: dict[str, Any], **values: Any) -> Row:
        return self.add(kind="state", transport="none", topic=topic, detail=json.dumps(detail), **values)

    # -- flux ----------------------------------------------------------------------------------

    def message(self, type_name: str, client: int, **values: Any) -> Row:
        """A message of or for ``client``, a number from 1."""
        known = {
            "type": type_name,
            "flags": 0,
            "rolemask": 1,
            "matchtag": 0,
            "userid": 1000 + client % 3,
        }
        role, name = CLIENTS.get(client, ("client", f"client-{client}"))
        known |= {"peer": name, "peer_id": client, "role": role, "payload_len": client * 7}
        return self.add(**known | values)

    def request(self, client: int, tag: int, topic: str, flags: int = 0, **values: Any) -> None:
        """Accepted, and delivered to whoever serves it; or denied by the broker."""
        known: Row = {"matchtag": tag, "topic": topic, "flags": flags, "nodeid": WRAP}
        known |= {"origin": f"o{client}", "routes": 1}
        if values.get("direction") == "denied":
            self.message("request", client, **known | {"origin": None, "routes": 0} | values)
            return
        sent = self.message("request", client, **known | values | other_end(topic, "via"))
        if self.both and sent["origin"] is not None:
            out = {"direction": "out", **other_end(topic, "peer")}
            self.message("request", client, **known | values | out)

    def forbid(self, client: int, tag: int, topic: str, errnum: int) -> None:
        """The built-in service that was asked says that this client may not."""
        known: Row = {"matchtag": tag, "topic": topic, "nodeid": WRAP, "origin": f"o{client}", "routes": 1}
        self.message(
            "request",
            client,
            direction="denied",
            reason=errnum,
            claimed=client,
            **known | other_end(topic, "via"),
        )
        self.response(client, tag, topic, errnum, came=False)

    def response(self, client: int, tag: int, topic: str, errnum: int = 0, came: bool = True) -> None:
        """Of the provider, in and out again; or one that the broker made itself (``came`` False), which only
        went out.
        """
        known: Row = {"matchtag": tag, "topic": topic, "errnum": errnum, "userid": 500}
        role, name = CLIENTS.get(client, ("client", f"client-{client}"))
        if came:
            origin = {"origin": f"o{client}", "routes": 1, "via": name, "via_id": client, "via_role": role}
            self.message("response", 90, **known | origin | other_end(topic, "peer"))
        if self.both:
            self.message("response", client, direction="out", **known)

    def event(self, client: int, topic: str, sequence: int, flags: int = 0) -> None:
        known: Row = {"topic": topic, "flags": flags, "event_seq": sequence, "userid": 1000 + client % 3}
        self.message("event", client, **known)
        if self.both:
            self.message(
                "event",
                0,
                direction="out",
                delivered=client,
                claimed=client - 1,
                via_id=0,
                peer=None,
                role=None,
                **known | {"peer_id": 0},
            )


def other_end(topic: str, name: str) -> Row:
    """Who serves a topic, as the peer of a record or as its other end (``name``: peer or via)."""
    role, said = PROVIDERS[topic.partition(".")[0]]
    return {name: said, f"{name}_id": 90 + list(PROVIDERS).index(topic.partition(".")[0])} | {
        "role" if name == "peer" else "via_role": role
    }


Step = tuple[Any, ...]

_CLIENTS = st.integers(1, 3)
_TAGS = st.integers(0, 3)
_TOPICS = st.sampled_from(["kvs.get", "kvs.put", "job.list", "plain"])
_REFUSED = st.one_of(_TOPICS, st.just("job.disconnect"))
_FLAGS = st.sampled_from([0, 0, 0, STREAMING, STREAMING, NORESPONSE])
_ERRORS = st.sampled_from([0, 0, 0, 0, 1, 2, 61, 2**32 - 1])
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.just("request"), _CLIENTS, _TAGS, _TOPICS, _FLAGS),
        st.tuples(st.just("response"), _CLIENTS, _TAGS, _TOPICS, _ERRORS),
        st.tuples(st.just("response"), _CLIENTS, _TAGS, _TOPICS, _ERRORS),
        st.tuples(st.just("gave up"), _CLIENTS, _TAGS, _TOPICS, st.sampled_from([0, 113])),
        st.tuples(st.just("denied"), _CLIENTS, _TAGS, _REFUSED, st.sampled_from([1, 38, 255])),
        st.tuples(st.just("forbidden"), _CLIENTS, _TAGS, st.just("kvs.get"), st.sampled_from([1, 13])),
        st.tuples(st.just("unknown"), _CLIENTS, _TAGS, _TOPICS),
        st.tuples(
            st.just("event"),
            _CLIENTS,
            st.sampled_from([1, 1, 1, 0, 2, 5, -1, -3]),
            st.sampled_from([0, PRIVATE]),
        ),
        st.tuples(
            st.just("job"), st.integers(1, 2), st.sampled_from(["", "DISPATCHED", "FAILED", "COMPLETED"])
        ),
        st.tuples(st.just("notify"), st.sampled_from(["notification", "cast"]), _CLIENTS),
        st.tuples(
            st.just("state"),
            st.sampled_from(["drop", "gap", "link.down", "denied.link", "link.up"]),
            _CLIENTS,
        ),
        st.tuples(st.just("wait"), st.sampled_from([1_000, 40_000_000, 7 * S, 45 * S, -3 * S])),
        st.tuples(st.just("swap")),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    min_size=1,
    max_size=40,
)


@dataclass
class Player:
    """Plays steps into rows of one writer."""

    to: Writer
    event_at: int = WRAP - 2
    built_in: set[tuple[int, int]] = field(default_factory=set)
    """(client, tag) of calls to the broker's own services: nobody else answers them."""

    def play(self, steps: list[Step]) -> list[Row]:
        for name, *rest in steps:
            self.to.now_ns += 250_000
            getattr(self, name.replace(" ", "_"))(*rest)
        return self.to.rows

    def request(self, client: int, tag: int, topic: str, flags: int) -> None:
        self.to.request(client, tag, topic, flags)
        if topic.startswith("kvs."):
            self.built_in.add((client, tag))

    def response(self, client: int, tag: int, topic: str, errnum: int) -> None:
        own = topic.startswith("kvs.") or (not self.to.both and (client, tag) in self.built_in)
        self.to.response(client, tag, topic, errnum, came=not own)

    def forbidden(self, client: int, tag: int, topic: str, errnum: int) -> None:
        """In, and denied by the service."""
        self.request(client, tag, topic, 0)
        self.to.forbid(client, tag, topic, errnum)

    def gave_up(self, client: int, tag: int, topic: str, errnum: int) -> None:
        self.to.response(client, tag, topic, errnum, came=False)

    def denied(self, client: int, tag: int, topic: str, reason: int) -> None:
        transport = ("unix", "websocket", "curve")[client - 1]
        self.to.request(
            client, tag, topic, direction="denied", reason=reason, transport=transport, claimed=client
        )
        if self.to.both:
            self.to.message("response", client, direction="out", matchtag=tag, topic=topic, errnum=reason)

    def unknown(self, client: int, tag: int, topic: str) -> None:
        """A request whose origin did not fit."""
        self.to.request(client, tag, topic, origin=None)

    def event(self, client: int, step: int, flags: int) -> None:
        self.event_at = (self.event_at + step - 1) % WRAP + 1
        self.to.event(client, "hb", self.event_at, flags)

    def job(self, number: int, status: str) -> None:
        facts: Row = {
            "uuid": f"job{self.to.rank}-{number}",
            "worker": f"w{self.to.seq % 3}",
            "attempt": number,
        }
        if not status:
            facts |= {"service": "netbox", "task": "get", "client": "me"}
            del facts["worker"]
        else:
            facts["status"] = status
        self.to.add(kind="nfp", topic="nfp.netbox.POST", detail=json.dumps(facts), userid=None)

    def notify(self, what: str, client: int) -> None:
        facts = {
            "what": what,
            "exchange": "nova",
            "topic": "notifications",
            "priority": "info",
            "event_type": "up",
        }
        self.to.add(
            kind="oslo", topic="oslo.nova.notifications.info", detail=json.dumps(facts), payload_len=client
        )

    def state(self, topic: str, client: int) -> None:
        facts: Row = {
            "drop": {"peer": f"client-{client}", "events": client, "since_ns": 1},
            "gap": {"records": 3, "first": 1, "last": 3, "cause": "the writer died"},
            "link.down": {"peer": "x", "reason": "gone", "cause": "ended", "discarded": client - 1},
            "denied.link": {
                "address": "10.0.0.1",
                "uid": client,
                "errno": (13, 71)[client == 2],
                "reason": "no",
            },
            "link.up": {"peer": "x"},
        }[topic]
        self.to.state(topic, facts, peer=f"client-{client}", peer_id=client if topic == "drop" else 0)

    def wait(self, ns: int) -> None:
        """The clock goes on, or steps back."""
        self.to.now_ns += ns

    def swap(self) -> None:
        """The last two deliveries left in the other order."""
        out = [row for row in self.to.rows[-6:] if row["direction"] == "out" and row["run"] == self.to.run]
        if len(out) > 1:
            out[-1]["seq"], out[-2]["seq"] = out[-2]["seq"], out[-1]["seq"]

    def restart(self, lost: bool) -> None:
        """Another run; or the last record is lost."""
        if lost and self.to.rows:
            self.to.rows.pop()
        else:
            self.to.restart()


@st.composite
def histories(draw: st.DrawFn) -> tuple[bool, int, list[Step]]:
    """(capture = both, seconds until midnight, steps)."""
    return draw(st.booleans()), draw(st.sampled_from([0, 2, 50, 7200])), draw(STEPS)


def several(drawn: list[tuple[bool, int, list[Step]]]) -> list[Row]:
    """All rows of many histories, each under a rank of its own (every third with a rank 0 of events, told apart
    by run).
    """
    rows: list[Row] = []
    for number, (both, before_s, steps) in enumerate(drawn):
        writer = Writer(rank=number, both=both, now_ns=MIDNIGHT_NS - before_s * S)
        rows += Player(writer).play(steps)
    return rows


TREE = {3: 1, 1: 0, 2: 0}
"""Rank -> its parent, in a tree of four; a client of rank 0 serves ``job``."""
STEP_NS = 1_000_000
"""How long each step of a call takes in ``tree``: from a broker to the next one, and in the service."""


def tree(calls: int, base: int = 0, both: bool = False, clients: tuple[int, ...] = (2, 3)) -> list[Row]:
    """Calls of a client at each of these ranks, one behind the other, as all brokers that they pass record them.

    Args:
        calls: of each client. base: is added to ranks, so that several trees fit into one table.
        both: deliveries are recorded, too. clients: the ranks that they are at.
    """
    writers = {rank: Writer(rank=base + rank, both=both) for rank in range(4)}
    for number in range(calls):
        for rank in clients:
            way = [rank]
            while way[-1]:
                way.append(TREE[way[-1]])
            for writer in writers.values():  # their clocks do not agree
                writer.now_ns = MIDNIGHT_NS + number * S + rank * S // 10 + writer.rank * 7 * S
            _pass(writers, way, base, number % 100 + 1, 2 if number % 10 == 9 else 0)
    return [row for writer in writers.values() for row in writer.rows]


def _pass(writers: dict[int, Writer], way: list[int], base: int, tag: int, errnum: int) -> None:
    """One call along ``way``, answered by the service at the end of it."""
    asked: Row = {
        "type": "request",
        "topic": "job.list",
        "matchtag": tag,
        "flags": 0,
        "nodeid": WRAP,
        "rolemask": 1,
    }
    asked |= {"userid": 1000 + way[0], "origin": f"at{way[0]}", "payload_len": 10}
    for step, rank in enumerate([*way, *reversed(way)]):
        hop = step if step < len(way) else 2 * len(way) - 1 - step
        below = ("child", f"rank {base + way[hop - 1]}", 1 + way[hop - 1]) if hop else ("client", "asker", 50)
        above = ("parent", f"rank {base + way[hop + 1]}", 60) if rank else ("client", "server", 51)
        values = asked | {"routes": hop + 1}
        if step >= len(way):
            below, above = above, below
            values |= {"type": "response", "errnum": errnum, "nodeid": None, "userid": 500}
        writer = writers[rank]
        passed = writer.now_ns + step * STEP_NS
        writer.now_ns, before = passed, writer.now_ns
        for direction, (one, other) in {"in": (below, above), "out": (above, below)}.items():
            if direction == "in" or writer.both:
                writer.add(
                    direction=direction,
                    **values,
                    **dict(zip(("role", "peer", "peer_id"), one, strict=True)),
                    **dict(zip(("via_role", "via", "via_id"), other, strict=True)),
                )
        writer.now_ns = before


def busy(calls: int, clients: int = 50, seed: int = 1, *, streaming: float = 0.05) -> Iterator[Row]:
    """An orderly load: calls in flight at the same time, answered out of order, tags used again and again."""
    rng = random.Random(seed)
    writer = Writer(rank=1)
    flying: list[tuple[int, int, str, bool]] = []
    tags = dict.fromkeys(range(1, clients + 1), 0)
    for _ in range(calls):
        writer.now_ns += rng.randrange(1000, 200_000)
        client = rng.randrange(1, clients + 1)
        tags[client] = tags[client] % 1024 + 1
        stream = rng.random() < streaming
        call = (client, tags[client], rng.choice(["job.get", "job.put", "job.list"]), stream)
        writer.request(*call[:3], STREAMING if stream else 0)
        flying.append(call)
        while len(flying) > 20:
            client, tag, topic, stream = flying.pop(rng.randrange(len(flying)))
            for _ in range(2 if stream else 1):
                writer.now_ns += rng.randrange(1000, 50_000)
                writer.response(client, tag, topic, 0)
            if stream:
                writer.response(client, tag, topic, 61)
    yield from writer.rows


def arrow(rows: list[Row]) -> Any:
    """Rows as an Arrow table of bronze, ``dt`` among the columns."""
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=MESSAGES.arrow(partition=True))
