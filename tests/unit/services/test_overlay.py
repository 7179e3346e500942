"""overlay.health, topology, monitor, disconnect-subtree, stats-get."""

from broker.wire.message import STREAMING
from tests.tables import for_each
from tests.unit.services.desk import GUEST, NOBODY, REMOTE_OWNER, Desk, value


def test_health_names_this_broker_and_its_children():
    answer = value(Desk().client(GUEST).ask("overlay.health"))
    assert list(answer) == ["rank", "status", "duration", "children"]
    assert (answer["rank"], answer["status"], answer["duration"]) == (0, "full", 12.5)
    assert answer["children"] == [{"rank": rank, "status": "full", "duration": 3.5} for rank in (1, 2)]
    assert value(Desk(rank=3).client().ask("overlay.health"))["children"] == []


def test_health_says_why_a_child_is_lost():
    desk = Desk()
    desk.set_child(2, "lost", error="administrative disconnect")
    children = value(desk.client().ask("overlay.health"))["children"]
    assert children[1] == {"rank": 2, "status": "lost", "duration": 3.5, "error": "administrative disconnect"}


def test_a_streaming_health_answers_again_after_each_change():
    desk = Desk()
    me = desk.client()
    stream = me.stream("overlay.health")
    assert [health["status"] for health in stream.news()] == ["full"]
    desk.tree.status = "degraded"
    desk.set_child(2, "lost")
    (health,) = stream.news()
    assert (health["status"], health["children"][1]["status"]) == ("degraded", "lost")
    me.silent("overlay.cancel", {"matchtag": stream.tag})
    desk.set_child(2, "full")
    assert stream.news() == [61]


def test_monitor_tells_each_child_once_and_then_its_changes():
    desk = Desk()
    desk.tree.health[1]["status"] = "offline"
    me = desk.client()
    stream = me.stream("overlay.monitor")
    assert stream.news() == [{"rank": 1, "status": "full", "torpid": False}]
    desk.set_child(1, "full")
    assert stream.news() == []
    desk.set_child(2, "partial")
    desk.set_child(1, "full", torpid=True)
    desk.set_child(2, "offline")
    assert stream.news() == [
        {"rank": 2, "status": "partial", "torpid": False},
        {"rank": 1, "status": "full", "torpid": True},
        {"rank": 2, "status": "offline", "torpid": False},
    ]
    me.silent("overlay.disconnect")
    desk.set_child(2, "full")
    assert stream.news() == []


def test_monitor_is_a_stream_for_the_owner():
    assert Desk().client().refused("overlay.monitor") == (71, "")
    assert Desk().client(GUEST).refused("overlay.monitor", flags=STREAMING)[0] == 1
    assert Desk().client(NOBODY).refused("overlay.health")[0] == 1


def test_topology_of_all_and_of_a_child():
    me = Desk().client(GUEST)
    leaf = {"rank": 3, "size": 1, "children": []}
    one = {"rank": 1, "size": 2, "children": [leaf]}
    two = {"rank": 2, "size": 1, "children": []}
    assert value(me.ask("overlay.topology", {"rank": 0})) == {"rank": 0, "size": 4, "children": [one, two]}
    assert value(me.ask("overlay.topology", {"rank": 1})) == one


@for_each("rank", [3, 9, -1])
def test_topology_of_others_is_asked_elsewhere(rank):
    assert Desk().client().refused("overlay.topology", {"rank": rank}) == (
        2,
        "requested rank is not this broker or its direct child",
    )


def test_bad_payloads():
    for topic in ("overlay.topology", "overlay.disconnect-subtree"):
        for data in (None, {}, {"rank": "0"}):
            assert Desk().client().refused(topic, data) == (71, "")


def test_a_child_is_sent_away_once():
    desk = Desk()
    me = desk.client()
    assert me.ask("overlay.disconnect-subtree", {"rank": 2}).errnum == 0
    assert desk.tree.health[1]["error"] == "administrative disconnect"
    assert me.refused("overlay.disconnect-subtree", {"rank": 2}) == (22, "rank 2 is already lost")
    for rank in (0, 3, 9):
        assert me.refused("overlay.disconnect-subtree", {"rank": rank}) == (
            2,
            "requested rank is not this broker's direct child",
        )
    assert desk.client(GUEST).refused("overlay.disconnect-subtree", {"rank": 1})[0] == 1
    assert desk.tree.health[0]["status"] == "full"


def test_what_the_broker_refuses_is_passed_on():
    desk = Desk()
    desk.tree.refuses = 113
    assert desk.client().refused("overlay.disconnect-subtree", {"rank": 1}) == (113, "")


def test_figures():
    desk = Desk(rank=1)
    child = desk.client(REMOTE_OWNER, kind=1)
    child.send("state-machine.monitor", flags=STREAMING)
    desk.parent.send("log.dmesg", {"follow": True}, flags=STREAMING)
    desk.parent.send("log.dmesg", {"follow": True}, flags=STREAMING)
    assert value(desk.client(GUEST).ask("overlay.stats-get")) == {
        "child-count": 1,
        "child-connected": 1,
        "parent-count": 1,
        "parent-rpc": 2,
        "child-rpc": 1,
        "interthread": {"sendq": 0, "recvq": 0},
    }
    assert value(Desk(rank=3).client().ask("overlay.stats-get"))["child-count"] == 0
