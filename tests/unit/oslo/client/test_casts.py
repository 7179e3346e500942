"""Where casts come from: the ways out that a proxy names, right ones and wrong ones."""

import select
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from broker.oslo.client.cast_receiver import CastReceiver
from broker.oslo.contract import Settings
from tests.unit.oslo.reactor.turns import PATIENCE_S, Hand, by_hand, received


@pytest.fixture
def hand() -> Iterator[Hand]:
    with by_hand() as hand:
        yield hand


def way_out(hand: Hand, folder: Path) -> tuple[zmq.Socket[bytes], str]:
    """What a proxy keeps for a process, and where."""
    sock = hand.peer(zmq.PUSH)
    endpoint = f"ipc://{folder}/cast-1.out"
    sock.bind(endpoint)
    return sock, endpoint


@pytest.mark.parametrize("wrong", ["ipc://", "ipc://" + "x" * 300])
def test_a_way_that_libzmq_refuses_does_not_make_it_deaf_to_the_one_it_has(hand, rundir, wrong):
    """libzmq takes the news of a message in, and refuses only then: nobody tells it again, nor of any that follows,
    not even from the next proxy at the same place."""
    messages: list[list[bytes]] = []
    casts = CastReceiver(hand.reactor, Settings(str(rundir)), received(messages))
    push, endpoint = way_out(hand, rundir)
    assert casts.pull_from(endpoint) == ""
    push.send_multipart([b"first", b""])
    hand.until(lambda: len(messages) == 1)
    hand.until(lambda: not readable(casts, 0.0))
    push.send_multipart([b"second", b""])
    assert readable(casts, PATIENCE_S)  # the news is there, and not taken in yet
    assert "saw the way out" in casts.pull_from(wrong)
    hand.until(lambda: len(messages) == 2)
    push.close(0)
    push, again = way_out(hand, rundir)
    assert again == endpoint
    assert casts.pull_from(endpoint) == ""
    push.send_multipart([b"third", b""])
    hand.until(lambda: len(messages) == 3)
    casts.close()
    assert [frames[0] for frames in messages] == [b"first", b"second", b"third"]


def readable(casts: CastReceiver, timeout_s: float) -> bool:
    """Whether libzmq has news that nobody has taken in."""
    pipe = casts._pipe
    assert pipe is not None
    return bool(select.select([int(pipe.sock.get(zmq.FD))], [], [], timeout_s)[0])
