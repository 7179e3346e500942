"""From a request to its handler: masks, unknown methods, what every service answers, asynchronous handlers."""

import asyncio
import errno

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.services.dispatch import rusage
from broker.services.service import Service, method
from broker.serving.request import LATER
from broker.wire.message import NORESPONSE, STREAMING, USER1
from tests.tables import for_each
from tests.unit.services.desk import GUEST, NOBODY, OWNER, Desk, text, value

OWNER_TEXT = "Request requires owner credentials"
PRIVILEGE_TEXT = "Request rejected due to insufficient privilege"


class Lab(Service):
    """Handlers of every kind."""

    name = "lab"

    def __init__(self, context, services):
        super().__init__(context, services)
        self.gone, self.stopped, self.cleared, self.ended = [], [], 0, []
        self.gate = asyncio.Event()

    @method("done", allow=Role.USER)
    def done(self, request):
        return None

    @method("later", allow=Role.USER)
    def later(self, request):
        request.respond({"late": True})
        return LATER

    @method("kinds", allow=Role.USER)
    def kinds(self, request):
        return {"object": {"a": 1}, "text": "words", "bytes": b"raw"}[request.field("kind", str)]

    @method("own")
    def own(self, request):
        return None

    @method("fail", allow=Role.USER)
    def fail(self, request):
        raise {
            "rpc": RpcError(17, "taken"),
            "bare": RpcError(17),
            "proto": ProtocolError("odd"),
            "bug": KeyError("x"),
        }[request.field("how", str)]

    @method("unwritable", allow=Role.USER)
    def unwritable(self, request):
        return {"odd": object()}

    @method("slow", allow=Role.USER)
    async def slow(self, request):
        await self.gate.wait()
        return {"n": request.field("n", int)}

    @method("broken", allow=Role.USER)
    async def broken(self, request):
        raise RpcError(22, "no")

    @method("count", allow=Role.USER, streaming=True)
    async def count(self, request):
        try:
            for number in range(request.field("to", int)):
                yield {"n": number}
                await asyncio.sleep(0)
            await self.gate.wait()
        finally:
            self.ended.append(request.message.matchtag)

    def disconnected(self, sender):
        self.gone.append(sender)

    def cancelled(self, sender, matchtag):
        self.stopped.append((sender, matchtag))

    def stats(self):
        return {"cleared": self.cleared}

    def clear_stats(self):
        self.cleared += 1


def lab(**how) -> Desk:
    return Desk(kinds=[Lab], **how)


# -- inline handlers -------------------------------------------------------------------------------


def test_payload_kinds():
    me = lab().client()
    assert me.ask("lab.done").payload is None
    assert value(me.ask("lab.later")) == {"late": True}
    assert me.ask("lab.kinds", {"kind": "object"}).payload == b'{"a":1}\0'
    assert me.ask("lab.kinds", {"kind": "text"}).payload == b"words\0"
    assert me.ask("lab.kinds", {"kind": "bytes"}).payload == b"raw"


def test_failures_become_error_answers(caplog):
    desk = lab()
    me = desk.client()
    assert me.refused("lab.fail", {"how": "rpc"}) == (17, "taken")
    assert me.refused("lab.fail", {"how": "bare"}) == (17, "")
    assert me.refused("lab.fail", {"how": "proto"}) == (71, "")
    assert caplog.records == []
    assert me.refused("lab.fail", {"how": "bug"}) == (errno.EIO, "KeyError")
    assert me.refused("lab.unwritable") == (errno.EIO, "TypeError")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_flags_and_tags_come_back():
    me = lab().client()
    answer = me.ask("lab.done", flags=USER1 | STREAMING, tag=0xFFFFFFFF)
    assert answer.flags & (USER1 | STREAMING) == USER1 | STREAMING
    assert me.ask("lab.done", tag=0).matchtag == 0


@for_each("topic", ["lab.done", "lab.own", "lab.nope", "lab", "lab.fail", "lab.ping"])
@for_each("cred", [OWNER, GUEST, NOBODY])
def test_noresponse_is_never_answered(topic, cred):
    lab().client(cred).silent(topic, {"how": "rpc"}, flags=NORESPONSE)


