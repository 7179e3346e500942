"""Keys change in a small tree inside this process: links stay, or end where they must."""

import asyncio
import contextlib

import pytest

from broker.errors import LinkClosed, LinkError, LinkRefused
from broker.node.assembly import Node
from broker.node.reload import Reload
from broker.transport import curve, registry, zeromq
from broker.transport.link import Options
from broker.wire.message import control
from tests.unit.node.desk import run, until
from tests.unit.node.keyed import Site
from tests.unit.node.overlay.trees import until as soon


class Family:
    """Rank 0 and its child, rank 1, over ipc with CURVE."""

    def __init__(self, rundir, size=2):
        self.site = Site(rundir, size)
        self.nodes: list[Node] = []
        self.reloads: list[Reload] = []
        self.exits: list[tuple[int, str]] = []

    def add(self, rank):
        node = Node(self.site.read(rank), leave=lambda reason, _code: self.exits.append((rank, reason)))
        self.nodes.append(node)
        self.reloads.append(Reload(node, lambda: self.site.read(rank)))
        return node

    async def __aenter__(self):
        for rank in range(len(self.site.shown)):
            await self.add(rank).start()
        return self

    async def __aexit__(self, *_exc):
        for node in reversed(self.nodes):
            await node.stop()

    async def again(self, *ranks):
        for rank in ranks or range(len(self.nodes)):
            await self.reloads[rank].now()

    def uuids(self):
        return [node.broker.router.uuid for node in self.nodes]

    async def ping(self, origin, target):
        done = asyncio.get_running_loop().create_future()
        self.nodes[origin].broker.calls.call("broker.ping", b"{}\0", done.set_result, nodeid=target)
        async with asyncio.timeout(5):
            return (await done).errnum

    async def reachable(self):
        return [await self.ping(0, 1), await self.ping(1, 0)]

    async def cut(self, rank):
        """The link of a child is lost, and the child knows: it has to come again under another uuid."""
        before = self.nodes[rank].broker.router.uuid
        self.nodes[rank].overlay._parent.drop("cut")
        await soon(lambda: self.nodes[rank].broker.router.uuid != before)

    async def back(self, rank):
        await soon(self.nodes[rank].overlay.joined)


@pytest.fixture(autouse=True)
def _every_line(caplog):
    caplog.set_level("INFO", "headgate")


def play(rundir, script, **more):
    async def main():
        async with Family(rundir, **more) as family:
            await script(family)

    run(main())


def holding(monkeypatch):
    """Children dial no more until the event is set: three times in vain would be a refusal, and no time to renew."""
    dial, go = registry.dial, asyncio.Event()

    async def late(uri, options):
        await go.wait()
        return await dial(uri, options)

    monkeypatch.setattr(registry, "dial", late)
    return go


async def knock(address, own, server):
    options = Options(extra={"curve": curve.CurveClient(own, server)}, connect_timeout_s=3.0)
    link = await zeromq.transport.dial(address, options)
    link.abort(LinkClosed("knocked"))


@pytest.mark.parametrize("rank", [0, 1], ids=["parent", "child"])
def test_the_three_steps_keep_the_link_and_what_comes_again_uses_the_new_key(rundir, rank):
    async def script(family):
        site, before, former = family.site, family.uuids(), family.site.shown[rank]
        new = site.announce(rank)[rank]
        await family.again()
        site.show(rank, new)
        await family.again(rank)
        assert await family.reachable() == [0, 0]
        site.settle()
        await family.again()
        assert await family.reachable() == [0, 0]
        assert family.uuids() == before
        door = site.addresses[0]
        with pytest.raises(LinkError):
            if rank:
                await knock(door, former, site.listed[0])
            else:
                await knock(door, site.shown[1], former.public_key)
        await family.cut(1)
        await family.back(1)
        assert await family.reachable() == [0, 0]
        (port,) = family.nodes[0].broker.router.children.values()
        assert port.link.peer.key == site.listed[1]
        assert family.nodes[1].broker.router.parent.link.peer.key == site.listed[0]
        await family.again()
        assert family.exits == []

    play(rundir, script)


def test_between_the_steps_a_child_finds_whichever_key_its_parent_has(rundir):
    async def script(family):
        site = family.site
        new = site.announce(0)[0]
        await family.again()
        for certificate in (site.shown[0], new):
            site.show(0, certificate)
            await family.again(0)
            await family.cut(1)
            await family.back(1)
            assert family.nodes[1].broker.router.parent.link.peer.key == certificate.public_key
        assert family.exits == []

    play(rundir, script)


def test_a_child_whose_key_is_revoked_is_cut_off_and_gives_up(rundir, caplog):
    async def script(family):
        family.site.listed[1] = curve.generate().public_key
        family.site.write()
        await family.again(0)
        await until(
            lambda: "lost connection to rank 1: its key has been taken out of [[hosts]]" in caplog.text
        )
        await until(lambda: family.exits)
        assert family.exits[0][0] == 1
        assert "ZAP 400" in family.exits[0][1]
        assert "keys of rank 1; 1 link ended" in caplog.text

    play(rundir, script)


