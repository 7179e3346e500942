"""One client for the length of a coroutine, with short patience."""

import asyncio

from broker.nfp.client import Limits, NfpClient

SOON = Limits(resend_s=0.1, poll_s=0.1, answer_s=5.0)
WITHIN_S = 20.0


def run(work, broker, **options):
    """Run `work(client)` with a client of `broker`."""

    async def main():
        options.setdefault("limits", SOON)
        async with asyncio.timeout(WITHIN_S), NfpClient("c", broker=broker.endpoint, **options) as client:
            return await work(client)

    return asyncio.run(main())
