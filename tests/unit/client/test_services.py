"""Services: handlers of three kinds, errors, roles, answers given by hand (RFC 6)."""

import asyncio
import errno
import logging

import pytest

from broker.client import LATER
from broker.errors import HeadgateError, ProtocolError, RpcError
from broker.identity import Role
from broker.wire import message as wire
from broker.wire.payload import any_text, decode_json
from tests.tables import for_each
from tests.unit.client.peer import GUEST, OWNER, asked, settle, talk

S = wire.STREAMING


def test_three_kinds_of_handlers_answer():
    async def script(h, peer):
        async with h.service("calc") as calc:

            @calc.method("add")
            async def add(request):
                numbers = request.json()
                await asyncio.sleep(0)
                return {"sum": numbers["a"] + numbers["b"]}

            @calc.method("echo")
            def echo(request):
                return request.payload

            @calc.method("count")
            async def count(request):
                for n in range(request.json()["to"]):
                    yield {"n": n}

            assert peer.log == [("request", "service.add")]
            assert await asked(peer, "calc.add", {"a": 1, "b": 2}) == (0, '{"sum":3}')
            assert await asked(peer, "calc.echo", b"\xff\0raw") == (0, "\ufffd")
            assert await asked(peer, "calc.echo") == (0, "")
            peer.call("calc.count", {"to": 3}, flags=S)
            answers = [await peer.next() for _ in range(4)]
            assert [decode_json(a.payload)["n"] for a in answers[:3]] == [0, 1, 2]
            assert [a.errnum for a in answers] == [0, 0, 0, errno.ENODATA]
            assert all(a.flags & S for a in answers)
        await settle()
        assert peer.log[-1] == ("request", "service.remove")

    talk(script)


def test_response_carries_the_requests_front_topic_and_tag():
    async def script(h, peer):
        async with h.service("echo", {"run": lambda request: request.payload}):
            hops = (b"a" * 36, b"b" * 36, b"client-1", b"browser-7")
            request = peer.call("echo.run", b"x" * 300, tag=0xFFFFFFFF, sender=hops, flags=wire.USER1)
            answer = await peer.next()
            assert answer.routes == list(hops)
            assert (answer.front, answer.topic_part) == (request.front, request.topic_part)
            assert (answer.matchtag, answer.type) == (0xFFFFFFFF, wire.RESPONSE)
            assert answer.flags == wire.TOPIC | wire.PAYLOAD | wire.ROUTE | wire.USER1
            assert (answer.userid, answer.rolemask) == (0xFFFFFFFF, 0)

    talk(script)


def test_request_shows_its_sender():
    async def script(h, peer):
        seen = []

        def look(request):
            seen.append(
                (request.userid, request.rolemask, request.topic, request.matchtag, request.streaming)
            )
            seen.append((request.owner, request.sender, request.field("n", int)))

        async with h.service("x", {"look": look}):
            sent = peer.call("x.look", {"n": 3}, tag=9)
            assert (await peer.next()).errnum == 0
            assert await asked(peer, "x.look", {"n": "3"}) == (
                errno.EPROTO,
                "x.look: key 'n' is missing or of the wrong type",
            )
        assert seen[:2] == [(7, OWNER, "x.look", 9, False), (True, sent.front, 3)]

    talk(script)


class Mute(HeadgateError):
    """Cannot say what it is."""

    errno = "EIO"

    def __str__(self):
        return str(1 / 0)


