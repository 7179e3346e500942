"""A socket on the loop: order, bounds, budgets; nobody waits for whom nothing was lost."""

import os
import time

import pytest
import zmq

from broker.oslo.reactor import Socket, socket
from broker.oslo.reactor.bundle import FRAMES_MAX, pack
from broker.oslo.reactor.socket import DRAIN_MSGS, NO_BUNDLE, Outcome
from tests.unit.oslo.reactor.turns import PATIENCE_S, Broken, by_hand, disconnects, received

pytestmark = pytest.mark.interpreter

SMALL = {"SNDHWM": 1, "RCVHWM": 1, "SNDBUF": 4096, "RCVBUF": 4096}
"""Options with which little fits between two sockets."""
BODY = b"x" * 20_000


@pytest.fixture
def hand():
    with by_hand() as it:
        yield it


def said(sock: zmq.Socket[bytes]) -> list[bytes]:
    """The next message that a peer has."""
    assert sock.poll(1000 * PATIENCE_S), "no message came in time"
    return sock.recv_multipart()


def quiet_turns(hand, s: float) -> int:
    """How often the loop turned in so many seconds, left to itself."""
    before = hand.reactor.turns
    hand.reactor._stopping = False
    hand.reactor.call_later(s, hand.reactor.stop)
    hand.reactor.run()
    return hand.reactor.turns - before


def stalled(hand, **limits) -> tuple[Socket, zmq.Socket[bytes]]:
    """A socket to a peer that is connected and does not read, with as much sent as fits without waiting."""
    sock, where = hand.bound(zmq.DEALER, **SMALL)
    one = Socket(hand.reactor, sock, **limits)
    peer = hand.peer(zmq.DEALER, where, **SMALL)
    hand.until(lambda: one.send([b"first", BODY]) is Outcome.SENT or (one.take_back() and False))
    while one.send([b"first", BODY]) is Outcome.SENT:
        hand.turn(0.001)
    hand.until(lambda: fills(hand, one))
    return one, peer


def fills(hand, one: Socket) -> bool:
    """True when what waits has not become less for a while."""
    for _ in range(5):
        hand.turn(0.02)
        if not one.waiting:
            one.send([b"first", BODY])
            return False
    one.take_back()
    return True


def rest(peer: zmq.Socket[bytes]) -> list[list[bytes]]:
    """Everything after the messages that ``stalled`` sent."""
    messages = []
    while peer.poll(300):
        messages.append(peer.recv_multipart())
    return [message for message in messages if message[0] != b"first"]


# ---------------------------------------------------------------- writing


def test_messages_go_and_come(hand):
    sock, where = hand.bound(zmq.DEALER)
    came = []
    one = Socket(hand.reactor, sock, received(came))
    peer = hand.peer(zmq.DEALER, where)
    peer.send(pack([b"to", b"", b"you"]))
    hand.until(lambda: came)
    assert came == [[b"to", b"", b"you"]]
    assert one.send([b"to", b"me"]) is Outcome.SENT
    assert said(peer) == [b"to", b"me"]
    assert (one.sent, one.sent_bytes, one.received, one.received_bytes) == (1, 4, 1, 5)


def test_what_finds_no_peer_waits_and_goes_out_when_one_comes(hand):
    sock, where = hand.bound(zmq.PUSH, IMMEDIATE=1)
    one = Socket(hand.reactor, sock)
    for number in range(5):
        assert one.send([b"%d" % number]) is Outcome.QUEUED
    assert one.waiting == 5
    peer = hand.peer(zmq.PULL, where)
    hand.until(lambda: not one.waiting)
    assert [said(peer) for _ in range(5)] == [[b"%d" % number] for number in range(5)]


def test_a_tap_sees_what_was_sent_when_it_was(hand):
    one, peer = stalled(hand)
    seen = []
    one.tap = seen.append
    one.send([b"waits", b""])
    assert seen == []
    while said(peer) != [b"waits", b""]:
        hand.turn(0.001)
    hand.until(lambda: not one.waiting)
    one.send([b"next"])
    hand.until(lambda: not one.waiting)  # libzmq may have had no room for it yet
    assert seen == [[b"waits", b""], [b"next"]]


