"""The table of ``translate``, checked for every type, every flag byte and every pair of dialects.

The expectation is computed here from the table alone, on plain parts.
"""

import errno
from collections import Counter
from typing import Any

import pytest

from broker.errors import DecodeError, Untranslatable
from broker.wire import message as m
from broker.wire.dialects import Dialect, answer_refused, dialect, said_instead, translate
from tests.tables import for_each

DIALECTS = {
    "flux1": dialect("flux1"),
    "strict": dialect("flux1", strict=True),
    "cmb1rev": dialect("cmb1rev"),
    "cmb1": dialect("cmb1"),
}
PAIRS = [(source, target) for source in DIALECTS for target in DIALECTS]
UNDEFINED = {"flux1": 0, "strict": 0, "cmb1rev": 0x80, "cmb1": 0xE0}
NOT_CARRIED = {
    "flux1": {},
    "strict": {},
    "cmb1rev": {0x80: "flag USER1"},
    "cmb1": {0x04: "flag NORESPONSE", 0x20: "flag PRIVATE", 0x40: "flag STREAMING", 0x80: "flag USER1"},
}
FIRST = (0, 1, 2, 9, 0xFFFFFFFE, 0xFFFFFFFF)
"""Of the first word; all of them with one flag at the most, for the rest those of which a meaning hangs on others."""
ONE_FLAG = {0, *(1 << bit for bit in range(8))}
CRED = bytes.fromhex("00 00 03 e8 00 00 00 02")


def write(name: str, kind: int, flags: int, first: int, json: bool) -> list[bytes]:
    """Parts as a peer of this dialect writes them."""
    end = b"\0" if name == "strict" else b""
    parts = [b"id" + end, b""] if flags & 0x08 else []
    if flags & 0x01:
        parts.append(b"a.b" + end)
    if flags & 0x02:
        parts.append((b"{}" if name == "cmb1" and flags & 0x04 else b"{}\0") if json else b"raw")
    return [*parts, bytes([0x8E, 1, kind, flags]) + CRED + first.to_bytes(4, "big") + bytes(4)]


def read(source: str, kind: int, flags: int, first: int, json: bool) -> dict[str, Any] | str:
    """The message as the house sees it, or what the source's side says."""
    if flags & UNDEFINED[source]:
        return "DecodeError"
    payload = (b"{}\0" if json else b"raw") if flags & 0x02 else None
    if source == "cmb1" and flags & 0x04:
        flags &= ~0x04
        payload = payload if payload is None or json else b"raw\0"
    house: dict[str, Any] = {
        "routes": [b"id"] if flags & 0x08 else [],
        "topic": flags & 0x01,
        "payload": payload,
        "flags": flags,
    }
    if source != "flux1":
        house["flags"] |= 0x08
        if kind == m.CONTROL:
            if first and source != "strict":
                return "errnum"
            house |= {"routes": [], "topic": 0, "payload": None, "flags": house["flags"] & ~0x03}
    return house


def expected(
    source: str, target: str, kind: int, flags: int, first: int, json: bool
) -> list[bytes] | set[str]:
    """The target's parts, or the fields that a refusal may name."""
    house = read(source, kind, flags, first, json)
    if isinstance(house, str):
        return {house}
    if target == "flux1":
        return house_parts(house, kind, first)
    flags = house["flags"]
    refused = {why for bit, why in NOT_CARRIED[target].items() if flags & bit}
    if kind == m.CONTROL:
        if house["topic"] or house["payload"] is not None:
            refused.add("topic or payload")
        if first and target in ("cmb1", "cmb1rev"):
            refused.add("control type")
    elif not house["topic"]:
        refused.add("a missing topic")
    elif kind == m.REQUEST and first == 0xFFFFFFFE:
        refused.add("nodeid")
    if refused:
        return refused
    return text_parts(target, house, kind, first)


def house_parts(house: dict, kind: int, first: int) -> list[bytes]:
    parts = [*house["routes"], b""] if house["flags"] & 0x08 else []
    parts += [b"a.b"] if house["topic"] else []
    parts += [house["payload"]] if house["payload"] is not None else []
    return [*parts, bytes([0x8E, 1, kind, house["flags"]]) + CRED + first.to_bytes(4, "big") + bytes(4)]


def text_parts(target: str, house: dict, kind: int, first: int) -> list[bytes]:
    end = b"\0" if target == "strict" else b""
    two_way = kind in (m.REQUEST, m.RESPONSE)
    flags = house["flags"] | 0x08 if two_way else house["flags"] & ~0x08
    parts = [*(route + end for route in house["routes"]), b""] if two_way else []
    parts += [b"a.b" + end] if house["topic"] else []
    payload = house["payload"]
    if target == "cmb1" and payload == b"{}\0":
        payload, flags = b"{}", flags | 0x04
    parts += [payload] if payload is not None else []
    return [*parts, bytes([0x8E, 1, kind, flags]) + CRED + first.to_bytes(4, "big") + bytes(4)]


