"""The loop: no lost wake-up, no spinning, exceptions that cost only what raised them, ends in any state."""

import gc
import logging
import os
import signal
import threading
from time import monotonic

import pytest
import zmq

from broker.oslo.reactor import Reactor, loop, natives
from tests.unit.oslo.reactor.turns import PATIENCE_S, by_hand

pytestmark = pytest.mark.interpreter


class Clock:
    """Seconds that go on when a test says so."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def hand():
    with by_hand() as it:
        yield it


@pytest.fixture
def pair():
    read, write = os.pipe2(os.O_NONBLOCK)
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            pass


def running(reactor: Reactor) -> threading.Thread:
    """The loop in a thread, closed at its end."""

    def run() -> None:
        reactor.run()
        reactor.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def test_nothing_is_opened_by_the_constructor():
    before = os.listdir("/proc/self/fd")
    reactor = Reactor()
    assert reactor.context is None
    assert os.listdir("/proc/self/fd") == before


def test_calls_from_before_the_run_are_made_in_order():
    reactor, made = Reactor(), []
    for number in range(5):
        reactor.call_threadsafe(made.append, number)
    reactor.call_threadsafe(reactor.stop)
    assert joined(running(reactor))
    assert made == [0, 1, 2, 3, 4]


def test_no_call_of_many_threads_is_lost_or_waits_for_the_next_one():
    reactor, made = Reactor(), []
    thread = running(reactor)
    wrong = []

    def take(name: int, number: int, done: threading.Event) -> None:
        made.append((name, number))
        done.set()

    def ask(name: int) -> None:
        for number in range(300):
            done = threading.Event()
            reactor.call_threadsafe(take, name, number, done)
            if number % 3 == 0 and not done.wait(PATIENCE_S):
                wrong.append((name, number))
                return

    askers = [threading.Thread(target=ask, args=(name,)) for name in range(6)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    reactor.call_threadsafe(reactor.stop)
    assert joined(thread)
    assert wrong == []
    assert len(made) == 6 * 300
    for name in range(6):
        assert [number for who, number in made if who == name] == list(range(300))


def test_an_idle_loop_sleeps(hand):
    hand.turn()
    before = hand.reactor.turns
    hand.reactor.call_later(0.3, hand.reactor.stop)
    hand.reactor.run()
    assert hand.reactor.turns - before <= 3


def test_a_signal_handler_may_stop_it():
    reactor = Reactor()
    reactor.open()
    before = signal.signal(signal.SIGUSR1, lambda *_: reactor.call_threadsafe(reactor.stop))
    killer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    try:
        killer.start()
        reactor.run()
    finally:
        killer.join()
        signal.signal(signal.SIGUSR1, before)
        reactor.close()


def test_calls_of_our_own_do_not_starve_the_rest(hand, pair):
    read, write = pair
    seen, calls = [], []

    def again() -> None:
        calls.append(1)
        if not seen:
            hand.reactor.call_soon(again)

    hand.reactor.add_reader(read, lambda: seen.append(os.read(read, 10)))
    hand.reactor.call_soon(again)
    hand.turn()
    os.write(write, b"x")
    hand.until(lambda: seen)
    assert seen == [b"x"]


def test_a_flood_of_calls_is_made_in_portions(hand, pair):
    read, write = pair
    made, when = [], []
    hand.reactor.add_reader(read, lambda: (os.read(read, 10), when.append(len(made))))
    for number in range(3 * loop.CALLS_MAX):
        hand.reactor.call_threadsafe(made.append, number)
    hand.turn()
    assert len(made) == loop.CALLS_MAX
    os.write(write, b"x")
    hand.until(lambda: len(made) == 3 * loop.CALLS_MAX)
    assert made == list(range(3 * loop.CALLS_MAX))
    assert when == [loop.CALLS_MAX]


# ---------------------------------------------------------------- timers


def test_timers_come_in_order_and_not_before_their_time():
    clock, made = Clock(), []
    reactor = Reactor(clock=clock)
    reactor.open()
    for delay_s in (3.0, 1.0, 2.0, 1.0):
        reactor.call_later(delay_s, made.append, delay_s)
    reactor.call_soon(lambda: None)
    reactor.turn()
    assert made == []
    clock.s += 2.0
    reactor.turn()
    assert made == [1.0, 1.0, 2.0]
    clock.s += 1.0
    reactor.turn()
    assert made == [1.0, 1.0, 2.0, 3.0]
    reactor.close()


def test_a_timer_that_sets_itself_again_at_once_lets_the_turn_end():
    clock, made = Clock(), []
    reactor = Reactor(clock=clock)
    reactor.open()

    def again() -> None:
        made.append(1)
        reactor.call_later(0.0, again)

    again()
    for number in range(2, 5):
        reactor.turn()
        assert len(made) == number
    reactor.close()


def test_a_timer_may_be_cancelled_by_another_of_the_same_moment():
    clock, made = Clock(), []
    reactor = Reactor(clock=clock)
    reactor.open()
    timers = []
    reactor.call_later(1.0, lambda: (made.append("first"), timers[0].cancel()))
    timers.append(reactor.call_later(1.0, made.append, "second"))
    clock.s += 1.0
    reactor.turn()
    assert made == ["first"]
    timers[0].cancel()
    reactor.close()


def test_a_cancelled_timer_lets_go_of_what_it_held():
    reactor = Reactor(clock=Clock())
    value = type("Value", (), {})()
    timer = reactor.call_later(3600.0, print, value)
    timer.cancel()
    gc.collect()
    assert gc.get_referrers(value) == []


def test_cancelled_timers_do_not_pile_up():
    reactor = Reactor(clock=Clock())
    kept = [reactor.call_later(3600.0 + number, print) for number in range(100)]
    for _ in range(50_000):
        reactor.call_later(3600.0, print).cancel()
    assert len(reactor._timers) <= 2 * (loop.CANCELLED_MIN + len(kept))
    assert sum(timer.call is not None for _, _, timer in reactor._timers) == len(kept)


def test_the_heap_stays_right_when_it_is_swept():
    clock, made = Clock(), []
    reactor = Reactor(clock=clock)
    reactor.open()
    timers = [reactor.call_later(float(number % 97), made.append, number % 97) for number in range(2000)]
    for number, timer in enumerate(timers):
        if number % 5:
            timer.cancel()
    clock.s += 100.0
    reactor.turn()
    assert made == sorted(number % 97 for number in range(0, 2000, 5))
    reactor.close()


# ---------------------------------------------------------------- descriptors


def test_a_reader_is_called_until_it_has_read(hand, pair):
    read, write = pair
    came = []
    hand.reactor.add_reader(read, lambda: came.append(os.read(read, 1)))
    os.write(write, b"abc")
    hand.until(lambda: len(came) == 3)
    assert came == [b"a", b"b", b"c"]
    hand.reactor.remove_reader(read)
    os.write(write, b"d")
    hand.turn()
    assert len(came) == 3


def test_the_end_of_a_descriptor_is_told(hand, pair):
    read, write = pair
    ends = []
    hand.reactor.add_reader(read, lambda: (ends.append(os.read(read, 1)), hand.reactor.remove_reader(read)))
    os.close(write)
    hand.until(lambda: ends)
    assert ends == [b""]


def test_the_end_of_a_process_is_told(hand):
    pid = os.posix_spawn("/bin/true", ["true"], {})
    fd, ends = os.pidfd_open(pid), []
    hand.reactor.add_reader(fd, lambda: (ends.append(os.waitpid(pid, 0)[0]), hand.reactor.remove_reader(fd)))
    hand.until(lambda: ends)
    os.close(fd)
    assert ends == [pid]


def test_a_reader_replaces_another(hand, pair):
    read, write = pair
    came = []
    hand.reactor.add_reader(read, lambda: came.append("first"))
    hand.reactor.add_reader(read, lambda: came.append(os.read(read, 9)))
    os.write(write, b"x")
    hand.until(lambda: came)
    assert came == [b"x"]


def test_a_descriptor_that_was_closed_behind_our_back_is_forgotten_without_a_word(hand, pair):
    read, write = pair
    hand.reactor.add_reader(read, lambda: None)
    os.close(read)
    hand.reactor.remove_reader(read)
    hand.reactor.remove_reader(read)
    os.close(write)


def test_a_number_that_is_used_again_is_waited_for_again(hand, pair):
    read, _write = pair
    came = []
    hand.reactor.add_reader(read, lambda: came.append("old"))
    os.close(read)  # nobody told the reactor
    again, other = os.pipe2(os.O_NONBLOCK)
    assert again == read
    hand.reactor.add_reader(again, lambda: came.append(os.read(again, 9)))
    os.write(other, b"new")
    hand.until(lambda: came)
    hand.reactor.remove_reader(again)
    os.close(other)
    assert came == [b"new"]


def test_an_event_of_a_closed_descriptor_is_not_taken_for_one_of_its_successor(hand):
    """Two are ready; the first one's reader closes the second, and opens another file that gets its number."""
    pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(2)]
    reads = [read for read, _write in pipes]
    called, opened = [], []

    def swap(mine: int, other: int) -> None:
        called.append("ready")
        os.read(mine, 9)
        if opened:
            return
        hand.reactor.remove_reader(other)
        os.close(other)
        opened.extend(os.pipe2(os.O_NONBLOCK))
        assert opened[0] == other
        hand.reactor.add_reader(other, lambda: called.append("wrong"))

    hand.reactor.add_reader(reads[0], lambda: swap(*reads))
    hand.reactor.add_reader(reads[1], lambda: swap(*reversed(reads)))
    for _read, write in pipes:
        os.write(write, b"x")
    for _ in range(3):
        hand.turn()
    assert called == ["ready"]
    for fd in {*reads, *(write for _read, write in pipes), *opened}:
        hand.reactor.remove_reader(fd)
        os.close(fd)


