"""Peers in this process: order, commits, the end; and the channel over them."""

import asyncio

import pytest

from broker.errors import ConfigError, LinkClosed
from broker.nfp.names import Command, Sender
from broker.nfp.principal import of_flux
from tests.live.nfp import ready, reply, request, running, section, workers_of
from tests.unit.nfp.server.stage import until

HOLDER = of_flux(1000, 2)


class Receiver:
    """See ``peer.channel.Receiver``."""

    def __init__(self):
        self.log = []

    def on_connect(self, broker, opened):
        self.log.append(("connected", opened))

    def on_packet(self, packet):
        self.log.append(("received", packet))

    def on_disconnect(self, why):
        self.log.append(("lost", why))

    def kinds(self):
        return [kind for kind, _ in self.log]


def test_a_job_from_here_to_here(rundir):
    """A client of a userid and a worker in this process: nobody needs a socket."""

    async def story():
        async with running(section(rundir, files="")) as broker:
            came, got = [], []
            worker = broker.local_peer(of_flux(0, 1), "here-worker", came.append)
            client = broker.local_peer(HOLDER, "here-client", got.append, frozenset({"push"}))
            worker.submit(ready())
            client.submit(request(Command.POST, "u1"))
            await until(lambda: came)
            for status in (201, 200):
                worker.submit(reply(came[0], status, b'{"w":1}'))
            await until(lambda: got and got[-1].status == 200)
            assert [packet.status for packet in got if packet.command is Command.RESPONSE][-1] == 200
            assert broker.dispatcher.find("u1", 0.0).holder == "uid:1000"
            client.close()
            assert client.send(request(Command.POST, "u2")) is False
            client.submit(request(Command.POST, "u3"))
            await asyncio.sleep(0.02)
            assert broker.dispatcher.find("u3", 0.0) is None

    asyncio.run(story())


def test_packets_wait_for_their_commit(rundir):
    async def story():
        async with running(section(rundir, files="", store=False)) as broker:
            got = []
            peer = broker.local_peer(HOLDER, "here", got.append)
            first, second, third = (request(Command.POST, uuid) for uuid in "abc")
            peer.send(first)
            peer.send(second, after=3)
            peer.send(third)
            await asyncio.sleep(0.01)
            assert got == [first]
            broker.turn.commit_done(3)
            await asyncio.sleep(0)
            assert got == [first, second, third]

    asyncio.run(story())


def test_names_here_are_nobody_elses(rundir, caplog):
    async def story():
        async with running(section(rundir, files="")) as broker:
            peer = broker.local_peer(HOLDER, "here", print)
            with pytest.raises(ConfigError, match="here"):
                broker.local_peer(HOLDER, "here", print)
            for address in (
                "1.2.3.4",
                "1.2.3.4",
                "1.2.3.5",
            ):  # who tries again for ever is told of now and then
                assert broker.ingress.authenticate(b"here", "K" * 40, address) is None
            assert [text.split(":")[0] for text in caplog.messages if "refused" in text] == [
                "1.2.3.4",
                "1.2.3.5",
            ]
            peer.close()
            assert broker.ingress.authenticate(b"here", "K" * 40, "1.2.3.4") is not None

    asyncio.run(story())


def test_who_breaks_the_rules_here_is_cut_too(rundir):
    async def story():
        async with running(section(rundir, files="", invalid_max=1)) as broker:
            lost = []
            peer = broker.local_peer(HOLDER, "here", print)
            peer.on_lost = lost.append
            broker.ingress.drop(peer, "forged", "twice", 0.0)
            broker.ingress.drop(peer, "forged", "twice", 0.0)
            await until(lambda: lost)
            assert not peer.alive

    asyncio.run(story())


def test_the_name_of_a_channel_is_nobody_elses_before_it_is_open_and_between_two_peers(rundir):
    async def story():
        async with running(section(rundir, files="")) as broker:
            channel = broker.local_channel("here", Sender.WORKER)
            assert not broker.name_owners.fits("here", "")
            receiver = Receiver()
            channel.start(receiver, dict)
            await until(lambda: receiver.log)
            broker.locals["here"].cut("to see")
            assert "here" not in broker.locals
            assert not broker.name_owners.fits("here", "")
            await channel.close()

    asyncio.run(story())


def test_a_channel_opens_and_carries(rundir):
    async def story():
        async with running(section(rundir, files="")) as broker:
            receiver = Receiver()
            channel = broker.local_channel("here", Sender.WORKER)
            assert not channel.send(ready())
            channel.start(receiver, lambda: {"features": ["jobs"], "credits": 2})
            await until(lambda: receiver.log)
            assert receiver.log[0][1]["broker"] == "headgate"
            assert channel.send(ready())
            await until(lambda: [one for one in workers_of(broker) if one.name == "here"])
            (view,) = workers_of(broker)
            assert (view.credits, view.features) == (2, {"jobs"})
            await channel.writable()
            await channel.close()
            with pytest.raises(LinkClosed):
                await channel.writable()
            assert receiver.kinds() == ["connected"]

    asyncio.run(story())


def test_a_channel_begins_anew_after_disconnect(rundir):
    async def story():
        async with running(section(rundir, files="")) as broker:
            receiver = Receiver()
            channel = broker.local_channel("here", Sender.WORKER)
            channel.start(receiver, dict)
            await until(lambda: receiver.log)
            channel.send(ready())
            channel.send(ready())  # one too many
            await until(lambda: receiver.kinds().count("connected") == 2)
            assert receiver.kinds() == ["connected", "lost", "connected"]
            channel.reopen("for a test")
            await until(lambda: receiver.kinds().count("connected") == 3)
            await channel.close()

    asyncio.run(story())


def test_a_channel_learns_that_the_broker_stops(rundir):
    async def story():
        receiver = Receiver()
        async with running(section(rundir, files="")) as broker:
            channel = broker.local_channel("here", Sender.CLIENT)
            channel.start(receiver, lambda: {"features": ["push"]})
            await until(lambda: receiver.log)
        assert receiver.kinds() == ["connected", "lost"]
        assert not channel.send(request(Command.POST, "u1"))
        await channel.close()

    asyncio.run(story())


def test_a_receiver_that_fails_is_its_own_problem(rundir, caplog):
    async def story():
        async with running(section(rundir, files="")) as broker:
            came = []

            def broken(packet):
                came.append(packet)
                raise ValueError("broken")

            peer = broker.local_peer(HOLDER, "here", broken)
            for uuid in "ab":
                peer.send(request(Command.POST, uuid))
            await until(lambda: len(came) == 2)
            assert peer.alive
        assert caplog.text.count("broke its receiver") == 2

    asyncio.run(story())
