"""Where the time of a ping goes: the way through the tree, and figures of which none compares two clocks."""

import asyncio
import errno
from types import SimpleNamespace

import pytest

from broker.cli.ping import Hop, Trace, hops_of, medians, way
from broker.errors import RpcError
from broker.wire.message import REQUEST, RESPONSE
from tests.tables import for_each

TREE = {
    "rank": 0,
    "children": [
        {"rank": 1, "children": [{"rank": 3, "children": []}, {"rank": 4, "children": []}]},
        {"rank": 2, "children": [{"rank": 5, "children": []}]},
    ],
}


@for_each(
    ("start", "end", "ranks"),
    [
        (0, 0, [0]),
        (0, 3, [0, 1, 3]),
        (3, 0, [3, 1, 0]),
        (3, 4, [3, 1, 4]),
        (4, 5, [4, 1, 0, 2, 5]),
        (4, 4, [4]),
        (1, 4, [1, 4]),
    ],
)
def test_the_way(start, end, ranks):
    assert way(TREE, start, end) == ranks


def test_no_way_to_a_rank_that_is_not_there():
    with pytest.raises(RpcError, match="rank 9 is not in the tree"):
        way(TREE, 0, 9)


def seen(clock, came=None, went=None, back=None, left=None):
    """Milliseconds by a clock of its own, in seconds."""
    times = {("rx", REQUEST): came, ("tx", REQUEST): went, ("rx", RESPONSE): back, ("tx", RESPONSE): left}
    return {key: clock + ms / 1000 for key, ms in times.items() if ms is not None}


def rows(hops):
    return [hop.row() for hop in hops]


def test_each_broker_by_its_own_clock_and_links_by_what_is_left():
    one = seen(5000.0, 0, 1, 8, 10)
    two = seen(77.0, 0, 0.5, 3.5, 4)
    three = seen(900.0, 0, left=2)
    assert rows(hops_of([0, 1, 3], [one, two, three], 0.012)) == [
        ("here - 0", "", "", "2.000"),
        ("rank 0", "1.000", "2.000", "3.000"),
        ("0 - 1", "", "", "3.000"),
        ("rank 1", "0.500", "0.500", "1.000"),
        ("1 - 3", "", "", "1.000"),
        ("rank 3", "", "", "2.000"),
    ]


def test_a_service_behind_the_last_broker():
    assert rows(hops_of([0], [seen(1.0, 0, 1, 5, 7)], 0.008))[1:] == [
        ("rank 0", "1.000", "2.000", "3.000"),
        ("0 - service", "", "", "4.000"),
    ]


def test_a_first_broker_that_does_not_tell_of_clients():
    far = seen(4.0, 0, left=1)
    assert rows(hops_of([0, 1], [seen(1.0, None, 1, 5), far], 0.006)) == [
        ("here - rank 0", "", "", "2.000"),
        ("0 - 1", "", "", "3.000"),
        ("rank 1", "", "", "1.000"),
    ]
    assert rows(hops_of([0], [{}], 0.006)) == [("here - rank 0", "", "", "6.000")]


def test_what_was_not_seen_is_a_gap():
    """A tracer that was too slow, a service that does not echo: no figure is made up."""
    one, far = seen(1.0, 0, 1, 8, 10), seen(4.0, 0)
    assert rows(hops_of([0, 1], [one, far], 0.012)) == [
        ("here - 0", "", "", "2.000"),
        ("rank 0", "1.000", "2.000", "3.000"),
        ("0 - 1", "", "", ""),
        ("rank 1", "", "", ""),
    ]


class Handle:
    """A tree of two of which rank 1 answers ``overlay.trace`` with ``errnum``."""

    def __init__(self, errnum):
        self.errnum = errnum

    async def rank(self):
        return 0

    async def rpc(self, topic, *_payload, **_how):
        if topic == "overlay.ping":
            raise RpcError(errno.ENOSYS)
        return SimpleNamespace(json=lambda: {"rank": 0, "children": [{"rank": 1}]})

    def stream(self, *_what, nodeid):
        return Stream(self.errnum if nodeid else 0)


class Stream:
    ready = 0

    def __init__(self, errnum):
        self.errnum = errnum
        self.ended = bool(errnum)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_error):
        self.left = True

    async def __anext__(self):
        raise StopAsyncIteration if self.errnum == errno.ENODATA else RpcError(self.errnum)


@for_each(
    ("errnum", "text"),
    [
        (errno.EPERM, "rank 1 lets nobody but its owner trace"),
        (errno.ENOSYS, "rank 1 has no trace, it is an older broker"),
        (errno.EHOSTUNREACH, "rank 1 cannot be reached"),
        (errno.EAGAIN, "rank 1 does not trace"),
        (errno.ENODATA, "rank 1 ended its trace"),
    ],
)
def test_a_broker_that_does_not_trace_is_named(errnum, text):
    async def script():
        async with Trace(Handle(errnum), "broker.ping", 1, 1.0):
            pass

    with pytest.raises(RpcError, match=text) as told:
        asyncio.run(script())
    assert told.value.errno == errnum


def test_medians():
    runs = [[Hop("rank 0", 1.0, None, n)] for n in (1.0, 5.0, 2.0)]
    assert medians(runs) == [Hop("rank 0", 1.0, None, 2.0)]
