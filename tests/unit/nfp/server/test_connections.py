"""Connections by key: who is taken for whom at the handshake, what a first message corrects, when a key is free."""

import asyncio

import pytest

from broker.nfp.server import connections as module
from broker.nfp.server.connections import Connections
from tests.unit.nfp.server.stage import until


@pytest.fixture
def on(monkeypatch):
    """Runs a story with connections whose descriptors are only numbers."""
    monkeypatch.setattr(module, "SETTLE_S", 0.01)
    monkeypatch.setattr(module, "SPEAKS_S", 0.02)
    monkeypatch.setattr(module, "CHECK_S", 0.02)
    monkeypatch.setattr(module, "inode", lambda fd: fd)
    monkeypatch.setattr(module, "_host", lambda fd: "10.0.0.1" if fd < 100 else "10.0.0.2")

    def run(story):
        async def told():
            gone, cut = [], []
            monkeypatch.setattr(module, "shut_down", lambda fd, number: cut.append(fd))
            connections = Connections(asyncio.get_running_loop(), 5.0, gone.append)
            try:
                await story(connections, gone, cut)
            finally:
                connections.close()

        asyncio.run(told())

    return run


def test_a_key_is_there_until_its_last_connection_is_put_away(on):
    async def story(connections, gone, cut):
        for fd in (1, 2):
            connections.accepted(fd)
            connections.granted("::ffff:10.0.0.1", "K")
            connections.spoke(fd, "K")
        connections.ended(1)
        await asyncio.sleep(0.03)
        assert connections.has("K")
        connections.ended(2)
        assert connections.has("K")
        await until(lambda: gone == ["K"])
        assert not connections.has("K")
        assert cut == []

    on(story)


def test_the_order_at_the_gate_is_only_a_guess(on):
    async def story(connections, gone, cut):
        for fd in (1, 2, 100):
            connections.accepted(fd)
        for host, key in (("10.0.0.1", "B"), ("10.0.0.2", "C"), ("10.0.0.1", "A")):
            connections.granted(host, key)
        connections.spoke(1, "A")
        connections.ended(2)  # it was B
        await until(lambda: gone == ["B"])
        assert connections.has("A")
        assert connections.has("C")

    on(story)


def test_a_first_message_that_no_gate_saw_counts(on):
    async def story(connections, gone, cut):
        connections.accepted(1)
        connections.accepted(2)
        connections.granted("10.0.0.1", "A")
        connections.spoke(2, "A")
        assert connections.has("A")
        connections.ended(1)
        connections.ended(2)
        await until(lambda: gone == ["A"])
        connections.spoke(77, "Z")
        assert not connections.has("Z")

    on(story)


def test_who_may_be_stuck_is_cut_once_the_other_has_gone(on):
    async def story(connections, gone, cut):
        for fd, key in ((1, "A"), (2, "A"), (3, "B"), (4, "A")):
            connections.accepted(fd)
            connections.granted("10.0.0.1", key)
        connections.spoke(1, "A")
        connections.ended(1)
        connections.spoke(4, "A")
        await until(lambda: cut)
        await asyncio.sleep(0.05)
        assert cut == [2]
        assert connections.cut == 1

    on(story)


@pytest.mark.parametrize(("silent", "expected"), [(1.0, []), (60.0, [1])])
def test_a_dead_connection_is_cut_for_one_that_waits(on, monkeypatch, silent, expected):
    monkeypatch.setattr(module, "silent_s", lambda fd, number: silent)

    async def story(connections, gone, cut):
        connections.accepted(1)
        connections.granted("10.0.0.1", "A")
        connections.spoke(1, "A")
        connections.accepted(2)
        connections.granted("10.0.0.1", "A")
        if expected:
            await until(lambda: cut)
        else:
            await asyncio.sleep(0.1)
        assert cut[:1] == expected

    on(story)


def test_a_descriptor_used_again_is_another_connection(on):
    async def story(connections, gone, cut):
        connections.accepted(1)
        connections.granted("10.0.0.1", "A")
        connections.accepted(1)
        connections.granted("10.0.0.1", "B")
        await until(lambda: gone == ["A"])
        assert connections.has("B")
        assert 1 in connections

    on(story)


def test_addresses():
    assert module._plain("localhost:0:0:4711") == "localhost"
    assert module._plain("::ffff:127.0.0.1") == "127.0.0.1"
    assert module._plain("fe80::1:2:3") == "fe80::1:2:3"
    assert module._plain("::1") == "::1"


@pytest.mark.parametrize("refused", [True, False], ids=["turned away", "silent"])
def test_who_came_after_a_stranger_and_does_not_speak_may_wait_for_its_name(on, refused):
    async def story(connections, gone, cut):
        for fd, key in ((1, "idle"), (2, "stranger"), (3, "stuck"), (4, "speaks")):
            connections.accepted(fd)
            connections.granted("10.0.0.1", key)
        if refused:
            connections.spoke(2, "stranger")
            connections.refused(2)
        connections.ended(2)
        connections.spoke(4, "speaks")
        await until(lambda: cut == [3])
        await asyncio.sleep(0.05)
        assert cut == [3]

    on(story)


def test_who_came_after_one_that_was_welcome_does_not_wait_for_its_name(on):
    async def story(connections, gone, cut):
        for fd, key in ((1, "welcome"), (2, "other")):
            connections.accepted(fd)
            connections.granted("10.0.0.1", key)
        connections.spoke(1, "welcome")
        connections.ended(1)
        await asyncio.sleep(0.08)
        assert cut == []

    on(story)
