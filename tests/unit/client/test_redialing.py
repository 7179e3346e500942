"""The attempts to have another link: pauses grow, also over links that are lost again at once."""

import asyncio

from broker.client import reconnecting
from broker.errors import LinkBroken


class Noted(reconnecting.Backoff):
    """Notes the bounds and waits for none."""

    def __init__(self, first_s, longest_s):
        super().__init__(first_s, longest_s, spread=False)
        self.bounds = []

    def after(self, lived_s=0.0, longest_s=None):
        self.bounds.append(super().after(lived_s))
        return 0.0


def test_a_link_that_is_lost_at_once_counts_as_a_failed_attempt(monkeypatch):
    monkeypatch.setattr(reconnecting, "Backoff", Noted)
    fails = iter([True, True, False, False, True, False])

    async def dial():
        if next(fails):
            raise LinkBroken("nobody listens")
        return "link"

    async def work():
        loop = asyncio.get_running_loop()
        redialing = reconnecting.Reconnecting("ws://somewhere", dial, reconnecting.Reconnect(1.0, 10.0))
        for _ in range(3):
            found = loop.create_future()
            redialing.begin(LinkBroken("lost"), found.set_result, found.set_exception)
            assert await found == "link"
        return redialing._backoff.bounds

    assert asyncio.run(work()) == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