@for_each(
    ("topic", "cred", "why"),
    [
        ("lab.done", OWNER, None),
        ("lab.done", GUEST, None),
        ("lab.done", NOBODY, PRIVILEGE_TEXT),
        ("lab.own", OWNER, None),
        ("lab.own", GUEST, OWNER_TEXT),
        ("lab.own", NOBODY, OWNER_TEXT),
        ("lab.ping", GUEST, None),
        ("lab.ping", NOBODY, PRIVILEGE_TEXT),
        ("lab.stats-get", GUEST, None),
        ("lab.stats-get", NOBODY, PRIVILEGE_TEXT),
        ("lab.stats-clear", OWNER, None),
        ("lab.stats-clear", GUEST, OWNER_TEXT),
        ("lab.debug", GUEST, OWNER_TEXT),
        ("lab.rusage", GUEST, None),
        ("lab.rusage", NOBODY, PRIVILEGE_TEXT),
    ],
)
def test_masks(topic, cred, why):
    desk = lab()
    answer = desk.client(cred).ask(topic, {})
    assert (answer.errnum, text(answer) if answer.errnum else None) == ((1, why) if why else (0, None))
    assert desk.context.refusals == ([(topic, 1)] if why else [])


def test_unknown_methods_and_services():
    me = lab().client()
    assert me.refused("lab.nope", {}) == (38, "Unknown service method 'lab.nope'")
    assert me.refused("lab") == (38, "Unknown service method 'lab'")
    assert me.refused("gone.away") == (38, "No service matching gone.away is registered")


# -- what every service answers --------------------------------------------------------------------


def test_ping_tells_the_way_and_who_asked():
    desk = lab()
    me = desk.client(GUEST)
    answer = value(me.ask("lab.ping", {"seq": 7, "pad": "x" * 300}, below=b"bbbbbbbb-1111"))
    assert answer == {
        "seq": 7,
        "pad": "x" * 300,
        "route": f"bbbbbbbb!{me.uuid[:8]}!{desk.context.uuid[:8]}",
        "userid": 1234,
        "rolemask": 6,  # USER and LOCAL
        "rank": 0,
    }


@for_each("data", [None, b"", b"[1]\0", b'{"seq":\0', b'{"seq":1}'])
def test_ping_of_no_object_is_a_protocol_error(data):
    assert lab().client().refused("lab.ping", data) == (71, "")


def test_stats_and_clear():
    me = lab().client()
    assert value(me.ask("lab.stats-get")) == {"cleared": 0}
    assert me.ask("lab.stats-clear").payload is None
    assert value(me.ask("lab.stats-get")) == {"cleared": 1}


def test_debug_flags_are_kept_by_service():
    desk = lab()
    me = desk.client()

    def said(op, flags):
        return value(me.ask("lab.debug", {"op": op, "flags": flags}))["flags"]

    steps = [("setbit", 0), ("setbit", 6), ("clrbit", 2), ("set", 0x81), ("set", 0xFFFFFFFF), ("clr", 5)]
    assert [said(*step) for step in steps] == [0, 6, 4, 0x81, -1, 0]
    said("set", 3)
    assert desk.service(Lab).debug_flags == 3
    for data in (
        None,
        {"op": "set"},
        {"flags": 1},
        {"op": "toggle", "flags": 1},
        {"op": "set", "flags": "1"},
    ):
        assert me.refused("lab.debug", data) == (71, "")


def test_rusage():
    me = lab().client()
    names = {
        "utime",
        "stime",
        "maxrss",
        "ixrss",
        "idrss",
        "isrss",
        "minflt",
        "majflt",
        "nswap",
        "inblock",
        "oublock",
    }
    names |= {"msgsnd", "msgrcv", "nsignals", "nvcsw", "nivcsw"}
    for data in (None, {}, {"who": "self"}, {"who": "children"}, {"who": "thread"}):
        assert set(value(me.ask("lab.rusage", data))) == names
    assert me.refused("lab.rusage", {"who": "nope"}) == (22, "nope is unsupported")
    assert isinstance(rusage()["utime"], float)


