"""groups.get, join, leave, update, and what happens to members as the tree changes."""

import json

from broker.services.groups import GATHER_S, ONLINE, TORPID, Groups
from broker.wire.message import NORESPONSE, UPSTREAM
from tests.tables import for_each
from tests.unit.services.desk import GUEST, REMOTE_OWNER, Desk, value


def get(desk: Desk, group: str) -> str:
    return value(desk.client(GUEST).ask("groups.get", {"name": group}))["members"]


def told(desk: Desk) -> list[dict]:
    """The updates sent to the parent, taken out."""
    desk.advance(GATHER_S)
    updates = desk.parent.take_requests()
    for message in updates:
        assert (message.topic, message.nodeid) == ("groups.update", desk.context.rank)
        assert message.flags & (NORESPONSE | UPSTREAM) == NORESPONSE | UPSTREAM
    return [json.loads(message.payload[:-1])["update"] for message in updates]


def update(group: str, *moves: tuple[str, bool]) -> dict:
    return {"update": {group: [{"ranks": ranks, "set": join} for ranks, join in moves]}}


def from_child(desk: Desk, data: dict) -> None:
    desk.client(REMOTE_OWNER, kind=1).silent("groups.update", data, tag=0, flags=NORESPONSE | UPSTREAM)


def test_rank_0_gathers_who_is_online():
    desk = Desk()
    assert get(desk, ONLINE) == "0"
    from_child(desk, update(ONLINE, ("1,3", True)))
    from_child(desk, update(ONLINE, ("2", True)))
    assert get(desk, ONLINE) == "0-3"
    assert get(desk, "nope") == get(desk, "") == ""
    assert desk.service(Groups).members(ONLINE) == {0, 1, 2, 3}
    assert value(desk.client().ask("groups.stats-get")) == {"subtree": {ONLINE: "0-3"}}


def test_online_from_quorum_on():
    desk = Desk(state="init")
    assert get(desk, ONLINE) == ""
    desk.enter("quorum")
    assert get(desk, ONLINE) == "0"


def test_join_and_leave():
    desk = Desk()
    me = desk.client()
    assert me.ask("groups.join", {"name": "g"}).payload is None
    assert get(desk, "g") == "0"
    assert me.refused("groups.join", {"name": "g"}) == (17, "rank 0 is already a member of g")
    assert me.ask("groups.leave", {"name": "g"}).payload is None
    assert me.refused("groups.leave", {"name": "g"}) == (2, "rank 0 is not a member of g")
    assert get(desk, "g") == ""


def test_what_a_client_joined_is_left_when_it_goes():
    desk = Desk()
    me, other = desk.client(), desk.client()
    me.ask("groups.join", {"name": "g"})
    other.ask("groups.join", {"name": "h"})
    me.silent("groups.disconnect")
    assert (get(desk, "g"), get(desk, "h")) == ("", "0")
    other.ask("groups.leave", {"name": "h"})
    me.ask("groups.join", {"name": "h"})
    other.silent("groups.disconnect")
    assert get(desk, "h") == "0"


def test_joining_is_for_the_owner_on_this_broker():
    desk = Desk()
    for topic in ("groups.join", "groups.leave"):
        assert desk.client(GUEST).refused(topic, {"name": "g"}) == (1, "Request requires owner credentials")
        assert desk.client(REMOTE_OWNER, kind=1).refused(topic, {"name": "g"}) == (
            71,
            f"{topic} is restricted to the local broker",
        )
        assert desk.client().refused(topic, {}) == (71, "")


def test_get_is_rank_0s():
    assert Desk(rank=1).client().refused("groups.get", {"name": ONLINE}) == (
        71,
        "this RPC is only available on rank 0",
    )
    assert Desk().client().refused("groups.get") == (71, "")
    assert Desk().client().refused("groups.get", {"name": 5}) == (71, "")


def test_who_watches_a_group_hears_its_changes_gathered():
    desk = Desk()
    me = desk.client()
    stream, other = me.stream("groups.get", {"name": "g"}), me.stream("groups.get", {"name": "h"})
    assert (stream.news(), other.news()) == ([{"members": ""}], [{"members": ""}])
    from_child(desk, update("g", ("1", True)))
    from_child(desk, update("g", ("2-3", True)))
    assert stream.news() == []
    desk.advance(GATHER_S)
    assert (stream.news(), other.news()) == ([{"members": "1-3"}], [])
    me.silent("groups.cancel", {"matchtag": stream.tag})
    from_child(desk, update("g", ("3", False)))
    desk.advance(GATHER_S)
    assert stream.news() == [61]


