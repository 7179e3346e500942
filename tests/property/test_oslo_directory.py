"""The directory: whatever is lost, restarted or mixed up, readers end up with what is really announced."""

from math import inf

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.oslo.directory.state import Replica, Server
from broker.oslo.directory.wire import DirectoryKind, DirectoryMessage, Gone, States, Welcome
from broker.oslo.records import Record, State
from tests.unit.oslo.directory.clouds import Registry

LEASE_S = 5.0
NODES = ("n1", "n2", "n3")
PIPELINES = ("call", "cast", "fanout", "notify")
TOPICS = ("t", "u")


def record_of(pipeline, number):
    topic = TOPICS[number % 2]
    if pipeline == "fanout":
        return Record("nova", topic)
    if pipeline == "notify":
        return Record("nova", topic, "", f"l{number}", None if number % 3 else "pool")
    return Record("nova", topic, f"s{number % 2}", f"l{number}")


class Cloud:
    """Pipelines, directories and one reader, with every delivery in the hands of the test."""

    def __init__(self, directories):
        self.now = 0.0
        self.clock = 0
        self.owned = {}
        self.alive = {}
        self.directories = [Registry(LEASE_S) for _ in range(directories)]
        self.incarnations = list(range(1, directories + 1))
        self.queues = [[] for _ in range(directories)]
        self.connected = [False] * directories
        self.replica = Replica()

    # -- pipelines

    def start(self, place):
        self.clock += 1
        self.owned[place] = State(*place, self.clock, 1, "")
        self.announce(place)

    def set_records(self, place, numbers, reach):
        if place not in self.owned:
            self.start(place)
        records = tuple(record_of(place[1], number) for number in sorted(numbers))
        state = self.owned[place]
        self.owned[place] = replace(state, version=state.version + 1, records=tuple(dict.fromkeys(records)))
        self.announce(place, reach)

    def announce(self, place, reach=(True,)):
        for at, registry in enumerate(self.directories):
            if reach[at % len(reach)]:
                self.heard(at, registry.announce("ipc", self.owned[place], self.now))

    def leave(self, place, reach):
        state = self.owned.pop(place, None)
        if state is not None:
            for at, registry in enumerate(self.directories):
                if reach[at % len(reach)]:
                    self.heard(at, registry.leave("ipc", state.beat, self.now))

    def beat(self, at):
        registry = self.directories[at]
        answer = registry.beat("ipc", [state.beat for state in self.owned.values()], self.now)
        self.heard(at, answer)
        if answer.unknown:  # it says HELLO, and after WELCOME everything
            for state in self.owned.values():
                self.heard(at, registry.announce("ipc", state, self.now))

    def heard(self, at, answer):
        self.queues[at] += answer.news if self.connected[at] else ()

    # -- directories and the reader

    def connect(self, at):
        self.connected[at] = True
        snapshot = [DirectoryMessage(DirectoryKind.WELCOME, Welcome("d", self.incarnations[at], LEASE_S))]
        snapshot += [
            DirectoryMessage(DirectoryKind.STATES, States((state,)))
            for state in self.directories[at].states()
        ]
        self.queues[at] = [*snapshot, DirectoryMessage(DirectoryKind.STATES, States((), complete=True))]

    def deliver(self, at, count):
        for _ in range(min(count, len(self.queues[at]))):
            self.replica.feed(f"d{at}", self.queues[at].pop(0), self.now)

    def lose(self, at):
        self.connected[at] = False
        self.queues[at].clear()
        self.replica.source_lost(f"d{at}")

    def restart(self, at):
        self.lose(at)
        self.directories[at] = Registry(LEASE_S)
        self.incarnations[at] += 1000

    def pass_time(self, seconds):
        self.now += seconds
        for at, registry in enumerate(self.directories):
            self.queues[at] += (
                registry.tick(self.now) if self.connected[at] else registry.tick(self.now) and ()
            )
        self.replica.tick(self.now)

    def settle(self):
        """All faults are over: everybody is connected, time passes, everything is delivered."""
        for at in range(len(self.directories)):
            self.connect(at)
        for _ in range(16):
            for at in range(len(self.directories)):
                self.beat(at)
                while self.queues[at]:
                    self.deliver(at, 1000)
            self.pass_time(1.0)
        for at in range(len(self.directories)):
            while self.queues[at]:
                self.deliver(at, 1000)


places = st.tuples(st.sampled_from(NODES), st.sampled_from(PIPELINES))
numbers = st.sets(st.integers(0, 7))
reach = st.sampled_from([(True, True, True), (True, True, False), (False, True, True), (False, False, False)])
at = st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("start"), places),
    st.tuples(st.just("set_records"), places, numbers, reach),
    st.tuples(st.just("leave"), places, reach),
    st.tuples(st.just("beat"), at),
    st.tuples(st.just("connect"), at),
    st.tuples(st.just("deliver"), at, st.sampled_from((1, 2, 5, 100))),
    st.tuples(st.just("lose"), at),
    st.tuples(st.just("restart"), at),
    st.tuples(st.just("pass_time"), st.sampled_from((0.3, 1.0, 2.0))),
)


