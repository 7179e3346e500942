"""Tables of prefixes, what was found in them, and who comes into question for private events."""

from broker.wire import audience
from broker.wire.audience import TOPIC_MAX_BYTES, Audiences, Confidants, Prefixes
from broker.wire.parts import encode_part


def keep(audiences, topic, *members):
    return audiences.keep(topic, encode_part(topic), members)


def remembered(audiences):
    return sorted(audiences.found)


def test_a_topic_finds_its_prefixes_shortest_first():
    table = Prefixes()
    for prefix in (b"foo.bar", b"", b"fo", b"bar", b"foo.barn"):
        table.add(prefix, prefix.decode())
    assert table.matching(b"foo.bar") == ["", "fo", "foo.bar"]
    assert table.matching(b"") == [""]
    table.remove(b"fo")
    assert table.matching(b"foo.bar") == ["", "foo.bar"]
    assert (table.get(b"fo"), table.get(b"bar"), len(table)) == (None, "bar", 4)


def test_lengths_that_no_prefix_has_are_not_asked_for():
    table = Prefixes()
    for number in range(10):
        table.add(b"%04d" % number, number)
    table.add(b"x", -1)
    table.remove(b"x")
    assert table._lengths == [4]
    for number in range(10):
        table.remove(b"%04d" % number)
    assert (table._lengths, table._counts, len(table)) == ([], {}, 0)


def test_a_change_forgets_the_topics_below_it_and_no_others():
    audiences = Audiences()
    for topic in (b"a", b"ab", b"ab.c", b"ab\xff", b"ac", b"b"):
        keep(audiences, topic, 1)
    audiences.forget(b"ab")
    assert remembered(audiences) == sorted(map(encode_part, (b"a", b"ac", b"b")))
    audiences.forget(b"x")
    audiences.forget(b"ac.d")
    assert len(audiences.found) == 3
    audiences.forget(b"")
    assert (audiences.found, audiences._topics, audiences._same, audiences._held) == ({}, [], {}, 0)


def test_the_same_members_are_one_tuple_for_as_long_as_a_topic_has_them():
    audiences, one, two = Audiences(), object(), object()
    first = keep(audiences, b"a", one, two)
    assert keep(audiences, b"b", one, two) is first
    assert keep(audiences, b"c", two) is not first
    assert audiences._held == 3
    audiences.forget(b"a")
    assert keep(audiences, b"d", one, two) is first
    for topic in (b"b", b"c", b"d"):
        audiences.forget(topic)
    assert audiences._same == {}, "nobody who is gone is kept"


def test_a_long_topic_is_not_remembered_and_shares_all_the_same():
    audiences, one = Audiences(), object()
    long = b"t" * (TOPIC_MAX_BYTES + 1)
    assert keep(audiences, long, one) == (one,)
    assert (audiences.found, audiences._same) == ({}, {})
    first = keep(audiences, b"a", one)
    assert keep(audiences, long, one) is first
    assert len(audiences.found) == 1


def test_topics_and_members_are_bounded(monkeypatch):
    monkeypatch.setattr(audience, "TOPICS_MAX", 4)
    monkeypatch.setattr(audience, "MEMBERS_MAX", 10)
    audiences = Audiences()
    for number in range(20):
        members = keep(audiences, b"%d" % number, *range(number % 12))
        assert members == tuple(range(number % 12))
        assert len(audiences.found) == len(audiences._topics) <= 4
        assert audiences._held <= max(10, len(members))


def test_owners_and_those_of_a_userid_are_confidants():
    confidants = Confidants()
    confidants.add("root", 0, True)
    confidants.add("ada", 1, False)
    confidants.add("ada too", 1, False)
    assert list(confidants.of(1)) == ["root", "ada", "ada too"]
    assert list(confidants.of(0)) == ["root"]
    for member, userid in (("root", 0), ("ada", 1), ("ada too", 1)):
        confidants.remove(member, userid)
    assert (confidants.of(1), confidants._users) == ({}, {})
