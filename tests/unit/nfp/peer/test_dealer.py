"""DealerChannel against a ROUTER by hand: OPEN, loss, DISCONNECT, failover, refusals."""

import asyncio
import errno
import json
import logging
import os
import socket
import threading

import pytest

from broker.errors import ConfigError, LinkClosed
from broker.nfp.frames import Packet, decode
from broker.nfp.names import Command, Sender
from broker.nfp.peer import dealer
from broker.nfp.peer.dealer import DealerChannel
from broker.nfp.targets import ANY
from broker.transport.curve import CurveClient, generate
from broker.transport.zeromq.dialing import open_connection
from tests.live.ports import free_endpoint
from tests.unit.nfp.peer.raw_broker import PATIENCE_S, RawBroker, until


class Story:
    """A Receiver that writes down what it is told."""

    def __init__(self):
        self.told = []
        self.fail_on = None

    def on_connect(self, broker, opened):
        self.told.append(("connected", broker, opened))

    def on_packet(self, packet):
        self.told.append(("received", packet))
        if self.fail_on is not None and packet.uuid == self.fail_on:
            raise RuntimeError("a receiver that fails")

    def on_disconnect(self, why):
        self.told.append(("lost", why))

    def kinds(self):
        return [each[0] for each in self.told]


def channel(*endpoints, ours=None, theirs="", **options):
    """`ours` is our certificate, `theirs` the public key of the brokers."""
    options.setdefault("curves", dict.fromkeys(endpoints, CurveClient(ours, theirs)) if ours else {})
    options.setdefault("open_timeout_s", 0.05)
    options.setdefault("failover_s", 0.1)
    return DealerChannel(endpoints, identity="c1", sender=Sender.CLIENT, **options)


def post(uuid="1", body=b"{}"):
    return Packet(Sender.CLIENT, Command.POST, service="s", target=ANY, uuid=uuid, body=body)


def test_open_is_answered_then_packets_go_both_ways():
    async def main():
        story, way = Story(), None
        with RawBroker() as broker:
            way = channel(broker.endpoint)
            way.start(story, lambda: {"name": "c1", "features": ["push"]})
            assert not way.send(post())
            assert await broker.take_open() == ("c1", {"name": "c1", "features": ["push"]})
            broker.answer_open("c1")
            await until(lambda: story.told)
            assert story.told[0][:2] == ("connected", broker.endpoint)
            assert story.told[0][2]["epoch"] == "e1"
            assert way.trouble == ""
            assert way.send(post("u1", b"x" * 100_000))
            assert len((await broker.take_only(Command.POST)).data) == 100_000
            broker.say("c1", Command.RESPONSE, service="s", uuid="u1", status=200, body=b"{}")
            await until(lambda: len(story.told) == 2)
            assert story.told[1][1].status == 200
            await way.close()
            await way.close()
        assert story.kinds() == ["connected", "received"]
        with pytest.raises(LinkClosed):
            await way.writable()

    asyncio.run(main())


def test_a_broker_without_open_is_used_after_the_timeout_and_upgraded_by_a_late_answer():
    async def main():
        story = Story()
        with RawBroker() as broker:
            way = channel(broker.endpoint)
            way.start(story, dict)
            await broker.take_open()
            broker.say("c1", Command.RESPONSE, service="s", uuid="early", status=200, body=b"{}")
            await until(lambda: len(story.told) == 2)
            assert story.told[0] == ("connected", broker.endpoint, None)
            assert story.told[1][1].uuid == "early"
            broker.answer_open("c1")
            await until(lambda: len(story.told) == 3)
            assert story.kinds() == ["connected", "received", "connected"]
            assert story.told[2][2]["broker"] == "headgate"
            await way.close()

    asyncio.run(main())


def test_another_epoch_and_reopen_begin_anew():
    async def main():
        story = Story()
        with RawBroker(opens=True) as broker:
            way = channel(broker.endpoint, open_timeout_s=PATIENCE_S)
            way.start(story, dict)
            await broker.take_open()
            broker.answer_open("c1")
            await until(lambda: story.kinds() == ["connected"])
            broker.answer_open("c1")  # the same epoch: nothing new
            broker.epoch = "e2"
            broker.answer_open("c1")
            await until(lambda: story.kinds() == ["connected", "lost"])
            await broker.take_open()
            broker.answer_open("c1")
            await until(lambda: story.kinds() == ["connected", "lost", "connected"])
            way.reopen("for a test")
            await broker.take_open()
            broker.answer_open("c1")
            await until(lambda: story.kinds()[3:] == ["lost", "connected"])
            assert story.told[3] == ("lost", "for a test")
            await way.close()

    asyncio.run(main())


