"""Events by topic: each counted once in the tree, where it gets its number, or where it is refused; bounded."""

import errno

from broker.name_stats import NAMES_MAX, OTHER, UNPROVEN_MAX
from broker.routing.counters import KNOWN_MAX
from broker.wire.message import event
from tests.tables import for_each
from tests.unit.routing.sim import GUEST, OWNER, Tree

UUID = "0b4fdc51-7a0e-4b6e-9a51-{:012x}"


def topics(tree, rank=0):
    return tree[rank].router.events.stats.table.by_name


@for_each("source", [0, 1, 2])
def test_an_event_is_counted_once_in_the_tree(source):
    tree = Tree(3)
    mouth = tree.client(source)
    for _ in range(3):
        mouth.publish("news.x")
    tree.settle()
    assert {name: stats.calls for name, stats in topics(tree).items()} == {"news.x": 3}
    assert [topics(tree, rank) for rank in (1, 2)] == [{}, {}]


def test_ids_in_topics_are_left_out():
    tree = Tree(1)
    mouth = tree.client()
    for number in range(2 * KNOWN_MAX):
        mouth.publish(f"nfp.job.{UUID.format(number)}.progress")
    assert {name: stats.calls for name, stats in topics(tree).items()} == {
        "nfp.job.*.progress": 2 * KNOWN_MAX
    }
    assert len(tree[0].router.events.stats.known) <= KNOWN_MAX


def test_what_happens_to_one_of_many_is_counted_by_its_last_word():
    tree = Tree(1)
    mouth = tree.client()
    for number in range(2 * KNOWN_MAX):
        for word in ("submitted", "closed"):
            mouth.publish(f"nfp.job.{UUID.format(number)}.{word}")
        mouth.publish(f"x.{UUID.format(number)}.closed")
        mouth.publish(f"job\x1b.{UUID.format(number)}.closed")
        mouth.publish("plain.closed")
    assert {name: stats.calls for name, stats in topics(tree).items()} == {
        **dict.fromkeys(("nfp.job.*.submitted", "nfp.job.*.closed", "x.*.closed"), 2 * KNOWN_MAX),
        **dict.fromkeys((OTHER, "plain.closed"), 2 * KNOWN_MAX),
    }


def test_what_guests_make_up_takes_little_room_and_hides_no_topic_of_the_owner():
    tree = Tree(1)
    guest, owner = tree.client(0, GUEST), tree.client(0, OWNER)
    for number in range(3 * UNPROVEN_MAX):
        guest.publish(f"no{number}x")
    guest.publish("news")
    assert len(topics(tree)) == UNPROVEN_MAX + 1
    assert topics(tree)[OTHER].calls == 2 * UNPROVEN_MAX + 1
    for _ in range(2):
        owner.publish("news")
    guest.publish("news")
    assert topics(tree)["news"].calls == 3


def test_the_number_of_topics_is_bounded():
    tree = Tree(1)
    mouth = tree.client()
    for number in range(2 * NAMES_MAX):
        mouth.publish(f"t{number}x")
    assert len(topics(tree)) == NAMES_MAX + 1
    assert topics(tree)[OTHER].calls == NAMES_MAX


@for_each("source", [0, 1])
def test_what_is_refused_is_an_error_where_it_came_in(source):
    tree = Tree(2, guest_event_bytes=100, topic_max_bytes=255)
    tree[source].router.call_stats.now_ns = 7
    tree.client(source, GUEST).publish("big", payload=bytes(101))
    gateway = tree.client(source, OWNER)
    gateway.publish("t" * 300, userid=9)
    tree.settle()
    big, other = topics(tree, source)["big"], topics(tree, source)[OTHER]
    assert (big.calls, big.errors) == (1, {errno.EMSGSIZE: 1})
    assert (big.last_userid, big.last_ns) == (GUEST.userid, 7)
    assert (other.calls, other.errors) == (1, {errno.EPROTO: 1})
    assert topics(tree, 1 - source) == {}


def test_who_is_refused_is_the_one_that_a_gateway_speaks_for():
    tree = Tree(1, guest_event_bytes=100)
    message = event("e", bytes(101), userid=GUEST.userid, rolemask=GUEST.rolemask)
    tree[0].router.events.receive(tree.client().port, message)
    assert topics(tree)["e"].last_userid == GUEST.userid


def test_cleared_topics_start_at_zero():
    tree = Tree(1)
    mouth = tree.client()
    mouth.publish("a")
    tree[0].router.events.stats.clear()
    assert topics(tree) == {}
    mouth.publish("a")
    assert topics(tree)["a"].calls == 1
