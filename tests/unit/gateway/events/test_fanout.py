import errno
import logging

from broker.errors import LinkBroken
from broker.identity import NOBODY, Role
from broker.wire import audience
from broker.wire.audience import PREFIX_MAX_BYTES, TOPIC_MAX_BYTES
from gateway.events.fanout import Fanout, may_see_private
from tests.tables import for_each
from tests.unit.gateway.events.audience import PlainLink, RunLink, Subscriber, event


def subscribed(fanout, *prefixes, **who):
    subscriber = Subscriber(**who)
    for prefix in prefixes:
        assert fanout.subscribe(subscriber, prefix) == 0
    return subscriber


def test_prefixes_are_plain_strings_and_one_event_is_one_delivery():
    fanout = Fanout()
    everything = subscribed(fanout, b"", b"a.", b"a.b")
    foo = subscribed(fanout, b"foo")
    assert fanout.publish([event(1, "foobar"), event(2, "fo"), event(3, "a.b")]) == 4
    assert everything.link.sequences() == [1, 2, 3]
    assert foo.link.sequences() == [1]
    assert (fanout.events, fanout.deliveries) == (3, 4)


def test_subscriptions_are_counted():
    fanout = Fanout()
    one = subscribed(fanout, b"a", b"a")
    assert one.subscriptions == {b"a": 2}
    assert fanout.unsubscribe(one, b"a") == 0
    fanout.publish([event(1)])
    assert fanout.unsubscribe(one, b"a") == 0
    fanout.publish([event(2)])
    assert fanout.unsubscribe(one, b"a") == errno.ENOENT
    assert one.link.sequences() == [1]
    assert one.subscriptions == {}


def test_limits_of_prefixes():
    fanout = Fanout(prefixes_max=2)
    one = subscribed(fanout, b"a", b"b" * PREFIX_MAX_BYTES)
    assert fanout.subscribe(one, b"c") == errno.ENOSPC
    assert fanout.subscribe(one, b"a") == 0  # one it has already
    assert fanout.subscribe(one, b"d" * (PREFIX_MAX_BYTES + 1)) == errno.ENAMETOOLONG
    assert set(one.subscriptions) == {b"a", b"b" * PREFIX_MAX_BYTES}


def test_a_longest_prefix_matches_a_topic_beyond_it_that_is_not_remembered():
    fanout = Fanout()
    one = subscribed(fanout, b"t" * PREFIX_MAX_BYTES)
    topic = "t" * (TOPIC_MAX_BYTES + 1)
    assert fanout.publish([event(1, topic), event(2, topic)]) == 2
    assert one.link.sequences() == [1, 2]
    assert fanout._matches.found == {}


def test_a_forgotten_subscriber_gets_nothing_and_leaves_nothing():
    fanout = Fanout()
    one, two = subscribed(fanout, b"", b"a"), subscribed(fanout, b"a")
    fanout.publish([event(1)])
    fanout.forget(one)
    fanout.forget(one)
    fanout.publish([event(2)])
    assert (one.link.sequences(), two.link.sequences()) == ([1], [1, 2])
    assert one.subscriptions == {}
    assert fanout.prefixes() == {b"a": 1}
    fanout.forget(two)
    assert (len(fanout._subscribers), fanout._receivers) == (0, {})


def test_one_run_object_for_all_receivers_of_consecutive_events():
    fanout = Fanout()
    crowd = [subscribed(fanout, b"") for _ in range(5)]
    fanout.publish([event(n, topic) for n, topic in enumerate(("a", "b", "c"), 1)])
    runs = {id(run) for one in crowd for run in one.link.runs}
    assert len(runs) == 1
    assert [len(one.link.runs) for one in crowd] == [1] * 5
    run = crowd[0].link.runs[0]
    assert (run.first, run.last, len(run)) == (1, 3, 3)


def test_other_receivers_in_between_end_a_run_and_order_is_kept():
    fanout = Fanout()
    wide, narrow = subscribed(fanout, b""), subscribed(fanout, b"n")
    fanout.publish([event(1, "a"), event(2, "n"), event(3, "n.x"), event(4, "a")])
    assert [(run.first, run.last) for run in wide.link.runs] == [(1, 1), (2, 3), (4, 4)]
    assert [(run.first, run.last) for run in narrow.link.runs] == [(2, 3)]
    assert wide.link.runs[1] is narrow.link.runs[0]


