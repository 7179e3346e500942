"""The token bucket: rate over time, bursts, hints that are true, and who ignores them."""

from broker import rates
from broker.rates import BACKLOG_S, FLOOD_BURSTS, Bucket, Buckets, Throttle


def test_a_burst_at_once_then_the_rate():
    bucket = Bucket(10, 5, now=7.0)
    assert [bucket.take(7.0) for _ in range(5)] == [0.0] * 5
    assert bucket.take(7.0) > 0
    assert sum(bucket.take(7.0 + n / 100) == 0.0 for n in range(1, 101)) == 10


def test_whoever_waits_as_told_gets_in():
    bucket = Bucket(7, 3, now=0.0)
    now = 0.1
    for _ in range(1000):
        wait_s = bucket.take(now)
        if wait_s:
            now += wait_s
            assert bucket.take(now) == 0.0


def test_the_hint_gives_room_for_a_quarter_of_the_burst():
    bucket = Bucket(2000, 1000)
    assert bucket.grant(0.0, 1000) == 1000
    assert bucket.take(0.0) == 0.125
    assert bucket.grant(0.125, 1000) == 250


def test_more_than_the_burst_is_never_kept():
    bucket = Bucket(10, 5)
    assert bucket.grant(1e6, 100) == 5


def test_a_batch_gets_what_is_there():
    bucket = Bucket(10, 5)
    assert [bucket.grant(0.0, 3), bucket.grant(0.0, 3), bucket.grant(0.0, 3)] == [3, 2, 0]


def test_no_rate_is_no_limit():
    bucket = Bucket(0, 1)
    assert bucket.grant(0.0, 10**6) == 10**6
    assert [bucket.take(0.0) for _ in range(10)] == [0.0] * 10


def test_a_clock_that_stands_still_gives_nothing():
    bucket = Bucket(10, 1, now=5.0)
    assert bucket.take(5.0) == 0.0
    assert all(bucket.take(5.0) > 0 for _ in range(10))


def test_flooding_is_to_go_on_without_a_pause():
    bucket = Bucket(100, 10, now=0.0)
    bucket.grant(0.0, 10)
    for n in range(10 * FLOOD_BURSTS):
        assert not bucket.flooding
        assert bucket.take(n * 1e-6) > 0
    bucket.take(0.001)
    assert bucket.flooding


def test_what_was_sent_while_nobody_read_is_no_flood():
    bucket = Bucket(100, 10, now=0.0)
    bucket.grant(60.0, 10)
    bucket.forgive(60.0, 60)
    for _ in range(60 * 100 - 10):
        assert bucket.take(60.0) > 0
        assert not bucket.flooding
    assert bucket.grant(61.0, 100) == 10
    assert all(bucket.take(61.0) > 0 for _ in range(10 * FLOOD_BURSTS + 11))
    assert bucket.flooding, "once"


def test_what_was_forgiven_and_never_came_lapses_and_does_not_add_up():
    bucket = Bucket(100, 10, now=0.0)
    for _ in range(5):
        bucket.forgive(60.0, 60)
        bucket.forgive(60.0, 1)
    bucket.grant(60.0, 10)
    assert bucket.refused == -5990
    bucket.grant(60.0 + BACKLOG_S, 0)
    assert bucket.refused == -5990
    bucket.grant(60.1 + BACKLOG_S, 0)
    assert bucket.refused == 0


def test_who_is_above_the_rate_is_closed_by_a_loop_that_is_always_late():
    bucket, sent = Bucket(100, 1000, now=0.0), 0
    for turn in range(400):
        now = turn * 1.1
        bucket.forgive(now, 0.6)
        while sent < 150 * now:
            sent += 1
            bucket.take(now)
    assert bucket.flooding


def test_a_pause_as_long_as_the_hint_makes_good():
    bucket = Bucket(100, 10, now=0.0)
    now = 0.0
    for _ in range(50):
        bucket.grant(now, 10)
        for _ in range(40):
            wait_s = bucket.take(now)
            assert not bucket.flooding
        now += wait_s


def test_what_is_charged_is_made_good_before_more_is_given():
    bucket = Bucket(10, 4)
    assert bucket.take(0.0) == 0.0
    bucket.charge(8)
    assert bucket.grant(0.0, 5) == 0
    assert bucket.take(0.4) > 0
    assert bucket.grant(0.8, 5) == 3


def test_each_user_has_a_bucket_and_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(rates, "USERS_MAX", 2)
    buckets = Buckets(1, 1)
    ada = buckets.of("ada", 0.0)
    assert buckets.of("bob", 0.0) is not ada
    assert buckets.of("ada", 0.0) is ada
    buckets.of("eve", 0.0)
    assert buckets.of("ada", 0.0) is ada
    assert ada.take(0.0) == 0.0 < ada.take(0.0)
    assert buckets.of("bob", 0.0).take(0.0) == 0.0, "forgotten, for he asked longest ago"


def test_a_throttle_admits_each_thing_again_after_its_time_and_remembers_so_many(monkeypatch):
    monkeypatch.setattr(rates, "KEYS_MAX", 2)
    lines = Throttle(10.0)
    assert [lines.admits("a", now) for now in (0.0, 9.9, 10.0, 19.9)] == [True, False, True, False]
    assert lines.admits("b", 19.9)
    assert not lines.admits("a", 19.9)
    assert lines.admits("c", 19.9), "for which all others are forgotten"
    assert lines.admits("a", 19.9)
