"""A ROUTER's peers: each has its own queue, the end of each is noticed, none holds the others up."""

import pytest
import zmq

from broker.oslo.reactor import bundle, router
from broker.oslo.reactor.router import RouterSocket
from broker.oslo.reactor.socket import MESSAGE_COST, Outcome
from tests.live.oslo_wire import hear
from tests.unit.oslo.reactor.turns import PATIENCE_S, Broken, by_hand, disconnects, received

BODY = b"x" * 100_000
HWM = {"SNDHWM": 2, "RCVHWM": 2, "SNDBUF": 4096, "RCVBUF": 4096}


@pytest.fixture
def hand():
    with by_hand() as it:
        yield it


class House:
    """A ROUTER with some peers by name."""

    def __init__(self, hand, **limits) -> None:
        self.hand = hand
        self.sock, self.where = hand.bound(zmq.ROUTER, ROUTER_MANDATORY=1, **HWM)
        self.came: list[list[bytes]] = []
        self.socket = RouterSocket(hand.reactor, self.sock, received(self.came), **limits)

    def peer(self, name: bytes) -> zmq.Socket[bytes]:
        sock = self.hand.peer(zmq.DEALER, self.where, ROUTING_ID=name, **HWM)
        sock.send(b"hello")
        self.hand.until(lambda: [name, b"hello"] in self.came)
        return sock

    def stall(self, name: bytes) -> zmq.Socket[bytes]:
        """A peer that does not read, with as much sent as it takes, and two messages waiting."""
        sock = self.peer(name)
        quiet = 0
        while quiet < 5:
            quiet = quiet + 1 if self.socket.waiting_for(name) > 1 else 0
            while self.socket.waiting_for(name) < 2:
                assert self.socket.send([name, BODY]) in (Outcome.SENT, Outcome.QUEUED)
            self.hand.turn(0.02)
        return sock

    def tells(self, sock: zmq.Socket[bytes]) -> bytes:
        assert sock.poll(1000 * PATIENCE_S)
        (frame,) = hear(sock)
        return frame


def test_messages_find_their_peer(hand):
    house = House(hand)
    a, b = house.peer(b"a"), house.peer(b"b")
    assert house.socket.send([b"b", b"for b"]) is Outcome.SENT
    assert house.socket.send([b"a", b"for a"]) is Outcome.SENT
    assert (house.tells(a), house.tells(b)) == (b"for a", b"for b")


def test_a_message_is_one_frame_on_the_wire_and_its_frames_are_counted(hand):
    house = House(hand)
    a = house.peer(b"a")
    frames = [b"env", b"", BODY]
    assert house.socket.send([b"a", *frames]) is Outcome.SENT
    assert a.poll(1000 * PATIENCE_S)
    (one,) = a.recv_multipart()
    assert bundle.unpack(one) == frames
    assert (house.socket.sent, house.socket.sent_bytes) == (1, 1 + 3 + len(BODY))


def test_a_message_that_cannot_be_put_together_does_not_lead_the_next_one_astray(hand):
    house = House(hand)
    a, b = house.peer(b"a"), house.peer(b"b")

    class Full:
        """No memory to join frames in."""

        def __len__(self):
            return 3

    with pytest.raises(TypeError):
        house.socket.send([b"a", Full()])
    assert house.socket.send([b"b", b"for b"]) is Outcome.SENT
    assert house.tells(b) == b"for b"
    assert a.poll(1000 * PATIENCE_S)
    assert a.recv_multipart() == [b""]
    assert house.socket.sent == 1


def test_what_is_no_message_is_refused_before_anything_of_it_is_sent(hand):
    house = House(hand)
    a = house.peer(b"a")
    for frames in ([], [b"x"] * (bundle.FRAMES_MAX + 1)):
        with pytest.raises(ValueError, match="a bundle: saw"):
            house.socket.send([b"a", *frames])
    assert house.socket.send([b"a", b"next"]) is Outcome.SENT
    assert house.tells(a) == b"next"


