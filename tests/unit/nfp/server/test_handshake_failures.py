"""Failed handshakes in the log: a line a minute for each address."""

import asyncio
import logging
import socket

import pytest

from tests.unit.nfp.server.stage import KEY, stage, until


@pytest.fixture
def lines(caplog):
    """What was logged so far, without the first words."""
    caplog.set_level(logging.WARNING, "headgate")
    return lambda: [record.getMessage() for record in caplog.records if "failed in" in record.getMessage()]


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
            assert all("127.0.0.1" in line or "had left already" in line for line in lines())

    asyncio.run(main())