def test_disconnect_begins_anew_and_one_before_the_conversation_does_not():
    async def main():
        story = Story()
        with RawBroker() as broker:
            way = channel(broker.endpoint, open_timeout_s=PATIENCE_S)
            way.start(story, dict)
            await broker.take_open()
            broker.say("c1", Command.DISCONNECT, service="s")
            broker.answer_open("c1")
            await until(lambda: story.kinds() == ["connected"])
            broker.say("c1", Command.DISCONNECT, service="s", body=b"restart")
            await until(lambda: story.kinds() == ["connected", "lost"])
            assert "DISCONNECT: restart" in story.told[1][1]
            await broker.take_open()
            # NorFab's own spelling: service and command exchanged
            broker.answer_open("c1")
            await until(lambda: story.kinds()[2:] == ["connected"])
            broker.sock.send_multipart([b"c1", b"", b"NFPB01", b"s", b"0x03"])
            await until(lambda: story.kinds()[3:] == ["lost"])
            await way.close()

    asyncio.run(main())


def test_a_killed_and_restarted_broker_is_found_again():
    async def main():
        story = Story()
        first = RawBroker()
        way = channel(first.endpoint, failover_s=0, open_timeout_s=PATIENCE_S)
        way.start(story, dict)
        await first.take_open()
        first.answer_open("c1")
        await until(lambda: story.kinds() == ["connected"])
        first.close()
        await until(lambda: story.kinds() == ["connected", "lost"])
        assert way.trouble
        assert not way.send(post())
        waiting = asyncio.get_running_loop().create_task(way.writable())
        with first.restarted() as second:
            await second.take_open()
            second.answer_open("c1")
            await waiting
            assert way.send(post("again"))
            assert (await second.take_only(Command.POST)).uuid == "again"
            await way.close()

    asyncio.run(main())


def test_silence_to_open_of_a_broker_that_used_to_answer_is_tried_on_new_connections_first():
    async def main():
        story = Story()
        with RawBroker() as broker:
            way = channel(broker.endpoint)
            way.start(story, dict)
            await broker.take_open()
            broker.answer_open("c1")
            await until(lambda: story.kinds() == ["connected"])
            way.reopen("for a test")
            await broker.take_open()  # unanswered: tried again
            await broker.take_open()
            broker.answer_open("c1")
            await until(lambda: story.kinds()[2:] == ["connected"])
            assert story.told[2][2] is not None
            way.reopen("for a test")
            for _ in range(4):
                await broker.take_open()
            await until(lambda: story.kinds()[4:] == ["connected"])
            assert story.told[4][2] is None
            await way.close()

    asyncio.run(main())


def test_the_next_broker_is_used_when_the_first_is_away_and_kept():
    async def main():
        story = Story()
        absent = free_endpoint()
        with RawBroker(opens=True) as second:
            way = channel(absent, second.endpoint)
            way.start(story, dict)
            await second.take_open()
            second.answer_open("c1")
            await until(lambda: story.told)
            assert story.told[0][1] == second.endpoint == way.broker
            with RawBroker(endpoint=absent):
                way.reopen("for a test")
                await second.take_open()
                assert way.broker == second.endpoint
            await way.close()

    asyncio.run(main())


def test_messages_that_are_none_and_receivers_that_fail_do_not_end_the_conversation(caplog):
    async def main():
        story = Story()
        story.fail_on = "bad"
        with RawBroker() as broker:
            way = channel(broker.endpoint)
            way.start(story, dict)
            await broker.take_open()
            await until(lambda: story.told)
            broker.sock.send_multipart([b"c1", b"nonsense"])
            broker.sock.send_multipart([b"c1", b"", b"NFPW01", b"0x02", b"s"])
            broker.sock.send_multipart([b"c1", b"", b"NFPB01", b"0x00", b"[]"])
            broker.say("c1", Command.RESPONSE, service="s", uuid="bad", status=200, body=b"{}")
            broker.say("c1", Command.RESPONSE, service="s", uuid="good", status=200, body=b"{}")
            await until(lambda: len(story.told) == 3)
            assert [each[1].uuid for each in story.told[1:]] == ["bad", "good"]
            assert way.traffic.invalid == 3
            await way.close()

    asyncio.run(main())
    assert "could not be handled" in caplog.text