@pytest.mark.parametrize("frames", [1, 3])
def test_a_peer_that_goes_in_the_middle_of_a_message_damages_no_other(hand, monkeypatch, frames):
    house = House(hand)
    one = house.socket
    with disconnects(house.sock) as gone:
        for number in range(5):
            name, other = b"peer-%d" % number, b"other-%d" % number
            peer, innocent = house.peer(name), house.peer(other)
            send = one._send

            def between(frame, flags):
                send(frame, flags)  # noqa: B023
                if flags & zmq.SNDMORE:
                    peer.close(0)  # noqa: B023
                    gone()

            with monkeypatch.context() as patch:
                patch.setattr(one, "_send", between)
                one.send([name, *(b"%d" % each for each in range(frames))])
            assert peer.closed
            assert one.send([other, b"after", b"it"]) is Outcome.SENT
            assert innocent.poll(1000 * PATIENCE_S)
            assert hear(innocent) == [b"after", b"it"]
            hand.until(lambda: one.send([name, b"x"]) is Outcome.GONE)  # noqa: B023


def test_a_peer_that_was_never_there_is_gone(hand):
    house, told = House(hand), []
    house.socket.lost = lambda peer, _frames: told.append(peer)
    for name in (b"nobody", b"", b"\0\0\0\0\1"):
        assert house.socket.send([name, b"x"]) is Outcome.GONE
    hand.turn()
    assert told == [b"nobody", b"", b"\0\0\0\0\1"]
    assert house.socket.waiting == 0


def test_a_peer_that_does_not_read_costs_only_its_own_queue(hand):
    house = House(hand, outbox_msgs=50)
    house.stall(b"deaf")
    fast = house.peer(b"fast")
    outcomes = [house.socket.send([b"deaf", BODY]) for _ in range(100)]
    assert outcomes.count(Outcome.FULL) == 52
    for number in range(100):
        assert house.socket.send([b"fast", b"%d" % number]) in (Outcome.SENT, Outcome.QUEUED)
        hand.until(lambda: not house.socket.waiting_for(b"fast"))
        assert house.tells(fast) == b"%d" % number
    assert house.socket.waiting_for(b"deaf") == house.socket.waiting == 50
    assert house.socket.refused == 52


def test_order_is_kept_when_a_peer_reads_again(hand):
    house = House(hand)
    deaf = house.stall(b"deaf")
    outcomes = {house.socket.send([b"deaf", b"%d" % number, BODY]) for number in range(50)}
    assert outcomes == {Outcome.QUEUED}
    came = []

    def read() -> bool:
        while deaf.poll(0):
            frames = hear(deaf)
            if frames != [BODY]:
                came.append(int(frames[0]))
        return len(came) == 50

    hand.until(read)
    assert came == list(range(50))
    assert house.socket.waiting == 0
    assert house.socket.send([b"deaf", b"at once"]) is Outcome.SENT


def test_what_waits_for_a_peer_that_ends_is_told_and_freed(hand):
    house, lost = House(hand), []
    house.socket.lost = lambda peer, frames: lost.append((peer, frames))
    deaf = house.stall(b"deaf")
    house.socket.forget_peer(b"deaf")
    assert house.socket.send([b"deaf", b"1", BODY]) is Outcome.QUEUED
    assert house.socket.send([b"deaf", b"2", BODY]) is Outcome.QUEUED
    deaf.close(0)
    hand.until(lambda: lost)
    assert lost == [(b"deaf", [[b"deaf", b"1", BODY], [b"deaf", b"2", BODY]])]
    assert house.socket.waiting == 0
    assert not house.socket._outboxes
    assert house.socket._tally.bytes == 0
    assert house.socket.send([b"deaf", b"x"]) is Outcome.GONE


def test_without_anybody_to_tell_what_waits_for_a_peer_that_ends_is_freed_all_the_same(hand):
    house = House(hand)
    for number in range(5):
        house.stall(b"deaf-%d" % number).close(0)
    hand.until(lambda: not house.socket.waiting)
    assert not house.socket._outboxes
    assert house.socket._tally.bytes == 0


