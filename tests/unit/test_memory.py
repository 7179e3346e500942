"""Free pages go back to the system after a burst, and a process that needs its memory is not asked all the time."""

import gc
import subprocess
import sys

import pytest

from broker.memory import (
    GC_THRESHOLD,
    GROWN_BYTES,
    LOOK_S,
    REST_LOOKS,
    ROOM_BYTES,
    Trim,
    compact,
    freeze,
    give_back,
    resident_bytes,
)

pytestmark = pytest.mark.interpreter

MIB = 1 << 20


class Process:
    """One with so much in use, and so much free that the allocator keeps."""

    def __init__(self):
        self.used, self.free, self.trims, self.kept = 100 * MIB, 0, 0, 0
        self.trim = Trim(lambda: self.used + self.free, self.give_back, self.keep)
        self.trim.look()

    def give_back(self):
        self.free = 0
        self.trims += 1

    def keep(self):
        self.kept += 1

    def looks(self, count):
        for _ in range(count):
            self.trim.look()
        return self.trims


def test_what_a_burst_left_is_given_back_at_the_next_look():
    process = Process()
    process.free = GROWN_BYTES
    assert process.looks(100) == 0, "that little is not worth it"
    process.free += 1
    assert process.looks(1) == 1
    assert process.looks(100) == 1


def test_what_is_freed_after_a_look_is_given_back_later():
    process = Process()
    process.used += 64 * MIB
    assert process.looks(1) == 1, "in vain: it is in use"
    process.used, process.free = process.used - 64 * MIB, 64 * MIB
    assert process.looks(REST_LOOKS[0] + 1) == 2
    assert process.free == 0


def test_a_process_that_grew_for_good_is_asked_ever_less_often():
    process = Process()
    process.used += 64 * MIB
    assert process.looks(10 * REST_LOOKS[1]) <= 20
    process.free = 2 * GROWN_BYTES
    before = process.trims
    assert process.looks(1) == before + 1, "but a new burst is noticed"


def test_what_a_burst_needs_is_kept_from_the_first_one_on():
    process = Process()
    process.free = GROWN_BYTES
    process.looks(10)
    assert process.kept == 0, "a process without bursts stays as it is"
    process.free += 1
    process.looks(10)
    process.free = 2 * GROWN_BYTES
    process.looks(10)
    assert process.kept == 1


FAULTS = """
import resource
from broker.memory import keep
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        large = [bytes(b"x" * (8 << 20)), bytes(b"y" * (8 << 20)), bytes(b"z" * (8 << 20))]
        del large
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
before = faults()
keep()
faults()
print(before, faults())
"""


def test_pages_that_are_kept_are_not_asked_for_again():
    told = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    before, after = map(int, told.split())
    assert before > 10 * 2048, "8 MiB at least of each 24"
    assert after < 100


def test_a_loop_looks_every_second():
    process, later = Process(), []
    process.trim.watch(lambda *call: later.append(call))
    process.free = GROWN_BYTES + 1
    for _ in range(3):
        after_s, look, *rest = later.pop()
        assert (after_s, later) == (LOOK_S, [])
        look(*rest)
    assert process.trims == 1


def test_the_pages_of_this_process():
    before = resident_bytes()
    assert before > MIB
    kept = [bytes(50_000) for _ in range(4000)]
    del kept[:-1]
    give_back()
    assert resident_bytes() < before + 64 * MIB


def test_a_dict_that_was_large_gives_its_room_back_and_keeps_its_order():
    table = {number: str(number) for number in range(100_000)}
    assert compact(table) is table
    copies = 0
    for number in range(99_990):
        del table[number]
        after = compact(table)
        copies += after is not table
        table = after
    assert list(table.items()) == [(number, str(number)) for number in range(99_990, 100_000)]
    assert sys.getsizeof(table) <= ROOM_BYTES
    assert 1 <= copies <= 10


def test_a_process_that_started_without_collections_makes_them_again_and_looks_at_nothing_old():
    before = gc.get_threshold()
    gc.disable()
    try:
        freeze()
        assert gc.isenabled()
        assert gc.get_threshold() == GC_THRESHOLD
        assert gc.get_freeze_count() > 0
        young = []
        assert any(each is young for each in gc.get_objects())
        assert not any(each is gc.__dict__ for each in gc.get_objects())
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
        gc.enable()