def test_the_outbox_is_bounded_and_says_when_it_has_room(monkeypatch):
    monkeypatch.setattr(dealer, "OUT_MSGS", 1000)

    async def main():
        story = Story()
        with RawBroker() as broker:
            way = channel(broker.endpoint)
            way.start(story, dict)
            await broker.take_open()
            await until(lambda: story.told)
            sent = 0
            while way.send(post(str(sent))):
                sent += 1
            assert sent == 1000
            assert way.traffic.refused >= 1
            for number in range(sent):
                assert (await broker.take_only(Command.POST)).uuid == str(number)
            await way.writable()
            assert way.send(post("more"))
            assert (await broker.take_only(Command.POST)).uuid == "more"
            await way.close()

    asyncio.run(main())


def test_what_was_sent_before_close_arrives():
    async def main():
        story = Story()
        with RawBroker() as broker:
            way = channel(broker.endpoint)
            way.start(story, dict)
            await broker.take_open()
            await until(lambda: story.told)
            assert way.send(post("last"))
            await way.close()
            assert (await broker.take_only(Command.POST)).uuid == "last"

    asyncio.run(main())


def test_curve_works_and_a_wrong_key_of_the_broker_is_said_once(caplog):
    async def main():
        ours, theirs, other = generate(), generate(), generate()
        story = Story()
        with RawBroker(curve=theirs) as broker:
            wrong = channel(broker.endpoint, ours=ours, theirs=other.public_key, failover_s=0)
            wrong.start(story, dict)
            await until(lambda: "probably not" in wrong.trouble)
            assert other.public_key in wrong.trouble
            await until(lambda: wrong._brokers.current.hangups > 3)
            await wrong.close()
            assert story.told == []
            right = channel(broker.endpoint, ours=ours, theirs=theirs.public_key)
            right.start(story, dict)
            await broker.take_open()
            broker.answer_open("c1")
            await until(lambda: story.kinds() == ["connected"])
            await right.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    said = [each for each in caplog.records if "probably not" in each.getMessage()]
    assert len(said) == 1
    assert said[0].levelno == logging.ERROR


def test_curve_on_one_side_only_is_said():
    async def main():
        ours, theirs = generate(), generate()
        with RawBroker(curve=theirs) as broker, RawBroker() as plain:
            way = channel(broker.endpoint, failover_s=0)
            way.start(Story(), dict)
            await until(lambda: "CURVE" in way.trouble)
            await way.close()
            way = channel(plain.endpoint, ours=ours, theirs=theirs.public_key, failover_s=0)
            way.start(Story(), dict)
            await until(lambda: "CURVE" in way.trouble)
            await way.close()

    asyncio.run(main())


def test_configurations_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="1 to 64"):
        channel()
    with pytest.raises(ConfigError, match="different"):
        channel("tcp://127.0.0.1:1", "tcp://127.0.0.1:1")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        channel("tcp://127.0.0.1")
    with pytest.raises(ConfigError, match="name"):
        DealerChannel(["tcp://127.0.0.1:1"], identity="", sender=Sender.CLIENT, curves={})


def test_plaintext_off_this_machine_is_refused_and_said():
    async def main():
        way = channel("tcp://192.0.2.1:1", failover_s=0)
        way.start(Story(), dict)
        await until(lambda: "plaintext off loopback" in way.trouble)
        await way.close()

    asyncio.run(main())


def test_open_carries_the_body_of_the_moment():
    async def main():
        numbers = iter(range(9))
        with RawBroker() as broker:
            way = channel(broker.endpoint, open_timeout_s=PATIENCE_S)
            story = Story()
            way.start(story, lambda: {"n": next(numbers)})
            assert (await broker.take_open())[1] == {"n": 0}
            broker.answer_open("c1")
            await until(lambda: story.told)
            way.reopen("for a test")
            assert json.dumps((await broker.take_open())[1]) == '{"n": 1}'
            await way.close()

    asyncio.run(main())


