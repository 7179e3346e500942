"""Damage to frames: some of it anywhere, some where a parser makes its decisions."""

from random import Random

from tests.fuzz import reference

BYTES = (0x00, 0x01, 0x02, 0x04, 0x08, 0x13, 0x14, 0x15, 0x8E, 0x8F, 0xFE, 0xFF)
SIZES = (0, 1, 20, 21, 22, 254, 255, 256, 0x00010000, 0x7FFFFFFF, 0xFFFFFFFF)


def _set(data: bytearray, dice: Random) -> None:
    data[dice.randrange(len(data))] = dice.choice(BYTES)


def _flip(data: bytearray, dice: Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _insert(data: bytearray, dice: Random) -> None:
    at = dice.randrange(len(data) + 1)
    data[at:at] = bytes(dice.choice(BYTES) for _ in range(dice.randint(1, 6)))


def _delete(data: bytearray, dice: Random) -> None:
    at = dice.randrange(len(data))
    del data[at : at + dice.randint(1, 6)]


def _repeat(data: bytearray, dice: Random) -> None:
    start = dice.randrange(len(data))
    piece = data[start : start + dice.randint(1, 40)]
    at = dice.randrange(len(data) + 1)
    data[at:at] = piece


def _truncate(data: bytearray, dice: Random) -> None:
    del data[dice.randrange(len(data)) :]


def _long_size(data: bytearray, dice: Random) -> None:
    at = dice.randrange(len(data))
    data[at : at + 1] = b"\xff" + dice.choice((*SIZES, data[at])).to_bytes(4, "big")


def _header(data: bytearray, dice: Random) -> None:
    """One of PROTO's leading bytes: size, magic, version, type, flags."""
    if len(data) >= 21:
        data[len(data) - 21 + dice.randrange(5)] = dice.choice((*BYTES, dice.randrange(256)))


MUTATIONS = (_set, _flip, _insert, _delete, _repeat, _truncate, _long_size, _header, _header)


def body(seed: bytes, dice: Random) -> bytes:
    """``seed`` with one to four damages."""
    data = bytearray(seed)
    for _ in range(dice.randint(1, 4)):
        if data:
            dice.choice(MUTATIONS)(data, dice)
    return bytes(data)


def stream(bodies: list[bytes], dice: Random) -> bytes:
    """Bodies framed one after the other; now and then a header lies or a byte of it is damaged."""
    out = bytearray()
    for one in bodies:
        framed = bytearray(reference.framed(one, dice.choice((reference.DEPLOYED, reference.TEXT))))
        if dice.random() < 0.05:
            framed[4:8] = dice.choice(SIZES).to_bytes(4, "big")
        if dice.random() < 0.05:
            _flip(framed, dice)
        out += framed
    return bytes(out)


def pieces(data: bytes, dice: Random) -> list[bytes]:
    """``data`` cut at up to three places."""
    cuts = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randint(0, 3)))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