def test_a_child_broker_tells_its_parent_about_its_subtree():
    desk = Desk(rank=1)
    assert told(desk) == [{ONLINE: [{"ranks": "1", "set": True}]}]
    from_child(desk, update(ONLINE, ("3", True)))
    desk.client().ask("groups.join", {"name": "g"})
    assert told(desk) == [{ONLINE: [{"ranks": "3", "set": True}], "g": [{"ranks": "1", "set": True}]}]
    from_child(desk, update(ONLINE, ("3", True)))
    assert told(desk) == []
    from_child(desk, update(ONLINE, ("3", False)))
    assert told(desk) == [{ONLINE: [{"ranks": "3", "set": False}]}]


def test_moves_back_and_forth_arrive_as_their_end():
    desk = Desk(rank=1)
    told(desk)
    from_child(desk, update("g", ("3", True), ("3", False), ("1,3", True)))
    assert told(desk) == [{"g": [{"ranks": "1,3", "set": True}]}]


def test_nothing_is_told_before_the_broker_has_joined_and_all_of_it_then():
    desk = Desk(rank=1, state="join")
    from_child(desk, update(ONLINE, ("3", True)))
    assert told(desk) == []
    desk.enter("quorum")
    assert told(desk) == [{ONLINE: [{"ranks": "1,3", "set": True}]}]
    desk.enter("run")
    assert told(desk) == []


def test_a_broker_that_joins_again_tells_everything_again():
    desk = Desk(rank=1)
    from_child(desk, update("g", ("3", True)))
    told(desk)
    desk.enter("join")
    from_child(desk, update("g", ("3", False)))
    from_child(desk, update("h", ("3", True)))
    desk.enter("run")
    assert told(desk) == [{ONLINE: [{"ranks": "1", "set": True}], "h": [{"ranks": "3", "set": True}]}]


@for_each("status", ["lost", "offline"])
def test_a_lost_child_takes_its_subtree_along_once(status):
    desk = Desk()
    from_child(desk, update(ONLINE, ("1-3", True)))
    desk.client().ask("groups.join", {"name": "g"})
    from_child(desk, update("g", ("3", True)))
    desk.set_child(1, status)
    assert (get(desk, ONLINE), get(desk, "g")) == ("0,2", "0")
    from_child(desk, update(ONLINE, ("1", True)))  # still on its way when the child was given up
    desk.set_child(2, "full")
    assert get(desk, ONLINE) == "0-2"


def test_a_child_that_comes_back_is_counted_again():
    desk = Desk()
    from_child(desk, update(ONLINE, ("1", True)))
    for _ in range(2):
        desk.set_child(1, "lost")
        assert get(desk, ONLINE) == "0"
        desk.set_child(1, "full")
        from_child(desk, update(ONLINE, ("1", True)))
        assert get(desk, ONLINE) == "0-1"


def test_torpid_children_are_a_group():
    desk = Desk()
    desk.set_child(2, "full", torpid=True)
    assert get(desk, TORPID) == "2"
    desk.set_child(2, "full", torpid=False)
    assert get(desk, TORPID) == ""
    desk.set_child(2, "full", torpid=True)
    desk.set_child(2, "lost")
    assert get(desk, TORPID) == ""


@for_each(
    "data",
    [
        None,
        {},
        {"update": []},
        {"update": {"g": {}}},
        {"update": {"g": [5]}},
        {"update": {"g": [{"ranks": "1"}]}},
        {"update": {"g": [{"ranks": 1, "set": True}]}},
        {"update": {"g": [{"ranks": "1", "set": 1}]}},
        {"update": {"g": [{"ranks": "1", "set": True}, {"ranks": "junk", "set": True}]}},
        {"update": {"g": [{"ranks": "1-4000000000", "set": True}]}},
        {"update": {"g": [{"ranks": "4", "set": True}]}},
    ],
)
def test_a_bad_update_changes_nothing(data):
    desk = Desk()
    assert desk.client().refused("groups.update", data) == (71, "")
    assert get(desk, "g") == ""


def test_updates_are_for_brokers_and_owners():
    assert Desk().client(GUEST).refused("groups.update", update("g", ("1", True)))[0] == 1
