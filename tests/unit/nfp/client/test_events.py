"""Events that are kept for readers."""

import asyncio
import weakref
from types import SimpleNamespace

from broker.errors import LinkRefused
from broker.nfp.client import NfpClient
from broker.nfp.client.events import Event, Subscription
from broker.nfp.contract import EventFilter
from broker.nfp.frames import answer_packet
from broker.nfp.names import Command, Dialect
from tests.unit.nfp.store.samples import run


class Body:
    """Of an event; it can be seen whether anybody has it."""


def test_a_subscription_keeps_nothing_that_was_read():
    async def story():
        events = Subscription(SimpleNamespace(bounds=(10, 1000)), EventFilter("", "", frozenset()), None)
        bodies = [Body(), Body()]
        there = [weakref.ref(body) for body in bodies]
        for number, body in enumerate(bodies):
            events.take(Event("progress", body=body, sequence=number + 1), 9)
        bodies.clear()
        del body
        for left in (1, 0):
            await anext(events)
            assert (events.ready, sum(each() is not None for each in there)) == (left, left)
        assert events.lost == 0

    run(story())


class ByHand:
    """A channel to a broker that takes subscriptions, unless it is ``mute``."""

    name, broker, trouble, mute = "c", "", "", False

    def start(self, receiver, open_body):
        self.receiver = receiver

    def send(self, packet):
        if not self.mute:
            said = b'{"subscription": "s", "epoch": "e", "sequence": 0}'
            answer = answer_packet(Command.MMI, Dialect.NORFAB, packet.service, packet.uuid, 200, said)
            asyncio.get_running_loop().call_soon(self.receiver.on_packet, answer)
        return True

    async def close(self):
        pass


def test_a_subscription_that_a_refusal_keeps_from_being_made_anew_is_made_in_the_next_session(caplog):
    async def story():
        channel = ByHand()
        async with NfpClient(channel=channel) as client:
            channel.receiver.on_connect("here", {"features": ["push"]})
            async with client.subscribe() as events:
                for channel.mute in (True, False):
                    channel.receiver.on_disconnect("it is gone")
                    channel.receiver.on_connect("here", {"features": ["push"]})
                    await asyncio.sleep(0.01)
                    if channel.mute:
                        channel.receiver.on_refused(LinkRefused("no such key"))
                        await asyncio.sleep(0.01)
                return bool(events._all._ident)

    assert run(story())
    warned = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert warned == ["c: the broker did not take the subscription, and is asked again: no such key"]
