"""A mutation fuzzer over NFP's frames: damaged messages are read or refused, and what is read is written again.

Fixed seeds: every run sees the same inputs. ``make soak`` runs half a million, in slices; more of them, from other
seeds: ``HEADGATE_FUZZ_INPUTS=5000000 HEADGATE_FUZZ_SEED=7 pytest tests/fuzz/test_nfp_frames.py``.
"""

import os
from collections import Counter
from random import Random

import pytest

from broker.nfp import bodies
from broker.nfp.frames import InvalidPacket, Packet, decode, encode
from tests.vectors import nfp

INPUTS = int(os.environ.get("HEADGATE_FUZZ_INPUTS", "15000"))
"""Multiparts per run."""
SOAK_INPUTS = 500_000
SEED = int(os.environ.get("HEADGATE_FUZZ_SEED", "0"))
SLICES = 4
PIECES = (
    b"", b"\0", b"\xff", b"s", b"all", b"any", b"[]", b'["w1"]', b"a,b", b"200", b"000", b"2x0", b"NFPC01", b"NFPW01",
    b"NFPB01", b"{}", b'{"task":', b"[" * 2000, b"x" * 256, b"5eed", b"\xe2\x80\xae", b"9" * 5000,
)  # fmt: skip
KINDS = {
    "short", "frame0", "header", "command", "role", "arity", "encoding", "status", "service", "target", "uuid",
    "client",
}  # fmt: skip


def _replace(frames: list[bytes], dice: Random) -> None:
    frames[dice.randrange(len(frames))] = dice.choice(PIECES)


def _command(frames: list[bytes], dice: Random) -> None:
    if len(frames) > 2:
        frames[2] = b"0x%02d" % dice.randrange(14) if dice.random() < 0.5 else bytes((dice.randrange(12),))


def _header(frames: list[bytes], dice: Random) -> None:
    if len(frames) > 1:
        frames[1] = dice.choice((b"NFPC01", b"NFPW01", b"NFPB01"))


def _insert(frames: list[bytes], dice: Random) -> None:
    frames.insert(dice.randrange(len(frames) + 1), dice.choice(PIECES))


def _delete(frames: list[bytes], dice: Random) -> None:
    del frames[dice.randrange(len(frames))]


def _exchange(frames: list[bytes], dice: Random) -> None:
    one, other = dice.randrange(len(frames)), dice.randrange(len(frames))
    frames[one], frames[other] = frames[other], frames[one]


def _bytes(frames: list[bytes], dice: Random) -> None:
    at = dice.randrange(len(frames))
    data = bytearray(frames[at] or b"\0")
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    frames[at] = bytes(data)


def _cut(frames: list[bytes], dice: Random) -> None:
    at = dice.randrange(len(frames))
    frames[at] = frames[at][: dice.randrange(len(frames[at]) + 1)]


def _many(frames: list[bytes], dice: Random) -> None:
    frames += [dice.choice(PIECES)] * dice.choice((1, 2, 60, 3000))


MUTATIONS = (_replace, _replace, _command, _header, _insert, _delete, _exchange, _bytes, _bytes, _cut, _many)
SEEDS = [message.frames for message in nfp()]


def damaged(number: int) -> list[bytes]:
    dice = Random(number)
    frames = list(dice.choice(SEEDS))
    for _ in range(dice.randint(1, 3)):
        if frames:
            dice.choice(MUTATIONS)(frames, dice)
    return frames


def facts(packet: Packet) -> tuple[object, ...]:
    return tuple(getattr(packet, name) for name in Packet.__slots__)


def check_bodies(packet: Packet) -> None:
    """Nothing a body holds makes a reader raise, and what is embedded is JSON."""
    data = packet.data
    head = bodies.read_head(data)
    request = bodies.read_request(data)
    if request.task != bodies.UNREADABLE:
        assert request.task == head.task
    bodies.event_kind(data)
    bodies.read_uuids(data)
    bodies.read_token(packet.client or b"")
    assert bodies.read_request(bodies.aggregate({"w": data, "v": b"1"})).task == ""


def check(frames: list[bytes]) -> str:
    """What became of it: "read", or the class it was refused for."""
    try:
        packet = decode(frames)
    except InvalidPacket as refused:
        return refused.kind if len(str(refused)) < 500 else "refused with too many words"
    written = encode(packet)
    again = decode(written)
    assert encode(again) == written
    if packet.target is None:
        assert facts(again) == facts(packet)
    check_bodies(packet)
    return "read"


def run(inputs: range) -> Counter[str]:
    became: Counter[str] = Counter()
    for number in inputs:
        frames = damaged(number)
        try:
            became[check(frames)] += 1
        except BaseException as error:
            error.add_note(f"input {number}: {[frame[:80] for frame in frames[:10]]}")
            raise
    return became


def slice_of(first: int, total: int, number: int) -> range:
    start = SEED * 10**9 + first
    return range(start + number, start + total, SLICES)


@pytest.mark.timeout(600)
def test_damaged_messages() -> None:
    inputs = range(SEED * 10**9, SEED * 10**9 + INPUTS)
    became = run(inputs)
    assert became["read"] > len(inputs) // 10, "damage so heavy that hardly a message is left tests nothing"
    assert set(became) == KINDS | {"read"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(SLICES))
def test_damaged_messages_for_long(number: int) -> None:
    assert set(run(slice_of(INPUTS, SOAK_INPUTS - INPUTS, number))) == KINDS | {"read"}
