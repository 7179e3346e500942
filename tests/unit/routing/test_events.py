"""Numbering, order, privacy and prefixes of events (RFC 3, "Event Message Type"; RFC 12, "Event Privacy")."""

import errno

from broker.identity import NOBODY, Credentials, Role
from broker.routing import flow
from broker.routing.events import PREFIXES_MAX
from broker.routing.flow import WINDOW_BYTES
from broker.wire.audience import PREFIX_MAX_BYTES
from broker.wire.message import DELIMITER, EVENT, PRIVATE, TOPIC, USER1, event
from tests.tables import for_each
from tests.unit.routing.sim import GUEST, OWNER, Tree

OTHER = Credentials(3000, int(Role.USER))


def subscriber(tree, rank=0, *prefixes, cred=GUEST):
    client = tree.client(rank, cred)
    for prefix in prefixes or ("",):
        assert client.router.events.subscribe(client.port, prefix.encode()) == 0
    return client


@for_each("source", range(7))
def test_everybody_hears_each_event_once_and_in_the_same_order(source):
    tree = Tree()
    ears = [subscriber(tree, rank) for rank in range(7)]
    mouth = tree.client(source)
    for number in range(5):
        mouth.publish(f"news.{number}", payload=b"p", flags=USER1)
    tree.settle()
    for ear in ears:
        assert [(m.topic, m.sequence) for m in ear.events] == [(f"news.{n}", n + 1) for n in range(5)]
        assert all(m.payload == b"p" and m.flags & USER1 and m.front == DELIMITER for m in ear.events)
    assert [rank.router.events.sequence for rank in tree.ranks] == [5] * 7


def test_numbers_are_the_roots_and_other_words_pass():
    tree = Tree(1)
    ear, mouth = subscriber(tree), tree.client()
    message = event("a", sequence=700)
    message.tag = (888).to_bytes(4, "big")
    tree[0].router.events.receive(mouth.port, message)
    assert [(m.sequence, m.aux2) for m in ear.events] == [(1, 888)]


@for_each("source", [0, 1])
@for_each("limit", [255, 1024])
def test_topics_are_bounded(source, limit):
    tree = Tree(3, topic_max_bytes=limit)
    ear, mouth = subscriber(tree, 2), tree.client(source)
    for size in (limit, limit + 1, 70_000, 0):
        mouth.publish("t" * size)
    tree.settle()
    assert [m.topic for m in ear.events] == ["t" * limit]
    assert tree[source].router.counters.drops == {
        "event with too long a topic": 2,
        "event with an empty topic": 1,
    }


@for_each("source", [0, 1])
def test_events_of_guests_are_bounded(source):
    tree = Tree(3, guest_event_bytes=100)
    ear = subscriber(tree, 2)
    for who in (GUEST, OWNER):
        mouth = tree.client(source, who)
        for size in (100, 101):
            mouth.publish("e", payload=bytes(size))
    gateway = tree.client(source, OWNER)
    message = event("e", bytes(101), userid=GUEST.userid, rolemask=GUEST.rolemask)
    tree[source].router.events.receive(gateway.port, message)
    tree.settle()
    assert [len(m.payload) for m in ear.events] == [100, 100, 101]
    assert tree[source].router.counters.drops == {"event of a guest above guest_event_bytes": 2}


def test_what_has_a_number_passes_whatever_its_size():
    tree = Tree(2, guest_event_bytes=100)
    ear = subscriber(tree, 1)
    tree[0].router.events.publish(event("e", bytes(101), userid=GUEST.userid, rolemask=GUEST.rolemask))
    tree.settle()
    assert [m.sequence for m in ear.events] == [1]


def test_what_has_a_number_passes_whatever_its_topic():
    """A broker with a lower limit than rank 0 would see a gap in the numbers."""
    tree = Tree(2, topic_max_bytes=255)
    ear = subscriber(tree, 1)
    tree[0].router.events.publish(event("t" * 300))
    tree.settle()
    assert [m.sequence for m in ear.events] == [1]


def test_numbers_wrap_without_zero():
    tree = Tree(1)
    ear, mouth = subscriber(tree), tree.client()
    tree[0].router.events.sequence = 0xFFFFFFFE
    mouth.publish("a")
    mouth.publish("b")
    assert [m.sequence for m in ear.events] == [0xFFFFFFFF, 1]


@for_each(
    ("prefix", "heard"),
    [
        ("", True),
        ("foo", True),
        ("foobar", True),
        ("foobar.", False),
        ("fop", False),
        ("foo.*", False),
        ("o", False),
    ],
)
def test_a_prefix_is_plain_text(prefix, heard):
    tree = Tree(1)
    ear = subscriber(tree, 0, prefix)
    tree.client().publish("foobar")
    assert bool(ear.events) is heard


