"""Damaged frames at a live socket: the broker stays, remembers nothing, and a link beside them notices nothing.

Fixed seeds, as in ``test_framing``; ``HEADGATE_FUZZ_LIVE`` sets how many streams, ``make soak`` sends many more.
"""

import os
from random import Random

import pytest

from tests.fuzz import mutate
from tests.fuzz.test_framing import corpus
from tests.live.brokers import eventually, one_broker
from tests.live.speaker import Speaker

STREAMS = int(os.environ.get("HEADGATE_FUZZ_LIVE", "4000"))
SOAK_STREAMS = 200_000
SEED = int(os.environ.get("HEADGATE_FUZZ_SEED", "0"))
CHECK_EVERY = 100
GROWTH_KIB = 24 << 10
GUEST_UID = 65533
EXTRA = "[access]\nallow_guest_user = true\n[limits]\nguest_message_bytes = 1048576\nowner_message_bytes = 1048576\n"


class Hostile:
    """A connection that says damaged things and reads what comes back, until it is thrown out."""

    def __init__(self, uri: str, uid: int | None) -> None:
        self.sock = Speaker(uri, uid).sock
        self.sock.setblocking(False)

    def say(self, data: bytes) -> bool:
        """False when the connection is over."""
        try:
            self.sock.send(data)
            while self.sock.recv(1 << 16):
                pass
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self.sock.close()


def assault(broker, streams: int) -> int:
    """Send so many; returns how many connections it took."""
    seeds = corpus()
    connections = 0
    hostile: Hostile | None = None
    with Speaker(broker.uri) as innocent:
        for number in range(streams):
            dice = Random(f"{SEED}-{number}")
            if hostile is None:
                connections += 1
                guest = os.getuid() == 0 and connections % 2 == 0
                hostile = Hostile(broker.uri, GUEST_UID if guest else None)
            bodies = [mutate.body(dice.choice(seeds), dice) for _ in range(dice.randint(1, 3))]
            going = all(hostile.say(piece) for piece in mutate.pieces(mutate.stream(bodies, dice), dice))
            if not going or number % 50 == 49:
                hostile.close()
                hostile = None
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                assert innocent.ping() == 0, f"after stream {number}"
                assert innocent.seen == [], f"after stream {number}"
        if hostile is not None:
            hostile.close()
    return connections


def test_a_live_broker_survives_damaged_frames(rundir):
    hold(rundir, STREAMS)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_live_broker_survives_very_many(rundir):
    hold(rundir, SOAK_STREAMS)


def hold(rundir, streams: int) -> None:
    with one_broker(rundir, EXTRA) as broker:
        fds = broker.fds()
        assault(broker, min(500, streams))  # what is made once is made
        memory = broker.rss_kib()
        assert assault(broker, streams) > 10
        eventually(broker.fds, fds)
        grown = broker.rss_kib() - memory
        assert grown < GROWTH_KIB, f"{grown} KiB more after {streams} streams"
        assert not [line for line in broker.lines() if " ERROR " in line]
