"""Turning the journal of a broker on and off; a disk that is full; the end."""

import asyncio
import errno
import json

import pytest

from broker.errors import ConfigError
from broker.exposition import render
from broker.identity import PeerInfo
from broker.journal import feed, layout
from broker.journal.recorder import Figures
from broker.journal.samples import samples
from broker.services.context import Denial
from tests.unit.node.desk import Desk, ask, run, ticks
from tests.unit.node.paper_journal import Journal, PaperRecorder

UNKNOWN = 0xFFFFFFFF


@pytest.fixture(autouse=True)
def paper(monkeypatch):
    monkeypatch.setattr(feed, "Recorder", PaperRecorder)


def test_off_records_nothing_and_on_takes_it_up_again():
    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            stays, goes = desk.peer(name="stays"), desk.peer(name="goes")
            stays.say(ask("probe.a"))
            await ticks()
            await journal.capture.stop("to copy it")
            assert journal.capture.state == "off: to copy it"
            assert journal.state("capture")[-1].facts == {"state": "off", "reason": "to copy it"}
            before = len(journal.taken)
            stays.say(ask("probe.b", tag=2))
            goes.end()
            comes = desk.peer(name="comes")
            journal.capture.sweep()
            journal.capture.refused(PeerInfo("x"), 1, "no")
            journal.capture.denied(Denial(1, "a", "request", 1, 2, UNKNOWN, "websocket", "s", "h"))
            await ticks()
            assert len(stays.responses) == 2
            assert (len(journal.taken), journal.paper.shed) == (before, 0)
            assert comes.port.peer == 0
            await journal.capture.stop()
            await journal.capture.start()
            await journal.capture.start()
            assert journal.paper.starts == 2
            told = journal.taken[before:]
            names = [each.facts["name"] for each in told if each.kind == layout.DICTIONARY]
            assert sorted(names) == ["broker", "comes", "stays"]
            stays.say(ask("probe.c", tag=3))
            comes.say(ask("probe.c", tag=4))
            await ticks()
            peers = [each.peer for each in journal.taken[before:] if each.kind == layout.FLUX]
            assert peers == [stays.port.peer, comes.port.peer]

    run(script())


def test_a_journal_that_cannot_start_again_says_why():
    async def script():
        with Journal(Desk()) as journal:
            await journal.capture.stop()
            journal.paper.hindrance = ConfigError("no room", errno.ENOSPC)
            with pytest.raises(ConfigError, match="no room"):
                await journal.capture.start()
            assert not journal.capture.active
            journal.paper.hindrance = None
            journal.paper.gone = False
            starting = asyncio.get_running_loop().create_task(journal.capture.start(), name="start")
            await ticks()
            assert not starting.done()
            journal.paper.gone = True
            await starting
            assert journal.capture.active

    run(script())


def test_a_broker_that_leaves_while_its_journal_is_turned_on_starts_no_writer():
    async def script():
        journal = Journal(Desk())
        journal.capture.begin(asyncio.get_running_loop())
        await journal.capture.stop()
        journal.paper.gone = False
        starting = asyncio.get_running_loop().create_task(journal.capture.start(), name="start")
        await ticks()
        journal.capture.end()
        journal.paper.gone = True
        with pytest.raises(ConfigError, match="leaving") as caught:
            await starting
        assert caught.value.errno == errno.ESHUTDOWN
        assert (journal.paper.starts, journal.paper.closed) == (1, 1)

    run(script())


def test_a_full_disk_ends_capture_and_the_broker_goes_on():
    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            peer = desk.peer()
            journal.paper.fail("off: No space left on device")
            peer.say(ask("probe.a"))
            await ticks()
            shed = journal.paper.shed
            peer.say(ask("probe.a", tag=2))
            await ticks()
            assert len(peer.responses) == 2
            assert journal.paper.shed == shed
            assert journal.capture.status()["state"] == "off: No space left on device"
            text = render(samples(journal.capture.recorder))
            assert 'headgate_journal_recording{off="No space left on device"} 0\n' in text
            assert f"headgate_journal_shed_records_total {shed}\n" in text
            await journal.capture.start()
            text = render(samples(journal.capture.recorder))
            assert 'headgate_journal_recording{off=""} 1\n' in text

    run(script())


def test_the_end_is_recorded_and_harmless_twice():
    async def script():
        desk = Desk()
        journal = Journal(desk)
        journal.capture.end()
        assert journal.paper.closed == 0
        journal.capture.begin(asyncio.get_running_loop())
        journal.capture.end()
        journal.capture.end()
        assert journal.paper.closed == 1
        assert [each.facts["state"] for each in journal.paper.records if each.topic == "capture"] == [
            "on",
            "off",
        ]
        with pytest.raises(ConfigError, match="leaving"):
            await journal.capture.start()

    run(script())


def test_status_tells_everything():
    async def script():
        with Journal(Desk(), capture="both", payload=False) as journal:
            told = journal.capture.status()
            assert told | {"capture": "both", "payload": False, "writer": "rank0", "directory": "/j"} == told
            assert set(Figures._fields) < set(told)
            assert json.loads(json.dumps(told)) == told

    run(script())