def test_overlapping_prefixes_deliver_once_and_are_counted():
    tree = Tree(1)
    events = tree[0].router.events
    ear = subscriber(tree, 0, "", "a", "ab", "a")
    mouth = tree.client()
    mouth.publish("abc")
    assert len(ear.events) == 1
    for prefix in (b"", b"ab", b"a"):
        assert events.unsubscribe(ear.port, prefix) == 0
    mouth.publish("abc")
    assert len(ear.events) == 2, "one of two subscriptions to 'a' is left"
    assert events.unsubscribe(ear.port, b"a") == 0
    assert events.unsubscribe(ear.port, b"a") == errno.ENOENT
    mouth.publish("abc")
    assert len(ear.events) == 2


def test_who_subscribes_is_heard_from_the_next_event_on():
    tree = Tree(1)
    mouth, ear = tree.client(), tree.client()
    mouth.publish("abc")
    tree[0].router.events.subscribe(ear.port, b"abc")
    mouth.publish("abc")
    assert [m.sequence for m in ear.events] == [2]


def test_subscriptions_are_bounded_in_number_and_length():
    tree = Tree(1)
    events, ear = tree[0].router.events, tree.client()
    assert events.subscribe(ear.port, b"x" * PREFIX_MAX_BYTES) == 0
    assert events.subscribe(ear.port, b"x" * (PREFIX_MAX_BYTES + 1)) == errno.ENAMETOOLONG
    for number in range(PREFIXES_MAX - 1):
        assert events.subscribe(ear.port, b"%d" % number) == 0
    assert events.subscribe(ear.port, b"more") == errno.ENOSPC
    assert events.subscribe(ear.port, b"1") == 0, "a second time takes no room"
    assert events.unsubscribe(ear.port, b"2") == 0
    assert events.subscribe(ear.port, b"more") == 0


def test_a_giant_topic_costs_no_more_than_its_prefixes():
    """Found here: every prefix of a topic of megabytes was cut out, which took minutes; now it is over at once."""
    tree = Tree(1)
    ear = subscriber(tree, 0, "t" * PREFIX_MAX_BYTES)
    for _ in range(3):
        tree[0].router.events.publish(event("t" * 3_000_000))  # as a deployed rank 0 may have numbered one
    assert len(ear.events) == 3
    assert not tree[0].router.events._matches.found, "and is not remembered"


def test_remembered_topics_are_bounded():
    tree = Tree(1)
    mouth = tree.client()
    subscriber(tree)
    for number in range(5000):
        mouth.publish(f"topic.{number}")
    assert len(tree[0].router.events._matches.found) <= 4096


# -- private events -------------------------------------------------------------------------------


@for_each(("source", "rank"), [(0, 0), (3, 0), (0, 3), (3, 6)])
def test_private_events_reach_the_owner_and_their_sender(source, rank):
    tree = Tree()
    owner, same = tree.client(rank), subscriber(tree, rank, "")
    other = subscriber(tree, rank, "", cred=OTHER)
    tree[rank].router.events.subscribe(owner.port, b"s")
    mouth = tree.client(source, GUEST)
    mouth.publish("secret", PRIVATE, userid=3000)
    mouth.publish("secret.open")
    tree.settle()
    assert [len(ear.events) for ear in (owner, same, other)] == [2, 2, 1]
    assert owner.events[0].userid == 2000, "a forged userid opens nothing"


def test_a_private_event_of_nobody_is_the_owners_alone():
    tree = Tree(1)
    nobody = Credentials(NOBODY, Role.USER)
    owner, same = subscriber(tree, cred=OWNER), subscriber(tree, cred=nobody)
    tree.client(0, nobody).publish("secret", PRIVATE)
    assert (len(owner.events), len(same.events)) == (1, 0)


def test_the_owner_may_publish_in_the_name_of_a_user():
    tree = Tree(1)
    same, other = subscriber(tree), subscriber(tree, cred=OTHER)
    tree.client().publish("secret", PRIVATE, userid=2000)
    assert (len(same.events), len(other.events)) == (1, 0)


# -- the way down ---------------------------------------------------------------------------------


def arrive(tree, sequence, topic="n"):
    tree[1].router.events.receive(tree.links[1][1], event(topic, sequence=sequence))


def test_gaps_and_new_numberings_are_told_and_duplicates_dropped():
    tree = Tree(3)
    ear = subscriber(tree, 1)
    gaps = []
    tree[1].router.events.on_gap = lambda last, now: gaps.append((last, now))
    for sequence in (41, 42, 42, 45, 1, 2):
        arrive(tree, sequence)
    assert [m.sequence for m in ear.events] == [41, 42, 45, 1, 2]
    assert gaps == [(42, 45), (45, 1)], "the first event seen is no gap"
    assert tree[1].router.counters.drops == {"duplicate event": 1}


def test_numbers_that_wrap_are_no_gap():
    tree = Tree(3)
    gaps = []
    tree[1].router.events.on_gap = lambda last, now: gaps.append((last, now))
    arrive(tree, 0xFFFFFFFF)
    arrive(tree, 1)
    assert gaps == []


def test_events_go_down_whoever_subscribed():
    tree = Tree()
    tree.client(0).publish("quiet")
    tree.settle()
    assert [(source, target) for source, target, m in tree.crossed if m.type == EVENT] == [
        (0, 1),
        (0, 2),
        (1, 3),
        (1, 4),
        (2, 5),
        (2, 6),
    ]


