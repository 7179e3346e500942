"""When a quiet peer of an older dialect is told that we live, and what becomes of its own keepalives."""

import pytest

from broker.node.overlay.liveness import Keepalives
from broker.wire.message import CONTROL, control, event
from tests.unit.node.desk import Desk, run, ticks

QUIET_S = 5.0


@pytest.fixture
def desk_and_peers():
    """Made inside a loop: (desk, a CMB1 peer, a peer of v1, keepalives)."""

    def make():
        desk = Desk()
        old, new = desk.peer(), desk.peer()
        old.port.cmb1 = True
        return desk, old, new, Keepalives(desk.broker, QUIET_S)

    return make


def alive(peer) -> int:
    return sum(message.type == CONTROL for message in peer.link.flushed)


async def swept(keepalives, desk, *times):
    for now in times:
        keepalives.sweep(now)
        await ticks()


def test_only_quiet_links_of_the_older_dialects_are_spoken_to(desk_and_peers):
    async def script():
        desk, old, new, keepalives = desk_and_peers()
        await swept(keepalives, desk, 0.0, 4.9)
        assert alive(old) == 0
        await swept(keepalives, desk, 5.0)
        assert (alive(old), alive(new), keepalives.sent) == (1, 0, 1)
        assert old.link.flushed[-1] == control(0)

    run(script())


def test_they_go_on_as_long_as_it_is_quiet(desk_and_peers):
    async def script():
        desk, old, _new, keepalives = desk_and_peers()
        await swept(keepalives, desk, *map(float, range(25)))
        assert alive(old) >= 3

    run(script())


def test_other_messages_do_as_well(desk_and_peers):
    async def script():
        desk, old, _new, keepalives = desk_and_peers()
        for now in range(0, 20, 2):
            old.port.send(event("news"))
            await swept(keepalives, desk, float(now))
        assert alive(old) == 0

    run(script())


def test_a_peer_that_has_still_to_read_needs_none(desk_and_peers):
    async def script():
        desk, old, _new, keepalives = desk_and_peers()
        old.link.full = True
        old.port.send(event("news"))
        await swept(keepalives, desk, 0.0, 10.0)
        old.link.drain()
        assert alive(old) == 0

    run(script())


def test_a_peer_that_left_is_forgotten(desk_and_peers):
    async def script():
        desk, old, _new, keepalives = desk_and_peers()
        await swept(keepalives, desk, 0.0)
        old.link.close()
        await ticks()
        await swept(keepalives, desk, 10.0)
        assert keepalives.sent == 0

    run(script())


def test_their_keepalives_are_counted_and_concern_nobody(desk_and_peers):
    async def script():
        desk, old, new, _keepalives = desk_and_peers()
        others = []
        desk.broker.on_control = lambda port, message: others.append(port)
        desk.broker.received(old.link, [control(0), control(0)])
        desk.broker.received(new.link, [control(0)])
        assert (old.port.received, desk.broker.router.counters.controls) == (2, 3)
        assert others == [new.port]

    run(script())