@for_each("kind", ["plain", "async"])
@for_each(
    ("error", "errnum", "text"),
    [
        (RpcError(errno.ESRCH, "no such job"), errno.ESRCH, "no such job"),
        (ProtocolError("bad key"), errno.EPROTO, "bad key"),
        (FileNotFoundError(errno.ENOENT, "gone"), errno.ENOENT, "gone"),
        (KeyError("secret"), errno.EIO, "the handler of x.fail failed"),
        (OSError("without a number"), errno.EIO, "the handler of x.fail failed"),
        (RpcError(errno.ESRCH, "a\0b \ud83d"), errno.ESRCH, r"ab \ud83d"),
        (RpcError(2**32, "no number"), errno.EIO, "no number"),
        (RpcError(-1, "no number"), errno.EIO, "no number"),
        (RpcError(0, "no error"), errno.EIO, "no error"),
        (OSError("odd", "number"), errno.EIO, "the handler of x.fail failed"),
        (Mute("mute"), errno.EIO, "(Mute, whose text cannot be read: ZeroDivisionError)"),
    ],
)
def test_what_a_handler_raises_answers_the_request(kind, error, errnum, text, caplog):
    def plain(request):
        raise error

    async def coroutine(request):
        raise error

    async def script(h, peer):
        async with h.service("x", {"fail": plain if kind == "plain" else coroutine}):
            assert await asked(peer, "x.fail") == (errnum, text)

    caplog.clear()
    with caplog.at_level(logging.ERROR):
        talk(script)
    assert ("handler of x.fail failed" in caplog.text) == ("handler of" in text)


def test_wrong_result_is_an_error_of_the_handler(caplog):
    async def script(h, peer):
        async with h.service("x", {"list": lambda request: [1]}):
            assert await asked(peer, "x.list") == (errno.EIO, "the handler of x.list failed")

    talk(script)
    assert "list" in caplog.text


def test_bad_json_is_answered_eproto():
    async def script(h, peer):
        async with h.service("x", {"read": lambda request: request.json()}):
            for payload in (None, b"{}", b"[1]\0", b"{\0"):
                assert (await asked(peer, "x.read", payload))[0] == errno.EPROTO
            assert await asked(peer, "x.read", b"{} \0ignored") == (0, "{}")

    talk(script)


def test_unknown_methods_and_services_are_answered_enosys():
    async def script(h, peer):
        async with h.service("x", {"a.b": lambda request: None}):
            assert await asked(peer, "x.a.b") == (0, "")
            for topic in ("x.a", "x.c", "y.a", "x."):
                text = f"Unknown service method '{topic}'" if topic != "x." else "Unknown service method 'x.'"
                assert await asked(peer, topic) == (errno.ENOSYS, text)
            assert (await asked(peer, "y"))[0] == errno.ENOSYS
        assert (await asked(peer, "x.a.b"))[0] == errno.ENOSYS

    talk(script)


def test_roles_are_checked_before_the_handler_runs():
    async def script(h, peer):
        ran = []
        methods = {
            "own": lambda r: ran.append(r.topic),
            "user": (lambda r: ran.append(r.topic), Role.USER),
            "admin": (lambda r: ran.append(r.topic), Role.ADMIN),
        }
        owner_only = (errno.EPERM, "Request requires owner credentials")
        denied = (errno.EPERM, "Request rejected due to insufficient privilege")
        async with h.service("x", methods):
            for topic, mask, expected in (
                ("x.own", GUEST, owner_only), ("x.own", 0, owner_only), ("x.own", OWNER, (0, "")),
                ("x.user", GUEST, (0, "")), ("x.user", OWNER, (0, "")), ("x.user", 0, denied),
                ("x.admin", GUEST, denied), ("x.admin", GUEST | Role.ADMIN, (0, "")), ("x.admin", OWNER, (0, "")),
            ):  # fmt: skip
                before = len(ran)
                assert await asked(peer, topic, rolemask=mask) == expected, (topic, mask)
                assert len(ran) - before == (expected[0] == 0)

    talk(script)


def test_noresponse_is_never_answered():
    async def script(h, peer):
        ran = []

        def fail(request):
            ran.append("fail")
            raise RpcError(5)

        methods = {"run": lambda r: ran.append("run"), "fail": fail}
        async with h.service("x", methods):
            for topic, mask in (("x.run", OWNER), ("x.fail", OWNER), ("x.none", OWNER), ("x.run", 0)):
                peer.call(topic, flags=wire.NORESPONSE, rolemask=mask)
            await settle()
            assert ran == ["run", "fail"]
            assert not peer.seen

    talk(script)