def test_events_without_receivers_do_not_end_a_run():
    fanout = Fanout()
    one = subscribed(fanout, b"a")
    assert fanout.publish([event(1, "a"), event(2, "z"), event(3, "a")]) == 2
    assert [[message.sequence for message in run.messages] for run in one.link.runs] == [[1, 3]]


def test_a_link_that_knows_no_runs_gets_single_events():
    fanout = Fanout()
    one = subscribed(fanout, b"", link=PlainLink())
    fanout.publish([event(1), event(2)])
    assert one.link.sequences() == [1, 2]


def test_a_wide_prefix_never_overrides_a_deny_below_it():
    fanout = Fanout()
    one = subscribed(fanout, b"", denied=(b"secret.",))
    fanout.publish([event(1, "a"), event(2, "secret.x"), event(3, "b")])
    assert one.link.sequences() == [1, 3]


def test_rights_are_asked_once_a_topic_until_they_change():
    fanout = Fanout()
    one = subscribed(fanout, b"")
    fanout.publish([event(n) for n in range(1, 50)])
    assert one.asked == 1
    one.denied = (b"a",)
    fanout.invalidate()
    fanout.publish([event(50)])
    assert one.link.sequences()[-1] == 49


def test_private_events_reach_the_owner_and_their_userid_only():
    fanout = Fanout()
    owner = subscribed(fanout, b"", userid=0, roles=Role.OWNER)
    admin = subscribed(fanout, b"", userid=5, roles=Role.ADMIN)
    sender = subscribed(fanout, b"", userid=1000)
    other = subscribed(fanout, b"", userid=1001)
    nobody = subscribed(fanout, b"", userid=NOBODY)
    secret = event(2, private=True, userid=1000)
    fanout.publish([event(1), secret, event(3)])
    guests = event(4, private=True, userid=NOBODY)
    assert [may_see_private(one.principal, guests) for one in (owner, nobody)] == [True, False]
    assert owner.link.sequences() == sender.link.sequences() == [1, 2, 3]
    assert admin.link.sequences() == other.link.sequences() == nobody.link.sequences() == [1, 3]
    for one, sees in ((owner, True), (admin, False), (sender, True), (other, False), (nobody, False)):
        assert may_see_private(one.principal, secret) is sees


def test_privacy_is_never_remembered():
    fanout = Fanout()
    one = subscribed(fanout, b"", userid=1000)
    fanout.publish([event(1, private=True, userid=1000)])
    one.principal = Subscriber(userid=1001).principal  # without invalidate()
    fanout.publish([event(2, private=True, userid=1000)])
    assert one.link.sequences() == [1]


def test_consecutive_private_events_of_one_sender_are_one_run():
    fanout = Fanout()
    sender, _other = subscribed(fanout, b"", userid=1000), subscribed(fanout, b"", userid=1001)
    fanout.publish([event(n, private=True, userid=1000) for n in range(1, 5)])
    assert [(run.first, run.last) for run in sender.link.runs] == [(1, 4)]


def test_a_private_event_that_everybody_may_see_joins_the_run():
    fanout = Fanout()
    one = subscribed(fanout, b"", userid=1000)
    fanout.publish([event(1), event(2, private=True, userid=1000), event(3)])
    assert [(run.first, run.last) for run in one.link.runs] == [(1, 3)]


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(audience, "TOPICS_MAX", 8)
    fanout = Fanout()
    one = subscribed(fanout, b"")
    for n in range(1, 40):
        fanout.publish([event(n, f"t{n}")])
        assert len(fanout._matches.found) <= 8
    assert one.link.sequences() == list(range(1, 40))


def test_receivers_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(audience, "MEMBERS_MAX", 10)
    fanout = Fanout()
    crowd = [subscribed(fanout, f"t{n}".encode(), b"all") for n in range(6)]
    for n in range(6):
        fanout.publish([event(2 * n + 1, f"t{n}"), event(2 * n + 2, "all")])
        assert fanout._matches._held <= 10
    for n, one in enumerate(crowd):
        assert one.link.sequences() == sorted([2 * n + 1, *range(2, 13, 2)])


