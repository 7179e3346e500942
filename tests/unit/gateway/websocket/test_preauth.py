"""A client at the door: the auth object, in time, small, and nothing left of who goes."""

import asyncio
import time

import msgspec
import pytest

from broker import awake
from tests.tables import for_each
from tests.unit.gateway.websocket.house import AUTH, flux, masked, request_head

BINARY, TEXT, CLOSE, PING = 2, 1, 8, 9


@pytest.mark.parametrize("subprotocol", ["flux.v1", "flux.v1.json"])
async def test_a_credential_in_the_first_message(house, subprotocol):
    peer = await house.connect(subprotocol, token=None)
    assert len(house.endpoint.preauth) == 1
    assert not house.sessions.opened
    peer.write(masked(TEXT, AUTH % b"good"))
    assert (await peer.control()) == {"type": "welcome", "user": "alice"}
    assert not house.endpoint.preauth
    assert house.sessions.opened[0].link.reader.max_bytes == house.sessions.settings.limits.message_bytes


async def test_what_follows_the_auth_object_waits_for_it_in_order(house):
    peer = await house.connect(token=None)
    pipelined = masked(BINARY, flux("a")) + masked(TEXT, b'{"type":"ping"}') + masked(BINARY, flux("b"))
    peer.write(masked(TEXT, AUTH % b"slow") + pipelined)
    await house.identity.asked.wait()
    peer.write(masked(BINARY, flux("c")))
    await asyncio.sleep(0.05)
    assert not house.sessions.opened, "in no table before the credential was accepted"
    house.identity.release.set()
    assert (await peer.control())["type"] == "welcome"
    await house.until(lambda: len(house.sessions.opened[0].order) == 4)
    assert house.sessions.opened[0].order == ["a", "ping", "b", "c"]


@for_each(
    ("sent", "code"),
    [
        (masked(TEXT, AUTH % b"bad"), 4500),
        (masked(BINARY, flux()), 4500),
        (masked(TEXT, b'{"type":"ping"}'), 4500),
        (masked(TEXT, b'{"type":"auth"}'), 4503),
        (masked(TEXT, b"{"), 4503),
        (masked(TEXT, AUTH % (b"x" * 5000)), 1009),
        (masked(BINARY, bytes(1025)), 1009),
        (masked(3), 1002),
    ],
    # masks are random: no names to be found again
    ids=("bad", "message", "ping", "no token", "no json", "large auth", "large message", "opcode"),
)
async def test_what_a_stranger_may_not_do(open_house, sent, code):
    house = await open_house(preauth_bytes=1024)
    peer = await house.connect(token=None)
    peer.write(sent)
    before, seen, reason = await peer.closing()
    assert seen == code
    assert [msgspec.json.decode(data)["code"] for _, data in before] == [code]
    assert reason
    assert not house.sessions.opened
    assert not house.endpoint.preauth


async def test_the_limit_is_the_announced_one_after_authentication(open_house):
    house = await open_house(preauth_bytes=1024, message_bytes=2048)
    peer = await house.connect()
    peer.write(masked(BINARY, flux(payload=b"x" * 1900)))
    assert (await peer.frame())[0] == 0x82
    peer.write(masked(BINARY, flux(payload=b"x" * 2048)))
    _, code, reason = await peer.closing()
    assert code == 1009
    assert "2048" in reason


async def test_a_gateway_that_was_stopped_waits_anew(open_house, monkeypatch):
    """The close code would keep the client away for good."""
    monkeypatch.setattr(awake, "LATE_S", 0.05)
    house = await open_house(handshake_s=0.3)
    peer = await house.connect(token=None)
    peer.write(masked(TEXT, AUTH % b"slow"))
    await house.identity.asked.wait()
    time.sleep(0.5)  # noqa: ASYNC251 - nobody was here
    for _ in range(3):
        await asyncio.sleep(0)
    house.identity.release.set()
    assert (await peer.control())["type"] == "welcome"


async def test_a_credential_has_to_come_in_time(open_house):
    house = await open_house(handshake_s=0.1)
    peer = await house.connect(token=None)
    before, code, _ = await peer.closing()
    assert code == 4502
    assert msgspec.json.decode(before[0][1])["name"] == "auth-timeout"
    assert not house.endpoint.preauth


async def test_a_check_that_takes_too_long_ends_in_time(open_house):
    house = await open_house(handshake_s=0.1)
    peer = await house.connect(token=None)
    peer.write(masked(TEXT, AUTH % b"slow"))
    _, code, _ = await peer.closing()
    assert code == 4502
    house.identity.release.set()
    await asyncio.sleep(0.01)
    assert not house.sessions.opened


@pytest.mark.patient
async def test_time_is_no_matter_once_the_credential_was_accepted(open_house):
    house = await open_house(handshake_s=1.0)
    peer = await house.connect(token=None)
    peer.write(masked(TEXT, AUTH % b"good"))
    await peer.control()
    await asyncio.sleep(1.2)
    peer.write(masked(BINARY, flux()))
    assert (await peer.frame())[0] == 0x82


@pytest.mark.parametrize("how", ["abort", "close frame", "eof"])
async def test_a_client_gone_during_authentication_leaves_nothing(house, how):
    peer = await house.connect(token=None)
    peer.write(masked(TEXT, AUTH % b"slow"))
    await house.identity.asked.wait()
    (door,) = house.endpoint.preauth
    if how == "abort":
        peer.writer.transport.abort()
    elif how == "eof":
        peer.writer.write_eof()
    else:
        peer.write(masked(CLOSE))
    await asyncio.sleep(0.05)
    house.identity.release.set()
    await house.until(lambda: not house.endpoint.preauth)
    await house.until(lambda: door.check.done())
    await asyncio.sleep(0.05)
    assert not house.sessions.by_id, "a session that was opened has ended"
    assert len(house.endpoint.keepalive) == 0


async def test_faults_while_checking_end_with_a_code(house):
    house.identity.broken = True
    peer = await house.connect(token=None)
    peer.write(masked(TEXT, AUTH % b"good"))
    _, code, _ = await peer.closing()
    assert code == 4001
    house.identity.broken = False
    house.sessions.refusal = ZeroDivisionError("on purpose")
    peer = await house.raw()
    peer.write(request_head(Authorization="Bearer good"))
    await peer.head()
    _, code, _ = await peer.closing()
    assert code == 4001


async def test_who_is_at_the_door_is_told_of_the_end(house):
    peer, checked = await house.connect(token=None), await house.connect(token=None)
    checked.write(masked(TEXT, AUTH % b"slow"))
    await house.identity.asked.wait()
    await house.endpoint.close()
    for each in (peer, checked):
        before, code, _ = await each.closing()
        assert code == 4000
        assert msgspec.json.decode(before[0][1])["reconnect"] is True
    assert not house.endpoint.preauth
