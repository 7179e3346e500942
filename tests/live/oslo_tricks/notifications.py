"""Notifications: pools, priorities, batches, giving back."""

import threading
import time
from contextlib import contextmanager

import oslo_messaging

from tests.live.oslo_tricks.stage import CONF, URLS, new, same_for_a_while, until

TRICKS = []


def trick(function):
    TRICKS.append(function)
    return function


class Listening:
    """Keeps the payloads that came; gives each back ``again`` times."""

    def __init__(self, again=0):
        self.seen = []
        self.again = again
        self.lock = threading.Lock()

    def info(self, ctxt, publisher_id, event_type, payload, metadata):
        with self.lock:
            self.seen.append(payload)
            if self.seen.count(payload) <= self.again:
                return oslo_messaging.NotificationResult.REQUEUE
        return None


class Batches:
    def __init__(self):
        self.sizes = []
        self.seen = []

    def info(self, messages):
        self.sizes.append(len(messages))
        self.seen += [each["payload"] for each in messages]


@contextmanager
def listener(topic, endpoint=None, url=None, exchange=None, make=None, **words):
    endpoint = endpoint or Listening()
    mine = oslo_messaging.get_notification_transport(CONF, url=url or URLS["servers"])
    targets = [oslo_messaging.Target(topic=topic, exchange=exchange)]
    made = (make or oslo_messaging.get_notification_listener)(mine, targets, [endpoint], **words)
    made.start()
    try:
        yield endpoint
    finally:
        made.stop()
        made.wait()
        mine.cleanup()


@contextmanager
def notifier(topic, driver="messagingv2"):
    mine = oslo_messaging.get_notification_transport(CONF, url=URLS["clients"])
    try:
        yield oslo_messaging.Notifier(mine, "me", driver=driver, topics=[topic])
    finally:
        mine.cleanup()


@trick
def each_pool_has_every_notification_once():
    topic = new("events")
    with (
        listener(topic, pool="a") as a1,
        listener(topic, pool="a", url=URLS["clients"]) as a2,
        listener(topic, pool="b") as b,
        listener(topic) as none1,
        listener(topic) as none2,
        notifier(topic) as me,
    ):
        everyone = (a1, a2, b, none1, none2)

        def all_are_known():
            me.info({}, "event", -1)
            return all(each.seen for each in everyone)

        def numbers(each):
            return [number for number in each.seen if number >= 0]

        until(all_are_known, "the notifier to know all listeners")
        for number in range(40):
            me.info({}, "event", number)
        pools = ([a1, a2], [b], [none1, none2])
        until(
            lambda: all(sum(len(numbers(each)) for each in pool) >= 40 for pool in pools), "every pool has 40"
        )
        for pool in pools:
            assert same_for_a_while(
                lambda pool=pool: sorted(n for each in pool for n in numbers(each))
            ) == list(range(40))
            assert all(numbers(each) for each in pool)


@trick
def notifications_that_are_given_back_come_again():
    topic = new("events")
    with listener(topic, Listening(again=2), allow_requeue=True) as one, notifier(topic) as me:
        for number in range(10):
            me.info({}, "event", number)
        until(lambda: len(one.seen) >= 30)
        assert same_for_a_while(lambda: sorted(one.seen)) == sorted(list(range(10)) * 3)
    gives_back = Listening(again=2)
    with listener(topic, gives_back, allow_requeue=True), listener(topic) as two, notifier(topic) as me:
        me.info({}, "event", "x")
        until(
            lambda: two.seen == ["x"] or gives_back.seen.count("x") == 3, "given back until somebody takes it"
        )


@trick
def notification_topics_that_begin_alike():
    topic = new("n")
    longer = f"{topic}.info"
    with listener(topic) as one, listener(longer) as two, listener(topic, exchange="other") as three:
        with notifier(longer) as me:
            me.info({}, "event", "long")
        with notifier(topic, "messaging") as me:
            me.info({}, "event", "short")
            me.error({}, "event", "another priority")
        until(lambda: one.seen and two.seen)
        assert same_for_a_while(lambda: (one.seen, two.seen, three.seen)) == (["short"], ["long"], [])


@trick
def a_large_notification_among_small_ones():
    topic = new("events")
    large = "x" * (2 << 20)
    sent = [*range(300), large, *range(300, 500)]
    with listener(topic) as end, notifier(topic) as me:
        for payload in sent:
            me.info({}, "event", payload)
        until(lambda: len(end.seen) == len(sent))
        assert sorted(map(str, end.seen)) == sorted(map(str, sent))


@trick
def notifications_in_batches():
    topic = new("events")
    words = {"make": oslo_messaging.get_batch_notification_listener, "batch_size": 10, "batch_timeout": 1}
    with listener(topic, Batches(), **words) as end, notifier(topic) as me:
        for number in range(25):
            me.info({}, "event", number)
        until(lambda: len(end.seen) == 25)
        assert sorted(end.seen) == list(range(25))
        assert end.sizes == [10, 10, 5], end.sizes


@trick
def notifications_to_nobody_return():
    with notifier(new("events")) as me:
        me.info({}, "event", 0)
        began = time.monotonic()
        for number in range(20):
            me.info({}, "event", number)
        assert time.monotonic() - began < 5


@trick
def many_notifications_to_a_slow_listener():
    """More than libzmq would keep, to somebody who is slower than the sender: none is lost."""
    topic = new("events")

    class Slow(Listening):
        def info(self, ctxt, publisher_id, event_type, payload, metadata):
            time.sleep(0.002)
            self.seen.append(payload)

    with listener(topic, Slow()) as end, notifier(topic) as me:
        for number in range(2000):
            me.info({}, "event", number)
        until(lambda: len(end.seen) >= 2000)
        assert same_for_a_while(lambda: sorted(end.seen)) == list(range(2000))