def test_a_tap_that_raises_has_nothing_sent_twice(hand):
    one, peer = stalled(hand)
    one.tap = Broken().tap
    assert one.send([b"waits"]) is Outcome.QUEUED
    while said(peer) != [b"waits"]:
        hand.turn(0.001)
    hand.until(lambda: not one.waiting)
    assert one.send([b"next"]) > Outcome.FULL
    hand.until(lambda: not one.waiting)  # libzmq may have had no room for it yet
    assert said(peer) == [b"next"]
    assert ["no disk" in text for text in hand.taken_errors()] == [True, True]


def test_order_is_kept_between_what_waited_and_what_did_not(hand):
    one, peer = stalled(hand)
    outcomes, expected = set(), []
    for number in range(300):
        expected.append([b"%d" % number, BODY])
        outcomes.add(one.send(expected[-1]))
        if number % 3 == 0 and peer.poll(0):
            message = peer.recv_multipart()
            assert message[0] == b"first" or message == expected.pop(0)
            hand.turn(0.001)
    assert Outcome.QUEUED in outcomes
    while expected:
        if peer.poll(0):
            message = peer.recv_multipart()
            assert message[0] == b"first" or message == expected.pop(0)
        hand.turn(0.001)
    hand.until(lambda: one.send([b"last"]) is Outcome.SENT)
    assert said(peer) == [b"last"]


def test_an_outbox_is_bounded_in_messages(hand):
    sock, _ = hand.bound(zmq.PUSH)
    one = Socket(hand.reactor, sock, outbox_msgs=3)
    assert [one.send([b"x"]) for _ in range(5)] == [Outcome.QUEUED] * 3 + [Outcome.FULL] * 2
    assert (one.waiting, one.refused) == (3, 2)


def test_an_outbox_is_bounded_in_bytes_but_for_the_message_that_makes_it_full(hand):
    sock, _ = hand.bound(zmq.PUSH)
    one = Socket(hand.reactor, sock, outbox_bytes=100)
    assert one.send([b"x" * 1000]) is Outcome.QUEUED
    assert one.send([b"x"]) is Outcome.FULL
    assert one.take_back() == [[b"x" * 1000]]
    assert [one.send([b"x" * 20, b"x" * 20]) for _ in range(4)] == [Outcome.QUEUED] * 3 + [Outcome.FULL]


def test_what_waited_is_told_when_it_is_sent_and_what_is_stale_is_not_sent(hand):
    sock, where = hand.bound(zmq.PUSH, IMMEDIATE=1)
    one = Socket(hand.reactor, sock)
    gone = []
    one.flushed = gone.append
    one.stale = lambda frames: frames[0] == b"old"
    for frame in (b"a", b"old", b"b", b"old"):
        one.send([frame])
    peer = hand.peer(zmq.PULL, where)
    hand.until(lambda: not one.waiting)
    assert gone == [[b"a"], [b"b"]]
    assert [said(peer), said(peer)] == [[b"a"], [b"b"]]
    assert one.send([b"old"]) is Outcome.SENT
    assert gone == [[b"a"], [b"b"]]
    assert said(peer) == [b"old"]


def test_what_is_told_may_close_the_pipe(hand):
    sock, where = hand.bound(zmq.PUSH, IMMEDIATE=1)
    one = Socket(hand.reactor, sock)
    one.flushed = lambda _frames: one.close(1000)
    for number in range(3):
        one.send([b"%d" % number])
    peer = hand.peer(zmq.PULL, where)
    hand.until(lambda: one.closed)
    assert one.take_back() == [[b"1"], [b"2"]]
    assert said(peer) == [b"0"]
    hand.turn()


def test_what_was_never_sent_can_be_taken_back_in_part_or_whole_after_the_end_too(hand):
    sock, _ = hand.bound(zmq.PUSH)
    one = Socket(hand.reactor, sock)
    for number in range(6):
        one.send([b"%d" % number])
    assert one.sift_all(lambda frames: int(frames[0]) % 2 == 1) == [[b"1"], [b"3"], [b"5"]]
    one.close()
    one.close()
    assert one.send([b"x"]) is Outcome.FULL
    assert one.take_back() == [[b"0"], [b"2"], [b"4"]]
    assert one.waiting == 0