def outcome(parts: list[bytes], source: str, target: str) -> list[bytes] | str:
    """The target's parts, or what the refusal says."""
    try:
        return translate(parts, DIALECTS[source], DIALECTS[target])
    except DecodeError:
        return "DecodeError"
    except Untranslatable as error:
        return f"{error.errno}: {error}"


def check(source: str, target: str, kind: int, flags: int, first: int, json: bool) -> str:
    """Translate and compare; the kind of outcome."""
    wanted = expected(source, target, kind, flags, first, json)
    got = outcome(write(source, kind, flags, first, json), source, target)
    if isinstance(wanted, list):
        assert got == wanted, (flags, first)
        return "carried"
    assert isinstance(got, str), (wanted, got)
    assert any(field in got for field in wanted), (wanted, got)
    if wanted == {"DecodeError"}:
        return "undefined"
    assert got.startswith(f"{errno.EOPNOTSUPP}: ")
    return "refused"


@for_each(
    "kind", [m.REQUEST, m.RESPONSE, m.EVENT, m.CONTROL], ids=["request", "response", "event", "control"]
)
@for_each(("source", "target"), PAIRS)
def test_the_whole_table(source: str, target: str, kind: int) -> None:
    outcomes = Counter(
        check(source, target, kind, flags, first, json)
        for flags in range(256)
        for first in (FIRST if flags in ONE_FLAG else (0, 0xFFFFFFFE))
        for json in ((False, True) if flags & 0x02 else (True,))
    )
    assert outcomes.total() == 256 * 3 + 4 * (len(ONE_FLAG) + 1)
    assert outcomes["carried"] > 0
    assert (outcomes["undefined"] > 0) == (UNDEFINED[source] > 0)


@for_each("name", DIALECTS)
def test_no_loss_into_the_deployed_form_and_back(name: str) -> None:
    """Apart from routes left over on events, which no text allows."""
    spoken, deployed = DIALECTS[name], DIALECTS["flux1"]
    for kind in (m.REQUEST, m.RESPONSE, m.EVENT):
        for flags in range(256):
            left_over = kind == m.EVENT and flags & 8
            if flags & UNDEFINED[name] or not flags & 1 or left_over or (name == "cmb1" and flags & 6 == 4):
                continue
            parts = write(name, kind, flags, 3, json=bool(flags & 4))
            there = translate(parts, spoken, deployed)
            again = translate(translate(there, deployed, spoken), spoken, deployed)
            assert again == there


# -- the answer of a refusal -------------------------------------------------------------------------------


def refusal(message: m.Message, spoken: Dialect) -> Untranslatable:
    with pytest.raises(Untranslatable) as caught:
        spoken.encode(message)
    return caught.value


def test_a_refused_request_is_answered() -> None:
    message = m.request("a.b", b"x", matchtag=4, flags=m.STREAMING)
    message.push_route(b"caller")
    answer = answer_refused(message, refusal(message, DIALECTS["cmb1"]))
    assert answer is not None
    assert (answer.type, answer.errnum, answer.matchtag, answer.routes) == (m.RESPONSE, 95, 4, [b"caller"])
    assert answer.payload is not None
    assert answer.payload.endswith(b"\0")
    assert b"STREAMING" in answer.payload


@for_each(
    "message",
    [m.request("a", flags=m.NORESPONSE), m.event("a", flags=m.PRIVATE), m.control(2)],
    ids=["noresponse", "event", "control"],
)
def test_what_expects_no_answer_gets_none(message: m.Message) -> None:
    assert answer_refused(message, refusal(message, DIALECTS["cmb1"])) is None


def test_a_response_becomes_an_error_that_every_dialect_carries() -> None:
    asked = m.request("a.b", b"x", matchtag=4)
    asked.push_route(b"caller")
    message = m.response(asked, b"result", userid=7, rolemask=1)
    message.set_flags(message.flags | m.USER1 | m.STREAMING | m.PRIVATE)
    instead = said_instead(message, refusal(message, DIALECTS["cmb1"]))
    assert instead is not None
    assert (instead.errnum, instead.matchtag, instead.routes, instead.topic) == (95, 4, [b"caller"], "a.b")
    assert (instead.userid, instead.rolemask) == (7, 1)
    assert instead.payload is not None
    assert instead.payload.startswith(b"cmb1 cannot carry flag PRIVATE")
    for spoken in DIALECTS.values():
        assert spoken.decode(spoken.encode(instead)) == instead


@for_each("message", [m.request("a", flags=m.STREAMING), m.event("a", flags=m.PRIVATE), m.control(2)])
def test_nothing_but_a_response_is_replaced(message: m.Message) -> None:
    assert said_instead(message, refusal(message, DIALECTS["cmb1"])) is None


def test_what_a_replacement_would_share_is_not_replaced() -> None:
    message = m.response(m.request("a"))
    message.topic_part = b""
    message.set_flags(message.flags & ~m.TOPIC)
    assert said_instead(message, refusal(message, DIALECTS["cmb1"])) is None
