"""broker.*, connector-local.stats-get, module.*, config.*, rexec.*: the services that mostly show things."""

import errno
import json

import msgspec
import pytest

from broker.errors import ConfigError, ProtocolError
from broker.name_stats import NAMES_MAX
from broker.services.broker import ANSWER_S, bounded
from broker.wire.message import STREAMING
from broker.wire.payload import encode_json
from tests.tables import for_each
from tests.unit.services.desk import GUEST, NOBODY, REMOTE_OWNER, Desk, value

OWNER_ONLY = (1, "Request requires owner credentials")


# -- broker ------------------------------------------------------------------------------------------


def test_stats_are_the_deployed_ones_unless_more_is_asked_for():
    desk = Desk()
    me, guest = desk.client(), desk.client(GUEST)
    for data in (None, {}, {"detail": False}):
        assert set(value(guest.ask("broker.stats-get", data))) == {"tx", "rx"}
    figures = value(guest.ask("broker.stats-get", {"detail": True}))
    assert {"tx", "rx", "drops", "connects"} < set(figures)
    assert "peers" not in figures
    detail = value(me.ask("broker.stats-get", {"detail": True}))
    assert {peer["uuid"] for peer in detail["peers"]} == {me.uuid, guest.uuid}
    text = value(guest.ask("broker.stats-get", {"format": "prometheus"}))["text"]
    assert 'headgate_links{kind="client"} 2\n' in text
    assert me.refused("broker.stats-get", b"{") == (71, "")


def test_who_holds_what_is_for_owner_and_admin():
    desk = Desk()
    me, guest = desk.client(), desk.client(GUEST)
    assert guest.refused("broker.users")[0] == 1
    assert [user["userid"] for user in value(me.ask("broker.users"))["users"]] == [me.cred.userid, 1234]


def test_guests_see_how_calls_fare_and_not_what_their_errors_say():
    desk = Desk()
    desk.client().refused("attr.get", {"name": "nope"})
    mine = value(desk.client().ask("broker.calls"))["methods"]["attr.get"]
    assert (mine["calls"], mine["last_error"]["errnum"]) == (1, errno.ENOENT)
    theirs = value(desk.client(GUEST).ask("broker.calls"))["methods"]["attr.get"]
    assert theirs == {name: mine[name] for name in mine if name != "last_error"}
    assert desk.client(NOBODY).refused("broker.calls")[0] == 1


def wing(desk, name):
    """A client that provides this service."""
    client = desk.client()
    client.ask("service.add", {"service": name})
    return client


def figures(name="lab.go", **more):
    told = {
        "calls": 2,
        "open": 0,
        "errors": {"5": 1},
        "total_ns": 9,
        "buckets": [],
        "last_error": None,
        **more,
    }
    return encode_json({"figures": {name: told}}), told


def test_wings_are_asked_what_they_count_for_those_who_may_know():
    desk = Desk()
    nfp, oslo = wing(desk, "nfp"), wing(desk, "oslo")
    assert value(desk.client(GUEST).ask("broker.calls"))["others"] == {}
    me = desk.client()
    me.ask("event.publish", {"topic": "news", "flags": 0})
    tag = me.send("broker.calls")
    payload, told = figures()
    (asked,) = nfp.take_requests()
    assert (asked.topic, asked.nodeid) == ("nfp.calls", 0)
    nfp.answer(asked, payload)
    assert me.take(tag) == []
    (asked,) = oslo.take_requests()
    assert (asked.topic, asked.nodeid) == ("oslo.calls", 0)
    oslo.answer(asked, errnum=errno.ENOSYS)
    (answer,) = me.take(tag)
    assert value(answer)["others"]["event"]["news"]["calls"] == 1
    assert value(answer)["others"]["nfp"] == {"lab.go": told}
    assert set(value(answer)["others"]) == {"event", "nfp"}
    assert value(answer)["silent"] == [], "an older one that counts nothing is not silent"
    desk.advance(10.0)
    assert me.take(tag) == []


def test_a_wing_that_is_silent_delays_nobody_for_long():
    desk = Desk()
    nfp, oslo = wing(desk, "nfp"), wing(desk, "oslo")
    me = desk.client()
    tag = me.send("broker.calls")
    oslo.answer(oslo.take_requests()[0], b'{"figures": {}, "silent": ["call"]}\0')
    desk.advance(ANSWER_S)
    (answer,) = me.take(tag)
    assert sorted(value(answer)["silent"]) == ["nfp", "oslo call"]
    assert set(value(answer)["others"]) == {"event", "oslo"}
    nfp.answer(nfp.take_requests()[0], figures()[0])
    assert me.take(tag) == []


def test_a_wing_that_owes_an_answer_is_not_asked_again_and_all_who_wait_get_it():
    desk = Desk()
    oslo = wing(desk, "oslo")
    me = desk.client()
    late = me.send("broker.calls")
    desk.advance(ANSWER_S)
    assert len(me.take(late)) == 1
    tags = [me.send("broker.calls") for _ in range(2)]
    (asked,) = oslo.take_requests()
    payload, told = figures()
    oslo.answer(asked, payload)
    assert [value(me.take(tag)[0])["others"]["oslo"] for tag in tags] == [{"lab.go": told}] * 2
    again = me.send("broker.calls")
    oslo.answer(oslo.take_requests()[0], errnum=errno.EHOSTUNREACH)
    assert value(me.take(again)[0])["silent"] == ["oslo"]


