"""A queue knows its size, in any order of what is done to it."""

from hypothesis import given
from hypothesis import strategies as st

from broker.oslo.reactor.socket import MESSAGE_COST, Outbox, Tally


def test_the_message_that_makes_it_full_still_fits():
    outbox = Outbox()
    assert outbox.has_room(0, 0)
    outbox.put([b"x" * 9], 9)
    assert outbox.has_room(2, 10)
    assert not outbox.has_room(2, 9)
    assert not outbox.has_room(1, 10)


def test_what_is_sifted_keeps_its_order_on_both_sides():
    outbox = Outbox()
    for number in range(10):
        outbox.put([b"%d" % number], 1)
    assert outbox.sift(lambda frames: int(frames[0]) % 3 == 0) == [[b"0"], [b"3"], [b"6"], [b"9"]]
    assert outbox.head == [b"1"]
    assert outbox.sift(lambda _frames: True) == [[b"%d" % number] for number in (1, 2, 4, 5, 7, 8)]


@given(st.lists(st.one_of(st.integers(0, 20), st.sampled_from(("pop", "sift", "empty"))), max_size=40))
def test_its_size_is_that_of_what_is_in_it(steps):
    tally, inside = Tally(), []
    outbox, other = Outbox(tally), Outbox(tally)
    other.put([b"other"], 5)
    for step in steps:
        if isinstance(step, int):
            outbox.put([b"x" * step], step)
            inside.append([b"x" * step])
        elif step == "pop" and inside:
            assert outbox.pop() == inside.pop(0)
        elif step == "sift":
            assert outbox.sift(lambda frames: len(frames[0]) % 2 == 1) == [
                each for each in inside if len(each[0]) % 2
            ]
            inside = [each for each in inside if len(each[0]) % 2 == 0]
        elif step == "empty":
            assert outbox.sift(lambda _frames: True) == inside
            inside = []
        assert len(outbox) == len(inside)
        assert outbox.bytes == sum(len(frames[0]) for frames in inside)
        assert outbox.cost == outbox.bytes + MESSAGE_COST * len(inside)
        assert tally.bytes == outbox.cost + other.cost