def test_a_peer_that_is_away_is_tried_ever_more_seldom_and_found_at_once(hand):
    sock, where = hand.bound(zmq.PUSH, IMMEDIATE=1)
    one = Socket(hand.reactor, sock)
    tries, delays = [], []

    def tried() -> int:
        """How often it was said when to try again."""
        if one._retry is not None and one._retry not in tries:
            tries.append(one._retry)
            delays.append(one._patience_s)
        return len(tries)

    assert one.send([b"x"]) is Outcome.QUEUED
    hand.until(lambda: tried() == 7)
    assert delays == [0.01, 0.02, 0.04, 0.08, 0.16, socket.RETRY_MAX_S, socket.RETRY_MAX_S]
    assert one.send([b"y"]) is Outcome.QUEUED
    assert tried() == 7  # not anew for each that finds others waiting
    one._retry.cancel()  # none comes any more: its descriptor has to tell
    peer = hand.peer(zmq.PULL, where)
    while one.waiting:
        hand.reactor.turn()
    assert [said(peer), said(peer)] == [[b"x"], [b"y"]]
    peer.close(0)
    hand.until(lambda: one.send([b"z"]) is Outcome.QUEUED)
    tried()
    assert delays[7:] == [socket.RETRY_S]  # another absence


class Slow(list):
    """Frames between which something happens, once."""

    def __init__(self, frames, between) -> None:
        super().__init__(frames)
        self.between = between

    def __iter__(self):
        for at, frame in enumerate(list.__iter__(self)):
            if at == 1:
                self.between()
                self.between = lambda: None
            yield frame


@pytest.mark.parametrize("frames", [2, 3, 5])
@pytest.mark.parametrize(
    ("kind", "mate"), [(zmq.DEALER, zmq.DEALER), (zmq.PUSH, zmq.PULL)], ids=["DEALER", "PUSH"]
)
def test_a_peer_that_goes_in_the_middle_of_a_message_gets_nothing_and_the_next_one_all_of_it(
    hand, kind, mate, frames
):
    sock, where = hand.bound(kind, IMMEDIATE=1)
    one = Socket(hand.reactor, sock)
    message = [b"%d" % number for number in range(frames)]
    outcomes = []
    with disconnects(sock) as gone:
        for _ in range(5):
            peer = hand.peer(mate, where)
            hand.until(lambda: one.send([b"hello"]) is Outcome.SENT or (one.take_back() and False))
            assert said(peer) == [b"hello"]
            outcomes.append(one.send(Slow(message, lambda: (peer.close(0), gone()))))  # noqa: B023
            peer = hand.peer(mate, where)
            one.send([b"after", b"it"])
            hand.until(lambda: not one.waiting)
            if outcomes[-1] is Outcome.QUEUED:
                assert said(peer) == message
            assert said(peer) == [b"after", b"it"]
            peer.close(0)
            gone()
            hand.turn()
    # a PUSH may notice the end between two frames and drop the rest without a word: as if it was lost on its way
    assert kind == zmq.PUSH or outcomes == [Outcome.QUEUED] * 5


def test_big_messages_go_through(hand):
    sock, where = hand.bound(zmq.DEALER)
    came = []
    one = Socket(hand.reactor, sock, received(came), outbox_bytes=1)
    peer = hand.peer(zmq.DEALER, where)
    big = os.urandom(1 << 20) * 24
    peer.send(pack([b"env", big]))
    hand.until(lambda: came)
    assert came == [[b"env", big]]
    assert one.send([b"env", big]) is Outcome.SENT
    assert said(peer) == [b"env", big]


# ---------------------------------------------------------------- reading