def test_a_wing_that_left_owes_nothing():
    desk = Desk()
    me, nfp, oslo = desk.client(), wing(desk, "nfp"), wing(desk, "oslo")
    first = me.send("broker.calls")
    oslo.ask("service.remove", {"service": "oslo"})
    me.send("broker.calls")
    oslo.ask("service.add", {"service": "oslo"})
    last = me.send("broker.calls")
    assert [asked.topic for asked in nfp.requests] == ["nfp.calls"]
    old, new = oslo.take_requests()
    payload, told = figures()
    oslo.answer(old, payload)
    nfp.answer(nfp.take_requests()[0], payload)
    assert me.take(last) == [], "what it owed before it left counts for nobody"
    oslo.answer(new, payload)
    assert [value(me.take(tag)[0])["others"]["oslo"] for tag in (first, last)] == [{"lab.go": told}] * 2


@for_each(
    "odd",
    [{"calls": -1}, {"open": 1 << 64}, {"last_error": {"errnum": -1, "text": "", "userid": 0, "time": 0}}],
)
def test_figures_that_cannot_be_are_none(odd):
    with pytest.raises(ProtocolError):
        bounded(figures(**odd)[0])


def test_of_a_silent_wing_stands_what_it_told_last():
    """A reader who sees nothing in one answer and all in the next one would take that for a second's work."""
    desk = Desk()
    oslo = wing(desk, "oslo")
    me = desk.client()

    def told(payload):
        tag = me.send("broker.calls")
        if payload is not None:
            oslo.answer(oslo.take_requests()[-1], payload)
        desk.advance(ANSWER_S)
        (answer,) = me.take(tag)
        return list(value(answer)["others"].get("oslo", {})), value(answer)["silent"]

    payload, one = figures("call x/t")
    assert told(None) == ([], ["oslo"])
    assert told(encode_json({"figures": {"call x/t": one, "cast x/t": one}})) == (
        ["call x/t", "cast x/t"],
        [],
    )
    assert told(None) == (["call x/t", "cast x/t"], ["oslo"])
    part = encode_json({"figures": {"cast x/t": one}, "silent": ["call"]})
    assert sorted(told(part)[0]) == ["call x/t", "cast x/t"]
    assert told(payload) == (["call x/t"], [])


def test_a_wing_tells_no_more_than_there_is_room_for():
    errors = {"x": 1, "7": 2, "\u0667": 1, "9" * 11: 1}
    one = msgspec.json.decode(figures(buckets=[1] * 9, errors=errors)[0][:-1])["figures"]["lab.go"]
    many = {f"n{number}": one for number in range(2 * NAMES_MAX)} | {"a\x1bb": one, "x" * 300: one}
    found, silent = bounded(encode_json({"figures": many, "silent": ["call", "a\x1bb"]}))
    assert silent == ["call"]
    assert list(found) == [f"n{number}" for number in range(NAMES_MAX)]
    assert (found["n0"]["errors"], found["n0"]["buckets"]) == ({"7": 2}, [])
    with pytest.raises(ProtocolError):
        bounded(b"{}\0")


def test_only_the_owner_clears_stats():
    desk = Desk()
    me, guest = desk.client(), desk.client(GUEST)

    def requests():
        return value(me.ask("broker.stats-get"))["rx"]["request"]

    assert guest.refused("broker.stats-clear") == OWNER_ONLY
    assert requests() == 2
    assert me.ask("broker.stats-clear").payload is None
    assert requests() == 1


def test_drain_wants_the_rank_that_is_meant_and_says_so_where_it_cannot():
    desk = Desk(rank=2)
    me = desk.client()
    assert me.refused("broker.drain", {"rank": 0}) == (errno.EINVAL, "this is rank 2")
    assert me.refused("broker.drain", {})[0] == errno.EPROTO
    assert desk.left == []
    assert me.ask("broker.drain", {"rank": 2}).errnum == 0
    assert desk.left == [(f"drained by userid {me.cred.userid}", 0)]
    assert Desk(rank=2, leaves=False).client().refused("broker.drain", {"rank": 2}) == (
        errno.ENOSYS,
        "this broker is ended by the program that runs it",
    )


def test_disconnect_client_names_who_is_not_there():
    desk = Desk()
    me = desk.client()
    assert me.refused("broker.disconnect-client", {"uuid": "nobody"}) == (
        errno.ENOENT,
        "no client nobody at this broker",
    )
    known = desk.client(GUEST)
    assert me.ask("broker.disconnect-client", {"uuid": known.uuid}).errnum == 0
    assert str(known.link.ended) == f"ended by userid {me.cred.userid}"


