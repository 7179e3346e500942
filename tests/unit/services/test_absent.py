"""What flux uptime asks for, without a scheduler."""

from tests.unit.services.desk import GUEST, Desk, value


def test_resource_status_knows_who_is_online():
    desk = Desk()
    answer = value(desk.client(GUEST).ask("resource.status"))
    assert set(answer) == {"R", "drain", "online", "offline", "exclude", "torpid"}
    assert (answer["drain"], answer["online"], answer["offline"]) == ({}, "0", "1-3")
    assert answer["R"]["version"] == 1
    nodes = answer["R"]["execution"]
    assert nodes["R_lite"] == [{"rank": "0-3", "children": {"core": ""}}]
    assert nodes["nodelist"] == ["node[0-3]"]


def test_resource_status_is_rank_0s():
    assert Desk(rank=1).client().refused("resource.status") == (71, "this RPC only works on rank 0")


def test_the_one_queue_is_disabled_and_says_why():
    me = Desk().client(GUEST)
    assert value(me.ask("job-manager.queue-list")) == {"queues": []}
    answer = value(me.ask("job-manager.queue-status", {}))
    assert (answer["enable"], answer["start"]) == (False, False)
    assert answer["disable_reason"] == answer["stop_reason"] == "headgate runs no scheduler"
    assert me.refused("job-manager.queue-status") == (71, "")
    assert me.refused("job-manager.queue-status", {"name": "x"}) == (22, "'x' is not a valid queue")


def test_the_figures_are_there_that_others_read():
    stats = value(Desk().client(GUEST).ask("job-manager.stats-get"))
    assert (stats["active_jobs"], stats["housekeeping"]["running"]) == (0, {})


def test_other_methods_say_why_they_are_not_there():
    me = Desk().client()
    for topic in ("resource.drain", "job-manager.submit"):
        assert me.refused(topic, {}) == (38, "headgate runs no scheduler")


def test_the_job_manager_is_at_rank_0_only():
    assert "job-manager" in {service.name for service in Desk().services}
    assert "job-manager" not in {service.name for service in Desk(rank=1).services}
