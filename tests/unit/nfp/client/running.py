"""Clients with short patience; one for the length of a coroutine."""

import asyncio

from broker.nfp.client import Limits, NfpClient

SOON = Limits(resend_s=0.05, poll_s=0.05, answer_s=5.0)
WITHIN_S = 20.0


def client_of(broker, name="c", **options):
    """A client of a `FakeBroker`; one that answers no OPEN is not waited for."""
    if not broker.push:
        options.setdefault("open_timeout_s", 0.02)
    options.setdefault("limits", SOON)
    return NfpClient(name, broker=broker.endpoint, **options)


def run(work, broker, **options):
    """Run `work(client)` with a client of `broker`."""

    async def main():
        async with asyncio.timeout(WITHIN_S), client_of(broker, **options) as client:
            return await work(client)

    return asyncio.run(main())