def test_getenv(monkeypatch):
    monkeypatch.setenv("HG_TEST", "here")
    me = Desk().client()
    assert value(me.ask("broker.getenv", {"names": ["HG_TEST", "HG_NOT_SET", 5]})) == {
        "env": {"HG_TEST": "here"}
    }
    assert me.refused("broker.getenv", {}) == (71, "")
    assert Desk().client(GUEST).refused("broker.getenv", {"names": ["HG_TEST"]}) == OWNER_ONLY


def test_nothing_is_compiled_in():
    me = Desk().client(NOBODY)
    assert value(me.ask("broker.conf-builtin", {"keys": []})) == {"values": {}}
    assert me.refused("broker.conf-builtin", {"keys": ["x"]}) == (22, "x: invalid key")
    assert me.refused("broker.conf-builtin", {}) == (71, "")


# -- connector-local ---------------------------------------------------------------------------------


def test_connector_shows_the_owner_who_is_attached():
    desk = Desk()
    me, guest = desk.client(), desk.client(GUEST)
    desk.client(REMOTE_OWNER, kind=1)
    desk.broker.router.counters.connects = 56
    answer = value(me.ask("connector-local.stats-get"))
    assert answer["allow_guest_user"] is True
    assert answer["allow_root_owner"] is False
    assert answer["server"]["connects"] == 56
    one = {"pid": -1, "txcount": 0, "rxbacklog": 0}
    assert sorted(answer["server"]["clients"], key=lambda client: client["userid"]) == [
        {"uuid": me.uuid, "userid": 0, **one, "rxcount": 1},
        {"uuid": guest.uuid, "userid": 1234, **one, "rxcount": 0},
    ]
    assert guest.refused("connector-local.stats-get") == OWNER_ONLY


# -- module ------------------------------------------------------------------------------------------


def test_module_list_shows_every_service_and_how_long_it_idles():
    desk = Desk()
    me = desk.client(GUEST)
    desk.advance(30)
    me.ask("attr.get", {"name": "rank"})
    rows = {row["name"]: row for row in value(me.ask("module.list"))["mods"]}
    assert set(rows) == {service.name for service in desk.services}
    assert rows["attr"] == {
        "name": "attr",
        "path": "builtin",
        "idle": 0,
        "status": 1,
        "services": ["attr"],
        "sendqueue": 0,
        "recvqueue": 0,
    }
    assert rows["log"]["idle"] == 30


def test_modules_neither_come_nor_go():
    me = Desk().client()
    errnum, why = me.refused("module.load", {"path": "nope", "args": []})
    assert errnum == 2
    assert why.startswith("module not found")
    assert me.refused("module.load", {}) == (71, "")
    assert me.refused("module.remove", {"name": "nope", "cancel": False}) == (2, "")
    assert me.refused("module.remove", {"name": "attr"}) == (1, "attr is built in")
    assert Desk().client(GUEST).refused("module.load", {"path": "x"}) == OWNER_ONLY


# -- config ------------------------------------------------------------------------------------------


def test_config_get():
    desk = Desk()
    me = desk.client(GUEST)
    shown = value(me.ask("config.get"))
    assert shown == json.loads(encode_json(desk.context.config)[:-1])
    assert shown["access"]["allow-guest-user"] is True
    stream = me.stream("config.get")
    assert stream.news() == [shown]
    me.silent("config.cancel", {"matchtag": stream.tag})
    assert stream.news() == [61]
    again = me.stream("config.get")
    me.silent("config.disconnect")
    me.silent("config.cancel", {"matchtag": again.tag})
    assert len(again.news()) == 1


@for_each("topic", ["config.reload", "config.load"])
def test_the_configuration_is_changed_in_its_file_by_the_owner_at_rank_0(topic):
    assert Desk(rank=1).client().refused(topic, {}) == (22, "configuration can only be changed on rank 0")
    errnum, why = Desk().client().refused(topic, {})
    assert errnum == 38
    assert "file" in why
    assert Desk().client(GUEST).refused(topic, {}) == OWNER_ONLY


def test_a_reload_is_answered_when_it_has_been_done():
    wrong = ""

    async def read_again():
        if wrong:
            raise ConfigError(wrong)

    desk = Desk(reload=read_again)
    assert desk.client().ask("config.reload").errnum == 0
    wrong = "broker.toml:3: saw this\nbroker.toml:4: saw that"
    assert desk.client().refused("config.reload") == (22, "broker.toml:3: saw this; broker.toml:4: saw that")


# -- rexec -------------------------------------------------------------------------------------------


@for_each("word", ["exec", "write", "kill", "list", "wait", "anything"])
def test_remote_execution_is_off(word):
    desk = Desk()
    errnum, why = desk.client().refused(f"rexec.{word}", {}, flags=STREAMING)
    assert errnum == 1
    assert why.startswith("remote execution is off")
    assert desk.client(GUEST).refused(f"rexec.{word}", {}, flags=STREAMING) == OWNER_ONLY


def test_rexec_answers_what_every_service_does():
    me = Desk().client()
    assert value(me.ask("rexec.ping", {}))["rank"] == 0
    me.silent("rexec.disconnect")
