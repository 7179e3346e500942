"""``mmi.service.broker`` against what deployed NorFab's broker was seen to answer, and beyond."""

import json
import logging

from broker.errors import ConfigError
from broker.nfp.management import SERVICES
from broker.nfp.names import MMI_BROKER, Dialect
from tests.tables import for_each
from tests.unit.nfp.management.fakes import (
    ANNA,
    GUEST,
    OWNER,
    FakeBroker,
    FakePeer,
    ask,
    event,
    worker_view,
)
from tests.vectors import HERE

CAPTURED = {
    line["case"]: line["decoded"]["body"]["json"]
    for line in map(json.loads, (HERE / "nfp.jsonl").read_text().splitlines())
    if line["case"].startswith("norfab/mmi-")
}
DEPLOYED = FakePeer("cli-1")
OURS = FakePeer("ours", features={"push"})
SEED = FakePeer("req", dialect=Dialect.SEED)
BOSS = FakePeer("boss", principal=OWNER, features={"push"})


def reply(broker, task, peer=None, ident="u1", /, **kwargs):
    return ask(broker, MMI_BROKER, task, peer, ident, **kwargs)


def kinds(value):
    """The shape of JSON: keys and types."""
    if isinstance(value, dict):
        return {key: kinds(one) for key, one in value.items()}
    if isinstance(value, list):
        return [kinds(value[0])] if value else []
    return type(value).__name__


def test_show_workers_is_the_deployed_record_of_texts_and_names_resources():
    _, told = reply(FakeBroker(), "show_workers", DEPLOYED)
    seen = CAPTURED["norfab/mmi-show-workers-reply"][0]
    assert list(told[0])[: len(seen)] == list(seen)
    assert {type(value) for record in told for value in record.values()} == {str}
    assert told[0] == {
        "name": "w1", "service": "dummy", "status": "alive", "holdtime": "13.9", "keepalives tx/rx": "1 / 2",
        "alive (s)": "3", "resources": "r1, r2",
    }  # fmt: skip
    assert told[1]["status"] == "dead"


@for_each(
    ("asked", "names"),
    [
        ({"service": "dummy"}, ["w1"]),
        ({"service": "all"}, ["w1", "w2"]),
        ({"status": "dead"}, ["w2"]),
        ({"status": "any", "service": "other"}, ["w2"]),
        ({"status": "alive", "service": "other"}, [""]),
        ({"service": "none"}, [""]),
    ],
)
def test_filters_and_the_record_of_nobody(asked, names):
    status, told = reply(FakeBroker(), "show_workers", DEPLOYED, **asked)
    assert status == 200
    assert [one["name"] for one in told] == names
    if names == [""]:
        assert told == CAPTURED["norfab/mmi-no-match-reply"]
        assert reply(FakeBroker(), "show_workers", OURS, **asked) == (200, [])


def test_our_clients_get_numbers_and_only_owners_keys_and_jobs():
    mmi = FakeBroker()
    _, (mine, _) = reply(mmi, "show_workers", OURS)
    assert mine["resources"] == ["r1", "r2"]
    assert mine["holdtime"] == 13.9
    assert not {"key", "holder", "jobs"} & set(mine)
    _, (owners, lost) = reply(mmi, "show_workers", BOSS)
    assert owners["jobs"] == ["j1"]
    assert (lost["status"], lost["state"]) == ("dead", "lost")


def test_get_stats_has_the_captured_shape():
    _, told = reply(FakeBroker(), "get_stats", DEPLOYED)
    assert kinds(told) == kinds(CAPTURED["norfab/mmi-stats-reply"])
    assert told["messaging"]["sent"] == 142
    assert told["process"]["memory_rss_mbyte"] > 1
    assert told["process"]["open_file_descriptors"] > 2


def test_versions_have_the_captured_keys():
    _, told = reply(FakeBroker(), "show_broker_version", DEPLOYED)
    assert set(CAPTURED["norfab/mmi-version-reply"]) <= set(told)
    assert told["headgate"]
    assert told["pyzmq"]


def test_an_unknown_task_is_told_to_each_in_its_way():
    mmi = FakeBroker()
    assert reply(mmi, "bogus", DEPLOYED) == (200, CAPTURED["norfab/mmi-unsupported-reply"])
    for peer in (OURS, SEED):
        status, told = reply(mmi, "bogus", peer)
        assert status == 400
        assert "bogus" in told["error"]
        assert told["errors"] == [told["error"]]
    assert len(reply(mmi, "x" * 10_000, DEPLOYED)[1]) < 100


def test_no_path_is_told(tmp_path):
    _, told = reply(FakeBroker(), "get_status", DEPLOYED)
    assert told["status"] == "active"
    assert told["endpoint"] == "tcp://127.0.0.1:5555"
    assert told["directories"] == {}
    assert told["security"] == {
        "curve": True,
        "server_key": "K" * 40,
        "unlisted": "user",
        "offer_unlisted": True,
        "listed_keys": 0,
    }


