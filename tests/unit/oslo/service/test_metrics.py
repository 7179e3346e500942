"""What rooms answer to STATUS, as Prometheus reads it: bounded labels, counters by cause."""

import re
from pathlib import Path

import pytest

from broker.exposition import render
from broker.oslo import proxy
from broker.oslo.frames import Kind
from broker.oslo.proxy.pools import Pools
from broker.oslo.service.metrics import (
    DELIVERED,
    DROPPED,
    EXPIRED,
    OTHER,
    PAUSES,
    REFUSED,
    TOPICS_SHOWN,
    samples,
)
from tests.live.oslo_raw import node_at


def series(statuses):
    """Name and labels -> value."""
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in render(samples(statuses)).splitlines()
        if not line.startswith("#")
    }


def test_a_room_that_does_not_answer_is_down_and_tells_nothing():
    found = series({"call": None, "directory": {"replica": {"sources": {"here": {"live": True}}}}})
    assert found['headgate_oslo_room_up{room="call"}'] == 0
    assert found['headgate_oslo_room_up{room="directory"}'] == 1
    assert not any('pipeline="call"' in name for name in found)
    assert found["headgate_oslo_directory_sources_live"] == 0


def test_topics_are_bounded():
    topics = {f"x/t{n}": n + 1 for n in range(TOPICS_SHOWN + 5)}
    found = series({"call": {"pipeline": "call", "topics": topics}})
    shown = {name: value for name, value in found.items() if "topic_listeners" in name}
    assert len(shown) == TOPICS_SHOWN + 1
    assert shown[f'headgate_oslo_topic_listeners{{pipeline="call",topic="{OTHER}"}}'] == sum(range(1, 6))
    assert found['headgate_oslo_listeners{pipeline="call"}'] == sum(topics.values())


def test_messages_by_topic_and_why_they_fail():
    told = {"calls": 3, "open": 1, "errors": {"113": 2, "0": 1}, "total_ns": 0, "buckets": []}
    rooms = {room: {"pipeline": room, "figures": {"x/t": told}} for room in ("call", "cast")}
    found = series(rooms)
    assert found['headgate_oslo_topic_messages_total{pipeline="cast",topic="x/t"}'] == 3
    assert found['headgate_oslo_topic_errors_total{pipeline="call",topic="x/t",errno="EHOSTUNREACH"}'] == 2
    assert found['headgate_oslo_topic_errors_total{pipeline="call",topic="x/t",errno="0"}'] == 1
    assert [name for name in found if "topic_open_calls" in name] == [
        'headgate_oslo_topic_open_calls{pipeline="call",topic="x/t"}'
    ]


def test_refusals_drops_and_expiry_are_apart():
    counts = {
        "refused_denied": 2,
        "denied": 1,
        "refused_expired": 3,
        "expired": 4,
        "nobody": 5,
        "handed": 6,
    }
    found = series({"notify": {"pipeline": "notify", "counts": {**counts, "pauses": 7, "some_day": 8}}})
    assert found['headgate_oslo_refused_messages_total{pipeline="notify",reason="denied"}'] == 3
    assert found['headgate_oslo_expired_messages_total{pipeline="notify"}'] == 7
    assert found['headgate_oslo_dropped_messages_total{pipeline="notify",reason="nobody"}'] == 5
    assert found['headgate_oslo_delivered_messages_total{pipeline="notify"}'] == 6
    assert found['headgate_oslo_pauses_total{pipeline="notify",kind="pauses"}'] == 7
    assert not any("expired" in name for name in found if "refused_messages" in name)


def test_what_is_kept_for_listeners_that_are_away_is_not_dropped():
    counts = {
        "backlog_kept": 5,
        "backlog_given": 3,
        "backlog_full": 1,
        "backlog_expired": 0,
        "backlog_disk": 1,
    }
    found = series(
        {"notify": {"pipeline": "notify", "counts": counts, "backlog": {"messages": 1, "bytes": 9}}}
    )
    assert found['headgate_oslo_backlog_messages{pipeline="notify"}'] == 1
    assert found['headgate_oslo_backlog_kept_total{pipeline="notify"}'] == 5
    assert found['headgate_oslo_backlog_given_total{pipeline="notify"}'] == 3
    assert found['headgate_oslo_dropped_messages_total{pipeline="notify",reason="backlog_full"}'] == 1
    assert not any("backlog_kept" in name for name in found if "dropped" in name)


NO_LOSS = {
    "backlog_given", "backlog_kept", "chosen_again", "closed", "credit_unknown", "credits", "died",
    "handshakes", "lapsed", "moved", "opened", "pending_full", "rechosen", "requeued", "subscription_denied",
    "subscription_in_doubt", "taken", "unwatched",
}  # fmt: skip
"""What happened to listeners, or to messages that went on; or why something is counted as refused."""


def test_whatever_a_proxy_counts_has_its_place():
    """A new counter is a loss that an alert tells of, or one of those that are none."""
    places = {*NO_LOSS, *DELIVERED, *REFUSED, *DROPPED, *EXPIRED, *PAUSES}
    counted = set(Pools.COUNTED)
    for file in Path(proxy.__file__).parent.glob("*.py"):
        counted |= set(re.findall(r'counters\.count(?:_dropped)?\(\s*"([a-z_]+)"', file.read_text()))
    assert len(counted) > 30
    assert {name for name in counted - places if not name.startswith("refused_")} == set()


def test_other_directories_that_do_not_answer():
    uplinks = [{"alive": True}, {"alive": False}, {"alive": False, "closed": True}]
    found = series({"directory": {"uplinks": uplinks, "replica": {"sources": {}}}})
    assert found["headgate_oslo_directory_sources_lost"] == 1


@pytest.mark.parametrize("room", ["call", "cast", "fanout", "notify", "directory"])
def test_a_real_room_tells_what_it_counts(tmp_path_factory, room):
    with node_at(tmp_path_factory.mktemp("n") / "s", run=frozenset({room})) as node:
        if room in ("call", "cast"):
            client = node.client(room)
            client.send(Kind.CALL if room == "call" else Kind.CAST, "nobody-here")
            node.counted(room, "refused_no_route" if room == "call" else "no_route")
        found = series({room: node.status(room)})
    assert found[f'headgate_oslo_settings_read_timestamp_seconds{{room="{room}"}}'] > 1e9
    if room == "call":
        assert found['headgate_oslo_refused_messages_total{pipeline="call",reason="no_route"}'] == 1
    if room == "cast":
        assert found['headgate_oslo_dropped_messages_total{pipeline="cast",reason="no_route"}'] == 1
        assert found['headgate_oslo_received_messages_total{pipeline="cast"}'] == 1


def test_a_call_that_finds_the_table_full_is_refused_once(tmp_path_factory):
    with node_at(tmp_path_factory.mktemp("n") / "s", run=frozenset({"call"}), pending_max=1) as node:
        server, client = node.server(), node.client()
        server.open("t")
        for _ in range(2):
            client.call("t")
        client.get()
        found = series({"call": node.status("call")})
    assert found['headgate_oslo_refused_messages_total{pipeline="call",reason="busy"}'] == 1


def test_a_journal_is_told_of_by_one_room_of_its_process():
    figures = {"state": "off: No space left on device", "handed": 9, "written": 5, "lost": 4}
    found = series({"call": {"journal": figures}, "cast": {}})
    assert found['headgate_oslo_journal_recording{room="call",off="No space left on device"}'] == 0
    assert found['headgate_oslo_journal_lost_records_total{room="call"}'] == 4
    assert not any("journal" in name for name in series({"call": {}, "cast": {}}))