def test_disconnect_and_cancel_reach_the_service_with_the_whole_stack():
    desk = lab()
    me, service = desk.client(GUEST), desk.service(Lab)
    me.silent("lab.disconnect", flags=NORESPONSE)
    me.silent("lab.disconnect", below=b"x")
    me.silent("lab.cancel", {"matchtag": 5})
    assert me.refused("lab.cancel", {}) == (71, "")
    assert len(set(service.gone)) == 2
    assert service.stopped == [(service.gone[0], 5)]


# -- asynchronous handlers -------------------------------------------------------------------------


def test_async_handlers_answer_when_they_are_done():
    desk = lab()
    me = desk.client()
    tags = [me.send("lab.slow", {"n": n}) for n in range(3)]
    assert desk.answers == []
    desk.run(desk.service(Lab).gate.set)
    assert [value(me.take(tag)[0]) for tag in tags] == [{"n": 0}, {"n": 1}, {"n": 2}]
    tag = me.send("lab.broken")
    assert [(m.errnum, text(m)) for m in me.take(tag)] == [(22, "no")]


def test_async_handlers_are_bounded_even_within_one_batch():
    desk = lab(tasks_max=2)
    me = desk.client()
    asked = [me.request("lab.slow", {"n": 9}) for _ in range(3)]
    me.say(*asked)
    assert [(m.matchtag, m.errnum, text(m)) for m in me.responses] == [
        (asked[2].matchtag, errno.EAGAIN, "service lab is busy: 2 requests run")
    ]
    desk.run(desk.service(Lab).gate.set)
    assert [len(me.take(each.matchtag)) for each in asked] == [1, 1, 1]
    tag = me.send("lab.slow", {"n": 9})
    assert me.take(tag)[0].errnum == 0


def test_a_stream_ends_with_enodata():
    desk = lab()
    desk.run(desk.service(Lab).gate.set)
    stream = desk.client().stream("lab.count", {"to": 3})
    assert stream.news() == [{"n": 0}, {"n": 1}, {"n": 2}, 61]
    assert desk.client().refused("lab.count", {"to": 3}) == (71, "")


def test_a_stream_without_response_runs_and_is_silent():
    desk = lab()
    desk.run(desk.service(Lab).gate.set)
    tag = desk.client().send("lab.count", {"to": 1}, flags=NORESPONSE | STREAMING)
    assert desk.answers == []
    assert desk.service(Lab).ended == [tag]


@for_each("wait", [True, False], ids=["running", "not yet begun"])
def test_cancel_ends_a_stream_with_enodata_and_a_call_with_ecanceled(wait):
    desk = lab()
    me, other = desk.client(), desk.client()
    theirs = other.stream("lab.count", {"to": 1})
    count, slow = me.request("lab.count", {"to": 1}, flags=STREAMING), me.request("lab.slow", {"n": 9})
    cancels = [me.request("lab.cancel", {"matchtag": each.matchtag}) for each in (count, slow)]
    if wait:
        me.say(count, slow)
        assert [value(m) for m in me.take(count.matchtag)] == [{"n": 0}]
        me.say(*cancels)
    else:
        me.say(count, slow, *cancels)
    assert [m.errnum for m in me.take(count.matchtag)] == [61]
    assert [m.errnum for m in me.take(slow.matchtag)] == [errno.ECANCELED]
    assert me.responses == []
    assert theirs.news() == [{"n": 0}]
    other.silent("lab.disconnect")
    assert len(desk.service(Lab).ended) == (2 if wait else 1)
    tag = me.send("lab.slow", {"n": 9})
    desk.run(desk.service(Lab).gate.set)
    assert me.take(tag)[0].errnum == 0


def test_last_use_is_remembered():
    desk = lab()
    desk.advance(150.0)
    desk.client().ask("lab.done")
    assert desk.service(Lab).last_used == 250.0
