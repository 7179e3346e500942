"""Asks every broker for its counters, again and again; each on its own, so that a silent one delays nobody.

What happened between two rounds is marked: a broker that answers no more, or again; the broker of the gateway lost, or
back. What a broker does not count, flux-core's or an older one, it is not asked for again before the next join. The
tree and its health are asked for while somebody looks: each broker answers for itself and its direct children.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from broker.errors import HeadgateError, RpcError
from gateway.trends.answers import Answer, Figures
from gateway.trends.calls import Calls
from gateway.trends.ranks import GONE, Ranks
from gateway.trends.rings import Rings

if TYPE_CHECKING:
    from gateway.upstream.trunk import Trunk
    from gateway.upstream.upstream import Upstream

log = logging.getLogger("headgate")

LOOK_S: Final = 1.0
IDLE_S: Final = 10.0
"""From one round to the next while somebody looks, and while nobody does."""
WATCHED_S: Final = 60.0
"""So long after a question somebody looks."""
LATE_S: Final = 3.0
FRESH_S: Final = 1.5
"""Whoever looks later than that after others did waits for the next round, so long at most."""
ANSWER_S: Final = 2.0
"""A broker that takes longer is silent."""
CALLS_EVERY: Final = 2
HEALTH_EVERY: Final = 2
SHAPE_EVERY: Final = 16
"""Rounds from one question to the next: for calls by method, which is a large one, for health, for the tree."""
ROUND_S: Final = 0.4
"""So long a round waits for those that answer at once, once for each question; the others come into the next one."""
STATS: Final = "broker.stats-get"
CALLS: Final = "broker.calls"
OVERLAY: Final = ("overlay", -1)
TURNS: Final = 64
"""Brokers asked in one round; of more each has its turn."""
ASKED_AT_ONCE: Final = 64
"""Questions about the tree at a time."""
ODD: Final = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What an answer of another form than expected raises."""
UNKNOWN: Final = "These brokers do not count calls: Headgate's do."


