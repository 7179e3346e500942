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
