"""Where the time of a ping goes: what each broker on its way saw of it (``headgate ping --trace``).

Every broker on the way is asked to tell of the ping as it passes (``overlay.trace``)::

    we ──link──> rank 0 ──link──> rank 1 ──link──> rank 3
                 rx  tx           rx  tx           rx      request
    we <──────── tx  rx <──────── tx  rx <──────── tx      response

Times of two clocks are never compared. A broker's time is the difference of two times of its own. A link's time is that
for which the near broker waited less that for which the far one had the ping: both ways together, for neither end can
tell one from the other. What a message waits in a queue in front of a link counts as the link's.

A flux-core broker tells of the tree's links alone: the first broker of a way is then shown as one with the link to it.
It tells times of day, which may be set while a ping is under way; ours tell those of a monotonic clock, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import statistics
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from broker.cli.screen import Row
from broker.client import Handle
from broker.client.calls import Stream
from broker.errors import RpcError
from broker.wire.message import REQUEST, RESPONSE

HEADS: Final = ("where", "there", "back", "both ms")
NONCE: Final = "headgate.trace"
"""Key of a ping's payload by which its records are known; a ping is answered with all that it said."""
_REFUSALS: Final = {
    errno.EPERM: "lets nobody but its owner trace",
    errno.ENOSYS: "has no trace, it is an older broker",
    errno.EHOSTUNREACH: "cannot be reached",
}
"""What to say when a broker on the way does not trace."""
Seen = dict[tuple[str, int], float]
"""When one broker saw a ping: (``rx`` or ``tx``, type) -> seconds by its clock."""


class Hop(NamedTuple):
    """One stretch of the way and the milliseconds it took; None where nobody can tell."""

    where: str
    there_ms: float | None
    back_ms: float | None
    both_ms: float | None

    def row(self) -> Row:
        """For people."""
        return (self.where, *("" if ms is None else f"{ms:.3f}" for ms in self[1:]))


def way(shape: Mapping[str, Any], start: int, end: int) -> list[int]:
    """The ranks from ``start`` to ``end`` through the tree of an ``overlay.topology`` answer.

    >>> way({"rank": 0, "children": [{"rank": 1, "children": [{"rank": 3}]}, {"rank": 2}]}, 3, 2)
    [3, 1, 0, 2]
    """
    up, down = _below(shape, start), _below(shape, end)
    if not up or not down:
        raise RpcError(errno.EHOSTUNREACH, f"rank {end if up else start} is not in the tree")
    shared = sum(1 for _ in _same(up, down))
    return [*reversed(up[shared:]), *down[shared - 1 :]]


def _below(shape: Mapping[str, Any], rank: int) -> list[int]:
    """From the root of ``shape`` to ``rank``; nothing when it is not there."""
    if shape["rank"] == rank:
        return [rank]
    for child in shape.get("children", ()):
        found = _below(child, rank)
        if found:
            return [int(shape["rank"]), *found]
    return []


def _same(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    """How both begin."""
    count = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return one[: min(len(one), len(other)) if count is None else count]


def hops_of(ranks: Sequence[int], seen: Sequence[Seen], total: float) -> list[Hop]:
    """What was seen along ``ranks``, and the ``total`` seconds until the answer was here, as stretches of the way."""
    hops = []
    waited: float | None = total
    before = "here"
    for rank, times in zip(ranks, seen, strict=True):
        came, went = times.get(("rx", REQUEST)), times.get(("tx", REQUEST))
        back, left = times.get(("rx", RESPONSE)), times.get(("tx", RESPONSE))
        had, waits = _between(came, left), _between(went, back)
        if had is None and before == "here":  # a broker that does not tell of its clients
            hops.append(Hop(f"{before} - rank {rank}", None, None, _ms(_less(waited, waits or 0.0))))
        else:
            hops.append(Hop(f"{before} - {rank}", None, None, _ms(_less(waited, had))))
            own = had if (went, back) == (None, None) else _less(had, waits)
            hops.append(Hop(f"rank {rank}", _ms(_between(came, went)), _ms(_between(back, left)), _ms(own)))
        waited, before = waits, str(rank)
    if waited is not None:
        hops.append(Hop(f"{before} - service", None, None, _ms(waited)))
    return hops


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _less(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else whole - part


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def medians(runs: Sequence[Sequence[Hop]]) -> list[Hop]:
    """The median of each figure over several pings the same way."""
    return [
        Hop(same[0].where, *(_median([hop[at] for hop in same]) for at in (1, 2, 3)))
        for same in zip(*runs, strict=True)
    ]


def _median(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


class Trace:
    """The traces of one topic at every broker between here and a rank; open for the time of a block.

    Args:
        handle: where the pings start. topic: theirs. rank: of the broker they go to. timeout_s: for each answer.

    Attributes:
        ranks: the brokers on the way, the nearest first.
    """

    def __init__(self, handle: Handle, topic: str, rank: int, timeout_s: float | None) -> None:
        self._handle = handle
        self._topic = topic
        self._rank = rank
        self._timeout_s = timeout_s
        self._streams: list[Stream] = []
        self._stack = contextlib.AsyncExitStack()
        self.nonce = uuid.uuid4().hex
        self.ranks: list[int] = []

    async def __aenter__(self) -> Self:
        """Open them.

        Raises:
            RpcError: a broker on the way has no trace, or not for us.
        """
        ask = {"rank": 0}
        shape = await self._handle.rpc("overlay.topology", ask, nodeid=0, timeout_s=self._timeout_s)
        self.ranks = way(shape.json(), await self._handle.rank(), self._rank)
        wanted = {
            "typemask": REQUEST | RESPONSE, "topic_glob": self._topic, "nodeid": -1, "full": True, "clients": True,
        }  # fmt: skip
        async with contextlib.AsyncExitStack() as stack:
            for rank in self.ranks:
                stream = self._handle.stream("overlay.trace", wanted, nodeid=rank)
                self._streams.append(await stack.enter_async_context(stream))
            await self.take(-1)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def take(self, seq: int) -> list[Seen]:
        """What each broker saw of the ping ``seq``, which has been answered.

        Raises:
            RpcError: a broker does not trace. TimeoutError: one does not answer.
        """
        await asyncio.gather(*map(self._overtake, self.ranks))
        return [
            await self._read(rank, stream, seq)
            for rank, stream in zip(self.ranks, self._streams, strict=True)
        ]

    async def _overtake(self, rank: int) -> None:
        """What the trace of ``rank`` has said is here when a later question to the same service is answered."""
        with contextlib.suppress(RpcError):  # an answer, too
            await self._handle.rpc("overlay.ping", {}, nodeid=rank, timeout_s=self._timeout_s)

    async def _read(self, rank: int, stream: Stream, seq: int) -> Seen:
        seen: Seen = {}
        try:
            while stream.ready or stream.ended:
                told = (await anext(stream)).json()
                payload = told.get("payload")
                if isinstance(payload, dict) and (payload.get(NONCE), payload.get("seq")) == (
                    self.nonce,
                    seq,
                ):
                    seen[told["prefix"], told["type"]] = told.get("monotonic", told["timestamp"])
        except StopAsyncIteration:
            raise RpcError(errno.ENODATA, f"rank {rank} ended its trace") from None
        except RpcError as error:
            reason = _REFUSALS.get(error.errno, "does not trace")
            raise RpcError(error.errno, f"rank {rank} {reason}: {error}", topic="overlay.trace") from error
        return seen