def test_a_parent_whose_key_is_revoked_is_left(rundir, monkeypatch, caplog):
    async def script(family):
        new, go = curve.generate(), holding(monkeypatch)
        family.site.listed[0] = new.public_key
        family.site.write()
        await family.again(1)
        await until(lambda: "lost the parent: rank 0: its key has been taken out of [[hosts]]" in caplog.text)
        family.site.show(0, new)
        await family.again(0)
        go.set()
        await family.back(1)
        assert family.exits == []

    play(rundir, script)


def test_keys_that_come_while_a_child_is_being_refused_are_tried(rundir, monkeypatch):
    """A child that is refused with the keys of before does not give up when it has got others since."""

    async def main():
        family = Family(rundir)
        site = family.site
        dial, refused, go = registry.dial, asyncio.Event(), asyncio.Event()

        async def slow(uri, options):
            try:
                return await dial(uri, options)
            except LinkRefused:
                refused.set()
                await go.wait()
                raise

        monkeypatch.setattr(registry, "dial", slow)
        async with contextlib.AsyncExitStack() as stack:
            root = family.add(0)
            await root.start()
            stack.push_async_callback(root.stop)
            right = site.listed[0]
            site.listed[0] = curve.generate().public_key  # rank 1 expects somebody else
            site.write()
            child = family.add(1)
            starting = asyncio.get_running_loop().create_task(child.start())
            stack.push_async_callback(child.stop)
            await child.overlay.listening.wait()
            await refused.wait()
            site.listed[0] = right
            site.write()
            await family.again(1)
            go.set()
            async with asyncio.timeout(10):
                await starting
            assert child.overlay.joined()

    run(main())


def test_a_parent_whose_key_is_revoked_while_it_holds_our_hello_is_left(rundir, monkeypatch):
    async def main():
        family = Family(rundir)
        site = family.site
        async with contextlib.AsyncExitStack() as stack:
            root = family.add(0)
            await root.start()
            stack.push_async_callback(root.stop)
            children = root.overlay._children
            ready, children._ready = children._ready, lambda: False
            child = family.add(1)
            starting = asyncio.get_running_loop().create_task(child.start())
            stack.push_async_callback(child.stop)
            await until(lambda: children._held)
            new, go = curve.generate(), holding(monkeypatch)
            site.listed[0] = new.public_key
            site.write()
            await family.again(1)
            await until(lambda: not children._held)
            children._ready = ready
            site.show(0, new)
            await family.again(0)
            go.set()
            async with asyncio.timeout(10):
                await starting
            assert child.broker.router.parent.link.peer.key == new.public_key

    run(main())


def test_a_parent_whose_key_is_revoked_while_we_dial_it_is_left(rundir, monkeypatch, caplog):
    async def main():
        family = Family(rundir)
        site = family.site
        dial, reached, go = registry.dial, asyncio.Event(), asyncio.Event()

        async def slow(uri, options):
            link = await dial(uri, options)
            reached.set()
            await go.wait()
            return link

        async with contextlib.AsyncExitStack() as stack:
            root = family.add(0)
            await root.start()
            stack.push_async_callback(root.stop)
            child = family.add(1)
            monkeypatch.setattr(registry, "dial", slow)
            starting = asyncio.get_running_loop().create_task(child.start())
            stack.push_async_callback(child.stop)
            await reached.wait()
            new = curve.generate()
            site.listed[0] = new.public_key
            site.write()
            await family.again(1)
            site.show(0, new)
            await family.again(0)
            go.set()
            async with asyncio.timeout(10):
                await starting
            assert "keys have changed while we dialled" in caplog.text
            assert child.broker.router.parent.link.peer.key == new.public_key

    run(main())


def test_a_link_that_has_not_said_hello_is_ended_too(rundir, caplog):
    async def script(family):
        site = family.site
        options = Options(
            extra={"curve": curve.CurveClient(site.shown[2], site.listed[0])}, connect_timeout_s=3.0
        )
        link = await zeromq.transport.dial(site.addresses[0], options)
        ended = []
        link.start(Quiet(ended))
        link.send(control(0, 0))
        link.flush()
        await until(lambda: family.nodes[0].overlay._children._greetings)
        site.listed[2] = curve.generate().public_key
        site.write()
        await family.again(0)
        await until(lambda: ended)
        assert "its key has been taken out of [[hosts]]" in caplog.text

    async def main():
        family = Family(rundir, size=3)
        async with contextlib.AsyncExitStack() as stack:
            node = family.add(0)
            await node.start()
            stack.push_async_callback(node.stop)
            await script(family)

    run(main())


class Quiet:
    """A receiver that only remembers the end."""

    def __init__(self, ended):
        self.ended = ended

    def received(self, link, messages):
        pass

    def link_ended(self, link, error):
        self.ended.append(error)

    def link_choked(self, link, choked):
        pass
