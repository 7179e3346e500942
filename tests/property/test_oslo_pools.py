"""Pools of listeners under any sequence of openings, ends, credit, messages and returns.

A model knows for each copy of a message (one for each pool that was meant) where it is: waiting, handed out, or lost.
"""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from broker.oslo.proxy.listeners import CREDIT_MAX, WaitingMessage
from tests.unit.oslo.proxy.pooling import Given, Hand

KEYS = [("nova", "a.info"), ("cinder", "a.info")]
POOLS = [None, "billing"]
LOSSES = ("lost_unknown", "lost_pool", "lost_full")


def is_part(some: list[bytes], of: list[bytes]) -> bool:
    """Whether ``some`` is left of ``of`` when others are taken out."""
    rest = iter(of)
    return all(each in rest for each in some)


class Listening:
    """What the model knows of a listener."""

    def __init__(self, pool: str | None, keys: list[tuple[str, str]], credit: int) -> None:
        self.pool = pool
        self.keys = keys
        self.allowed = credit
        self.attached = False
        self.unconfirmed: list[int] = []
        self.got: list[tuple[int, int]] = []


class PoolsMachine(RuleBasedStateMachine):
    listeners = Bundle("listeners")
    ended = Bundle("ended")
    given = Bundle("given")

    @initialize(msgs=st.integers(1, 8), size=st.integers(1, 1000))
    def begin(self, msgs: int, size: int) -> None:
        self.msgs, self.size = msgs, size
        self.hand = Hand(msgs, size)
        self.pools = self.hand.pools
        self.known: dict[str, Listening] = {}
        self.pool_of: dict[str, str | None] = {}
        self.keys_of: dict[str, list[tuple[str, str]]] = {}
        self.number = 0
        self.sizes: dict[int, int] = {}
        self.taken = 0  # copies that came in, requeued ones again
        self.delivered: Counter[tuple[int, str | None]] = Counter()
        self.allowed_times: Counter[tuple[int, str | None]] = Counter()
        self.owners: dict[str, object] = {}
        self.unknown_outcome = 0

    # ------------------------------------------------------------ inside

    def published(self, given: Given) -> None:
        for listener, message in given:
            here = self.known[listener]
            number = int(message.id)
            assert here.attached, "nobody hears that"
            assert here.allowed > 0, "more than its credit"
            here.allowed -= 1
            size = self.sizes[number]
            flying = sum(self.sizes[each] for each in here.unconfirmed)
            assert not here.unconfirmed or flying + size <= self.size, (
                "more unconfirmed bytes than its queue holds"
            )
            here.unconfirmed.append(number)
            here.got.append((number, 0))
            self.delivered[number, here.pool] += 1
            assert self.delivered[number, here.pool] <= self.allowed_times[number, here.pool], (
                "twice in one pool"
            )

    def message(self, key: tuple[str, str], size: int) -> WaitingMessage:
        self.number += 1
        self.sizes[self.number] = size
        return WaitingMessage(b"", b"%d" % self.number, size, key, b"%d" % self.number)

    def waiting_of(self, listener: str) -> list[bytes]:
        return [message.id for message in self.hand.listener(listener).queue]

    # ------------------------------------------------------------ listeners

    @rule(
        target=listeners,
        name=st.integers(0, 10**6),
        pool=st.sampled_from(POOLS),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3),
        credit=st.integers(0, 4),
        attached=st.booleans(),
    )
    def open(self, name: int, pool: str | None, keys: list[tuple[str, str]], credit: int, attached: bool):
        listener = f"l{name}"
        if listener in self.known:
            return multiple()
        self.hand.takes.pop(listener, None)
        if not attached:
            self.hand.takes[listener] = 0
        self.owners[listener] = object()
        here = self.known[listener] = Listening(pool, keys, credit)
        self.pool_of[listener], self.keys_of[listener] = pool, keys
        here.attached = attached
        assert self.hand.open(listener, pool, keys, credit, self.owners[listener]) == []
        return listener

    @rule(target=ended, listener=consumes(listeners))
    def close(self, listener: str) -> str:
        waited = self.waiting_of(listener)
        others = {each: self.waiting_of(each) for each in self.known if each != listener}
        here = self.known.pop(listener)
        self.unknown_outcome += len(here.unconfirmed)
        handouts = self.hand.close(listener)
        self.published(handouts)
        keys = {key for each in self.known.values() for key in each.keys}
        assert [key for key in KEYS if self.pools.listened(key)] == [key for key in KEYS if key in keys]
        for each, before in others.items():
            now = [message.id for name, message in handouts if name == each] + self.waiting_of(each)
            moved = now[: len(now) - len(before)]
            assert now[len(moved) :] == before, "not in front of what it had waiting"
            assert is_part(moved, waited), "moved out of order"
            assert not moved or self.known[each].pool == here.pool
        return listener

    @rule(listener=listeners)
    def reach(self, listener: str) -> None:
        self.known[listener].attached = True
        waited = self.waiting_of(listener)
        handouts = self.hand.resume(listener)
        self.published(handouts)
        assert [message.id for _name, message in handouts] == waited[: len(handouts)]

    @rule(listener=listeners, messages=st.integers(0, 5))
    def credit(self, listener: str, messages: int) -> None:
        here = self.known[listener]
        here.allowed = min(here.allowed + messages, CREDIT_MAX)
        del here.unconfirmed[:messages]
        waited = self.waiting_of(listener)
        handouts = self.hand.credit(listener, messages)
        self.published(handouts)
        assert [message.id for _name, message in handouts] == waited[: len(handouts)], "out of order"
        assert all(name == listener for name, _message in handouts)

    # ------------------------------------------------------------ messages

    @rule(
        target=given,
        key=st.sampled_from(KEYS),
        size=st.integers(0, 200),
        alive=st.lists(listeners, max_size=4),
        dead=st.lists(ended, max_size=2),
        strangers=st.integers(0, 1),
    )
    def take(
        self, key: tuple[str, str], size: int, alive: list[str], dead: list[str], strangers: int
    ) -> WaitingMessage:
        chosen = [*alive, *dead, *["stranger"] * strangers]
        message = self.message(key, size)
        meant = {self.pool_of[each] for each in chosen if each in self.pool_of}
        for pool in meant:
            self.allowed_times[self.number, pool] += 1
        doubled = self.pools.counts["doubled"]
        lost = sum(self.pools.counts[name] for name in LOSSES)
        waiting = self.pools.waiting()
        empty = {each for each in self.known if not self.waiting_of(each)}
        handouts = self.hand.take(message, chosen)
        self.published(handouts)
        assert empty.issuperset(name for name, _message in handouts), "overtook what waited"
        copies = len(handouts) + self.pools.waiting() - waiting
        lost = sum(self.pools.counts[name] for name in LOSSES) - lost
        assert copies + lost == len(meant) + strangers, "a copy vanished or appeared"
        assert self.pools.counts["doubled"] - doubled == len(alive) + len(dead) - len(meant)
        self.taken += len(meant) + strangers
        for pool in meant:
            if any(
                here.pool == pool and key in here.keys and self.roomy(name, size)
                for name, here in self.known.items()
            ):
                waits = sum(
                    message.id in self.waiting_of(name)
                    for name, here in self.known.items()
                    if here.pool == pool
                )
                assert self.delivered[self.number, pool] + waits == 1, "lost although there was room"
        return message

    @rule(listener=listeners, size=st.integers(0, 100), messages=st.integers(2, 8))
    def flood(self, listener: str, size: int, messages: int) -> None:
        for _ in range(messages):
            self.take(self.known[listener].keys[0], size, [listener], [], 0)

    def roomy(self, listener: str, size: int) -> bool:
        """Whether there would be room for one more of that size even now, with the message in some queue."""
        member = self.hand.listener(listener)
        return len(member.queue) < self.msgs and member.queue_bytes < self.size

    @rule(listener=st.one_of(listeners, ended), message=given)
    def requeue(self, listener: str, message: WaitingMessage) -> None:
        pool = self.pool_of[listener]
        number = int(message.id)
        if message.key not in self.keys_of[listener]:
            assert self.hand.requeue(listener, message, self.owners[listener]) is None
            return
        self.allowed_times[number, pool] += 1
        self.taken += 1
        before = {each: self.waiting_of(each) for each in self.known}
        handouts = self.hand.requeue(listener, message, self.owners[listener])
        assert handouts is not None
        self.published(handouts)
        for each, waited in before.items():
            after = self.waiting_of(each)
            assert after in (waited, [*waited, message.id]), "not at the end"
            if after != waited:
                assert self.known[each].pool == pool
        assert self.hand.requeue(listener, message, object()) is None

    # ------------------------------------------------------------ always

    @invariant()
    def nothing_is_lost_uncounted(self) -> None:
        if not hasattr(self, "pools"):
            return
        counts = self.pools.counts
        lost = sum(counts[name] for name in LOSSES)
        assert counts["handed"] + self.pools.waiting() + lost == self.taken
        assert counts["handed"] == sum(self.delivered.values())
        assert counts["unconfirmed"] == self.unknown_outcome

    @invariant()
    def queues_are_bounded_and_drained(self) -> None:
        if not hasattr(self, "pools"):
            return
        for name, here in self.known.items():
            member = self.hand.listener(name)
            assert len(member.queue) <= self.msgs
            assert member.queue_bytes == sum(message.size for message in member.queue)
            largest = max((message.size for message in member.queue), default=0)
            assert member.queue_bytes - largest < self.size or len(member.queue) <= 1
            assert member.credit == here.allowed
            assert list(member.flying) == [self.sizes[number] for number in here.unconfirmed]
            if member.queue and here.attached and here.allowed and not here.unconfirmed:
                raise AssertionError("something waits although its listener has room")
            for message in member.queue:
                assert message.key in here.keys, "waits for one that does not listen there"


TestPools = PoolsMachine.TestCase
AS_EVER = TestPools.settings
TestPools.settings = settings(AS_EVER, max_examples=25)


@pytest.mark.patient
class TestManyPools(PoolsMachine.TestCase):
    """The same for longer."""

    settings = AS_EVER
