"""Who hears what at a publishing socket: counts that stay right whatever peers do."""

import pytest

from broker.oslo.proxy import subscribers
from broker.oslo.proxy.fanout import alive
from broker.oslo.proxy.subscribers import NAMES_SPARE, GrantedSubscriptions

F, G = b"Fx\0y\0", b"Fx\0z\0"


def made(dead: tuple[str, ...] = ()) -> GrantedSubscriptions:
    return GrantedSubscriptions(lambda name: name not in dead)


def test_first_and_last() -> None:
    subs = made()
    assert subs.add(F, "a", 1, granted=True)
    assert not subs.add(F, "b", 1, granted=True)
    assert (F in subs, G in subs, len(subs), subs.count(F), subs.heard()) == (True, False, 1, 2, [F])
    assert subs.remove(F, "a") is False
    assert subs.remove(F, "") is True
    assert (F in subs, len(subs), subs.count(F), subs.names(F)) == (False, 0, 0, [])


def test_a_connection_counts_once() -> None:
    subs = made()
    subs.add(F, "a", 1, granted=True)
    assert not subs.add(F, "a", 1, granted=True)
    assert subs.remove(F, "") is True


def test_nobody_ends_the_subscriptions_of_others() -> None:
    subs = made()
    subs.add(F, "a", 1, granted=True)
    assert subs.remove(F, "b") is None
    assert subs.remove(G, "") is None
    assert F in subs


def test_a_nameless_end_is_that_of_a_refused_one_first() -> None:
    subs = made()
    assert not subs.add(F, "refused", 1, granted=False)
    assert F not in subs
    assert subs.add(F, "a", 1, granted=True)
    assert subs.remove(F, "") is False
    assert F in subs
    assert subs.remove(F, "") is True


def test_a_refused_one_that_ends_by_name_takes_nothing_from_a_granted_one() -> None:
    subs = made()
    subs.add(F, "a", 1, granted=True)
    subs.add(F, "refused", 1, granted=False)
    assert subs.remove(F, "refused") is False
    assert subs.count(F) == 1
    assert subs.names(F) == ["a"]
    assert subs.remove(F, "a") is True


def test_what_was_passed_over_ends_without_harm() -> None:
    subs = made()
    subs.pass_over(F)
    subs.add(F, "a", 1, granted=True)
    assert subs.remove(F, "") is None
    assert F in subs
    assert subs.remove(F, "") is True


def test_limits_for_each_user_and_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "FILTERS_MAX", 3)
    monkeypatch.setattr(subscribers, "FILTERS_OF_USER_MAX", 2)
    subs = made()
    for data in (F, G):
        assert subs.has_room(data, 1)
        subs.add(data, "a", 1, granted=True)
    assert subs.has_room(F, 1)
    assert not subs.has_room(b"more", 1)
    assert subs.has_room(b"more", 2)
    subs.add(b"more", "b", 2, granted=True)
    assert not subs.has_room(b"one more", 2)
    subs.remove(F, "a")
    assert subs.has_room(b"one more", 1)


def test_names_of_ended_processes_are_forgotten() -> None:
    dead = tuple(f"dead {number}" for number in range(2 * NAMES_SPARE))
    subs = made(dead)
    subs.add(F, "stays", 1, granted=True)
    for name in dead:
        subs.add(F, name, 1, granted=True)
        subs.remove(F, "")
        assert len(subs.names(F)) <= 2 + NAMES_SPARE
    assert "stays" in subs.names(F)
    assert subs.remove(F, "stays") is True


def test_names_are_bounded_even_where_nobody_can_tell_who_is_dead() -> None:
    subs = made()
    for number in range(4 * NAMES_SPARE):
        subs.add(F, f"n{number}", 1, granted=True)
        subs.remove(F, "") if number else None
    assert len(subs.names(F)) <= 2 + NAMES_SPARE
    assert subs.count(F) == 1


def test_alive_asks_the_kernel() -> None:
    import os
    import subprocess
    import sys

    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not alive(f"1 localhost:0:0:{child.pid}")
    assert alive(f"1 localhost:0:0:{os.getpid()}")
    assert alive("1 localhost:0:0:0")
    assert alive("1 localhost:0:0:1")
