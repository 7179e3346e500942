"""Trees of routers without I/O: what a port is sent goes into a queue, and ``settle`` hands it on."""

import errno
import itertools
from collections import Counter, deque

from broker.identity import Credentials, Role
from broker.ingress.stamping import StampPolicy
from broker.routing.departure import depart
from broker.routing.open_calls import NO_TAG, Repeat
from broker.routing.port import CHILD, CLIENT, OWN, PARENT, Port
from broker.routing.router import Router
from broker.routing.topology import Topology
from broker.wire.decoding import decode
from broker.wire.message import EVENT, NODEID_ANY, REQUEST, RESPONSE, SHUT, Message, event, request, response
from broker.wire.parts import encode_part

OWNER = Credentials(1000, int(Role.OWNER))
GUEST = Credentials(2000, int(Role.USER))
_numbers = itertools.count(1)


def new_uuid() -> str:
    return f"{next(_numbers):08d}-0000-4000-8000-000000000000"


def hop(uuid: str) -> bytes:
    return encode_part(uuid.encode())


def stamp(port, received):
    return port.policy.stamp(received)


class Client:
    """A client as its program sees it: what it got stands in ``inbox``, decoded from bytes."""

    def __init__(self, rank, cred=OWNER, services=()):
        self.rank, self.router = rank, rank.router
        self.inbox: list[Message] = []
        policy = StampPolicy(cred, pass_through=cred.owner, local=True)
        self.port = Port(CLIENT, new_uuid(), self._take, cred, policy=policy, name="client")
        self.router.attach(self.port)
        for name in services:
            self.provide(name)

    def _take(self, message):
        assert self.port.live, "delivered to a detached port"
        data = message.encode()
        self.inbox.append(decode(data, 0, len(data)))

    def provide(self, name):
        assert self.router.services.add(name.encode(), self.port) == 0
        self.router.invalidate()

    def ask(self, topic, *, nodeid=NODEID_ANY, tag=1, flags=0, payload=None, front=None):
        message = request(topic, payload, nodeid=nodeid, matchtag=tag, flags=flags)
        if front is not None:
            message.front = front
        self.router.request(self.port, message)

    def answer(self, asked, errnum=0, payload=None):
        self.router.response(self.port, response(asked, payload, errnum=errnum))

    def publish(self, topic, flags=0, userid=0xFFFFFFFF, payload=None, rolemask=0):
        said = event(topic, payload, flags=flags, userid=userid, rolemask=rolemask)
        self.router.events.receive(self.port, said)

    def of(self, kind):
        return [message for message in self.inbox if message.type == kind]

    requests = property(lambda self: self.of(REQUEST))
    responses = property(lambda self: self.of(RESPONSE))
    events = property(lambda self: self.of(EVENT))

    @property
    def errnums(self):
        return [message.errnum for message in self.responses]

    def leave(self):
        return depart(self.router, self.port)


class Rank:
    """One router with an own port that serves ``probe``: the answer's payload is the rank."""

    def __init__(self, rank, topology, **limits):
        self.rank, self.topology, self.uuid = rank, topology, new_uuid()
        self.own_inbox: list[Message] = []
        self.busy_origins: list[Port] = []
        cred = Credentials(1000, int(Role.OWNER | Role.LOCAL))
        policy = StampPolicy(OWNER, pass_through=True, local=True)
        self.own = Port(OWN, new_uuid(), self._own, cred, name="broker", policy=policy)
        self.router = Router(rank, topology, self.uuid, self.own, stamp, self._admit_request, **limits)
        self.router.services.add(b"probe", self.own)
        self.wire: deque = deque()

    def _admit_request(self, origin, _target, _size):
        if origin.kind != CLIENT or origin.services:
            return False
        self.busy_origins.append(origin)
        return True

    def _own(self, message):
        self.own_inbox.append(message)
        if message.type == REQUEST and (message.topic or "").endswith((".ping", ".subscribe")):
            payload = str(self.rank).encode()
            cred = self.own.cred
            answer = response(message, payload, userid=cred.userid, rolemask=cred.rolemask)
            self.wire.append((self.router.response, self.own, answer))

    def ask(self, topic, *, nodeid=NODEID_ANY, tag=1, flags=0):
        cred = self.own.cred
        message = request(
            topic, nodeid=nodeid, matchtag=tag, flags=flags, userid=cred.userid, rolemask=cred.rolemask
        )
        self.router.request(self.own, message)

    @property
    def answers(self):
        return [message for message in self.own_inbox if message.type == RESPONSE]

    @property
    def notices(self):
        return [m for m in self.own_inbox if m.type == REQUEST and (m.topic or "").endswith(".disconnect")]