def test_readers_that_are_not_there_cannot_be_added(hand, pair):
    read, write = pair
    os.close(read)
    with pytest.raises(OSError, match="Bad file descriptor"):
        hand.reactor.add_reader(read, lambda: None)
    os.close(write)


# ---------------------------------------------------------------- exceptions


def test_an_exception_costs_only_what_raised_it(hand):
    made = []

    def fail() -> None:
        raise RuntimeError("as it was told to")

    hand.reactor.call_soon(fail)
    hand.reactor.call_soon(made.append, "soon")
    hand.reactor.call_threadsafe(fail)
    hand.reactor.call_threadsafe(made.append, "other thread")
    hand.reactor.call_later(0.0, fail)
    hand.reactor.call_later(0.0, made.append, "timer")
    hand.until(lambda: "timer" in made)
    assert set(made) == {"soon", "other thread", "timer"}
    errors = hand.taken_errors()
    assert len(errors) == 3
    assert all("as it was told to" in text and "test_loop.py" in text for text in errors)


def test_a_reader_that_raises_is_left_alone_for_a_while_and_comes_back(hand, pair, monkeypatch):
    monkeypatch.setattr(loop, "REST_S", 0.05)
    read, write = pair
    came = []

    def fail_twice() -> None:
        came.append("failed")
        if len(came) > 2:
            came[-1] = os.read(read, 9)
            return
        raise RuntimeError("not yet")

    hand.reactor.add_reader(read, fail_twice)
    os.write(write, b"x")
    before = hand.reactor.turns
    start = monotonic()
    hand.until(lambda: b"x" in came)
    assert came == ["failed", "failed", b"x"]
    assert monotonic() - start >= 0.1
    assert hand.reactor.turns - before < 200
    assert len(hand.taken_errors()) == 2