def test_events_without_a_way_up_wait_for_one_and_go_first():
    tree = Tree(7)
    ear = subscriber(tree, 0)
    near, below = tree.client(1), tree.client(3)
    tree.cut(1)
    near.publish("a")
    below.publish("b")
    tree.settle()
    near.publish("c")
    assert (ear.events, tree[1].router.counters.drops) == ([], {})
    tree.join(1)
    near.publish("d")
    tree.settle()
    assert [(m.topic, m.sequence) for m in ear.events] == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert tree[1].router.counters.delivered_events == tree[3].router.counters.delivered_events + 3 + 2 * 4
    tree.cut(1)
    tree.join(1)
    tree.settle()
    assert len(ear.events) == 4, "once"


def test_what_waits_for_a_parent_is_bounded_for_each_user_and_for_all(monkeypatch, caplog):
    monkeypatch.setattr(flow, "HELD_BYTES", 5 * 4500)
    monkeypatch.setattr(flow, "USER_BYTES", 2 * 4500)
    tree = Tree(3)
    ear = subscriber(tree, 0)
    tree.cut(1)
    users = [tree.client(1, Credentials(2000 + number, int(Role.USER))) for number in range(3)]
    for turn in range(3):
        for number, user in enumerate(users):
            user.publish(f"{number}.{turn}")
    assert tree[1].router.counters.drops == {"event beyond what waits for a parent": 4}
    assert len(caplog.messages) == 1
    tree.join(1)
    tree.settle()
    assert [m.topic for m in ear.events] == ["0.0", "1.0", "2.0", "0.1", "1.1"]
    tree.cut(1)
    for _ in range(3):
        users[0].publish("again")
    tree.join(1)
    tree.settle()
    assert len(ear.events) == 7, "the room is there again"


def test_an_event_larger_than_a_users_room_is_not_kept(monkeypatch):
    monkeypatch.setattr(flow, "USER_BYTES", 5000)
    tree = Tree(3)
    tree.cut(1)
    tree.client(1).publish("large", payload=bytes(1000))
    assert tree[1].router.counters.drops == {"event beyond what waits for a parent": 1}


def test_what_waited_counts_as_under_way():
    tree = Tree(3, windowed=True)
    tree.cut(1)
    for _ in range(4):
        tree.client(1).publish("a", payload=bytes(WINDOW_BYTES // 4))
    flow = tree[1].router.events.flow
    assert not flow.blocked
    tree.join(1)
    assert flow.blocked, "whoever publishes here waits until the parent has handled it"
    tree.settle()
    assert not flow.blocked


def test_an_event_without_topic_is_counted():
    tree = Tree(1)
    message = event("x")
    message.topic_part = b""
    message.set_flags(message.flags & ~TOPIC)
    ear = subscriber(tree)
    tree[0].router.events.receive(tree.client().port, message)
    assert ear.events == []
    assert tree[0].router.counters.drops == {"event without topic": 1}


def test_a_fan_out_shares_one_frame():
    tree = Tree(1)
    frames = []
    for _ in range(8):
        ear = subscriber(tree)
        ear.port.send = lambda message: frames.append(message.framed())
    tree.client().publish("big", payload=b"x" * 5000)
    assert len(frames) == 8
    assert len({id(frame) for frame in frames}) == 1


def test_what_a_guest_claims_to_be_is_overwritten_and_local_stays_here():
    tree = Tree(3)
    near, far = subscriber(tree, 1), subscriber(tree, 2)
    message = event("x", userid=0, rolemask=15)
    tree[1].router.events.receive(tree.client(1, GUEST).port, message)
    tree.settle()
    assert [(m.userid, m.rolemask) for m in (*near.events, *far.events)] == [(2000, 2), (2000, 2)]


RESERVED_TOPICS = [
    "nfp.job.x.closed",
    "oslo.notify.a.b.info",
    "heartbeat.pulse",
    "overlay.trace",
    "gateway.x",
]


@for_each("topic", RESERVED_TOPICS)
def test_topics_that_programs_trust_are_the_owners(topic):
    tree = Tree()
    ear = subscriber(tree, 3, topic, cred=OWNER)
    for cred in (GUEST, Credentials(4000, int(Role.USER | Role.ADMIN))):
        for rank in (0, 3):
            tree.client(rank, cred).publish(topic, payload=b"forged", userid=0, rolemask=1)
    tree.client(0, OWNER).publish(
        topic, PRIVATE, payload=b"for another", userid=2000, rolemask=int(Role.USER)
    )
    tree.settle()
    assert ear.events == [], "a link of the owner's that speaks for a user speaks with the user's rights"
    tree.client(3, OWNER).publish(topic, PRIVATE, payload=b"true", userid=2000, rolemask=int(Role.OWNER))
    tree.client(0, GUEST).publish(topic.replace(".", "s.", 1), payload=b"another topic")
    tree.settle()
    assert [event.payload for event in ear.events] == [b"true"]
