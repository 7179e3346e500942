"""Time in a store, whatever the clocks of the machine do."""

import sqlite3

import pytest

from broker.nfp.store.events import TABLES, Clock, StoreClock
from tests.unit.nfp.store.samples import Clocks


@pytest.fixture
def base():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(TABLES)
    yield connection
    connection.close()


@pytest.fixture
def clocks():
    return Clocks()


def save(clock, base):
    base.execute("UPDATE clock SET at = ?, wall = ?, boot = ?, boot_id = ?", clock.reading())


def loaded(clocks, base):
    clock = StoreClock(clocks.clock)
    clock.load(base)
    return clock


def test_it_begins_at_zero_and_advances_with_the_machine(clocks, base):
    clock = loaded(clocks, base)
    assert clock.now() == 0.0
    clocks.passes(5)
    assert clock.now() == 5.0


@pytest.mark.parametrize("step_s", [-1e9, -60, 60, 1e9])
def test_steps_of_the_wall_clock_change_nothing_within_a_boot(clocks, base, step_s):
    clock = loaded(clocks, base)
    clocks.passes(5)
    clocks.wall_s += step_s
    assert clock.now() == 5.0
    save(clock, base)
    clocks.passes(2)
    clocks.wall_s -= 3 * step_s
    assert loaded(clocks, base).now() == 7.0, "nor while nobody ran"


def test_over_a_reboot_the_wall_clock_counts(clocks, base):
    clock = loaded(clocks, base)
    clocks.passes(5)
    save(clock, base)
    clocks.reboots(down_s=30)
    again = loaded(clocks, base)
    assert again.now() == 35.0
    clocks.passes(1)
    assert again.now() == 36.0


def test_a_wall_clock_set_back_over_a_reboot_counts_as_no_time(clocks, base):
    clock = loaded(clocks, base)
    clocks.passes(5)
    save(clock, base)
    clocks.reboots(down_s=-1000)
    again = loaded(clocks, base)
    assert again.now() == 5.0
    clocks.passes(1)
    assert again.now() == 6.0


def test_time_before_the_last_save_is_never_taken_back(clocks, base):
    now = 0.0
    for step in (0, -50, 20, -7, 0, 3):
        clock = loaded(clocks, base)
        assert clock.now() >= now
        clocks.passes(1)
        now = clock.now()
        save(clock, base)
        clocks.reboots(step)
    assert now >= 6.0


def test_a_machine_without_boot_ids_trusts_its_wall_clock(clocks, base):
    clocks.boot_id = ""
    clock = loaded(clocks, base)
    clocks.passes(5)
    save(clock, base)
    clocks.wall_s += 10
    assert loaded(clocks, base).now() == 15.0


def test_a_machine_put_back_to_an_earlier_state_does_not_go_back(clocks, base):
    clock = loaded(clocks, base)
    clocks.passes(5)
    save(clock, base)
    clocks.boot_s -= 100
    assert loaded(clocks, base).now() == 5.0


def test_the_clocks_of_this_machine(base):
    clock = StoreClock()
    clock.load(base)
    (_, _, first, _), (_, wall, boot, boot_id) = clock.reading(), clock.reading()
    assert boot >= first > 0
    assert len(boot_id) == 36
    assert Clock().wall() == pytest.approx(wall, abs=60)
