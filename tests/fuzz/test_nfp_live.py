"""Damaged multiparts at a live NFP broker: it stays, its memory is flat, an innocent pair beside them notices nothing.

Fixed seeds; ``HEADGATE_FUZZ_LIVE`` sets how many messages, ``make soak`` sends many more. Half of them come from peers
whose message is right but for its place: commands of workers from clients, results nobody asked for, foreign uuids.
"""

import json
import os
from pathlib import Path
from random import Random

import pytest
import zmq

from broker.nfp.names import Command
from tests.live.nfp import nfp_process, ready, reply, request

MESSAGES = int(os.environ.get("HEADGATE_FUZZ_LIVE", "4000"))
SOAK_MESSAGES = 200_000
SEED = int(os.environ.get("HEADGATE_FUZZ_SEED", "0"))
CHECK_EVERY = 250
GROWTH_KIB = 24 << 10
VECTORS = Path(__file__).parents[1] / "vectors" / "nfp.jsonl"
SETTINGS = {
    "curve": False,
    "invalid_max": 200,
    "queue_max": 100,
    "queue_per_client": 50,
    "queue_ttl_s": 1.0,
    "job_ttl_s": 2.0,
    "result_ttl_s": 1.0,
    "results_max_bytes": 1 << 20,
    "message_bytes_max": 1 << 20,
    "peer_queue_bytes": 2 << 20,
    "events_ring": 256,
    "keepalive_ms": 500,
}
HARMFUL = (b"shutdown", b"restart", b"disconnect", b"unpin", b"reload")
ODD = (
    b"",
    b"\0",
    b"all",
    b"any",
    b"innocent",
    b"\xff\xfe",
    b"0x04",
    b"\x04",
    b"200",
    b"[",
    b"x" * 300,
    b"NFPC01",
)


def corpus() -> list[list[bytes]]:
    """Messages of every kind, as a DEALER sends them."""
    lines = VECTORS.read_text().splitlines()
    messages = [[bytes.fromhex(frame) for frame in json.loads(line)["frames_hex"]] for line in lines]
    return [frames for frames in messages if not any(word in frame for word in HARMFUL for frame in frames)]


def damaged(seeds: list[list[bytes]], dice: Random) -> list[bytes]:
    """One of the messages, with none to three damages."""
    frames = list(dice.choice(seeds))
    for _ in range(dice.randint(0, 3)):
        at = dice.randrange(len(frames)) if frames else 0
        what = dice.randrange(7)
        if what == 0 and frames:
            del frames[at]
        elif what == 1:
            frames.insert(at, dice.choice(ODD))
        elif what == 2 and frames:
            frames[at] = dice.choice(ODD)
        elif what == 3 and frames:
            frames[at] = dice.choice(dice.choice(seeds) or [b""])
        elif what == 4 and frames and frames[at]:
            flipped = bytearray(frames[at])
            flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
            frames[at] = bytes(flipped)
        elif what == 5 and frames:
            frames[at] = frames[at][: dice.randrange(len(frames[at]) + 1)]
        elif len(frames) < 40:
            frames += [dice.randbytes(dice.randrange(40))] * dice.randint(1, 20)
    return frames or [b""]


class Hostile:
    """Some peers that say damaged things, read what comes back, and come again when they are cut."""

    def __init__(self, live, count: int) -> None:
        self.live = live
        self.socks = [self.fresh(number) for number in range(count)]
        self.came = 0

    def fresh(self, number: int) -> zmq.Socket:
        return self.live.dealer(f"hostile-{number}", SNDHWM=100, RECONNECT_IVL=10).sock

    def say(self, frames: list[bytes], dice: Random) -> None:
        at = dice.randrange(len(self.socks))
        if dice.random() < 0.005:
            self.socks[at].close(0)
            self.socks[at] = self.fresh(at)
        sock = self.socks[at]
        if sock.poll(1000, zmq.POLLOUT):
            sock.send_multipart(frames)
        while sock.poll(0):
            sock.recv_multipart()
            self.came += 1

    def heard(self) -> bool:
        """Something came back, or does so within some seconds."""
        poller = zmq.Poller()
        for sock in self.socks:
            poller.register(sock, zmq.POLLIN)
        return self.came > 0 or bool(poller.poll(10_000))

    def close(self) -> None:
        for sock in self.socks:
            sock.close(0)


def one_job(worker, client, uuid: str) -> None:
    """The innocent pair still works; what hostile peers asked of the worker's service it does not wait for."""
    client.say(request(Command.POST, uuid, service="innocent", target="innocent"))
    while True:
        post = worker.hear()
        if post.command is Command.DISCONNECT:
            raise AssertionError(f"the innocent worker was disconnected: {post.data!r}")
        if post.command is Command.POST:
            worker.say(reply(post, 200, b'{"innocent":{"result":1}}'))
        if post.uuid == uuid:
            break
    client.until(lambda packet: packet.uuid == uuid and packet.status == 200)


def hold(rundir, messages: int) -> None:
    seeds = corpus()
    with nfp_process(rundir, **SETTINGS) as live:
        with live.dealer("innocent") as worker, live.dealer("innocent-client") as client:
            worker.say(ready("innocent"))
            one_job(worker, client, "job-0")
            hostile = Hostile(live, 4)
            resident = 0
            for number in range(1, messages + 1):
                dice = Random(f"{SEED}-{number}")
                hostile.say(damaged(seeds, dice), dice)
                if number % CHECK_EVERY == 0:
                    one_job(worker, client, f"job-{number}")
                if number == messages // 2:
                    resident = live.rss_kib()
            assert hostile.heard()
            hostile.close()
            one_job(worker, client, "job-last")
            assert live.rss_kib() - resident < GROWTH_KIB
        assert live.process.poll() is None
        broken = [line for line in live.lines() if "ERROR" in line or "Traceback" in line]
        assert not broken, broken[:3]


@pytest.mark.parametrize("messages", [500, pytest.param(MESSAGES, marks=pytest.mark.patient)])
def test_a_live_broker_survives_damaged_multiparts(rundir, messages):
    hold(rundir, messages)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_live_broker_survives_very_many_multiparts(rundir):
    hold(rundir, SOAK_MESSAGES)
