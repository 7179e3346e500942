"""Numbers that outlive rank 0: the file beside the journal, and what is taken from the journal."""

import asyncio
import os
import time

import msgspec

from broker import settings
from broker.node import event_numbers as module
from broker.node.assembly import Node
from broker.node.event_numbers import HEAD, MAGIC, EventNumbers
from broker.wire import message as wire
from broker.wire.event_history import FrameHistory
from tests.live.segments import flux, write
from tests.tables import for_each


def numbers(tmp_path, run="aa" * 16, epoch="new", age_s=600.0):
    return EventNumbers(str(tmp_path), "rank0", run, epoch, age_s)


def age(tmp_path, seconds):
    path = tmp_path / ".rank0.events"
    data = bytearray(path.read_bytes())
    data[module.ALIVE_AT : HEAD.size] = (time.time_ns() - int(seconds * 1e9)).to_bytes(8, "little")
    path.write_bytes(data)


def boot(tmp_path, text):
    path = tmp_path / ".rank0.events"
    data = path.read_bytes()
    about = msgspec.json.decode(data[HEAD.size :])
    path.write_bytes(data[: HEAD.size] + msgspec.json.encode(about | {"boot": text}))


def test_the_first_one_begins_its_own_numbering(tmp_path):
    first = numbers(tmp_path, epoch="one")
    assert (first.epoch, first.last) == ("one", 0)
    assert (tmp_path / ".rank0.events").stat().st_mode & 0o777 == 0o600


@for_each("in_order", [True, False])
def test_the_next_one_goes_on_behind_the_last_number(tmp_path, in_order):
    first = numbers(tmp_path, epoch="one")
    first.note(7)
    first.note(41)
    if in_order:
        first.close(41)
        first.close(41)
    second = numbers(tmp_path, run="bb" * 16, epoch="two")
    assert (second.epoch, second.last) == ("one", 41)
    second.note(50)
    third = numbers(tmp_path, run="cc" * 16)
    assert (third.epoch, third.last) == ("one", 50)
    assert third._former == [("aa" * 16, 0), ("bb" * 16, 41)]
    (tmp_path / ".rank0.events").unlink()


def test_after_another_start_of_the_machine_only_what_was_left_in_order_counts(tmp_path):
    first = numbers(tmp_path, epoch="one")
    first.note(41)
    boot(tmp_path, "another")
    second = numbers(tmp_path, epoch="two")
    assert (second.epoch, second.last) == ("two", 0)
    second.close(9)
    boot(tmp_path, "yet another")
    assert (numbers(tmp_path).epoch, numbers(tmp_path).last) == ("two", 9)


@for_each(
    ("away_s", "age_s", "goes_on"),
    [(500, 600.0, True), (700, 600.0, False), (700, 0.0, True), (-100, 600.0, False)],
)
def test_who_was_away_for_longer_than_events_are_kept_begins_anew(tmp_path, away_s, age_s, goes_on):
    numbers(tmp_path, epoch="one").note(5)
    age(tmp_path, away_s)
    assert (numbers(tmp_path, epoch="two", age_s=age_s).epoch == "one") is goes_on
    (tmp_path / ".rank0.events").unlink()


def test_who_lives_says_so(tmp_path):
    first = numbers(tmp_path, epoch="one")
    age(tmp_path, 5000)
    first.live()
    assert numbers(tmp_path).epoch == "one"


@for_each("data", [b"", b"x", b"x" * 200, MAGIC + bytes(16) + b"{}", HEAD.pack(b"else", 1, 1, 0) + b"{}"])
def test_a_file_that_is_damaged_begins_anew(tmp_path, data):
    (tmp_path / ".rank0.events").write_bytes(data)
    assert (numbers(tmp_path, epoch="two").epoch, numbers(tmp_path, epoch="three").epoch) == ("two", "two")


def test_what_cannot_be_noted_is_not_gone_on_with(tmp_path, caplog):
    first = numbers(tmp_path, epoch="one")
    os.close(first._fd)
    first._fd = os.open(tmp_path / ".rank0.events", os.O_RDONLY)
    first.note(5)
    first.note(6)
    first.close(6)
    assert "begin anew" in caplog.text
    assert numbers(tmp_path, epoch="two").epoch == "two"


def test_a_broker_that_keeps_no_events_leaves_no_numbers_behind(rundir):
    """The next one that keeps some would go on with those of before it."""
    journal = f'[journal]\nenabled = true\ndirectory = "{rundir}/j"\n'
    epochs = []

    async def script():
        for kept in ("", "[events]\nhistory_bytes = 0\n", "", ""):
            text = f'[broker]\nrundir = "{rundir}/r"\nlocal_uri = "local://{rundir}/s"\ndrain_s = 0.1\n'
            node = Node(settings.loads(text + journal + kept).at_rank(0))
            await node.start()
            epochs.append(node.overlay.epoch)
            await node.stop()

    asyncio.run(script())
    assert len(set(epochs)) == 3
    assert epochs[2] == epochs[3]


def restored(tmp_path, *, last=15, live=0, max_bytes=1 << 20):
    """A history behind ``last`` that has ``live`` more, and what was taken from the journal."""
    first = numbers(tmp_path, epoch="one")
    first.note(last)
    now = time.time_ns()
    records = [
        flux(now - (20 - each) * 10**9, wire.event("t", b"x" * each, sequence=each)) for each in range(1, 16)
    ]
    write(tmp_path, "rank0", records, 0, run=bytes.fromhex("aa" * 16))

    async def script():
        second = numbers(tmp_path, run="bb" * 16)
        history = FrameHistory(max_bytes, 600.0)
        history.begin(second.epoch, second.last)
        for number in range(last + 1, last + 1 + live):
            history.add(wire.event("t", b"live", sequence=number), number)
        await second.restore(history, max_bytes, 600.0)
        written = asyncio.get_running_loop().time() - (time.time_ns() - now) / 1e9
        return history, [history.number_at(written - back) for back in (3.5, 10.5, 100)]

    return asyncio.run(script())


def test_what_the_journal_has_is_put_in_front(tmp_path):
    history, back = restored(tmp_path, live=2)
    assert (history.before, history.last, len(history)) == (0, 17, 17)
    assert history.since(4, 1) == [wire.event("t", b"x" * 5, sequence=5).framed()]
    assert back == [15, 9, 0]


def test_no_more_than_there_is_room_for(tmp_path):
    history, _ = restored(tmp_path, max_bytes=500)
    assert 10 < history.before < 15
    assert history.covers("one", history.before)
    assert history.held_bytes <= 500


def test_a_hole_at_the_end_is_no_history(tmp_path):
    history, _ = restored(tmp_path, last=16)
    assert (history.before, history.last) == (16, 16)


def test_a_journal_that_cannot_be_read_costs_those_events(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READER", ("/nowhere/at/all",))
    history, _ = restored(tmp_path)
    assert len(history) == 0