def test_a_reader_that_was_removed_while_it_rested_stays_away(hand, pair, monkeypatch):
    monkeypatch.setattr(loop, "REST_S", 0.01)
    read, write = pair
    came = []

    def fail() -> None:
        came.append("failed")
        raise RuntimeError("as it was told to")

    hand.reactor.add_reader(read, fail)
    os.write(write, b"x")
    hand.until(lambda: came)
    hand.reactor.remove_reader(read)
    done = []
    hand.reactor.call_later(0.05, done.append, 1)
    hand.until(lambda: done)
    assert came == ["failed"]
    assert len(hand.taken_errors()) == 1


def test_a_report_that_fails_does_not_end_the_loop():
    def bad_say(_level: int, _text: str, _values: tuple[object, ...]) -> None:
        raise OSError("the log is full")

    reactor, made = Reactor(say=bad_say), []
    reactor.open()
    reactor.call_soon(int, "x")
    reactor.call_soon(made.append, 1)
    reactor.turn()
    assert made == [1]
    reactor.close()


def test_what_is_said_goes_to_the_log_by_default(caplog):
    loop.say_here(logging.WARNING, "saw %d of %s", (3, "them"))
    assert caplog.messages == ["saw 3 of them"]


# ---------------------------------------------------------------- the end


def test_a_loop_that_never_ran_is_closed():
    reactor = Reactor()
    reactor.close()
    reactor.open()
    reactor.close()
    reactor.close()
    assert reactor.context is None