@for_each("task", ["restart", "shutdown", "disconnect", "unpin", "reload"])
@for_each("principal", [ANNA, GUEST])
def test_only_owners_tell_the_broker_what_to_do(task, principal):
    broker = FakeBroker()
    for peer in (FakePeer(principal=principal), FakePeer(principal=principal, dialect=Dialect.SEED)):
        status, told = reply(broker, task, peer, name="w1")
        assert status == 400
        assert told["error"].startswith("not allowed")
    assert broker.left == broker.dispatcher.disconnected == broker.reader.done == []
    assert broker.name_owners.key_of("w1")


def test_an_owner_restarts_shuts_down_and_disconnects():
    broker = FakeBroker()
    assert reply(broker, "restart", BOSS) == (200, {"status": "restarting"})
    assert reply(broker, "shutdown", BOSS) == (200, {"status": "shutting down"})
    assert reply(broker, "disconnect", BOSS) == (200, {"disconnected": ["w1", "w2"]})
    assert reply(broker, "disconnect", BOSS, workers="all") == (200, {"disconnected": ["w1", "w2"]})
    assert reply(broker, "disconnect", BOSS, workers=["w2"]) == (200, {"disconnected": ["w2"]})
    assert broker.left == [True, False]
    assert broker.dispatcher.disconnected == [None, None, ("w2",)]


def test_an_answer_that_takes_its_time_and_fails_is_an_answer(caplog):
    broker = FakeBroker()

    def broken(*, redacted):
        raise KeyError("bug")

    broker.datastore.whole = broken
    status, told = reply(broker, "show_broker_inventory", BOSS)
    assert (status, told["error"]) == (500, "KeyError: 'bug'")
    assert "show_broker_inventory failed" in caplog.text


def test_unpin_and_reload():
    broker = FakeBroker()
    assert reply(broker, "unpin", BOSS, name="w1") == (200, {"unpinned": True})
    assert reply(broker, "unpin", BOSS)[0] == 400
    assert reply(broker, "reload", BOSS) == (200, {"workers": 1})

    async def wrong():
        raise ConfigError("inventory.yaml:3: no mapping")

    broker.reader.reload = wrong
    status, told = reply(broker, "reload", BOSS)
    assert status == 400
    assert "inventory.yaml:3" in told["error"]


def test_the_inventory_is_redacted_for_all_but_owners():
    mmi = FakeBroker()
    for peer in (DEPLOYED, OURS, SEED):
        assert reply(mmi, "show_broker_inventory", peer) == (200, {"workers": {"w1": {"password": "***"}}})
    status, told = reply(mmi, "show_broker_inventory", FakePeer(principal=GUEST))
    assert (status, told["error"]) == (400, "not allowed: the inventory is not for guests")
    assert "open sesame" in str(reply(mmi, "show_broker_inventory", BOSS))


def test_users_see_their_own_clients():
    mmi = FakeBroker()
    assert [one["name"] for one in reply(mmi, "show_clients", OURS)[1]] == ["c1"]
    assert [one["name"] for one in reply(mmi, "show_clients", BOSS)[1]] == ["c1", "c2"]


def test_show_broker_and_services():
    broker = FakeBroker()
    broker.event_bus.publish(event())
    _, told = reply(broker, "show_broker", SEED)
    assert told["workers"] == {"alive": 1, "known": 2}
    assert told["events"]["sequence"] == 1
    assert told["counters"]["denied"] == 1
    assert told["counters"]["received"] == 110
    assert told["counters"]["jobs_late"] == 0
    assert told["store"] == "on"
    _, services = reply(broker, "show_services", SEED)
    assert services == [
        {"name": "dummy", "workers": ["w1"], "alive": 1, "idle": 0, "queued": 4, "running": 1}
    ]
    assert reply(broker, "show_services", SEED, service="other") == (200, [])


def test_the_arguments_of_logs_are_checked():
    broker = FakeBroker()
    for number in range(3):
        broker.log.emit(logging.LogRecord("headgate", logging.INFO, "", 0, f"line {number}", (), None))
    assert [one["message"] for one in reply(broker, "get_logs", DEPLOYED, last=2)[1]] == ["line 1", "line 2"]
    assert reply(broker, "get_logs", DEPLOYED, level="ERROR") == (200, [])
    for wrong in ({"last": -1}, {"last": "all"}, {"level": 3}, {"since": 5.0}, {"last": 10**9}):
        assert reply(broker, "get_logs", DEPLOYED, **wrong)[0] == 400


def test_a_worker_with_odd_times_is_still_told():
    broker = FakeBroker()
    broker.dispatcher.all_workers = [
        worker_view(holdtime_s=0.0, alive_s=0.0, status="expected", resources=())
    ]
    _, (told,) = reply(broker, "show_workers", DEPLOYED)
    assert (told["holdtime"], told["alive (s)"], told["resources"]) == ("0.0", "0", "")


@for_each("service", sorted(SERVICES))
def test_every_service_says_which_tasks_it_has(service):
    status, told = ask(FakeBroker(), service, "bogus", OURS)
    assert status == 400
    assert all(task in told["error"] for task in SERVICES[service])