def test_a_busy_socket_leaves_the_others_their_turn(hand):
    sock, where = hand.bound(zmq.PULL, RCVHWM=0)
    order = []
    Socket(hand.reactor, sock, lambda frames, _origin: order.append(b"busy"))
    other, there = hand.bound(zmq.PULL)
    Socket(hand.reactor, other, lambda frames, _origin: order.append(b"other"))
    busy, quiet = hand.peer(zmq.PUSH, where, SNDHWM=0), hand.peer(zmq.PUSH, there)
    for _ in range(10 * DRAIN_MSGS):
        busy.send(b"x")
    quiet.send(b"x")
    assert sock.poll(1000 * PATIENCE_S)
    assert other.poll(1000 * PATIENCE_S)
    hand.until(lambda: len(order) == 10 * DRAIN_MSGS + 1)
    assert order.index(b"other") <= 2 * DRAIN_MSGS


def test_big_messages_are_read_in_portions_too(hand, monkeypatch):
    monkeypatch.setattr(socket, "DRAIN_BYTES", 10_000)
    sock, where = hand.bound(zmq.PULL, RCVHWM=0)
    came, at_turn = [], []
    Socket(
        hand.reactor, sock, lambda frames, _origin: (came.append(frames), at_turn.append(hand.reactor.turns))
    )
    peer = hand.peer(zmq.PUSH, where, SNDHWM=0)
    for _ in range(20):
        peer.send(b"x" * 6_000)
    hand.until(lambda: len(came) == 20)
    assert (
        max(at_turn.count(turn) for turn in at_turn) <= 2 * 2
    )  # looked at for its descriptor, and once more


def test_a_paused_socket_is_not_read_and_does_not_spin(hand):
    sock, where = hand.bound(zmq.PULL)
    came = []
    one = Socket(hand.reactor, sock, received(came))
    one.paused = True
    peer = hand.peer(zmq.PUSH, where)
    for _ in range(10):
        peer.send(b"x")
    assert sock.poll(1000 * PATIENCE_S)
    hand.turn()
    assert quiet_turns(hand, 0.3) < 20
    assert one.paused
    assert came == []
    one.paused = False
    hand.until(lambda: len(came) == 10)


def test_a_receiver_may_pause_and_nothing_is_lost(hand):
    sock, where = hand.bound(zmq.PULL)
    came = []

    def take(frames: list[bytes], _origin: str) -> None:
        came.append(frames)
        one.paused = True
        hand.reactor.call_later(0.001, resume)

    def resume() -> None:
        one.paused = False

    one = Socket(hand.reactor, sock, take)
    peer = hand.peer(zmq.PUSH, where)
    for number in range(20):
        peer.send(b"%d" % number)
    hand.until(lambda: len(came) == 20)
    assert came == [[b"%d" % number] for number in range(20)]


def test_a_socket_that_nobody_reads_does_not_spin(hand):
    sock, where = hand.bound(zmq.DEALER)
    Socket(hand.reactor, sock)
    peer = hand.peer(zmq.DEALER, where)
    for _ in range(10):
        peer.send(b"x")
    assert sock.poll(1000 * PATIENCE_S)
    hand.turn()
    assert quiet_turns(hand, 0.3) < 20


def test_a_full_outbox_does_not_spin(hand):
    one, _peer = stalled(hand)
    for _ in range(10):
        one.send([b"x", BODY])
    assert one.waiting
    assert quiet_turns(hand, 0.5) < 100


def test_a_message_that_the_receiver_fails_at_costs_only_itself(hand):
    sock, where = hand.bound(zmq.PULL)
    came = []

    def take(frames: list[bytes], _origin: str) -> None:
        if frames == [b"bad"]:
            raise ValueError("as it was told to")
        came.append(frames)

    one = Socket(hand.reactor, sock, take)
    peer = hand.peer(zmq.PUSH, where)
    for frame in (b"a", b"bad", b"b", b"bad", b"c"):
        peer.send(frame)
    hand.until(lambda: len(came) == 3)
    assert came == [[b"a"], [b"b"], [b"c"]]
    assert one.received == 5
    assert len(hand.taken_errors()) == 2


def test_a_receiver_may_close_its_pipe(hand):
    sock, where = hand.bound(zmq.PULL)
    came = []
    one = Socket(hand.reactor, sock, lambda frames, _origin: (came.append(frames), one.close()))
    peer = hand.peer(zmq.PUSH, where)
    for _ in range(5):
        peer.send(b"x")
    hand.until(lambda: one.closed)
    for _ in range(3):
        hand.turn()
    assert came == [[b"x"]]
    assert not hand.reactor._readers


