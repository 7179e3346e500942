"""Records for the tests here, what clients said to a broker in the order of time; and what became of them."""

from broker.wire.decoding import from_parts
from broker.wire.message import Message, response
from gateway.pipeline.warehouse import Warehouse
from tests.live import oracle
from tests.live.gold import added, differences
from tests.live.segments import T0, Rec, flux, peer

PEERS = (peer(1, "unix:1"), peer(2, "unix:2"))
TOPICS = ("kvs.get", "job.list")
STEP_NS = 1000
"""Between two records."""


def request(topic: str, payload: bytes = b"{}", matchtag: int = 0, userid: int = 1000) -> Message:
    return from_parts(
        [
            b"origin-1",
            b"",
            topic.encode(),
            payload,
            bytes([0x8E, 1, 1, 0x0B])
            + userid.to_bytes(4, "big")
            + (1).to_bytes(4, "big")
            + (0xFFFFFFFF).to_bytes(4, "big")
            + matchtag.to_bytes(4, "big"),
        ]
    )


def said(count: int, first: int = 0, start_ns: int = T0) -> list[Rec]:
    """`count` requests of peer 1 for peer 2, one each microsecond."""
    return [
        flux(start_ns + index * STEP_NS, request(TOPICS[index % 2], matchtag=index + 1), peer=1, via=2)
        for index in range(first, first + count)
    ]


def talked(first: int, count: int) -> list[Rec]:
    """Calls of peer 1, each answered by peer 2."""
    found: list[Rec] = []
    for number in range(first, first + count, 2):
        asked = request("job.list", matchtag=number + 1)
        found.append(flux(T0 + number * 1000, asked, peer=1, via=2))
        found.append(flux(T0 + (number + 1) * 1000, response(asked, b"{}"), peer=2, via=1))
    return found


def seqs(warehouse: Warehouse) -> list[int]:
    return sorted(warehouse.scan("messages", ["seq"])["seq"].to_pylist())


def numbers(warehouse: Warehouse, job: str = "stream") -> list[int]:
    """The batches that `_runs` has of a job."""
    return sorted(row["batch_id"] for row in warehouse.scan("_runs").to_pylist() if row["job"] == job)


def adds_up(warehouse: Warehouse) -> None:
    """Gold is what plain Python makes of bronze."""
    rows = warehouse.scan("messages").to_pylist()
    assert differences("rpc", warehouse.scan("rpc").to_pylist(), oracle.rpc(rows)) == {
        "too much": [],
        "missing": [],
    }
    for name, keys, sums in (
        ("traffic", ("window", "rank", "direction", "topic", "type", "userid"), ("n", "wire_bytes")),
        ("rpc_latency", ("window", "rank", "topic", "le_ns"), ("n", "sum_ns")),
        ("user_usage", ("dt", "userid"), ("requests", "responses", "rpc_ns")),
    ):
        assert added(warehouse.scan(name).to_pylist(), keys, sums) == added(
            oracle.TABLES[name](rows), keys, sums
        )
