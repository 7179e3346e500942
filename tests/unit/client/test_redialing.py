"""The attempts to have another link: pauses grow, also over links that are lost again at once, and begin anew after one
that lasted."""

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


def bounds_of(monkeypatch, fails, lives):
    """The bound of each pause: ``fails`` tells of each attempt whether it does, ``lives`` how long each link lasts."""
    monkeypatch.setattr(reconnecting, "Backoff", Noted)
    outcomes = iter(fails)

    async def dial():
        if next(outcomes):
            raise LinkBroken("nobody listens")
        return "link"

    async def work():
        loop = asyncio.get_running_loop()
        now_s = 0.0
        loop.time = lambda: now_s
        redialing = reconnecting.Reconnecting("ws://somewhere", dial, reconnecting.Reconnect(1.0, 10.0))
        for life_s in lives:
            now_s += life_s
            found = loop.create_future()
            redialing.begin(LinkBroken("lost"), found.set_result, found.set_exception)
            assert await found == "link"
        return redialing._backoff.bounds

    return asyncio.run(work())


def test_a_link_that_is_lost_at_once_counts_as_a_failed_attempt(monkeypatch):
    bounds = bounds_of(monkeypatch, fails=[True, True, False, False, True, False], lives=[0, 0, 0])
    assert bounds == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_pauses_begin_anew_after_a_link_that_lasted_and_grow_from_there(monkeypatch):
    bounds = bounds_of(monkeypatch, fails=[True, False, True, True, False], lives=[0, 21])
    assert bounds == [1.0, 2.0, 1.0, 2.0, 4.0]