class Tree:
    """All routers of one instance; neighbours exchange encoded messages, as deployed brokers do."""

    def __init__(self, size=7, fanout=2, parents=None, windowed=False, **limits):
        self.topology = Topology(size, fanout, parents)
        self.windowed = windowed
        self.ranks = [Rank(rank, self.topology, **limits) for rank in range(size)]
        self.crossed: list[tuple[int, int, Message]] = []
        self.wire: deque = deque()
        self.links: dict[int, tuple[Port, Port]] = {}
        for rank in self.ranks:
            rank.wire = self.wire
        for rank in range(1, size):
            self.join(rank)

    def __getitem__(self, rank):
        return self.ranks[rank]

    def join(self, rank):
        """Connect ``rank`` to its parent."""
        above = self.topology.parent(rank)
        child, parent = self.ranks[rank], self.ranks[above]
        policy = StampPolicy.tree(1000)
        down = Port(CHILD, child.router.uuid, self._down(above, rank), OWNER, policy=policy, rank=rank)
        up = Port(PARENT, parent.router.uuid, self._up(rank, above), OWNER, policy=policy, rank=above)
        self.links[rank] = (down, up)
        down.windowed = up.windowed = self.windowed
        parent.router.attach(down)
        child.router.attach(up)
        child.router.events.send_held()

    def _down(self, above, rank):
        def send(message):
            # responses lose the child's own hop here; a ROUTER socket would pop the identity it was given
            self._cross(above, rank, message, lambda: self.links[rank][1])

        return send

    def _up(self, rank, above):
        return lambda message: self._cross(rank, above, message, lambda: self.links[rank][0])

    def _cross(self, source, target, message, port_there):
        data = message.encode()
        arrived = decode(data, 0, len(data))
        self.crossed.append((source, target, arrived.copy()))
        self.wire.append((self._arrive, (target, port_there), arrived))

    def _arrive(self, where, message):
        rank, port_there = where
        router, port = self.ranks[rank].router, port_there()
        if not port.live:
            return
        if message.type == REQUEST:
            router.request(port, message)
        elif message.type == RESPONSE:
            router.response(port, message)
        elif message.type == EVENT:
            router.events.receive(port, message)
        else:
            router.events.flow.received_window(port, message.aux2, message.aux1 == SHUT)

    def settle(self):
        """Hand on what is under way until nothing is."""
        for _ in range(1_000_000):
            if not self.wire:
                return
            handle, where, message = self.wire.popleft()
            handle(where, message)
        raise AssertionError("the tree does not come to rest")

    def cut(self, rank):
        """The link between ``rank`` and its parent is lost on both sides."""
        down, up = self.links[rank]
        depart(self.ranks[self.topology.parent(rank)].router, down)
        depart(self.ranks[rank].router, up, "overlay disconnect")

    def client(self, rank=0, cred=OWNER, services=()):
        return Client(self.ranks[rank], cred, services)

    @property
    def pending(self):
        """Open calls of all ports of all ranks."""
        return sum(len(port.pending) for rank in self.ranks for port in rank.router.ports)

    def check_open_calls(self):
        """The tables of open calls say the same, whichever end one begins at; the figures of methods, too."""
        for rank in self.ranks:
            timed = Counter(
                call.decision.method
                for port in rank.router.ports
                for calls in port.calls.values()
                for call in calls.open.values()
                if call.began_ns >= 0
            )
            methods = rank.router.call_stats.methods.values()
            assert {method: method.open for method in methods if method.open} == timed
        for port in (port for rank in self.ranks for port in rank.router.ports):
            listed = list(port.calls.values())
            assert all(
                port.calls[calls.front + calls.calls_key] is calls and calls.listed for calls in listed
            )
            assert all(calls.origin is port and calls in calls.target.to_answer for calls in listed)
            assert all(calls in port.asked[calls.front + calls.service] for calls in listed)
            assert sum(map(len, port.asked.values())) == len(listed)
            assert all(calls.origin.calls[calls.front + calls.calls_key] is calls for calls in port.to_answer)
            waiting = [
                (key, each)
                for key, entry in port.pending.items()
                for each in ([calls for calls, _ in entry.waiting] if isinstance(entry, Repeat) else [entry])
            ]
            waiting += [
                (front + NO_TAG, port.calls[front + decision.calls_key])
                for front, providers in port.untagged.items()
                for decision, _ in providers.values()
            ]
            assert all(key[:-4] == calls.front and key in calls.open for key, calls in waiting)
            more = [len(entry.waiting) - 1 for entry in port.pending.values() if isinstance(entry, Repeat)]
            assert port.repeats == sum(more)
            opened = {(key, calls) for calls in listed for key in calls.open if key[-4:] != NO_TAG}
            assert opened == {(key, calls) for key, calls in waiting if key[-4:] != NO_TAG}


def text_of(message):
    """The error text of a response, without its NUL; None when it has none."""
    payload = message.payload
    assert payload is None or payload.endswith(b"\0")
    return None if payload is None else payload[:-1].decode()


UNREACHABLE = errno.EHOSTUNREACH
NO_SERVICE = errno.ENOSYS
