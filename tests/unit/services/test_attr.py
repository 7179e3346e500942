"""attr.get, list, set, rm: numbers and texts as the deployed broker answers them."""

import logging

from broker.services import attr
from broker.services.attr import Attr
from tests.unit.services.desk import GUEST, NOBODY, Desk, text, value


def test_get_shows_value_and_whether_it_may_be_kept():
    me = Desk().client()
    assert value(me.ask("attr.get", {"name": "rank"})) == {"value": "0", "flags": 1}
    assert value(me.ask("attr.get", {"name": "version"})) == {"value": "0.88.0", "flags": 1}
    assert value(me.ask("attr.get", {"name": "broker.uuid"}))["flags"] == 0
    assert value(me.ask("attr.get", {"name": "log-stderr-level"})) == {"value": "3", "flags": 0}


def test_get_evaluates_functions_at_each_read():
    desk = Desk()
    me = desk.client()
    before = value(me.ask("attr.get", {"name": "broker.uuid"}))["value"]
    desk.run(desk.broker.router.reincarnate, "another")
    assert before != value(me.ask("attr.get", {"name": "broker.uuid"}))["value"] == "another"
    assert desk.service(Attr).read("broker.uuid") == "another"


def test_anybody_may_read_even_without_a_role_of_ours():
    me = Desk().client(NOBODY)
    assert value(me.ask("attr.get", {"name": "size"}))["value"] == "4"
    assert "rank" in value(me.ask("attr.list"))["names"]


def test_errors_are_the_deployed_ones():
    me = Desk().client()
    assert me.refused("attr.get", {"name": "nope"}) == (2, "")
    assert me.refused("attr.set", {"name": "nope", "value": "1"}) == (2, "unknown attribute")
    assert me.refused("attr.set", {"name": "rank", "value": "9"}) == (22, "attribute may not be updated")
    assert me.refused("attr.set", {"name": "version", "value": "9"}) == (22, "attribute may not be updated")
    assert me.refused("attr.rm", {"name": "rank"}) == (1, "")
    assert me.refused("attr.rm", {"name": "version"}) == (1, "")
    for topic in ("attr.get", "attr.set", "attr.rm"):
        assert me.refused(topic, {"name": 5}) == (71, "")
        assert me.refused(topic) == (71, "")
    assert me.refused("attr.set", {"name": "log-stderr-level"}) == (71, "")


def test_removing_what_is_not_there_is_no_error():
    answer = Desk().client().ask("attr.rm", {"name": "nope"})
    assert (answer.errnum, answer.payload) == (0, None)


def test_only_the_owner_changes_attributes():
    guest = Desk().client(GUEST)
    for topic in ("attr.set", "attr.rm"):
        assert guest.refused(topic, {"name": "log-stderr-level", "value": "1"}) == (
            1,
            "Request requires owner credentials",
        )


def test_a_settable_attribute_is_handed_to_the_broker_first(caplog):
    caplog.set_level("ERROR", "headgate")  # and back again afterwards
    desk = Desk()
    me = desk.client()
    assert me.ask("attr.set", {"name": "log-stderr-level", "value": "7"}).errnum == 0
    assert logging.getLogger("headgate").level == logging.DEBUG
    assert me.ask("attr.set", {"name": "tbon.torpid_min", "value": "2s"}).errnum == 0
    assert desk.tree.torpid_s == [2.0]
    assert me.refused("attr.set", {"name": "log-stderr-level", "value": "refuse"}) == (22, "")
    assert value(me.ask("attr.get", {"name": "log-stderr-level"})) == {"value": "7", "flags": 0}
    assert me.ask("attr.rm", {"name": "log-stderr-level"}).errnum == 0
    assert me.refused("attr.get", {"name": "log-stderr-level"})[0] == 2


def test_names_below_vendor_and_test_may_be_made_up():
    me = Desk().client()
    for name in ("vendor.rack", "test.x"):
        assert me.ask("attr.set", {"name": name, "value": "1"}).errnum == 0
        assert me.ask("attr.set", {"name": name, "value": "2"}).errnum == 0
        assert value(me.ask("attr.get", {"name": name})) == {"value": "2", "flags": 0}
        assert me.ask("attr.rm", {"name": name}).errnum == 0
        assert me.refused("attr.get", {"name": name}) == (2, "")


def test_made_up_names_are_bounded(monkeypatch):
    monkeypatch.setattr(attr, "FREE_MAX", 40)
    me = Desk().client()
    for number in range(40):
        assert me.ask("attr.set", {"name": f"test.{number}", "value": ""}).errnum == 0
    errnum, why = me.refused("attr.set", {"name": "test.more", "value": ""})
    assert errnum == 28
    assert why.startswith("40 attributes")
    assert me.ask("attr.set", {"name": "test.1", "value": "again"}).errnum == 0


def test_unknown_methods_get_the_deployed_text():
    assert text(Desk().client().ask("attr.nope", {})) == "Unknown service method 'attr.nope'"
