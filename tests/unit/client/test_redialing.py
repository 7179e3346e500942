"""The attempts to have another link: each is told its number, by which its pause grows."""

import asyncio

from broker.client.reconnecting import Reconnecting
from broker.errors import LinkBroken


def test_every_attempt_asks_for_the_pause_of_its_number():
    asked, failures = [], 4

    class Pauses:
        def pause_s(self, attempt):
            asked.append(attempt)
            return 0.0

    async def dial():
        if len(asked) <= failures:
            raise LinkBroken("nobody listens")
        return "link"

    async def work():
        found = asyncio.get_running_loop().create_future()
        Reconnecting("ws://somewhere", dial, Pauses()).begin(
            LinkBroken("lost"), found.set_result, found.set_exception
        )
        return await found

    assert asyncio.run(work()) == "link"
    assert asked == [0, 1, 2, 3, 4]