def test_topics_with_the_same_receivers_share_one_entry():
    fanout = Fanout()
    subscribed(fanout, b"")
    fanout.publish([event(1, "a"), event(2, "b")])
    assert len({id(found) for found in fanout._matches.found.values()}) == 1


class Faulty(RunLink):
    def send_run(self, run):
        raise RuntimeError("out of order")


def test_a_fault_costs_the_link_it_happened_at_only(caplog):
    fanout = Fanout()
    first, bad, last = (subscribed(fanout, b"", link=link) for link in (RunLink(), Faulty(), RunLink()))
    with caplog.at_level(logging.ERROR, "headgate"):
        fanout.publish([event(1)])
    assert first.link.sequences() == last.link.sequences() == [1]
    assert isinstance(bad.link.aborted, LinkBroken)
    assert "cannot queue events" in caplog.text


def test_a_subscriber_may_leave_during_delivery():
    fanout = Fanout()
    leaver, stayer = Subscriber(), Subscriber()

    class Leaving(RunLink):
        def send_run(self, run):
            super().send_run(run)
            fanout.forget(leaver)

    leaver.link = Leaving()
    for one in (leaver, stayer):
        fanout.subscribe(one, b"")
    fanout.publish([event(1)])
    fanout.publish([event(2)])
    assert (leaver.link.sequences(), stayer.link.sequences()) == ([1], [1, 2])


@for_each("topic", ["", "a", "é.ü", "a" * 300])
def test_topics_of_any_form(topic):
    fanout = Fanout()
    one = subscribed(fanout, topic.encode()[:PREFIX_MAX_BYTES])
    assert fanout.publish([event(1, topic)]) == 1
    assert one.link.sequences() == [1]


def counted(fanout):
    return {name: stats.calls for name, stats in fanout.withheld.by_name.items() if stats.calls}


def test_what_a_deny_keeps_from_a_wide_prefix_is_counted_by_topic():
    fanout = Fanout()
    one = subscribed(fanout, b"", b"secret", denied=(b"secret.",))
    subscribed(fanout, b"", userid=2, denied=(b"secret.",))
    subscribed(fanout, b"", userid=3)
    fanout.publish(
        [event(1, "a"), event(2, "secret.x"), event(3, "secret.12345678.end"), event(4, "secret.x")]
    )
    assert counted(fanout) == {"secret.x": 4, "secret.*.end": 2}
    fanout.forget(one)
    fanout.publish([event(5, "secret.x")])
    assert counted(fanout)["secret.x"] == 5
    assert one.link.sequences() == [1]


def test_what_is_withheld_is_counted_anew_when_rights_change():
    fanout = Fanout()
    one = subscribed(fanout, b"", denied=(b"secret.",))
    fanout.publish([event(1, "secret.x")])
    one.denied = ()
    fanout.invalidate()
    fanout.publish([event(2, "secret.x")])
    assert (counted(fanout), one.link.sequences()) == ({"secret.x": 1}, [2])


def test_topics_that_are_withheld_are_bounded(monkeypatch):
    monkeypatch.setattr("gateway.events.fanout.TOPICS_MAX", 8)
    fanout = Fanout()
    subscribed(fanout, b"", denied=(b"secret.",))
    for n in range(200):
        fanout.publish([event(2 * n + 1, f"secret.t{n}"), event(2 * n + 2, f"secret.t{n}")])
    assert sum(counted(fanout).values()) == 400
    assert counted(fanout)["other"] > 200
    assert len(counted(fanout)) == 65
    assert len(fanout._withheld) <= 8


def test_why_somebody_does_not_get_an_event():
    fanout = Fanout()
    denied = subscribed(fanout, b"", denied=(b"secret.",))
    mine = subscribed(fanout, b"secret", b"", userid=7)
    other = subscribed(fanout, b"", userid=8)
    subscribed(fanout, b"b")
    said = fanout.explain(event(1, "secret.x", private=True, userid=7))
    assert said == {denied: "rule", mine: "", other: "private"}
    assert fanout.explain(event(2, "a")) == {denied: "", mine: "", other: ""}
