"""Subscribers for tests of the fan-out: a link that keeps what it gets."""

from broker.identity import PeerInfo, Role
from broker.wire import message as wire
from gateway.events.fanout import may_see
from gateway.events.run import sender
from gateway.principal import Principal


class RunLink:
    """Takes runs."""

    def __init__(self, name="web"):
        self.peer = PeerInfo(name)
        self.runs = []
        self.aborted = None

    def send_run(self, run):
        self.runs.append(run)

    def send(self, message):
        raise AssertionError("a link that takes runs gets no single events")

    def abort(self, error):
        self.aborted = error

    def sequences(self):
        return [message.sequence for run in self.runs for message in run.messages]


class PlainLink:
    """Knows no runs."""

    def __init__(self):
        self.peer = PeerInfo("plain")
        self.messages = []

    def send(self, message):
        self.messages.append(message)

    def sequences(self):
        return [message.sequence for message in self.messages]


class Subscriber:
    """``gateway.events.fanout.Subscriber``."""

    def __init__(self, name="u", userid=1000, roles=Role.USER, *, denied=(), link=None):
        self.link = link or RunLink(name)
        self.subscriptions = {}
        self.principal = Principal(name, userid, roles, "token", name, None)
        self.denied = denied
        self.asked = 0

    @property
    def send_run(self):
        return sender(self.link)

    @property
    def roles(self):
        """The role bits; who is denied something has a role of its own for that."""
        return int(self.principal.roles) | hash(tuple(self.denied)) << 8

    def sees_topic(self, topic):
        self.asked += 1
        return not topic.startswith(tuple(self.denied)) if self.denied else True


def wants(subscriber, message):
    """Whether the subscriber has to get the event, asked in the plainest way."""
    topic = message.topic.encode()
    return (
        any(topic.startswith(prefix) for prefix in subscriber.subscriptions)
        and subscriber.sees_topic(topic)
        and may_see(subscriber.principal, message)
    )


def event(sequence, topic="a.b", *, private=False, userid=1):
    flags = wire.PRIVATE if private else 0
    return wire.event(topic, b"x", sequence=sequence, flags=flags, userid=userid, rolemask=1)
