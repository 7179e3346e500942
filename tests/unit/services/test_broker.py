"""broker.*, connector-local.stats-get, module.*, config.*, rexec.*: the services that mostly show things."""

import pytest

from broker.wire.message import STREAMING
from tests.unit.services.little_broker import GUEST, NOBODY, Desk, value

OWNER_ONLY = (1, "Request requires owner credentials")


# -- broker ------------------------------------------------------------------------------------------


def test_stats_are_the_deployed_ones_unless_more_is_asked_for():
    desk = Desk()
    me, guest = desk.client(), desk.client(GUEST)
    for data in (None, {}, {"detail": False}):
        assert set(value(guest.ask("broker.stats-get", data))) == {"tx", "rx"}
    assert set(value(guest.ask("broker.stats-get", {"detail": True}))) == {"tx", "rx", "drops", "connects"}
    detail = value(me.ask("broker.stats-get", {"detail": True}))
    assert [peer["uuid"] for peer in detail["peers"]] == [me.uuid, guest.uuid]
    assert value(guest.ask("broker.stats-get", {"format": "prometheus"})) == {
        "text": "headgate_requests_total 6\n"
    }
    assert me.refused("broker.stats-get", b"{") == (71, "")


def test_who_holds_what_is_for_owner_and_admin():
    desk = Desk()
    assert value(desk.client().ask("broker.users"))["users"] == [{"userid": 2000, "received": 6}]
    assert desk.client(GUEST).refused("broker.users")[0] == 1


def test_guests_see_how_calls_fare_and_not_what_their_errors_say():
    desk = Desk()
    assert value(desk.client(GUEST).ask("broker.calls"))["methods"] == {"echo.run": {"calls": 3}}
    assert "last_error" in value(desk.client().ask("broker.calls"))["methods"]["echo.run"]
    assert desk.client(NOBODY).refused("broker.calls")[0] == 1


def test_only_the_owner_clears_stats():
    desk = Desk()
    assert desk.client(GUEST).refused("broker.stats-clear") == OWNER_ONLY
    assert desk.context.cleared == 0
    assert desk.client().ask("broker.stats-clear").payload is None
    assert desk.context.cleared == 1


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
    desk.client(kind=1)
    answer = value(me.ask("connector-local.stats-get"))
    assert answer["allow_guest_user"] is True
    assert answer["allow_root_owner"] is False
    assert answer["server"]["connects"] == 56
    one = {"pid": 77, "txcount": 2, "rxcount": 3, "rxbacklog": 1}
    assert answer["server"]["clients"] == [
        {"uuid": me.uuid, "userid": 0, **one},
        {"uuid": guest.uuid, "userid": 1234, **one},
    ]
    assert guest.refused("connector-local.stats-get") == OWNER_ONLY


# -- module ------------------------------------------------------------------------------------------


def test_module_list_shows_every_service_and_how_long_it_idles():
    desk = Desk()
    me = desk.client(GUEST)
    desk.context.advance(30)
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
    assert value(me.ask("config.get")) == {"access": {"allow-guest-user": True}}
    stream = me.stream("config.get")
    assert stream.news() == [{"access": {"allow-guest-user": True}}]
    me.silent("config.cancel", {"matchtag": stream.tag})
    assert stream.news() == [61]
    again = me.stream("config.get")
    me.silent("config.disconnect")
    me.silent("config.cancel", {"matchtag": again.tag})
    assert len(again.news()) == 1


@pytest.mark.parametrize("topic", ["config.reload", "config.load"])
def test_the_configuration_does_not_change_while_we_run(topic):
    assert Desk(rank=1).client().refused(topic, {}) == (22, "configuration can only be changed on rank 0")
    errnum, why = Desk().client().refused(topic, {})
    assert errnum == 38
    assert "restart" in why
    assert Desk().client(GUEST).refused(topic, {}) == OWNER_ONLY


# -- rexec -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["exec", "write", "kill", "list", "wait", "anything"])
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
