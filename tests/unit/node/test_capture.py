"""What the journal of a broker records of links, refusals and drops."""

import asyncio
import errno
import os

import pytest

from broker.errors import LinkBroken
from broker.identity import PeerInfo
from broker.ingress.admission import Access
from broker.journal import feed, layout
from broker.node.capture import OUTSIDERS_MAX, transport_of
from broker.node.client_admission import ClientAdmission
from broker.routing.port import CHILD
from broker.services.context import Denial
from broker.transport.outbox import OutboxLimits
from broker.wire.message import event
from tests.tables import for_each
from tests.unit.node.desk import GUEST, Desk, ask, run, ticks, until
from tests.unit.node.paper_journal import Journal, PaperRecorder

UNKNOWN = 0xFFFFFFFF


@pytest.fixture(autouse=True)
def paper(monkeypatch):
    monkeypatch.setattr(feed, "Recorder", PaperRecorder)


# ---------------------------------------------------------------- who is who


def test_a_peer_is_introduced_before_it_is_heard():
    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            peer = desk.peer(name="local:///x#fd7")
            peer.say(ask("probe.a"))
            await ticks()
            kinds = [each.kind for each in journal.taken]
            introduced = journal.peers["local:///x#fd7"]
            (flux,) = journal.of(layout.FLUX)
            assert kinds.index(layout.FLUX) > journal.taken.index(introduced)
            assert introduced.peer == flux.peer == peer.port.peer == introduced.facts["id"]
            assert introduced.facts["role"] == "client"
            assert introduced.facts["uuid"] == peer.port.uuid
            assert introduced.facts["uid"] == os.getuid()
            assert flux.via == desk.broker.own.peer
            assert journal.peers["broker"].facts["role"] == "own"
            (up,) = journal.state("link.up")
            assert (up.peer, up.facts["peer"]) == (peer.port.peer, "local:///x#fd7")

    run(script())


@for_each(
    ("address", "key", "transport"),
    [
        ("local:///r/local-0#fd3", None, layout.UNIX),
        ("inproc://gateway#1", None, layout.INPROC),
        ("tcp://127.0.0.1:5#1", "key", layout.CURVE),
        ("ipc:///r/tree-0#1", "key", layout.CURVE),
        ("tcp://127.0.0.1:5#1", None, layout.PLAIN),
        ("ipc:///r/tree-0#1", None, layout.PLAIN),
        ("wss://host/ws#1", None, layout.WEBSOCKET),
        ("pigeon://loft", None, layout.OTHER),
        ("pigeon://loft", "key", layout.OTHER),
    ],
)
def test_the_transport_of_a_peer(address, key, transport):
    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            peer = desk.peer()
            peer.link.peer = PeerInfo(address, key=key)
            assert transport_of(peer.link) == transport
            assert transport_of(None) == 0
            assert journal.capture.active

    run(script())


def test_a_child_has_its_rank():
    async def script():
        desk = Desk(size=2)
        with Journal(desk) as journal:
            desk.peer(kind=CHILD, name="rank 1")
            assert journal.peers["rank 1"].facts["rank"] == 1
            assert journal.peers["rank 1"].facts["role"] == "child"

    run(script())


def test_a_link_that_ends_says_why_and_what_it_did():
    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            peers = [desk.peer(name=name) for name in ("ended", "broken", "closed")]
            numbers = [peer.port.peer for peer in peers]
            peers[0].say(ask("probe.a"), ask("probe.b", tag=2))
            await ticks()
            peers[0].end()
            peers[1].link.abort(LinkBroken("it fell off"))
            peers[2].link.close("enough")
            await ticks()
            down = journal.state("link.down")
            assert [each.peer for each in down] == numbers
            assert [each.facts["cause"] for each in down] == ["ended", "broken", "closed"]
            assert [each.facts["reason"] for each in down] == ["gone", "it fell off", "enough"]
            assert [each.facts["received"] for each in down] == [2, 0, 0]
            assert [peer.port.peer for peer in peers] == [0, 0, 0]

    run(script())