def test_streaming_rules_of_rfc6():
    async def count(request):
        yield None
        yield "two"

    async def script(h, peer):
        async with h.service("x", {"count": count, "one": lambda r: "1", "none": lambda r: None}):
            errnum, text = await asked(peer, "x.count")
            assert errnum == errno.EPROTO
            assert "STREAMING" in text
            # a handler that answers once ends the stream it was asked for
            assert await asked(peer, "x.one", flags=S) == (0, "1")
            assert (await peer.next()).errnum == errno.ENODATA
            assert (await asked(peer, "x.none", flags=S))[0] == errno.ENODATA
            assert await asked(peer, "x.count", flags=S) == (0, "")
            assert (await peer.next()).payload == b"two\0"
            assert (await peer.next()).errnum == errno.ENODATA

    talk(script)


def test_answering_by_hand():
    kept = []

    def later(request):
        kept.append(request)
        return LATER

    def twice(request):
        request.respond("one")
        request.respond("two")
        request.respond_error(5)

    def many(request):
        for n in range(3):
            request.respond(str(n))

    async def script(h, peer):
        async with h.service("x", {"later": later, "twice": twice, "many": many}):
            peer.call("x.later")
            await settle()
            assert not peer.seen
            with pytest.raises(ValueError, match="success"):
                kept[0].respond_error(0)
            kept[0].respond_error(errno.EAGAIN, "not now")
            assert kept[0].done
            assert any_text((await peer.next()).payload) == "not now"
            assert await asked(peer, "x.twice") == (0, "one")
            await settle()
            assert not peer.seen
            peer.call("x.many", flags=S)
            assert [(await peer.next()).errnum for _ in range(4)] == [0, 0, 0, errno.ENODATA]

    talk(script)


def test_otherwise_answers_what_no_method_does():
    async def script(h, peer):
        async with h.service("x", {"known": lambda request: {"by": "method"}}) as x:
            x.otherwise(lambda request: {"by": request.topic}, allow=Role.USER)
            assert await asked(peer, "x.known") == (0, '{"by":"method"}')
            assert await asked(peer, "x.some.thing", rolemask=GUEST) == (0, '{"by":"x.some.thing"}')
            assert await asked(peer, "x") == (0, '{"by":"x"}')
            assert (await asked(peer, "x.known", rolemask=GUEST))[0] == errno.EPERM
            x.otherwise(lambda request: {"by": "another"})
            assert (await asked(peer, "x.some.thing", rolemask=GUEST))[0] == errno.EPERM
            assert await asked(peer, "x.some.thing") == (0, '{"by":"another"}')

    talk(script)


def test_notices_are_not_for_otherwise():
    async def script(h, peer):
        ended = []

        async def wait(request):
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(request.topic)

        async with h.service("x") as x:
            x.otherwise(wait)
            for number, topic in enumerate(("x.a.run", "x.a.run", "x.b.run"), 1):
                peer.call(topic, tag=number, sender=(b"hop", b"one" if number < 3 else b"two"))
            await settle()
            peer.call("x.cancel", {"matchtag": 1}, sender=(b"hop", b"one"), flags=wire.NORESPONSE)
            answer = await peer.next()
            assert (answer.matchtag, answer.errnum) == (1, errno.ECANCELED)
            peer.call("x.a.disconnect", sender=(b"hop", b"one"), flags=wire.NORESPONSE)
            await settle()
            assert ended == ["x.a.run", "x.a.run"]
            assert not peer.seen
        assert ((await peer.next()).errnum, ended[2:]) == (errno.ECANCELED, ["x.b.run"])

    talk(script)
