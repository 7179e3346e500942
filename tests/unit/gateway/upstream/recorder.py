"""A receiver that writes down what the upstream tells it."""

import asyncio

from broker.wire import message as wire
from broker.wire.event_history import MessageHistory
from broker.wire.parts import encode_part


class Recorder:
    """A ``trunk.UpstreamReceiver``; ``told`` has everything in order."""

    def __init__(self, history_msgs=1000):
        self.history = MessageHistory(history_msgs, 1 << 20)
        self.provides = set()
        self.told = []
        self.answers = []
        self.requests = []
        self.events = []
        self.reregistered = 0

    def take(self, messages, at, fault):
        for message in messages[at:]:
            try:
                if message.type == wire.RESPONSE and len(message.front) > 1:
                    self.answered(message)
                elif message.type != wire.REQUEST or not self.requested(message):
                    break
            except Exception as error:
                fault(message, error)
            at += 1
        return at

    def answered(self, message):
        self.told.append(("answered", message.topic))
        self.answers.append(message)

    def requested(self, message):
        if message.topic.partition(".")[0] not in self.provides:
            return False
        self.told.append(("requested", message.topic))
        self.requests.append(message)
        return True

    def published(self, messages):
        assert messages
        self.told.append(("published", [message.sequence for message in messages]))
        self.events += messages

    async def until_read(self):
        await asyncio.sleep(0)
        return True

    def upstream_lost(self, reason):
        self.told.append(("lost", reason))

    def upstream_joined(self, epoch_changed, missed):
        self.told.append(("joined", epoch_changed, missed))

    def upstream_choked(self, choked):
        self.told.append(("choked", choked))

    def upstream_shut(self, shut):
        self.told.append(("shut", shut))

    def reregister(self):
        self.reregistered += 1

    def kinds(self):
        return [entry[0] for entry in self.told]

    def topics(self):
        return [message.topic for message in self.events]


def hop(name):
    return encode_part(name.encode().ljust(32, b"0"))


def session_request(hop, topic, payload=None, *, userid=1234, rolemask=2, **fields):
    """A request as the gateway sends it for a session."""
    message = wire.request(topic, payload, userid=userid, rolemask=rolemask, **fields)
    message.front = hop + wire.DELIMITER
    return message


async def until(happened, what="it", timeout_s=10.0):
    """Wait until ``happened()`` is true and return it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while True:
        if found := happened():
            return found
        assert loop.time() < end, f"{what} did not happen within {timeout_s:g} s"
        await asyncio.sleep(0.005)