def test_sockets_that_were_left_open_do_not_hold_the_end_up():
    said = []
    reactor = Reactor(say=lambda _level, text, values: said.append(text % values))
    reactor.open()
    sock = reactor.context.socket(zmq.PUSH)
    sock.connect("tcp://127.0.0.1:1")
    sock.send(b"x", zmq.NOBLOCK)  # would linger for ever
    reactor.close()
    assert sock.closed
    assert said == ["1 sockets were still open when their loop was closed"]


def test_a_socket_that_was_closed_lingers_before_the_end():
    with by_hand() as hand:
        port = hand.peer(zmq.PULL, RCVHWM=0)
        number = port.bind_to_random_port("tcp://127.0.0.1")
        sock = hand.sock(zmq.PUSH, SNDHWM=0)
        sock.connect(f"tcp://127.0.0.1:{number}")
        for _ in range(100):
            sock.send(b"x" * 1000)
        sock.close(10_000)
        hand.reactor.close()
        for _ in range(100):
            assert port.poll(1000 * PATIENCE_S)
            port.recv()
        hand.reactor.open()


def test_after_the_end_calls_are_forgotten():
    reactor = Reactor()
    reactor.open()
    reactor.close()
    for _ in range(1000):
        reactor.call_threadsafe(print, "never")
    assert not reactor._foreign
    reactor.remove_reader(3)


def test_threads_that_ring_while_it_ends_write_into_no_other_file():
    """The number of the bell's descriptor is given to the next file that is opened; it must stay empty."""
    files = []
    for _ in range(6):
        reactor, over = Reactor(), threading.Event()
        thread = running(reactor)

        def ring(reactor=reactor, over=over) -> None:
            while not over.is_set():
                reactor._awake = False  # so that each call writes
                reactor.call_threadsafe(lambda: None)

        ringers = [threading.Thread(target=ring) for _ in range(3)]
        for ringer in ringers:
            ringer.start()
        reactor.call_threadsafe(reactor.stop)
        assert joined(thread)
        files += [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(5)]
        over.set()
        for ringer in ringers:
            ringer.join()
    for file in files:
        with pytest.raises(BlockingIOError):
            os.eventfd_read(file)
        os.close(file)


def test_a_bell_is_open_as_long_as_anybody_holds_it():
    bell = natives.Bell()
    fd = bell.fd
    bell.quiet()
    bell.ring()
    bell.ring()
    assert os.eventfd_read(fd) == 2
    del bell
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_no_number_ends_the_loop(hand):
    reactor, came = hand.reactor, []
    with pytest.raises(ValueError, match="saw nan"):
        reactor.call_later(float("nan"), came.append, "never")
    never = reactor.call_later(float("inf"), came.append, "never")
    reactor.call_later(float("-inf"), came.append, "at once")
    reactor.call_later(0.01, came.append, "soon")
    hand.until(lambda: len(came) == 2)
    assert came == ["at once", "soon"]
    never.cancel()
    hand.turn()
