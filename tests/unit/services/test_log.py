"""log.append, dmesg, clear, stats-get, cancel, disconnect."""

from broker.services.log import Log
from broker.wire.message import NORESPONSE, STREAMING, UPSTREAM
from tests.tables import for_each
from tests.unit.services.desk import GUEST, Desk, value

OWNER_ONLY = (1, "Request requires owner credentials")


def line(words: str, *, pri: int = 24, rank: int = 0) -> bytes:
    return f"<{pri}>1 2026-11-20T15:33:26.814201Z {rank} logger 4142 - - {words}".encode()


def dmesg(client, **wants) -> list:
    return [
        entry if isinstance(entry, int) else entry.split(" - - ")[1]
        for entry in client.stream("log.dmesg", wants).news()
    ]


def test_append_answers_only_to_a_matchtag():
    me = Desk().client()
    me.silent("log.append", line("one"), tag=0)
    me.silent("log.append", line("two"), flags=NORESPONSE)
    answer = me.ask("log.append", line("three") + b"\0")
    assert (answer.errnum, answer.payload) == (0, None)
    assert dmesg(me) == ["one", "two", "three", 61]


@for_each("payload", [None, b"", b"junk"])
def test_what_is_no_entry_is_ignored(payload):
    me = Desk().client()
    assert me.ask("log.append", payload).errnum == 0
    assert dmesg(me) == [61]


def test_a_response_of_dmesg_is_one_entry_with_nul():
    me = Desk().client()
    me.ask("log.append", line("one"))
    first, last = me.take(me.send("log.dmesg", {}, flags=STREAMING))
    assert (first.payload, first.errnum, first.flags & STREAMING) == (line("one") + b"\0", 0, STREAMING)
    assert (last.payload, last.errnum, last.flags & STREAMING) == (None, 61, STREAMING)


def test_follow_and_nobacklog():
    me = Desk().client()
    me.ask("log.append", line("old"))
    assert dmesg(me, follow=False, nobacklog=True) == [61]
    both = me.stream("log.dmesg", {"follow": True, "nobacklog": False})
    new = me.stream("log.dmesg", {"follow": True, "nobacklog": True})
    me.ask("log.append", line("new"))
    assert [len(both.news()), len(new.news())] == [2, 1]
    me.silent("log.cancel", {"matchtag": new.tag})
    assert new.news() == [61]
    me.ask("log.append", line("newer"))
    assert (len(both.news()), new.news()) == (1, [])


def test_a_follower_hears_an_entry_before_its_sender_is_answered():
    desk = Desk()
    me = desk.client()
    stream = me.stream("log.dmesg", {"follow": True})
    me.send("log.append", line("x"))
    assert [message.topic for message in me.responses] == ["log.dmesg", "log.append"]
    assert len(stream.news()) == 1


def test_disconnect_ends_the_sender_whole_stack_only():
    desk = Desk()
    me = desk.client()
    mine = me.stream("log.dmesg", {"follow": True})
    behind = me.stream("log.dmesg", {"follow": True}, below=b"proxied")
    me.silent("log.disconnect", flags=NORESPONSE)
    me.send("log.append", line("x"), tag=0)
    assert mine.news() == []
    assert len(behind.news()) == 1


def test_cancelling_with_a_tag_of_another_ends_nothing():
    desk = Desk()
    me, other = desk.client(), desk.client()
    mine = me.stream("log.dmesg", {"follow": True})
    other.silent("log.cancel", {"matchtag": mine.tag})
    me.send("log.append", line("x"), tag=0)
    assert len(mine.news()) == 1


def test_dmesg_wants_a_stream_and_an_object():
    me = Desk().client()
    assert me.refused("log.dmesg", {"follow": True}) == (71, "")
    assert me.refused("log.dmesg", flags=STREAMING) == (71, "")
    assert me.refused("log.dmesg", {"follow": 1}, flags=STREAMING) == (71, "")


def test_a_request_without_response_leaves_no_stream_behind():
    desk = Desk()
    me = desk.client()
    me.silent("log.dmesg", {"follow": True}, flags=NORESPONSE | STREAMING)
    me.send("log.append", line("x"), tag=0)
    assert desk.answers == []


def test_clear_and_figures():
    me = Desk().client()
    me.ask("log.append", line("one"))
    me.ask("log.append", line("from afar", rank=3))
    assert value(me.ask("log.stats-get")) == {"ring-used": 2, "count": 2, "local": 1, "remote": 1}
    assert me.ask("log.clear").errnum == 0
    assert me.ask("log.clear", {"foo": 1}).errnum == 0
    assert value(me.ask("log.stats-get")) == {"ring-used": 0, "count": 2, "local": 1, "remote": 1}
    assert dmesg(me) == [61]


def test_all_of_it_is_the_owners():
    guest = Desk().client(GUEST)
    for topic in ("log.append", "log.clear", "log.stats-get", "log.dmesg"):
        assert guest.refused(topic, {}, flags=STREAMING) == OWNER_ONLY


def test_errors_are_sent_on_to_rank_0_the_rest_stays():
    desk = Desk(rank=1)
    me = desk.client()
    me.ask("log.append", line("error", pri=24, rank=1))
    me.ask("log.append", line("warning", pri=32, rank=1))
    (sent,) = desk.parent.requests
    assert (sent.topic, sent.payload, sent.nodeid) == ("log.append", line("error", rank=1), 1)
    assert sent.flags & (NORESPONSE | UPSTREAM) == NORESPONSE | UPSTREAM
    assert dmesg(me) == ["error", "warning", 61]


def test_what_comes_from_below_passes_whatever_its_severity():
    desk = Desk(rank=1)
    child = desk.client(kind=1)
    child.silent("log.append", line("below", pri=56, rank=3), tag=0, flags=NORESPONSE | UPSTREAM)
    assert [message.payload for message in desk.parent.requests] == [line("below", pri=56, rank=3)]
    assert dmesg(desk.client()) == [61]
    assert value(desk.client().ask("log.stats-get"))["remote"] == 1


def test_rank_0_keeps_what_others_sent_and_sends_nothing():
    desk = Desk()
    desk.client(kind=1).silent("log.append", line("far", rank=3), tag=0, flags=NORESPONSE | UPSTREAM)
    assert dmesg(desk.client()) == ["far", 61]
    assert [message for client in desk.clients for message in client.requests] == []


def test_the_brokers_own_lines_stand_with_the_others():
    desk = Desk()
    me = desk.client()
    follower = me.stream("log.dmesg", {"follow": True})
    desk.run(desk.service(Log).note, 6, "state run")
    (entry,) = follower.news()
    assert entry.startswith("<48>1 ")
    assert entry.endswith(" - - state run")


def test_the_ring_holds_as_many_as_it_is_told():
    desk = Desk(kinds=[Log], text="log_ring_entries = 3\n")
    me = desk.client()
    for number in range(5):
        me.ask("log.append", line(str(number)))
    assert dmesg(me) == ["2", "3", "4", 61]