class Collector:
    """Fills ``rings``, ``ranks`` and ``calls``.

    Args:
        rings: get the figures; None: charts are not kept, and nobody is asked while nobody looks. behind: the brokers.
        own: figures of the gateway itself, at each round.
        wall: seconds since 1970. clock: monotonic seconds.
    """

    def __init__(
        self,
        rings: Rings | None,
        behind: Upstream,
        own: Callable[[], Figures],
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.ranks = Ranks()
        self.calls = Calls()
        self.overlay = Overlay(self.ranks, behind, clock)
        self._rings = rings
        self._behind = behind
        self._own = own
        self._wall = wall
        self._clock = clock
        self._silent: set[int] = set()
        self._join: int | None = None
        self._unknown: set[tuple[str, int]] = set()
        self._round = 0
        self._turn: dict[str, int] = {}
        self._looks = 0
        self._latest: Figures = {}
        self._under_way: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._watched = -WATCHED_S
        self._seen = -LATE_S
        self._round_ended = asyncio.Event()
        self._somebody = asyncio.Event()

    def note_watcher(self) -> None:
        """Somebody looks at the figures: for ``WATCHED_S`` rounds are a second apart."""
        self._watched = self._clock()
        self._somebody.set()

    async def wait_fresh(self) -> None:
        """Somebody looks at the figures as they are now: where nobody did lately, wait for the next round."""
        self.note_watcher()
        if self._clock() - self._seen >= LATE_S:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FRESH_S):
                    await self._round_ended.wait()

    @property
    def why(self) -> str:
        """Why calls are not told; "" where a broker tells, or may still."""
        asked = range(self._behind.size)
        return UNKNOWN if asked and all((CALLS, rank) in self._unknown for rank in asked) else ""

    async def run(self) -> None:
        """Collect until it is cancelled."""
        while True:
            began = self._clock()
            self._somebody.clear()
            busy = self._busy
            try:
                if busy or self._rings is not None:
                    await self.collect()
            except Exception:  # charts are no reason to end a gateway
                log.exception("collecting figures failed")
            if busy:
                await asyncio.sleep(max(0.1, LOOK_S - (self._clock() - began)))
                continue
            self._looks = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_S if self._rings is not None else None):
                    await self._somebody.wait()

    @property
    def _busy(self) -> bool:
        return self._clock() - self._watched < WATCHED_S

    async def collect(self) -> None:
        """One round."""
        second, busy = int(self._wall()), self._busy
        figures = self._own()
        asked = self._behind.asked
        self._note_upstream()
        if asked is not None:
            figures |= await self._ask_all(asked, second, busy)
        if self._rings is not None:
            self._rings.put(second, figures)
        self._round += 1
        if busy:
            self._seen = self._clock()
            self._round_ended.set()
            self._round_ended = asyncio.Event()

    def _note_upstream(self) -> None:
        joined = self._behind.joined
        before, self._join = self._join, self._behind.joins if joined else 0
        if before == self._join or (before is None and joined):
            return
        reason = f": {self._behind.reason}" if not joined and self._behind.reason else ""
        self._mark(f"the gateway {'has its broker again' if joined else 'lost its broker'}{reason}")
        self._unknown.clear()
        self._latest = {}
        self._looks = 0
        self.ranks.clear()
        self.calls.clear()

    def _mark(self, text: str) -> None:
        if self._rings is not None:
            self._rings.mark(self._wall(), text)

    # -- asking ------------------------------------------------------------------------------------

    async def _ask_all(self, asked: Trunk, second: int, busy: bool) -> Figures:
        ranks = self._turns(STATS)
        calls = (self._looks if busy else self._round) % CALLS_EVERY == 0
        if busy:
            self._look_at_tree(asked)
        for rank in ranks:
            self._begin((STATS, rank), self._ask_stats(asked, rank))
        await self._wait()  # so that a round trip times the way, and no more
        if calls:
            for rank in self._turns(CALLS):
                self._begin((CALLS, rank), self._ask_calls(asked, rank))
            await self._wait()
            self._latest = self.calls.count(second)
        return self.ranks.figures() | self._latest

    def _turns(self, topic: str) -> list[int]:
        """The brokers that are asked now: the next ones, of each question for itself."""
        size = self._behind.size
        at = self._turn.get(topic, 0)
        asked = [(at + number) % size for number in range(min(size, TURNS))]
        self._turn[topic] = (at + len(asked)) % size if size else 0
        return asked

    def _look_at_tree(self, asked: Trunk) -> None:
        if self._looks % HEALTH_EVERY == 0:
            shape = self._looks % SHAPE_EVERY == 0 or bool(self.overlay.why)
            self._begin(OVERLAY, self.overlay.look(asked, shape=shape))
        self._looks += 1

    async def _wait(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=ROUND_S)

    def _begin(self, key: tuple[str, int], work: Coroutine[Any, Any, None]) -> None:
        if key in self._under_way or key in self._unknown:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=f"{key[0]} of {key[1]}")
        self._under_way[key] = task
        task.add_done_callback(lambda _done: self._under_way.pop(key, None))

    async def _ask_stats(self, asked: Trunk, rank: int) -> None:
        began = self._clock()
        self.ranks.note_asked(rank, began)
        self.ranks.count_question(rank, self._behind.rank)
        try:
            answer = (await asked.rpc(STATS, {"detail": True}, nodeid=rank, timeout_s=ANSWER_S)).json()
            now = self._clock()
            self.ranks.take(rank, answer, now, (now - began) * 1000)
        except (HeadgateError, TimeoutError, *ODD) as error:
            self._note_failure(STATS, rank, error)
        else:
            self._mark_answering(rank, True)

    async def _ask_calls(self, asked: Trunk, rank: int) -> None:
        self.ranks.count_question(rank, self._behind.rank)
        try:
            answer: Answer = (await asked.rpc(CALLS, {}, nodeid=rank, timeout_s=ANSWER_S)).json()
            self.calls.take(rank, answer, self._clock(), int(self._wall()))
        except (HeadgateError, TimeoutError, *ODD) as error:
            self._note_failure(CALLS, rank, error)

    def _note_failure(self, topic: str, rank: int, error: Exception) -> None:
        if isinstance(error, RpcError) and error.errno in (errno.ENOSYS, errno.EPERM):
            self._unknown.add((topic, rank))
            if topic == STATS:
                self.ranks.note_failure(rank, "", answered=True)
            return
        self.calls.forget(rank)
        if topic == STATS and self._behind.asked is not None:
            text = str(error) if isinstance(error, HeadgateError) else "its answer is odd"
            late = isinstance(error, TimeoutError)
            self.ranks.note_failure(rank, "" if late else text, answered=not late)
            self._mark_answering(rank, False)

    def _mark_answering(self, rank: int, answers: bool) -> None:
        if answers and rank in self._silent:
            self._silent.discard(rank)
            self._mark(f"rank {rank} answers again")
        elif not answers and rank not in self._silent:
            self._silent.add(rank)
            self._mark(f"rank {rank} does not answer")

    async def stop(self) -> None:
        """Ask no more."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Overlay:
    """Fills ``ranks``.

    Args:
        behind: the brokers. clock: monotonic seconds.

    Attributes:
        hostlist: names of the hosts by rank, as RFC 29 writes them; "" where brokers do not tell.
        why: why the shape is not known; "" where it is.
    """

    def __init__(self, ranks: Ranks, behind: Upstream, clock: Callable[[], float]) -> None:
        self.hostlist = ""
        self.why = ""
        self._ranks = ranks
        self._behind = behind
        self._clock = clock
        self._few = asyncio.Semaphore(ASKED_AT_ONCE)

    async def look(self, asked: Trunk, *, shape: bool) -> None:
        """Once; a broker that is silent delays nobody's figures, but the end of this."""
        if shape:
            await self._shape(asked)
        # a broker without states is worth showing, too
        self._ranks.state = await self._word(asked, "state-machine.get", {}, "state")
        root = next(
            (each.rank for each in self._ranks.ranks.values() if each.placed and each.parent is None), None
        )
        level = [root] if root is not None else []
        while level:
            await asyncio.gather(*(self._health(asked, rank) for rank in level))
            ranks = self._ranks.ranks
            below = [
                ranks[child]
                for rank in level
                if rank in ranks
                for child in ranks[rank].children
                if child in ranks
            ]
            level = [each.rank for each in below if each.children and each.status not in GONE]

    async def _ask(self, asked: Trunk, topic: str, payload: dict[str, Any], rank: int) -> dict[str, Any]:
        async with self._few:
            self._ranks.count_question(rank, self._behind.rank)
            answer: dict[str, Any] = (await asked.rpc(topic, payload, nodeid=rank, timeout_s=ANSWER_S)).json()
            return answer

    async def _shape(self, asked: Trunk) -> None:
        try:
            self._ranks.place(await self._ask(asked, "overlay.topology", {"rank": 0}, 0))
            self.why = ""
        except (HeadgateError, TimeoutError) as error:
            self.why = f"The brokers do not tell their tree: {str(error) or 'no answer'}"
        except ODD:
            self.why = "The brokers tell their tree in another way."
        # an old flux-core has none
        self.hostlist = await self._word(asked, "attr.get", {"name": "hostlist"}, "value")

    async def _word(self, asked: Trunk, topic: str, payload: dict[str, Any], key: str) -> str:
        """What the root broker answers under a key; "" where it does not."""
        try:
            return str((await self._ask(asked, topic, payload, 0)).get(key, ""))
        except (HeadgateError, TimeoutError, *ODD):
            return ""

    async def _health(self, asked: Trunk, rank: int) -> None:
        try:
            told = await self._ask(asked, "overlay.health", {}, rank)
            self._ranks.take_health({**told, "rank": rank}, self._clock())
        except (HeadgateError, TimeoutError, *ODD):
            return  # its figures say whether it answers
