"""Who looks on while messages pass: what is noted, when it is told, and that nothing is left in the way."""

from broker.node.tracing import Tracing
from broker.routing.port import CHILD, PARENT
from broker.wire.message import EVENT, REQUEST, RESPONSE, control, event, response
from tests.tables import for_each
from tests.unit.node.desk import Desk, ask, run, ticks


class Watcher:
    """Keeps what it is told."""

    def __init__(self):
        self.passed = []

    def __call__(self, passed):
        self.passed.append(passed)

    @property
    def lines(self):
        return [(one.prefix, one.sender.name, one.message.type, one.message.topic) for one in self.passed]


def in_the_way(desk):
    """All that may stand between a link, or the own end, and the corridor."""
    broker = desk.broker
    ports = [port for port in broker.router.ports if port.link is not None]
    return (
        {port.link.receiver is not broker for port in ports},
        {port.send.__name__ for port in [*ports, broker.own]},
        [part.__name__ for part in (broker.answer, broker.publish, broker.calls.send)],
        broker.receiver is not broker,
    )


def test_a_call_through_the_tree_is_seen_at_both_links():
    async def script():
        desk = Desk(size=3, rank=0)
        tracing, watcher = Tracing(desk.broker), Watcher()
        before, child = desk.peer(name="me"), desk.peer(kind=CHILD, name="child")
        quiet = in_the_way(desk)
        tracing.watch_links(watcher, clients=False)
        later = desk.peer(name="later")
        before.say(ask("echo.x", 7, nodeid=1))
        assert watcher.passed == [], "told when it has left"
        later.say(ask("echo.y", 8, nodeid=1))
        await ticks()
        (first, second) = child.requests
        child.say(response(first), response(second), control(0))
        await ticks()
        assert watcher.lines == [
            ("tx", "child", REQUEST, "echo.x"),
            ("tx", "child", REQUEST, "echo.y"),
            ("rx", "child", RESPONSE, "echo.x"),
            ("rx", "child", RESPONSE, "echo.y"),
            ("rx", "child", 8, None),
        ]
        times = [one.now for one in watcher.passed]
        assert times == sorted(times)
        assert [before.errnums, later.errnums] == [[0], [0]]
        tracing.watch_links(None, clients=False)
        later.end()
        await ticks()
        assert in_the_way(desk) == quiet
        before.say(ask("echo.x", 9, nodeid=1))
        await ticks()
        assert len(watcher.passed) == 5

    run(script())


def test_links_of_clients_when_they_are_wanted_too():
    async def script():
        desk = Desk()
        tracing, watcher = Tracing(desk.broker), Watcher()
        me = desk.peer(name="me")
        tracing.watch_links(watcher, clients=True)
        new = desk.peer(name="new")
        me.say(ask("probe.x", 1))
        new.say(ask("probe.y", 2))
        await ticks()
        assert [line[:3] for line in watcher.lines] == [
            ("rx", "me", REQUEST), ("tx", "me", RESPONSE), ("rx", "new", REQUEST), ("tx", "new", RESPONSE),
        ]  # fmt: skip
        tracing.watch_links(watcher, clients=False)
        me.say(ask("probe.x", 3))
        await ticks()
        assert len(watcher.lines) == 4
        tracing.watch_links(watcher, clients=True)
        new.end()
        await ticks()
        assert list(tracing._sends) == [me.port], "nothing is kept of who went"

    run(script())


def test_events_on_every_link():
    async def script():
        desk = Desk(size=3, rank=1)
        tracing, watcher = Tracing(desk.broker), Watcher()
        parent, child = desk.peer(kind=PARENT, name="up"), desk.peer(kind=CHILD, name="down")
        tracing.watch_links(watcher, clients=False)
        child.say(event("a"))
        parent.say(event("b", sequence=1))
        await ticks()
        assert watcher.lines == [
            ("rx", "down", EVENT, "a"), ("tx", "up", EVENT, "a"), ("rx", "up", EVENT, "b"), ("tx", "down", EVENT, "b"),
        ]  # fmt: skip

    run(script())


def test_what_is_asked_later_is_answered_behind_what_was_told():
    """Whoever has the answer to a later question has all records of what came before."""

    async def script():
        desk = Desk()
        tracing, watcher = Tracing(desk.broker), Watcher()
        me, other = desk.peer(), desk.peer()
        tracing.watch_links(watcher, clients=True)
        me.say(ask("probe.x", 1))
        told_before = []
        desk.on_deliver = lambda message: told_before.append(len(watcher.passed))
        other.say(ask("probe.y", 2))
        assert told_before == [2], "although the loop had no turn"

    run(script())


def test_a_watcher_that_fails_ends_nobody(caplog):
    async def script():
        desk = Desk()
        tracing = Tracing(desk.broker)
        me = desk.peer()
        tracing.watch_links(lambda passed: 1 / 0, clients=True)
        me.say(ask("probe.x", 1))
        me.say(ask("probe.y", 2))
        await ticks()
        assert me.errnums == [0, 0]
        assert me.link.ended is None

    run(script())
    assert "telling of" in caplog.text


def test_what_built_in_services_get_and_say():
    async def script():
        desk = Desk()
        tracing, watcher = Tracing(desk.broker), Watcher()
        me = desk.peer(name="me", services=("svc",))
        quiet = in_the_way(desk)
        tracing.watch_services(watcher)
        tracing.watch_services(watcher)
        heard = []
        me.say(ask("probe.x", 1))
        desk.broker.calls.call("svc.do", None, heard.append, nodeid=0)
        await ticks()
        me.say(response(me.requests[0]))
        desk.broker.publish(event("news"))
        await ticks()
        assert watcher.lines == [
            ("rx", "broker", REQUEST, "probe.x"),
            ("tx", "broker", RESPONSE, "probe.x"),
            ("tx", "broker", REQUEST, "svc.do"),
            ("rx", "broker", RESPONSE, "svc.do"),
            ("tx", "broker", EVENT, "news"),
        ]
        assert len(heard) == 1
        tracing.watch_services(None)
        assert in_the_way(desk) == quiet
        me.say(ask("probe.x", 2))
        await ticks()
        assert len(watcher.lines) == 5
        assert me.errnums == [0, 0]

    run(script())


@for_each("twice", [False, True])
def test_nobody_to_begin_with(twice):
    async def script():
        desk = Desk()
        tracing = Tracing(desk.broker)
        desk.peer()
        quiet = in_the_way(desk)
        tracing.watch_services(None)
        tracing.watch_links(None, clients=twice)
        assert in_the_way(desk) == quiet

    run(script())
