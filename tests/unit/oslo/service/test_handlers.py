"""What a caller on the Flux broker gets for oslo.*; the pipelines are the test."""

import errno
import threading

import msgspec

from broker.oslo.contract import Address, CallTimeout, Closed, Refused, Undelivered, Unroutable
from broker.oslo.names import Reason
from broker.oslo.service import CallRule, asking, flux_bridge
from broker.wire import message as wire
from broker.wire.payload import any_text, decode_json
from tests.tables import for_each
from tests.unit.client.peer import GUEST, asked, settle
from tests.unit.oslo.service.sessions import FakePort, until, with_service


async def answer(peer, topic, payload=None, **options):
    peer.call(topic, payload, **options)
    said = await peer.next()
    assert said.errnum == 0, any_text(said.payload)
    return decode_json(said.payload)


# ---------------------------------------------------------------- calls


def test_a_call_is_made_and_answered():
    async def script(peer, session):
        said = {
            "args": {"host": "a1"},
            "ctxt": {"tenant": "t"},
            "server": "s@1",
            "timeout": 5,
            "version": "1.2",
        }
        assert await answer(peer, "oslo.nova.compute.a1.show", said) == {"result": "pong"}
        assert session.calls == [
            (
                Address("nova", "compute.a1", "s@1"),
                {
                    "ctxt": {"tenant": "t", "headgate": {"userid": 7, "rolemask": 5}},
                    "message": {"method": "show", "args": {"host": "a1"}, "version": "1.2"},
                },
                5.0,
                True,
            )
        ]

    with_service(script)


def test_a_call_by_names_in_the_payload_that_waits():
    async def script(peer, session):
        said = {"exchange": "a.b", "topic": "t", "method": "disconnect", "mandatory": False}
        assert await answer(peer, "oslo.send", said) == {"result": "pong"}
        (address, body, timeout_s, mandatory) = session.calls[0]
        assert (address, body["message"]["method"]) == (Address("a.b", "t"), "disconnect")
        assert (timeout_s, mandatory) == (60.0, False)

    with_service(script)


@for_each(
    ("reply", "number", "text"),
    [
        (CallTimeout("no reply in 60 s"), errno.ETIMEDOUT, "a/b: no reply in 60 s"),
        (Unroutable("nobody listens there"), errno.EHOSTUNREACH, "a/b: nobody listens there"),
        (Refused("not allowed", Reason.DENIED), errno.EPERM, "a/b: not allowed"),
        (b'{"failure":"{\\"class\\":\\"KeyError\\",\\"message\\":\\"x\\"}"}', errno.EIO, "KeyError: x"),
    ],
)
def test_calls_that_fail(reply, number, text):
    async def script(peer, session):
        assert await asked(peer, "oslo.a.b.c") == (number, text)

    with_service(script, FakePort(reply))


def test_a_timeout_beyond_what_is_allowed():
    async def script(peer, session):
        number, text = await asked(peer, "oslo.a.b.c", {"timeout": 11})
        assert (number, text) == (errno.EINVAL, "timeout: saw 11 s, expected 10 s at most")
        assert session.calls == []

    with_service(script, call_timeout_s=1.0, call_timeout_max_s=10.0)


def test_a_caller_that_leaves_is_forgotten_when_its_reply_comes():
    async def script(peer, session):
        peer.call("oslo.a.b.c", tag=3)
        await until(lambda: session.done)
        peer.call("oslo.disconnect", flags=wire.NORESPONSE)
        await settle()
        thread = threading.Thread(target=session.done[0], args=(b'{"result":1}',))
        thread.start()
        thread.join()
        await settle()
        assert not peer.seen
        session.reply = b'{"result":2}'
        assert await answer(peer, "oslo.a.b.c") == {"result": 2}

    with_service(script, FakePort(None))


def test_too_many_calls(monkeypatch):
    monkeypatch.setattr(flux_bridge, "CALLS_MAX", 1)

    async def script(peer, session):
        peer.call("oslo.a.b.c", tag=3)
        await until(lambda: session.done)
        # the caller has left, its call has not
        peer.call("oslo.disconnect", flags=wire.NORESPONSE)
        assert (await asked(peer, "oslo.a.b.c"))[0] == errno.EAGAIN
        session.done[0](Closed("over"))
        await settle()
        session.reply = b'{"result":2}'
        assert await answer(peer, "oslo.a.b.c") == {"result": 2}

    with_service(script, FakePort(None))


# ---------------------------------------------------------------- casts


def test_casts_and_fanouts():
    async def script(peer, session):
        assert await answer(peer, "oslo.a.b.c", {"mode": "cast", "args": {"n": 1}}) == {"sent": True}
        assert await answer(peer, "oslo.a.b.c", {"mode": "cast", "mandatory": False}) == {"sent": True}
        assert await answer(peer, "oslo.a.b.c", {"mode": "fanout"}) == {"sent": True}
        kinds = [(what[0], what[1], *what[3:]) for what in session.sent]
        address = Address("a", "b")
        assert kinds == [("cast", address, True), ("cast", address, False), ("fanout", address)]
        assert session.sent[0][2]["message"] == {"method": "c", "args": {"n": 1}}

    with_service(script)


def test_a_cast_to_nobody():
    async def script(peer, session):
        session.failure = Undelivered("nobody listens there")
        said = {"mode": "cast", "mandatory": False}
        assert await asked(peer, "oslo.a.b.c", said) == (errno.EHOSTUNREACH, "a/b: nobody listens there")
        session.failure = None
        await answer(peer, "oslo.a.b.c", said)
        assert (await answer(peer, "oslo.status", {}))["bridge"]["sent"] == 1

    with_service(script)


