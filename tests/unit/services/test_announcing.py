"""service.announce and service.providers: what brokers tell each other of their clients' services, and how often."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.services.providers import GATHER_S, Providers
from broker.wire.message import NORESPONSE, UPSTREAM, Message
from tests.tables import for_each
from tests.unit.services.desk import GUEST, OWNER, REMOTE_OWNER, Client, Desk, value


def desk_of(rank: int, size: int = 4, **how: Any) -> Desk:
    return Desk(rank, size, [Providers], **how)


def child_of(desk: Desk, rank: int) -> Client:
    return desk.client(REMOTE_OWNER, kind=1, rank=rank)


def announce(child: Client, services: dict[str, list[int]], **more: Any) -> Message:
    rank = child.port.rank
    return child.ask("service.announce", {"services": services, **more}, nodeid=rank, flags=UPSTREAM)


def known(desk: Desk) -> dict[str, list[int]]:
    return value(desk.client(GUEST).ask("service.providers"))["services"]


def content(desk: Desk, message: Message) -> Any:
    assert (message.topic, message.nodeid) == ("service.announce", desk.context.rank)
    assert message.flags & (NORESPONSE | UPSTREAM) == UPSTREAM
    return json.loads(message.payload[:-1])["services"]


def said(desk: Desk, errnum: int = 0) -> list[Any]:
    """What the parent was told, taken out and answered."""
    asked = desk.parent.take_requests()
    told = [content(desk, message) for message in asked]
    for message in asked:
        desk.parent.answer(message, errnum=errnum)
    return told


# ---------------------------------------------------------------- who knows what


def test_a_broker_knows_its_clients_services_and_those_below():
    desk = desk_of(0)
    desk.client().ask("service.add", {"service": "calc"})
    assert announce(child_of(desk, 1), {"calc": [1, 3], "kvs": [3]}).errnum == 0
    assert known(desk) == {"calc": [0, 1, 3], "kvs": [3]}
    assert value(desk.client(GUEST).ask("service.stats-get")) == {"names": 2, "left_out": 0, "announced": 0}


def test_one_service_the_nearest_to_a_rank_first():
    desk, me = (desk := desk_of(0)), desk.client(GUEST)
    announce(child_of(desk, 1), {"calc": [1, 3]})
    announce(child_of(desk, 2), {"calc": [2]})
    one = {"service": "calc"}
    assert value(me.ask("service.providers", one)) == {"services": {"calc": [1, 2, 3]}, "nearest": 2}
    near = value(me.ask("service.providers", {**one, "rank": 3}))
    assert near == {"services": {"calc": [3, 1, 2]}, "nearest": 1}
    assert value(me.ask("service.providers", {"service": "no"})) == {"services": {}, "nearest": 0}
    for rank in (-1, 4):
        assert me.refused("service.providers", {**one, "rank": rank}) == (22, f"rank {rank}: expected 0 to 3")
    assert me.refused("service.providers", {"service": 5}) == (71, "")


def test_built_in_services_are_not_told():
    assert known(Desk()) == {}


@for_each(
    ("services", "text"),
    [
        ({"calc": [1]}, "calc is on rank 1"),
        ({"calc": [3, 1]}, "calc is on ranks 1, 3"),
        ({"calc": [1, 3, 4, 7, 8]}, "calc is on ranks 1, 3, 4 and 2 more"),
        ({"kvs": [1]}, ""),
    ],
)
def test_what_an_enosys_says_more(services, text):
    desk = desk_of(0, size=15)
    announce(child_of(desk, 1), services)
    answer = desk.client().refused("calc.add", {})
    assert answer == (38, "No service matching calc.add is registered" + (f" here: {text}" if text else ""))


def test_who_lies_costs_itself_only(caplog):
    desk = desk_of(0)
    one, two = child_of(desk, 1), child_of(desk, 2)
    announce(one, {"a": [1]})
    announce(two, {"b": [2]})
    assert announce(one, {"a": [2]}).errnum == 71
    assert known(desk) == {"b": [2]}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert two.refused("service.announce", {}, nodeid=2, flags=UPSTREAM)[0] == 71
    assert known(desk) == {}


def test_only_direct_children_announce():
    desk = desk_of(0)
    said = {"services": {"a": [3]}}
    assert desk.client().refused("service.announce", said)[0] == 1
    assert desk.client(GUEST).refused("service.announce", said) == (1, "Request requires owner credentials")
    text = "Unknown service method 'service.announce'"
    assert child_of(desk, 1).refused("service.announce", said, nodeid=3, flags=UPSTREAM) == (38, text)
    assert known(desk) == {}


def test_a_child_that_goes_takes_all_below_it_along():
    desk = desk_of(0)
    announce(child_of(desk, 1), {"a": [1, 3]})
    announce(child_of(desk, 2), {"a": [2]})
    desk.set_child(1, "lost")
    assert known(desk) == {"a": [2]}


# ---------------------------------------------------------------- what the parent is told


def test_the_parent_is_told_at_once_and_then_no_more_often_than_that():
    desk = desk_of(1)
    me = desk.client()
    me.ask("service.add", {"service": "a"})
    assert said(desk) == [{"a": [1]}]
    me.ask("service.add", {"service": "b"})
    announce(child_of(desk, 3), {"a": [3]})
    desk.advance(GATHER_S / 2)
    assert said(desk) == []
    desk.advance(GATHER_S / 2)
    assert said(desk) == [{"a": [1, 3], "b": [1]}]
    desk.advance(10)
    assert said(desk) == []
    assert desk.loop.timers == []


def test_a_thousand_changes_a_second_are_ten_messages():
    desk = desk_of(1)
    me = desk.client()
    told = []
    for _ in range(500):
        for word in ("add", "remove"):
            me.ask(f"service.{word}", {"service": "a"})
            desk.advance(0.001)
            told += said(desk)
    assert len(told) <= 1 / GATHER_S + 1
    desk.advance(2 * GATHER_S)
    told += said(desk)
    assert told[-1] == {}


def test_nothing_more_is_told_until_the_parent_answers():
    desk = desk_of(1)
    me = desk.client()
    me.ask("service.add", {"service": "a"})
    (first,) = desk.parent.take_requests()
    me.ask("service.add", {"service": "b"})
    desk.advance(10)
    assert desk.parent.requests == []
    desk.parent.answer(first)
    assert said(desk) == [{"a": [1], "b": [1]}]


def test_nothing_is_told_while_there_is_nothing_or_no_parent():
    desk = desk_of(1, state="join")
    desk.client().ask("service.add", {"service": "a"})
    assert said(desk) == []
    desk.enter("quorum")
    assert said(desk) == [{"a": [1]}]
    desk.enter("run")
    idle = desk_of(2)
    idle.enter("join")
    idle.enter("quorum")
    assert said(desk) == said(idle) == []


def test_a_parent_that_is_back_is_told_everything_again_even_nothing():
    desk = desk_of(1)
    me = desk.client()
    me.ask("service.add", {"service": "a"})
    (lost,) = desk.parent.take_requests()
    desk.enter("join")
    desk.parent.answer(lost, errnum=113)
    me.ask("service.remove", {"service": "a"})
    desk.advance(1)
    assert said(desk) == []
    desk.enter("quorum")
    assert said(desk) == [{}]


def test_a_parent_that_does_not_know_this_is_asked_once_a_join():
    desk = desk_of(1)
    me = desk.client()
    me.ask("service.add", {"service": "a"})
    assert said(desk, errnum=38) == [{"a": [1]}]
    me.ask("service.add", {"service": "b"})
    desk.enter("run")
    desk.advance(10)
    assert said(desk) == []
    assert known(desk) == {"a": [1], "b": [1]}
    desk.enter("join")
    desk.enter("quorum")
    assert said(desk) == [{"a": [1], "b": [1]}]


# ---------------------------------------------------------------- whatever happens

SIZE = 7


def parent(rank: int) -> int:
    return (rank - 1) // 2


class Grove:
    """A tree of desks; what a broker tells its parent arrives when the clock moves."""

    def __init__(self) -> None:
        self.desks = [desk_of(rank, SIZE) for rank in range(SIZE)]
        self.clients = [desk.client(OWNER) for desk in self.desks]
        self.links = {rank: child_of(self.desks[parent(rank)], rank) for rank in range(1, SIZE)}
        self.names: list[set[str]] = [set() for _ in range(SIZE)]
        self.away: set[int] = set()

    def change(self, rank: int, name: str) -> None:
        there = name in self.names[rank]
        self.clients[rank].ask(f"service.{'remove' if there else 'add'}", {"service": name})
        (self.names[rank].discard if there else self.names[rank].add)(name)

    def leave_or_come_back(self, rank: int) -> None:
        above = self.desks[parent(rank)]
        if rank in self.away:
            self.away.discard(rank)
            above.set_child(rank, "full")
            self.desks[rank].enter("quorum")
        else:
            self.away.add(rank)
            above.set_child(rank, "lost")
            self.desks[rank].enter("join")

    def pass_on(self, seconds: float) -> None:
        for rank in range(SIZE - 1, -1, -1):
            desk = self.desks[rank]
            for asked in desk.parent.take_requests() if rank else ():
                if rank not in self.away:
                    assert announce(self.links[rank], content(desk, asked)).errnum == 0
                    desk.parent.answer(asked)
            desk.advance(seconds)

    def below(self, rank: int) -> dict[str, set[int]]:
        """What there is at ``rank`` and below it, as far as it is reached."""
        found: dict[str, set[int]] = {name: {rank} for name in self.names[rank]}
        for child in range(1, SIZE):
            if parent(child) == rank and child not in self.away:
                for name, ranks in self.below(child).items():
                    found.setdefault(name, set()).update(ranks)
        return found


steps = st.one_of(
    st.tuples(st.just("change"), st.integers(0, SIZE - 1), st.sampled_from("abc")),
    st.tuples(st.just("leave_or_come_back"), st.integers(1, SIZE - 1)),
    st.tuples(st.just("pass_on"), st.sampled_from([0.0, GATHER_S / 3, GATHER_S])),
)


@given(st.lists(steps, max_size=25))
def test_each_broker_knows_exactly_what_is_below_it(actions):
    grove = Grove()
    for name, *arguments in actions:
        getattr(grove, name)(*arguments)
    for _ in range(8):
        grove.pass_on(GATHER_S)
    for rank, desk in enumerate(grove.desks):
        found = known(desk)
        assert {name: set(ranks) for name, ranks in found.items()} == grove.below(rank)
        assert all(len(ranks) == len(set(ranks)) for ranks in found.values())
