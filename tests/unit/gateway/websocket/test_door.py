"""A client at the door: the auth object, in time, small, and nothing left of who goes."""

import asyncio

import msgspec
import pytest

from tests.unit.gateway.websocket.house import AUTH, flux, house, masked, request_head

BINARY, TEXT, CLOSE, PING = 2, 1, 8, 9


@pytest.mark.parametrize("subprotocol", ["flux.v1", "flux.v1.json"])
def test_a_credential_in_the_first_message(subprotocol):
    async def story():
        async with house() as one:
            peer = await one.connect(subprotocol, token=None)
            assert len(one.endpoint.doors) == 1
            assert not one.hub.opened
            peer.write(masked(TEXT, AUTH % b"good"))
            assert (await peer.control()) == {"type": "welcome", "user": "alice"}
            assert not one.endpoint.doors
            assert one.hub.opened[0].link.reader.max_bytes == one.hub.settings.limits.message_bytes

    asyncio.run(story())


def test_what_follows_the_auth_object_waits_for_it_in_order():
    async def story():
        async with house() as one:
            peer = await one.connect(token=None)
            pipelined = (
                masked(BINARY, flux("a")) + masked(TEXT, b'{"type":"ping"}') + masked(BINARY, flux("b"))
            )
            peer.write(masked(TEXT, AUTH % b"slow") + pipelined)
            await one.identity.asked.wait()
            peer.write(masked(BINARY, flux("c")))
            await asyncio.sleep(0.05)
            assert not one.hub.opened, "in no table before the credential was accepted"
            one.identity.release.set()
            assert (await peer.control())["type"] == "welcome"
            await one.until(lambda: len(one.hub.opened[0].order) == 4)
            assert one.hub.opened[0].order == ["a", "ping", "b", "c"]

    asyncio.run(story())


@pytest.mark.parametrize(
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
def test_what_a_stranger_may_not_do(sent, code):
    async def story():
        async with house(preauth_bytes=1024) as one:
            peer = await one.connect(token=None)
            peer.write(sent)
            before, seen, reason = await peer.closing()
            assert seen == code
            assert [msgspec.json.decode(data)["code"] for _, data in before] == [code]
            assert reason
            assert not one.hub.opened
            assert not one.endpoint.doors

    asyncio.run(story())


def test_the_limit_is_the_announced_one_after_authentication():
    async def story():
        async with house(preauth_bytes=1024, message_bytes=2048) as one:
            peer = await one.connect()
            peer.write(masked(BINARY, flux(payload=b"x" * 1900)))
            assert (await peer.frame())[0] == 0x82
            peer.write(masked(BINARY, flux(payload=b"x" * 2048)))
            _, code, reason = await peer.closing()
            assert code == 1009
            assert "2048" in reason

    asyncio.run(story())


def test_a_credential_has_to_come_in_time():
    async def story():
        async with house(handshake_s=0.1) as one:
            peer = await one.connect(token=None)
            before, code, _ = await peer.closing()
            assert code == 4502
            assert msgspec.json.decode(before[0][1])["name"] == "auth-timeout"
            assert not one.endpoint.doors

    asyncio.run(story())


def test_a_check_that_takes_too_long_ends_in_time():
    async def story():
        async with house(handshake_s=0.1) as one:
            peer = await one.connect(token=None)
            peer.write(masked(TEXT, AUTH % b"slow"))
            _, code, _ = await peer.closing()
            assert code == 4502
            one.identity.release.set()
            await asyncio.sleep(0.01)
            assert not one.hub.opened

    asyncio.run(story())


def test_time_is_no_matter_once_the_credential_was_accepted():
    async def story():
        async with house(handshake_s=0.1) as one:
            peer = await one.connect(token=None)
            peer.write(masked(TEXT, AUTH % b"good"))
            await peer.control()
            await asyncio.sleep(0.2)
            peer.write(masked(BINARY, flux()))
            assert (await peer.frame())[0] == 0x82

    asyncio.run(story())


@pytest.mark.parametrize("how", ["abort", "close frame", "eof"])
def test_a_client_gone_during_authentication_leaves_nothing(how):
    async def story():
        async with house() as one:
            peer = await one.connect(token=None)
            peer.write(masked(TEXT, AUTH % b"slow"))
            await one.identity.asked.wait()
            (door,) = one.endpoint.doors
            if how == "abort":
                peer.writer.transport.abort()
            elif how == "eof":
                peer.writer.write_eof()
            else:
                peer.write(masked(CLOSE))
            await asyncio.sleep(0.05)
            one.identity.release.set()
            await one.until(lambda: not one.endpoint.doors)
            await one.until(lambda: door.check.done())
            await asyncio.sleep(0.05)
            assert not one.hub.sessions, "a session that was opened has ended"
            assert len(one.endpoint.keepalive) == 0

    asyncio.run(story())


def test_faults_while_checking_end_with_a_code():
    async def story():
        async with house() as one:
            one.identity.broken = True
            peer = await one.connect(token=None)
            peer.write(masked(TEXT, AUTH % b"good"))
            _, code, _ = await peer.closing()
            assert code == 4001
            one.identity.broken = False
            one.hub.refusal = ZeroDivisionError("on purpose")
            peer = await one.raw()
            peer.write(request_head(Authorization="Bearer good"))
            await peer.head()
            _, code, _ = await peer.closing()
            assert code == 4001

    asyncio.run(story())


def test_who_is_at_the_door_is_told_of_the_end():
    async def story():
        async with house() as one:
            peer, checked = await one.connect(token=None), await one.connect(token=None)
            checked.write(masked(TEXT, AUTH % b"slow"))
            await one.identity.asked.wait()
            await one.endpoint.close()
            for each in (peer, checked):
                before, code, _ = await each.closing()
                assert code == 4000
                assert msgspec.json.decode(before[0][1])["reconnect"] is True
            assert not one.endpoint.doors

    asyncio.run(story())