def test_casts_that_block_hold_up_no_call_and_are_bounded(monkeypatch):
    monkeypatch.setattr(flux_bridge, "CASTS_MAX", 2)

    async def script(peer, session):
        session.hold = threading.Event()
        for tag in (1, 2):
            peer.call("oslo.a.b.c", {"mode": "cast"}, tag=tag)
        assert (await asked(peer, "oslo.a.b.c", {"mode": "fanout"}, tag=3))[0] == errno.EAGAIN
        assert await answer(peer, "oslo.a.b.c", tag=4) == {"result": "pong"}
        session.hold.set()
        assert [(await peer.next()).errnum for _ in range(2)] == [0, 0]

    with_service(script)


# ---------------------------------------------------------------- who may


def test_users_may_what_a_rule_allows():
    async def script(peer, session):
        number, text = await asked(peer, "oslo.nova.compute.delete", rolemask=GUEST)
        assert (number, "no rule lets you call 'delete'" in text) == (errno.EPERM, True)
        number, _text = await asked(peer, "oslo.nova.compute.show", {"mode": "cast"}, rolemask=GUEST)
        assert number == errno.EPERM
        said = {"exchange": "nova", "topic": "compute", "method": "delete"}
        assert (await asked(peer, "oslo.send", said, rolemask=GUEST))[0] == errno.EPERM
        assert (await asked(peer, "oslo.nova.compute.show", rolemask=0))[0] == errno.EPERM
        assert session.calls == []
        assert await answer(peer, "oslo.nova.compute.show", rolemask=GUEST) == {"result": "pong"}
        assert session.calls[0][1]["ctxt"] == {"headgate": {"userid": 7, "rolemask": GUEST}}
        assert await answer(peer, "oslo.nova.compute.delete") == {"result": "pong"}

    with_service(script, rules=(CallRule(methods=("show",)),))


def test_the_context_is_not_for_users_to_write():
    async def script(peer, session):
        said = {"ctxt": {"is_admin": True}}
        number, text = await asked(peer, "oslo.nova.compute.show", said, rolemask=GUEST)
        assert (number, "does not let you write its ctxt" in text) == (errno.EPERM, True)
        assert session.calls == []
        await answer(peer, "oslo.nova.scheduler.show", said, rolemask=GUEST)
        await answer(peer, "oslo.nova.compute.show", said)
        assert [each[1]["ctxt"]["is_admin"] for each in session.calls] == [True, True]

    with_service(script, rules=(CallRule(topics=("compute",)), CallRule(ctxt=True)))


def test_many_who_ask_at_a_time_are_one_thread(monkeypatch):
    asked_times, go_on = [], threading.Event()

    def listened(_settings):
        asked_times.append(1)
        assert go_on.wait(10)
        return []

    monkeypatch.setattr(asking, "listened", listened)

    async def script(peer, session):
        for _ in range(5):
            peer.call("oslo.topics.list")
        await until(lambda: asked_times)
        await settle()
        go_on.set()
        said = [await peer.next() for _ in range(5)]
        assert [each.errnum for each in said] == [0] * 5
        assert len(asked_times) == 1
        assert await answer(peer, "oslo.topics.list") == {"topics": [], "more": False}
        assert len(asked_times) == 2

    with_service(script)


def test_status_is_for_owners(monkeypatch):
    monkeypatch.setattr(asking, "statuses", lambda folder: {"call": {"folder": folder}, "cast": None})

    async def script(peer, session):
        told = await answer(peer, "oslo.status")
        assert told["rooms"] == {"call": {"folder": "/nowhere"}, "cast": None}
        assert (told["bridge"]["calls"], told["bridge"]["sent"]) == (0, 0)
        assert (await asked(peer, "oslo.status", rolemask=GUEST))[0] == errno.EPERM
        assert (await asked(peer, "oslo.status", {"x": 1}))[0] == errno.EINVAL

    with_service(script)


def test_figures_of_all_pipelines_are_for_owners(monkeypatch):
    said = {"call": {"figures": {"x/t": {"calls": 1}}}, "cast": None, "notify": {"an": "older one"}}
    monkeypatch.setattr(asking, "statuses", lambda folder, answer_s, figures: said)

    async def script(peer, session):
        assert await answer(peer, "oslo.calls") == {"figures": {"call x/t": {"calls": 1}}, "silent": ["cast"]}
        assert (await asked(peer, "oslo.calls", rolemask=GUEST))[0] == errno.EPERM

    with_service(script)


def test_topics_are_listed_to_those_who_may_call_there(monkeypatch):
    rows = [
        {"exchange": "nova", "topic": topic, "servers": ["s"], "nodes": ["n"]} for topic in ("compute", "db")
    ]
    known = [*rows, {"exchange": "cinder", "topic": "volume", "servers": [], "nodes": []}]
    monkeypatch.setattr(asking, "listened", lambda settings: known)

    async def script(peer, session):
        assert await answer(peer, "oslo.topics.list") == {"topics": known, "more": False}
        assert await answer(peer, "oslo.topics.list", {"exchange": "nova"}) == {"topics": rows, "more": False}
        assert await answer(peer, "oslo.topics.list", rolemask=GUEST) == {"topics": rows[:1], "more": False}
        monkeypatch.setattr(asking, "listened", lambda settings: None)
        assert (await asked(peer, "oslo.topics.list"))[0] == errno.EHOSTUNREACH

    with_service(script, rules=(CallRule(topics=("compute",)),))


def test_what_is_no_method():
    async def script(peer, session):
        assert (await asked(peer, "oslo.nova.compute"))[0] == errno.ENOSYS
        assert (await asked(peer, "oslo.a.b.c", msgspec.json.encode([])))[0] == errno.EINVAL

    with_service(script)