def test_numbers_are_not_used_again():
    async def script():
        desk = Desk()
        with Journal(desk):
            first = desk.peer()
            number = first.port.peer
            first.end()
            await ticks()
            assert desk.peer().port.peer > number

    run(script())


# ---------------------------------------------------------------- what got lost, and who was not let in


def test_events_that_a_slow_subscriber_missed_are_recorded_once():
    async def script():
        desk = Desk(limits=OutboxLimits(event_bytes=200, event_policy="drop"))
        with Journal(desk) as journal:
            slow = desk.peer(name="slow")
            slow.subscribe("news")
            slow.link.full = True
            journal.capture.sweep()
            assert journal.state("drop") == []
            for _ in range(20):
                desk.broker.router.events.publish(event("news", b"x" * 50))
            missed = slow.link.outbox.dropped_events
            assert missed
            journal.capture.sweep()
            journal.capture.sweep()
            (drop,) = journal.state("drop")
            assert drop.facts["events"] == missed
            assert drop.facts["since_ns"] > 0
            assert drop.peer == slow.port.peer
            desk.broker.router.events.publish(event("news", b"x" * 50))
            slow.end()
            await ticks()
            assert [each.facts["events"] for each in journal.state("drop")] == [missed, 1]
            (down,) = journal.state("link.down")
            assert down.facts["discarded"]
            assert journal.taken.index(down) > journal.taken.index(journal.state("drop")[1])

    run(script())


def test_who_knocks_too_often_is_only_counted():
    async def script():
        with Journal(Desk()) as journal:
            for _ in range(5000):
                journal.capture.refused(PeerInfo("tcp://192.0.2.1:5"), errno.EPERM, "unknown CURVE key")
            journal.capture.sweep()
            journal.capture.sweep()
            recorded = len(journal.state("denied.link"))
            assert 0 < recorded < 2500
            left_out = [each.facts for each in journal.state("denied.left_out")]
            assert sum(facts["records"] for facts in left_out) == 5000 - recorded
            assert {facts["topic"] for facts in left_out} == {"denied.link"}

    run(script())


def test_who_is_turned_away_is_recorded():
    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            door = ClientAdmission(desk.broker, Access(1000), 1, 1, refused=journal.capture.refused)
            assert door.admit(PeerInfo("local:///x#7", uid=2000)) == errno.EPERM
            journal.capture.refused(PeerInfo("tcp://192.0.2.1:5", key="k"), errno.EPERM, "unknown CURVE key")
            unix, curve = journal.state("denied.link")
            assert unix.facts["uid"] == 2000
            assert "guests are not allowed" in unix.facts["reason"]
            assert (unix.direction, unix.reason, unix.transport) == (layout.DENIED, 1, layout.UNIX)
            assert (curve.transport, curve.facts["key"]) == (layout.CURVE, "k")

    run(script())


def test_who_is_turned_away_too_often_is_counted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(feed, "REFUSALS_PER_S", 3)
    monkeypatch.setattr(feed, "monotonic", lambda: now[0])

    async def script():
        stranger = PeerInfo("tcp://192.0.2.1:5", key="k")
        with Journal(Desk()) as journal:

            def come(times):
                for _ in range(times):
                    journal.capture.refused(stranger, errno.EPERM, "unknown CURVE key")
                links = [each for each in journal.taken if each.topic in ("denied.link", "denied.left_out")]
                return [each.facts.get("records", "link") for each in links]

            assert come(1000) == ["link"] * 3
            now[0] += 0.4
            assert come(1)[3:] == [997, "link"]
            come(5)
            journal.capture.sweep()
            journal.capture.sweep()
            assert come(0)[5:] == [5]
            come(2)
            await journal.capture.stop()
            assert come(9)[6:] == [2]
            assert [each.facts["topic"] for each in journal.state("denied.left_out")] == ["denied.link"] * 3

    run(script())