def test_all_outboxes_together_are_bounded_and_the_innocent_keep_their_share(hand):
    house = House(hand, total_bytes=30 * len(BODY))
    house.stall(b"greedy")
    innocent = house.stall(b"innocent")
    while house.socket.send([b"greedy", BODY]) is Outcome.QUEUED:
        pass
    assert house.socket._tally.bytes <= 30 * len(BODY)
    assert house.socket.waiting_for(b"greedy") >= 25
    for _ in range(10):
        assert house.socket.send([b"innocent", BODY]) is Outcome.QUEUED
    assert house.socket.send([b"greedy", b"x"]) is Outcome.FULL
    assert house.socket._tally.bytes <= 2 * 30 * len(BODY)
    while house.socket.send([b"innocent", b"x"]) is Outcome.QUEUED:
        assert house.socket._tally.bytes <= 2 * 30 * len(BODY)
    assert not innocent.closed


def test_small_messages_count_with_what_they_cost(hand):
    house = House(hand, total_bytes=100 * MESSAGE_COST + 3 * len(BODY), outbox_msgs=10**6)
    house.stall(b"deaf")
    sent = 0
    while house.socket.send([b"deaf", b""]) is Outcome.QUEUED:
        sent += 1
        assert sent < 1000
    assert house.socket.waiting <= 100 + 4 * (len(BODY) // MESSAGE_COST)


def test_many_deaf_peers_are_tried_in_rotation_and_each_that_reads_is_served(hand, monkeypatch):
    monkeypatch.setattr(router, "PEERS_TRIED", 2)
    house = House(hand)
    peers = {b"deaf-%d" % number: house.stall(b"deaf-%d" % number) for number in range(7)}
    tries = []
    send = house.socket._send
    house.socket._send = lambda frame, flags: (tries.append(frame), send(frame, flags))
    house.socket.look()
    assert len(tries) <= 2
    last = list(peers)[-1]
    house.socket.send([last, b"the last"])

    def read() -> bool:
        return bool(peers[last].poll(0)) and hear(peers[last]) == [b"the last"]

    hand.until(read)
    assert house.socket.waiting_for(last) == 0
    assert all(house.socket.waiting_for(name) for name in peers if name != last)


def test_what_waits_can_be_taken_back_by_peer_or_whole(hand):
    house = House(hand)
    for name in (b"a", b"b"):
        house.stall(name)
        house.socket.forget_peer(name)
        for number in range(4):
            assert house.socket.send([name, b"%d" % number]) is Outcome.QUEUED
    assert house.socket.sift(b"a", lambda frames: frames[1] in (b"1", b"3")) == [[b"a", b"1"], [b"a", b"3"]]
    assert house.socket.sift(b"nobody", lambda _frames: True) == []
    assert house.socket.sift_all(lambda frames: frames[1] == b"0") == [[b"a", b"0"], [b"b", b"0"]]
    assert house.socket.waiting == 4
    assert house.socket.forget_peer(b"a") == 1
    assert house.socket.forget_peer(b"a") == 0
    assert house.socket.take_back() == [[b"b", b"1"], [b"b", b"2"], [b"b", b"3"]]
    assert house.socket.waiting == 0


def test_a_callback_may_forget_the_peer_whose_queue_is_being_sent(hand):
    house = House(hand)
    deaf = house.stall(b"deaf")
    for number in range(10):
        house.socket.send([b"deaf", b"%d" % number])
    house.socket.flushed = lambda frames: house.socket.forget_peer(frames[0])

    def read() -> bool:
        while deaf.poll(0):
            deaf.recv_multipart()
        return not house.socket.waiting

    hand.until(read)
    assert not house.socket._outboxes
    # libzmq may have taken the last one into a queue that is full again: it is read on
    hand.until(lambda: read() and house.socket.send([b"deaf", b"again"]) is Outcome.SENT)


def test_closing_with_queues_is_harmless(hand):
    house = House(hand)
    house.stall(b"deaf")
    house.socket.close()
    assert house.socket.send([b"deaf", b"x"]) is Outcome.FULL
    assert house.socket.take_back()
    hand.turn()


def test_a_tap_that_raises_has_nothing_sent_twice(hand):
    house = House(hand)
    a = house.peer(b"a")
    house.socket.tap = Broken().tap
    assert house.socket.send([b"a", b"once"]) is Outcome.SENT
    assert house.tells(a) == b"once"
    assert ["no disk" in text for text in hand.taken_errors()] == [True]
