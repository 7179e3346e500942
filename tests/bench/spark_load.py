"""A made-up load as bronze: calls of many clients at some ranks, a few of which make most of them, and events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.delta import PARTITION
from gateway.pipeline import schema
from gateway.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    import numpy as np

NORESPONSE, STREAMING = 0x04, 0x40
"""Flags of RFC 3."""
SPAN_S: Final = 3600
"""Time that the load takes."""
BEGIN_NS: Final = 1_769_850_000 * 10**9
"""2026-01-31 09:00 UTC."""
CLIENTS: Final = 2000
ZIPF: Final = 1.3
"""The first client makes a quarter of the calls, the second a tenth, ..."""
TAGS: Final = 1024
"""A client uses its matchtags in turn."""
TOPICS: Final = 40
LATENCY_NS: Final = 2_000_000
"""Mean of the first topic; the last one takes five times as long."""
STREAMS: Final = 0.02
LOST: Final = 0.001
UNWANTED: Final = 0.005
"""Parts of the calls that are streams of three responses, that nobody answers, and that want no answer."""
_SEED: Final = 7
_REQUEST, _RESPONSE, _EVENT = range(3)


def make_up(warehouse: Warehouse, calls: int, ranks: int, files: int = 16) -> int:
    """Fill an empty warehouse, with clients at so many ranks; returns the rows: about two and a half a call."""
    import numpy as np
    import pyarrow as pa

    warehouse.ready()
    columns, made = _columns(calls, ranks), []
    total = len(columns["ts_ns"])
    for number in range(files):
        part = slice(total * number // files, total * (number + 1) // files)
        rows = _rows(
            {name: values[part] for name, values in columns.items()}, np.arange(part.start + 1, part.stop + 1)
        )
        rows |= {PARTITION: np.full(part.stop - part.start, np.datetime64("2026-01-31"))}
        made += warehouse.write_rows(
            schema.MESSAGES.name, pa.Table.from_pydict(rows, schema=schema.MESSAGES.arrow(partition=True))
        )
    warehouse.add_bronze(warehouse.at(schema.MESSAGES.name), made, {})
    return total


def _columns(calls: int, ranks: int) -> dict[str, np.ndarray]:
    """Time, what it is, client, rank, tag, topic, flags and errnum of all rows, by rank and time."""
    import numpy as np

    rng = np.random.default_rng(_SEED)
    weights = 1.0 / np.arange(1, CLIENTS + 1) ** ZIPF
    client = rng.choice(CLIENTS, calls, p=weights / weights.sum())
    asked = BEGIN_NS + np.sort(rng.integers(0, SPAN_S * 10**9, calls))
    topic = rng.integers(0, TOPICS, calls)
    tag = _turns(client) % TAGS + 1
    kind = rng.random(calls)
    stream, lost = kind < STREAMS, (kind >= STREAMS) & (kind < STREAMS + LOST + UNWANTED)
    flags = np.where(stream, STREAMING, np.where(kind >= STREAMS + LOST, np.where(lost, NORESPONSE, 0), 0))
    took = (rng.exponential(LATENCY_NS, calls) * (1 + 4 * topic / TOPICS)).astype(np.int64)
    answered = np.flatnonzero(~lost)
    again = np.flatnonzero(stream)
    which = np.concatenate([answered, again, again])
    later = np.repeat([0, 1, 2], [len(answered), len(again), len(again)])
    ends = np.where(stream[which], (later == 2) * 61, (rng.random(len(which)) < LOST) * 2)
    events = calls // 2
    parts = {
        "ts_ns": (
            asked,
            asked[which] + took[which] * (1 + later),
            np.sort(BEGIN_NS + rng.integers(0, SPAN_S * 10**9, events)),
        ),
        "what": (np.full(calls, _REQUEST), np.full(len(which), _RESPONSE), np.full(events, _EVENT)),
        "client": (client, client[which], np.zeros(events, np.int64)),
        "tag": (tag, tag[which], np.zeros(events, np.int64)),
        "topic": (topic, topic[which], np.full(events, TOPICS)),
        "flags": (flags, np.zeros(len(which), np.int64), np.zeros(events, np.int64)),
        "word": (np.full(calls, 0xFFFFFFFF), ends, np.arange(1, events + 1)),
    }
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    columns["rank"] = columns["client"] % ranks
    order = np.lexsort((columns["ts_ns"], columns["rank"]))
    return {name: values[order] for name, values in columns.items()}


def _turns(client: np.ndarray) -> np.ndarray:
    """How many calls each client made before each of these."""
    import numpy as np

    order = np.argsort(client, kind="stable")
    counts = np.bincount(client, minlength=CLIENTS)
    turn = np.empty(len(client), np.int64)
    turn[order] = np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts, counts)
    return turn


def _rows(columns: dict[str, np.ndarray], seq: np.ndarray) -> dict[str, Any]:
    """The columns of bronze."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    what, client, ts_ns = columns["what"], columns["client"], columns["ts_ns"]
    names = pa.array([f"svc{number % 8}.method{number}" for number in range(TOPICS)] + ["heartbeat.pulse"])
    topic = names.take(pa.array(columns["topic"]))
    peers = pa.array([f"client-{number}" for number in range(CLIENTS)] + ["provider"])
    origins = pa.array([f"{number:08x}-0000-4000-8000-{number:012x}" for number in range(CLIENTS)])
    sender = np.where(what == _RESPONSE, CLIENTS, client)
    event = what == _EVENT
    size = len(seq)
    rows: dict[str, Any] = dict.fromkeys(schema.MESSAGES.arrow().names, pa.nulls(size))
    rows |= {
        "seq": seq,
        "ts": pa.array(ts_ns // 1000).cast(pa.timestamp("us", "UTC")),
        "ts_ns": ts_ns,
        "rank": columns["rank"],
        "writer": pc.binary_join_element_wise("rank", pa.array(columns["rank"]).cast(pa.string()), ""),
        "run": pc.utf8_lpad(pa.array(columns["rank"]).cast(pa.string()), 32, "0"),
        "capture": pa.repeat("in", size),
        "peer": peers.take(pa.array(sender)),
        "peer_id": sender + 1,
        "role": pa.repeat("client", size),
        "via_role": pa.array(["client", "client", ""]).take(pa.array(what)),
        "via_id": np.zeros(size, np.int64),
        "transport": pa.array(["unix", "curve", "websocket"]).take(pa.array(client % 3)),
        "direction": pa.repeat("in", size),
        "reason": np.zeros(size, np.int32),
        "kind": pa.repeat("flux", size),
        "type": pa.array(["request", "response", "event"]).take(pa.array(what)),
        "flags": columns["flags"].astype(np.int32),
        "userid": np.where(what == _RESPONSE, 500, 1000 + client % 50),
        "claimed": np.full(size, 0xFFFFFFFF),
        "rolemask": np.full(size, 2),
        **{
            name: pa.array(columns["word"], mask=what != kind)
            for name, kind in (("nodeid", _REQUEST), ("errnum", _RESPONSE), ("event_seq", _EVENT))
        },
        "matchtag": columns["tag"],
        "topic": topic,
        "service": pc.list_element(pc.split_pattern(topic, ".", max_splits=1), 0),
        "origin": pc.if_else(pa.array(event), None, origins.take(pa.array(client))),
        "routes": (~event).astype(np.int32),
        "payload_len": 16 + client % 200,
        "wire_len": 80 + client % 200,
    }
    types = {field.name: field.type for field in schema.MESSAGES.arrow()}
    return {
        name: pa.array(values, types[name]) if not isinstance(values, pa.Array) else values.cast(types[name])
        for name, values in rows.items()
    }