def test_names_that_no_text_can_hold_do_no_harm():
    """A path, a text of an error, a name: whatever a link or a peer brings along, the records behind it are whole."""

    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            odd = desk.peer(name="local:///caf\udce9#fd7")
            odd.say(ask("probe.a"))
            odd.link.abort(LinkBroken("caf\udce9 \ud800"))
            journal.capture.refused(PeerInfo("local:///\udcff#1", uid=7), errno.EPERM, "no \udcff")
            even = desk.peer(name="even")
            await ticks()
            assert [each.facts["peer"] for each in journal.state("link.up")] == ["local:///caf?#fd7", "even"]
            assert [each.facts["reason"] for each in journal.state("link.down")] == ["caf? ?"]
            assert [each.facts["address"] for each in journal.state("denied.link")] == ["local:///?#1"]
            assert journal.peers["even"].peer == even.port.peer

    run(script())


def test_a_denied_request_is_recorded_as_it_came():
    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            guest = desk.peer(cred=GUEST)
            guest.say(ask("nobody.home", payload=b"x"))
            await ticks()
            (denied,) = [each for each in journal.of(layout.FLUX) if each.direction == layout.DENIED]
            assert (denied.reason, denied.peer) == (errno.ENOSYS, guest.port.peer)
            assert guest.errnums == [errno.ENOSYS]

    run(script())


def test_what_a_gateway_refused_looks_like_a_message_of_its_peer():
    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            told = Denial(errno.EPERM, "ops.dig", "request", 1000, 2, 77, "websocket", "s1", "192.0.2.7")
            journal.capture.denied(told)
            journal.capture.denied(told._replace(kind="event", topic="news"))
            first, second = journal.of(layout.FLUX)
            assert first.parts[1:-1] == [b"ops.dig"]
            assert second.parts[1:-1] == [b"news"]
            assert [proto[2] for proto in (first.parts[-1], second.parts[-1])] == [1, 4]
            assert int.from_bytes(first.parts[-1][4:8], "big") == 1000
            assert (first.direction, first.reason, first.claimed) == (layout.DENIED, errno.EPERM, 77)
            assert first.transport == layout.WEBSOCKET
            assert first.peer == second.peer
            known = journal.peers["192.0.2.7 s1"]
            assert (known.peer, known.facts["role"]) == (first.peer, "web")

    run(script())


def test_peers_of_gateways_are_bounded():
    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            for number in range(OUTSIDERS_MAX + 3):
                journal.capture.denied(
                    Denial(1, "a", "request", 1, 2, UNKNOWN, "websocket", f"s{number}", "h")
                )
            gone = journal.state("link.down")
            assert [each.facts["peer"] for each in gone] == ["h s0", "h s1", "h s2"]
            assert [each.peer for each in gone] == [journal.peers[f"h s{n}"].peer for n in range(3)]

    run(script())


# ---------------------------------------------------------------- handing over


def test_what_waits_is_handed_over_by_a_timer_and_an_idle_broker_has_none(monkeypatch):
    monkeypatch.setattr(feed, "FLUSH_S", 0.001)

    async def script():
        desk = Desk()
        with Journal(desk) as journal:
            await until(lambda: not journal.capture._timing)
            before = len(journal.paper.records)
            desk.peer().say(ask("probe.a"))
            await until(lambda: len(journal.paper.records) > before + 2)
            await until(lambda: not journal.capture._timing)
            polls = journal.paper.polls
            await asyncio.sleep(0.01)
            assert journal.paper.polls == polls
            journal.paper.waiting = True
            desk.peer().say(ask("probe.a"))
            await until(lambda: journal.paper.polls > polls + 3)
            journal.paper.waiting = False

    run(script())


def test_what_the_writer_says_is_heard():
    async def script():
        with Journal(Desk()) as journal:
            polls = journal.paper.polls
            os.write(journal.paper._write, b"x")
            await until(lambda: journal.paper.polls > polls)

    run(script())


def test_a_writer_that_died_is_replaced_though_nobody_sends(monkeypatch):
    monkeypatch.setattr(feed, "FLUSH_S", 0.001)

    async def script():
        with Journal(Desk()) as journal:
            await until(lambda: not journal.capture._timing)
            journal.paper.waiting = True  # the recorder wants to be asked again
            os.write(journal.paper._write, b"x")
            await until(lambda: journal.capture._timing)
            os.read(journal.paper._read, 1)
            polls = journal.paper.polls
            await until(lambda: journal.paper.polls > polls + 3)
            journal.paper.waiting = False

    run(script())