def indexes_of(states):
    """What the lookups of a replica shall say, worked out the long way."""
    seats, nodes, pools = {}, {}, {}
    for state in states:
        for record in state.records:
            key = (record.exchange, record.topic)
            if state.pipeline == "fanout":
                nodes.setdefault(key, set()).add(state.node)
            elif state.pipeline == "notify":
                pools.setdefault(key, {}).setdefault(record.pool, set()).add((state.node, record.listener))
            else:
                seat = (record.server, record.listener, state.node)
                seats.setdefault(key, {}).setdefault(seat, set()).add(state.pipeline)
    servers = {
        key: tuple(sorted(Server(*seat, frozenset(how)) for seat, how in each.items()))
        for key, each in seats.items()
    }
    return (
        servers,
        {key: tuple(sorted(each)) for key, each in nodes.items()},
        {key: {pool: tuple(sorted(pairs)) for pool, pairs in each.items()} for key, each in pools.items()},
    )


def check_lookups(replica):
    servers, nodes, pools = indexes_of(replica.states())
    for topic in TOPICS:
        key = ("nova", topic)
        assert replica.servers(*key) == servers.get(key, ())
        assert replica.fanout_nodes(*key) == nodes.get(key, ())
        assert dict(replica.pools(*key)) == pools.get(key, {})
    assert len(replica._index.servers) == len(servers)
    assert len(replica._index.nodes) == len(nodes)
    assert len(replica._index.pools) == len(pools)


@given(st.integers(1, 3), st.lists(steps, min_size=15, max_size=60))
def test_readers_end_up_with_what_is_announced(directories, script):
    cloud = Cloud(directories)
    for number in range(directories):
        cloud.connect(number)
    for pipeline in ("call", "cast"):
        cloud.set_records(("n1", pipeline), {1, 2}, (True,))
    for number in range(directories):
        cloud.deliver(number, 100)
    known = 0
    for name, *values in script:
        if name in ("beat", "connect", "deliver", "lose", "restart"):
            values[0] %= directories
        getattr(cloud, name)(*values)
        check_lookups(cloud.replica)
        known = max(known, len(cloud.replica.states()))
    event(f"at most {known} states known")
    cloud.settle()
    truth = {place: (state.incarnation, frozenset(state.records)) for place, state in cloud.owned.items()}
    seen = {state.place: (state.incarnation, frozenset(state.records)) for state in cloud.replica.states()}
    assert seen == truth
    assert cloud.replica.synced
    check_lookups(cloud.replica)
    # nothing is left of what has been
    assert not cloud.replica._ended
    for source in cloud.replica._sources.values():
        if source is cloud.replica.here:
            continue
        assert source.claims.keys() == truth.keys()
        assert all(claim.until == inf for claim in source.claims.values())
        assert source.records == sum(len(state.records) for state in cloud.replica.states())
    for registry in cloud.directories:
        assert len(registry) == len(truth)
        assert registry.records == sum(len(records) for _incarnation, records in truth.values())


@given(
    st.lists(st.tuples(places, st.integers(1, 3), st.integers(1, 5), numbers), max_size=20),
    st.permutations((0, 1, 2)),
)
def test_the_order_between_sources_does_not_matter(told, order):
    def merged(order):
        replica = Replica()
        for source in order:
            replica.feed(f"d{source}", DirectoryMessage(DirectoryKind.WELCOME, Welcome("d", 1, LEASE_S)), 0.0)
        for source in order:
            for count, (place, incarnation, version, chosen) in enumerate(told):
                if count % 3 == source:
                    # equal ages are equal states: their owner numbers what it changes
                    records = tuple(
                        record_of(place[1], number) for number in sorted(chosen | {incarnation, version})
                    )
                    records = records if (incarnation, version) not in ages(told, place, count) else None
                    if records is not None:
                        state = State(*place, incarnation, version, "", "", tuple(dict.fromkeys(records)))
                        replica.feed(
                            f"d{source}", DirectoryMessage(DirectoryKind.STATES, States((state,))), 0.0
                        )
        return {state.place: state for state in replica.states()}

    assert merged(order) == merged((0, 1, 2))


def ages(told, place, before):
    return {(incarnation, version) for where, incarnation, version, _ in told[:before] if where == place}


@given(st.lists(st.tuples(st.sampled_from(("STATES", "GONE")), st.integers(0, 10**6)), max_size=300))
def test_nothing_grows_without_bound(script):
    replica = Replica(states_max=8, records_max=30)
    registry = Registry(LEASE_S, states_max=8, records_max=30)
    replica.feed("d", DirectoryMessage(DirectoryKind.WELCOME, Welcome("d", 1, LEASE_S)), 0.0)
    for now, (kind, number) in enumerate(script):
        place = (f"n{number}", "call")
        records = tuple(record_of("call", each) for each in range(number % 9))
        state = State(*place, 1, 1, "", "", records)
        registry.announce("tcp", state, now * 0.01)
        if kind == "STATES":
            replica.feed("d", DirectoryMessage(DirectoryKind.STATES, States((state,))), 0.0)
        else:
            replica.feed("d", DirectoryMessage(DirectoryKind.GONE, (Gone(*place, 1),)), 0.0)
    assert len(registry) <= 8
    assert registry.records == sum(len(state.records) for state in registry.states()) <= 30
    assert len(replica.states()) <= 8
    assert replica._sources["d"].records == sum(len(state.records) for state in replica.states()) <= 30
    assert len(replica._ended) <= 8
    assert len(registry.replica._no_room) <= 8
