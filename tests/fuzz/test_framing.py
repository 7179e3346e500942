"""A mutation fuzzer over framing, parts and PROTO, judged by the plain reading of RFC 3 in ``reference``.

Fixed seeds: every run sees the same inputs, in slices that run in parallel with pytest-xdist. A failure
prints the number of its input, which is the seed of its dice. ``make soak`` runs two million; more of them,
from other seeds: ``HEADGATE_FUZZ_INPUTS=5000000 HEADGATE_FUZZ_SEED=7 pytest tests/fuzz``.
"""

import os
from random import Random

import pytest

from broker.errors import DecodeError, ProtocolError, Untranslatable
from broker.wire import decoding
from broker.wire.decoding import decode, decode_large, from_parts
from broker.wire.dialects import dialect
from broker.wire.framing import Splitter
from broker.wire.message import Message
from broker.wire.parts import part_data
from tests.fuzz import mutate, reference
from tests.fuzz.reference import BadError, Fields
from tests.vectors import local, malformed, tbon

INPUTS = int(os.environ.get("HEADGATE_FUZZ_INPUTS", "30000"))
"""Streams per run; each holds one to three frames."""
SOAK_INPUTS = 2_000_000
SEED = int(os.environ.get("HEADGATE_FUZZ_SEED", "0"))
SLICES = 16
"""The first belongs to the fast tests."""
CAP_BYTES = 1 << 20
DIALECTS = [dialect("flux1", strict=True), dialect("cmb1rev"), dialect("cmb1")]


def corpus() -> list[bytes]:
    """Bodies of captured frames, of the odd ones, and of one with everything."""
    everything = Fields((b"r" * 36, b"s"), b"a.b", b'{"a":1}\0', 1, 0xFB, (1, 2, 3, 4))
    bodies = [record.frame[8:] for record in local() if len(record.frame) < 400]
    bodies += [hostile.data[8:] for hostile in malformed() if 30 < len(hostile.data) < 400]
    bodies += [b"".join(reference.part(part or b"") for part in record.parts) for record in tbon()[::3]]
    bodies += [reference.write(everything)[8:], reference.write(everything._replace(payload=b"p" * 300))[8:]]
    return bodies


def fields(message: Message) -> Fields:
    topic = part_data(message.topic_part)
    words = (message.userid, message.rolemask, message.aux1, message.aux2)
    return Fields(
        tuple(message.routes),
        None if topic is None else bytes(topic),
        message.payload,
        message.type,
        message.flags,
        words,
    )


def check_stream(data: bytes, dice: Random) -> int:
    """Any split, same messages and same verdict as the reference; how many messages there were."""
    splitter = Splitter(CAP_BYTES)
    seen: list[Message] = []
    fed = 0
    for piece in mutate.pieces(data, dice):
        seen += splitter.feed(piece)
        fed += len(piece)
        assert splitter.pending_bytes <= fed
    wanted, bad = reference.read_stream(data, CAP_BYTES)
    assert [fields(message) for message in seen] == wanted
    assert (splitter.failure is not None) == bad
    assert splitter.failure is None or isinstance(splitter.failure, ProtocolError)
    for message, fields_of_it in zip(seen, wanted, strict=True):
        canonical = message.framed()
        assert canonical == reference.write(fields_of_it)
        assert decode(canonical, 8, len(canonical)) == message
    return len(seen)


def check_body(body: bytes) -> None:
    """The decoder of large frames agrees with the other, whatever stands in front of the payload."""
    if len(body) < 21:
        return
    try:
        expected = decode(body, 0, len(body))
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_large(memoryview(body), 0, len(body))
        return
    assert decode_large(memoryview(body), 0, len(body)) == expected


def check_parts(body: bytes, dice: Random) -> None:
    """As ZeroMQ would deliver it: every dialect reads or refuses, and reads what it wrote."""
    try:
        parts = reference.parts_of(body)
    except BadError:
        return
    if parts and dice.random() < 0.2:
        dice.shuffle(parts)
    try:
        wanted = reference.fields_of(parts)
    except BadError:
        with pytest.raises(DecodeError):
            from_parts(parts)
        return
    assert fields(from_parts(parts)) == wanted
    for spoken in DIALECTS:
        try:
            message = spoken.decode(parts)
            again = spoken.decode(spoken.encode(message))
        except (DecodeError, Untranslatable):
            continue
        assert spoken.decode(spoken.encode(again)) == again


def run(inputs: range) -> int:
    seeds = corpus()
    delivered = 0
    for number in inputs:
        dice = Random(number)
        bodies = [dice.choice(seeds) for _ in range(dice.randint(1, 3))]
        bodies[-1] = mutate.body(bodies[-1], dice)
        try:
            delivered += check_stream(mutate.stream(bodies, dice), dice)
            check_body(bodies[-1])
            if number % 4 == 0:
                check_parts(bodies[-1], dice)
        except BaseException as error:
            error.add_note(f"input {number}: damaged body {bodies[-1][:400].hex()}")
            raise
    return delivered


def slice_of(total: int, number: int) -> range:
    first = SEED * 10**9
    return range(first + number, first + total, SLICES)


@pytest.fixture
def short_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the head of a large frame end inside what these small ones hold."""
    monkeypatch.setattr(decoding, "LARGE_HEAD_BYTES", 64)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("short_head")
@pytest.mark.parametrize(
    "number", [0, *(pytest.param(each, marks=pytest.mark.patient) for each in range(1, SLICES))]
)
def test_mutated_streams(number: int) -> None:
    inputs = slice_of(INPUTS, number)
    assert run(inputs) > len(inputs) // 2, "damage so heavy that hardly a message is left tests nothing"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("short_head")
@pytest.mark.parametrize("number", range(SLICES))
def test_mutated_streams_for_long(number: int) -> None:
    first = INPUTS + number
    assert run(range(first, SOAK_INPUTS, SLICES)) > 0


def test_random_bytes() -> None:
    dice = Random(SEED)
    for _ in range(5_000):
        splitter = Splitter(CAP_BYTES)
        data = dice.randbytes(dice.randint(8, 64))
        assert splitter.feed(data) == []
        assert isinstance(splitter.failure, ProtocolError)
