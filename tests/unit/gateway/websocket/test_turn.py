"""Turns of the loop: a fault of one link is its own end, and whoever waits behind it is read all the same."""

import asyncio

from broker.errors import LinkBroken
from broker.identity import PeerInfo
from gateway.websocket.link import Turn


class Waiting:
    """A link that has more to read than its turn allowed."""

    def __init__(self, name, fault=None):
        self.peer = PeerInfo(f"ws://{name}")
        self.fault, self.went_on, self.ended = fault, 0, None

    def continue_reading(self):
        self.went_on += 1
        if self.fault is not None:
            raise self.fault

    def abort(self, error):
        self.ended = error


async def test_a_fault_of_one_link_keeps_no_other_from_its_turn(caplog):
    turn = Turn()
    links = [Waiting("a"), Waiting("b", RuntimeError("a fault of ours")), Waiting("c"), Waiting("d")]
    for link in links:
        turn.later(link)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [link.went_on for link in links] == [1, 1, 1, 1]
    assert [type(link.ended) for link in links] == [type(None), LinkBroken, type(None), type(None)]
    assert "ws://b: cannot read on" in caplog.text