def test_a_message_of_very_many_frames_is_cut_and_the_next_one_is_whole(hand, monkeypatch):
    monkeypatch.setattr("broker.oslo.reactor.socket.SKIPPED_FRAMES", 100)
    sock, where = hand.bound(zmq.PULL)
    came, at_turn = [], []
    one = Socket(
        hand.reactor, sock, lambda frames, _origin: (came.append(frames), at_turn.append(hand.reactor.turns))
    )
    peer = hand.peer(zmq.PUSH, where)
    for count in (5_000, FRAMES_MAX + 1, FRAMES_MAX, FRAMES_MAX + 101, 1):
        peer.send_multipart([b"%d" % count, *[b""] * (count - 1)])
    hand.until(lambda: len(came) == 5)
    assert [len(frames) for frames in came] == [FRAMES_MAX, FRAMES_MAX, FRAMES_MAX, FRAMES_MAX, 1]
    assert [frames[0] for frames in came] == [b"5000", b"65", b"64", b"165", b"1"]
    assert at_turn[1] - at_turn[0] > 30
    assert one.received == 5


def test_what_is_no_bundle_reaches_a_dealers_receiver_as_one_frame_that_is_nothing(hand):
    sock, where = hand.bound(zmq.DEALER)
    came = []
    one = Socket(hand.reactor, sock, received(came))
    peer = hand.peer(zmq.DEALER, where)
    good = pack([b"a", b"b"])
    for parts in (
        [b"HGO\x01 and so on"],
        [b""],
        [good[:-1]],
        [b"env", b"body"],
        [good, good],
        [b"x"] * 5_000,
    ):
        peer.send_multipart(parts)
        peer.send(good)
    hand.until(lambda: len(came) == 12)
    assert came[1::2] == [[b"a", b"b"]] * 6
    firsts = (b"HGO\x01 and so on", b"", good[:-1], b"env", good, b"x")
    assert came[::2] == [[NO_BUNDLE + first] for first in firsts]
    assert one.received == 12


def test_the_origin_is_a_property_of_the_connection(hand, rundir):
    sock = hand.sock(zmq.ROUTER)
    sock.bind(f"ipc://{rundir}/s")
    origins = []
    Socket(hand.reactor, sock, lambda frames, origin: origins.append(origin), origin="Peer-Address")
    peer = hand.peer(zmq.DEALER, f"ipc://{rundir}/s")
    for _ in range(3):
        peer.send_multipart([b"a", b"b"])
    hand.until(lambda: len(origins) == 3)
    assert all(origin.endswith(f":{os.getuid()}:{os.getgid()}:{os.getpid()}") for origin in origins)


def test_an_origin_that_a_connection_has_not_is_empty(hand):
    sock, where = hand.bound(zmq.PULL)
    origins = []
    Socket(hand.reactor, sock, lambda frames, origin: origins.append(origin), origin="User-Id")
    hand.peer(zmq.PUSH, where).send(b"x")
    hand.until(lambda: origins)
    assert origins == [""]


@pytest.mark.parametrize("hwm", [1, 1000])
def test_two_that_answer_each_other_never_wait_for_nothing(hand, hwm):
    """Sending takes in the news of what came; were it lost, both would wait for the retry, or for ever."""
    sock, where = hand.bound(zmq.DEALER, SNDHWM=hwm, RCVHWM=hwm)
    other = hand.sock(zmq.DEALER, SNDHWM=hwm, RCVHWM=hwm)
    other.connect(where)
    count = [0, 0]

    def answer(who: int, mine: Socket) -> None:
        count[who] += 1
        mine.send([b"ball", b"%d" % count[who]])

    one = Socket(hand.reactor, sock, lambda frames, _origin: answer(0, one))
    two = Socket(hand.reactor, other, lambda frames, _origin: answer(1, two))
    for _ in range(8):
        two.send([b"serve"])
    waited = []
    for goal in range(200, 2_001, 200):
        start = time.monotonic()
        hand.until(lambda: min(count) >= goal)  # noqa: B023
        waited.append(time.monotonic() - start)
    assert len(waited) == 10
