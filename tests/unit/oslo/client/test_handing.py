"""Whoever takes messages is told of them once a turn of the thread of the sockets."""

from tests.unit.oslo.client.desk import Desk


def test_what_comes_in_one_turn_is_told_once_at_its_end():
    """Who is woken takes the interpreter's lock away from the thread that reads on."""
    desk, told = Desk(room=999), []

    def taken():
        return [int(desk.inbox.get(0).body) for _ in range(len(desk.inbox._items))]

    desk.come(body=b"0")
    desk.inbox.notify(lambda: told.append(taken()))
    assert told == [[0]], "what was here before"
    desk.reactor.turn()
    for number in (1, 2, 3):
        desk.come(body=b"%d" % number)
    assert told[1:] == [[]]
    desk.reactor.turn()
    assert told[2:] == [[1, 2, 3]]
    assert desk.inbox.empty
    desk.close()


def test_what_was_here_before_is_told_in_the_thread_of_the_sockets_too():
    """Or two threads read at a time, and what they read changes places."""
    desk, told, posted = Desk(room=999), [], []
    desk.inbox.post = lambda call, *args: posted.append((call, args)) or True
    desk.come(body=b"0")
    desk.inbox.notify(lambda: told.append(desk.inbox.get(0).body))
    assert told == []
    for call, args in posted:
        call(*args)
    assert told == [b"0"]
    desk.close()