def test_a_machine_without_descriptors_does_not_end_the_channel(monkeypatch, caplog):
    async def main():
        story = Story()
        made = []

        def scarce(*about):
            made.append(about)
            if len(made) == 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return open_connection(*about)

        monkeypatch.setattr(dealer, "open_connection", scarce)
        with RawBroker(opens=True) as broker:
            way = channel(broker.endpoint, open_timeout_s=PATIENCE_S)
            way.start(story, dict)
            await broker.take_open()
            broker.answer_open("c1")
            await until(lambda: story.kinds() == ["connected"])
            assert "Too many open files" in caplog.text
            await way.close()

    asyncio.run(main())


def test_attempts_that_fail_leave_no_descriptor():
    async def main():
        keys = generate(), generate()
        nobody = free_endpoint()  # the first in a process opens what keeps processes of tests apart
        with RawBroker() as plain:
            before = len(os.listdir("/proc/self/fd"))
            for endpoint in (plain.endpoint, nobody):
                way = channel(endpoint, ours=keys[0], theirs=keys[1].public_key, failover_s=0)
                way.start(Story(), dict)
                await until(lambda way=way: way.trouble and "no answer yet" not in way.trouble)
                await way.close()
            # libzmq's end is in this process, too, and goes a moment later
            await until(lambda: len(os.listdir("/proc/self/fd")) <= before)

    asyncio.run(main())


def test_another_thread_sends_while_the_loop_is_blocked():
    """Behind what waits, and in the order of boxes."""

    async def main():
        ours, theirs = generate(), generate()
        with RawBroker(curve=theirs, opens=True) as broker:
            way = channel(broker.endpoint, ours=ours, theirs=theirs.public_key)
            story = Story()
            way.start(story, dict)
            await broker.take_open()
            await until(lambda: story.told)
            assert way.send(post("first"))
            assert way.send(post("large", bytes(300_000)))
            sent = []
            thread = threading.Thread(target=lambda: sent.append(way.send_from_thread(post("beat"))))
            thread.start()
            thread.join()  # in the loop's own thread: nothing else moves
            assert sent == [True]
            _name, *frames = [broker.sock.recv_multipart() for _ in range(3)][-1]
            assert decode(frames).uuid == "beat"
            assert way.send(post("last"))
            assert (await broker.take_only(Command.POST)).uuid == "last"
            await way.close()

    asyncio.run(main())


def test_an_open_that_cannot_be_read_is_dropped():
    async def main():
        story = Story()
        with RawBroker() as broker:
            way = channel(broker.endpoint, open_timeout_s=PATIENCE_S)
            way.start(story, dict)
            await broker.take_open()
            broker.say("c1", Command.OPEN, body=b"[" * 100_000)
            await until(lambda: way.traffic.invalid == 1)
            assert story.kinds() == []
            broker.answer_open("c1")
            await until(lambda: story.kinds() == ["connected"])
            await way.close()

    asyncio.run(main())


def test_a_broker_that_says_nothing_is_named_while_it_is_waited_for():
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as silent:
            endpoint = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
            way = channel(endpoint)
            assert way.trouble == "not started"
            way.start(Story(), dict)
            assert way.trouble == f"{endpoint}: no answer yet"
            await way.close()

    asyncio.run(main())


@pytest.mark.patient
@pytest.mark.parametrize("sender", [Sender.CLIENT, Sender.WORKER])
@pytest.mark.parametrize("speaks", [False, True])
def test_a_worker_that_hears_nothing_says_what_that_may_be(sender, speaks, monkeypatch, caplog):
    """Another peer of its name is connected: libzmq ignores the second one, and all looks well."""
    monkeypatch.setattr(dealer, "UNHEARD_S", 0.1)
    caplog.set_level("INFO")

    async def main():
        with RawBroker() as broker:
            way = DealerChannel(
                [broker.endpoint], identity="c1", sender=sender, curves={}, open_timeout_s=0.05
            )
            way.start(Story(), dict)
            await until(lambda: not way.trouble.startswith("tcp") or "said nothing" in way.trouble)
            if speaks:
                await broker.take_open()
                broker.say("c1", Command.KEEPALIVE, service="s")
            await asyncio.sleep(0.2)
            await way.close()

    asyncio.run(main())
    warned = [
        record for record in caplog.records if "perhaps another peer is connected as 'c1'" in record.message
    ]
    assert len(warned) == (sender is Sender.WORKER and not speaks)
    assert "or somebody else is connected by our name" in caplog.text, "as soon as it may be so"
