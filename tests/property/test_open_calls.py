"""Whatever is asked, answered, ended and lost: the tables of open calls agree, and at the end all of them are empty."""

from hypothesis import given
from hypothesis import strategies as st

from broker.wire.message import DELIMITER, NORESPONSE, STREAMING, encode_part
from tests.unit.routing.sim import Tree

SIZE = 3
FRONTS = (DELIMITER, encode_part(b"web-1") + DELIMITER, encode_part(b"web-2") + DELIMITER)
TOPICS = ("red.x", "red.y", "blue.sub.x", "probe.mute")
ASK = st.tuples(
    st.just("ask"),
    st.integers(0, 5),
    st.sampled_from(TOPICS),
    st.integers(0, 3),
    st.sampled_from(FRONTS),
    st.sampled_from((0, STREAMING, NORESPONSE)),
)
OTHER = st.tuples(
    st.sampled_from(("answer", "fail", "bye", "provide", "take_back", "leave", "join", "cut")),
    st.integers(0, 5),
    st.sampled_from(TOPICS),
    st.integers(0, 3),
    st.sampled_from(FRONTS),
    st.just(0),
)


class World:
    """A tree, its clients, and what they may do to each other."""

    def __init__(self):
        self.tree = Tree(SIZE)
        self.clients = [self.tree.client(rank) for rank in (0, 0, 1, 2)]
        self.provide(0, "red.x")
        self.provide(2, "blue.sub.x")

    def client(self, who):
        return self.clients[who % len(self.clients)]

    def ask(self, who, topic, tag, front, flags):
        self.client(who).ask(topic, tag=tag, front=front, flags=flags)

    def answer(self, who, _topic, which, *_, errnum=0):
        client = self.client(who)
        if client.requests:
            client.answer(client.requests[which % len(client.requests)], errnum=errnum)

    def fail(self, *args):
        self.answer(*args, errnum=61)

    def bye(self, who, topic, _tag, front, *_):
        self.ask(who, topic.rpartition(".")[0] + ".disconnect", 0, front, NORESPONSE)

    def provide(self, who, topic, *_):
        client = self.client(who)
        client.router.services.add(topic.partition(".")[0].encode(), client.port)
        client.router.invalidate()

    def take_back(self, who, topic, *_):
        client = self.client(who)
        client.router.services.remove(topic.partition(".")[0].encode(), client.port)
        client.router.invalidate()

    def leave(self, who, *_):
        self.client(who).leave()
        self.clients[who % len(self.clients)] = self.tree.client(self.client(who).rank.rank)

    def join(self, who, *_):
        if 1 + who % 2 not in self.tree.links:
            self.tree.join(1 + who % 2)

    def cut(self, who, *_):
        if 1 + who % 2 in self.tree.links:
            self.tree.cut(1 + who % 2)
            del self.tree.links[1 + who % 2]


@given(st.lists(st.one_of(ASK, ASK, OTHER), max_size=60))
def test_the_tables_agree_and_empty(operations):
    world = World()
    for name, *args in operations:
        getattr(world, name)(*args)
        world.tree.settle()
        world.tree.check_open_calls()
    for client in world.clients:
        client.leave()
    world.tree.settle()
    world.tree.check_open_calls()
    ports = [port for rank in world.tree.ranks for port in rank.router.ports]
    assert not any(port.pending for port in ports)
    open_calls = [key for port in ports for calls in port.to_answer for key in calls.open]
    assert all(key[-4:] == bytes(4) for key in open_calls)
