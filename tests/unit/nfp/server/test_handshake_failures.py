"""Failed handshakes in the log: a line for each address, and then how many more there were."""

import asyncio
import contextlib
import logging
import socket

import pytest

from broker.nfp.server import handshake_failures as module
from broker.nfp.server.handshake_failures import ELSEWHERE, LEFT, HandshakeFailures
from tests.unit.nfp.server.stage import KEY, stage, until


@pytest.fixture
def lines(caplog):
    """What was logged so far, without the first words."""
    caplog.set_level(logging.WARNING, "headgate")
    return lambda: [record.getMessage() for record in caplog.records if "failed in" in record.getMessage()]


def test_one_line_for_each_address_and_then_a_count(monkeypatch, lines):
    monkeypatch.setattr(module, "QUIET_S", 0.05)

    async def main():
        failures = HandshakeFailures(asyncio.get_running_loop(), "here")
        with contextlib.closing(failures):
            for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "", "10.0.0.1", ""):
                failures.add(address, "why")
            assert lines() == [
                f"here: a connection from {each} failed in its handshake (why)"
                for each in ("10.0.0.1", "10.0.0.2", LEFT)
            ]
            await until(lambda: len(lines()) == 5)
            assert lines()[3:] == [
                f"here: {count} more connections from {each} failed in their handshakes within 0.05 s"
                for count, each in ((2, "10.0.0.1"), (1, LEFT))
            ]
            await until(lambda: not failures._timers)  # nobody tried again: forgotten
            failures.add("10.0.0.1", "why")
            assert lines()[5:] == lines()[:1]

    asyncio.run(main())


def test_inventing_addresses_fills_neither_memory_nor_log(monkeypatch, lines):
    monkeypatch.setattr(module, "ADDRESSES_MAX", 3)

    async def main():
        failures = HandshakeFailures(asyncio.get_running_loop(), "here")
        with contextlib.closing(failures):
            for number in range(100):
                failures.add(f"10.0.0.{number}", "why")
            assert len(failures._timers) == 4
            assert len(lines()) == 4
            assert ELSEWHERE in lines()[3]

    asyncio.run(main())


def test_a_peer_that_fails_for_ever_is_told_once(lines):
    async def main():
        async with stage() as on:
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", int(on.router.address.rpartition(":")[2]))):
                    pass
            on.secret = False
            plain = on.dealer(b"plain")  # speaks without CURVE, tries again for ever
            before = on.router.failed
            await until(lambda: on.router.failed >= before + 5)
            assert not on.ingress.came
            plain.close()
            on.secret = True
            friend = on.dealer(b"w1", KEY)
            friend.send_multipart([b"", b"hello"])
            await until(lambda: on.ingress.messages("w1") == [b"hello"])
            assert 1 <= len(lines()) <= 2, "its address, or that it could not be told"
            assert all("127.0.0.1" in line or LEFT in line for line in lines())

    asyncio.run(main())
