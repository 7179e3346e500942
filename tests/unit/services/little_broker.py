"""A broker of one file: the names of a Context over dictionaries and a clock that tests move by hand."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from typing import Any

from broker.errors import ProtocolError
from broker.identity import Credentials, Role
from broker.services.dispatch import Dispatcher
from broker.services.registry import built_in
from broker.services.service import Service
from broker.wire.message import NODEID_ANY, NORESPONSE, STREAMING, Message, request, response
from broker.wire.parts import encode_part

OWNER = Credentials(0, Role.OWNER | Role.LOCAL)
REMOTE_OWNER = Credentials(0, Role.OWNER)
GUEST = Credentials(1234, Role.USER)
NOBODY = Credentials(1234, 16)
"""Holds a role that no method asks for."""
UUID = "0a1b2c3d-0000-4000-8000-000000000000"


class Link:
    """One attached peer, as ``Sender`` shows it."""

    def __init__(self, uuid: str, kind: int, cred: Credentials, rank: int = -1) -> None:
        self.name = f"link-{uuid[:8]}"
        self.uuid = uuid
        self.kind = kind
        self.rank = rank
        self.cred = cred
        self.owner = cred.owner
        self.busy = False
        self.strict = False
        self.services: set[bytes] = set()
        self.subscriptions: dict[bytes, int] = {}


class Timer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.live = due, callback, True

    def cancel(self) -> None:
        self.live = False


class Called:
    """A call of the broker's own."""

    def __init__(self, message: Message, on_response: Callable[[Message], None] | None) -> None:
        self.message, self.answered, self.live = message, on_response, True

    def cancel(self) -> None:
        self.live = False


class LittleBroker:
    """A rank in a tree kary:2 that answers into ``sent``."""

    def __init__(self, rank: int = 0, size: int = 4) -> None:
        self.rank, self.size, self.owner, self.cred = rank, size, 0, OWNER
        self.time = 100.0
        self.sent: list[Message] = []
        self.left, self.leave_errnum, self.disconnected = "", 0, ("", "")
        self.events: list[Message] = []
        self.calls: list[Called] = []
        self.timers: list[Timer] = []
        self.lines: list[tuple[int, str]] = []
        self.peers: dict[bytes, Link] = {}
        self.providers: dict[bytes, Link | None] = {}
        self.health: list[dict[str, Any]] = [
            {"rank": child, "status": "full", "duration": 3.5, "torpid": False}
            for child in self.tree_children(rank)
        ]
        self.status = "full"
        self.lifecycle = "run"
        self.applied: list[tuple[str, str]] = []
        self.on_reload: Callable[[Callable[[str], None]], None] | None = None
        self.journal = None
        self.config = {"access": {"allow-guest-user": True}}
        self.refusals: list[tuple[str | None, int]] = []
        self.cleared = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.watchers: dict[str, Any] = {"links": None, "services": None}
        self.watches_clients = False
        self._provided_handler: Callable[[str, bool], None] = lambda _name, _there: None
        self._event_handlers: list[tuple[str, Callable[[Message], None]]] = []
        self._state_handlers: list[Callable[[str], None]] = []
        self._tree_handlers: list[Callable[[], None]] = []
        self.attributes: dict[str, tuple[str | Callable[[], str], int]] = {
            "rank": (str(rank), 1),
            "size": (str(size), 1),
            "hostlist": (f"node[0-{size - 1}]", 1),
            "security.owner": ("0", 1),
            "instance-level": ("0", 1),
            "broker.starttime": ("1795193573.75", 1),
            "version": ("0.88.0", 0),
            "log-stderr-level": ("3", 2),
            "broker.uuid": (lambda: self.uuid(), 0),
        }

    # -- Context -------------------------------------------------------------------------------

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_795_193_573.75 + self.time

    def uuid(self) -> str:
        return UUID

    def respond(self, request, payload, errnum, always) -> None:
        if request.flags & NORESPONSE and not always:
            return
        answer = response(request, payload, errnum=errnum, userid=0, rolemask=5 if self.rank == 0 else 1)
        answer.set_flags(answer.flags & ~NORESPONSE)
        self.sent.append(answer)

    def refused(self, request, errnum) -> None:
        self.refusals.append((request.topic, errnum))

    def publish(self, message) -> int:
        if self.rank != 0:
            raise ProtocolError("events are published by rank 0 only")
        message.set_aux1(len(self.events) + 1)
        self.events.append(message)
        for prefix, handler in self._event_handlers:
            if message.topic.startswith(prefix):
                handler(message)
        return message.sequence

    def call(self, topic, payload, on_response, *, nodeid, flags=0) -> Called:
        if on_response is None:
            flags |= NORESPONSE
        called = Called(request(topic, payload, nodeid=nodeid, flags=flags), on_response)
        self.calls.append(called)
        return called

    def sender_of(self, request: Message) -> Link | None:
        return self.peers.get(bytes(request.routes[0])) if request.routes else None

    def subscribe(self, sender, prefix: bytes) -> int:
        sender.subscriptions[prefix] = sender.subscriptions.get(prefix, 0) + 1
        return 0

    def unsubscribe(self, sender, prefix: bytes) -> int:
        if prefix not in sender.subscriptions:
            return errno.ENOENT
        sender.subscriptions[prefix] -= 1
        if not sender.subscriptions[prefix]:
            del sender.subscriptions[prefix]
        return 0

    def on_event(self, prefix, handler) -> None:
        self._event_handlers.append((prefix, handler))

    def add_service(self, sender, name: bytes) -> int:
        if name in self.providers:
            return errno.EEXIST
        self.providers[name] = sender
        sender.services.add(name)
        self._provided_handler(name.decode(), True)
        return 0

    def remove_service(self, sender, name: bytes) -> int:
        if self.providers.get(name) is not sender:
            return errno.ENOENT
        del self.providers[name]
        sender.services.discard(name)
        self._provided_handler(name.decode(), False)
        return 0

    def on_provided(self, callback) -> None:
        self._provided_handler = callback

    def on_unregistered(self, find) -> None:
        self.find_elsewhere = find

    def watch_links(self, watcher, clients) -> None:
        self.watchers["links"], self.watches_clients = watcher, clients

    def watch_services(self, watcher) -> None:
        self.watchers["services"] = watcher

    def spawn(self, name, work) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]

    def after(self, seconds, callback) -> Timer:
        timer = Timer(self.time + seconds, callback)
        self.timers.append(timer)
        return timer

    def log(self, severity, text) -> None:
        self.lines.append((severity, text))

    def apply_attribute(self, name, value) -> int:
        if value == "refuse":
            return errno.EINVAL
        self.applied.append((name, value))
        return 0

    def tree_children(self, rank):
        return [child for child in (2 * rank + 1, 2 * rank + 2) if child < self.size]

    def tree_parent(self, rank):
        return (rank - 1) // 2 if rank else -1

    def subtree_status(self) -> str:
        return self.status

    def status_since(self) -> float:
        return 12.5

    def child_health(self):
        return self.health

    def on_tree_change(self, callback) -> None:
        self._tree_handlers.append(callback)

    def disconnect_child(self, rank, reason) -> int:
        self.set_child(rank, "lost", error=reason)
        return 0

    def disconnect_client(self, uuid, reason) -> int:
        self.disconnected = (uuid, reason)
        return 0 if uuid == "known" else errno.ENOENT

    def leave(self, reason) -> int:
        self.left = reason
        return self.leave_errnum

    def state(self):
        return self.lifecycle, 7.25

    def on_state(self, callback) -> None:
        self._state_handlers.append(callback)

    def traffic(self):
        counts = {"request": 6, "response": 5, "event": 3, "control": 0}
        drops = {"event without topic": 1}
        return {"tx": dict(counts), "rx": dict(counts), "drops": drops, "connects": 56}

    def users(self):
        return {"users": [{"userid": 2000, "received": 6}], "limits": {"pending": 9}}

    def call_stats(self, errors: bool):
        return {
            "methods": {"echo.run": {"calls": 3, **({"last_error": {"errnum": 5}} if errors else {})}},
            "others": {"event": {"news": {"calls": 1}}} if errors else {},
            "services": {
                name.decode(): {"provider": "x", "builtin": link is None}
                for name, link in self.providers.items()
            },
        }

    def metrics(self) -> str:
        return "headgate_requests_total 6\n"

    def clear_traffic(self) -> None:
        self.cleared += 1

    def links(self):
        kinds = ("client", "child", "parent", "own")
        return [
            {
                "name": link.name,
                "uuid": link.uuid,
                "kind": kinds[link.kind],
                "userid": link.cred.userid,
                "pid": 77,
                "sent": 2,
                "received": 3,
                "queued": 1,
                "pending": 4,
            }
            for link in self.peers.values()
        ]

    # -- what a test does to it ----------------------------------------------------------------

    def enter(self, state: str) -> None:
        self.lifecycle = state
        for handler in self._state_handlers:
            handler(state)

    def set_child(self, rank: int, status: str, **more: Any) -> None:
        for child in self.health:
            if child["rank"] == rank:
                child.update(status=status, **more)
        for handler in self._tree_handlers:
            handler()

    def advance(self, seconds: float) -> None:
        """Move the clock; timers fire in the order they are due."""
        end = self.time + seconds
        while due := [timer for timer in self.timers if timer.live and timer.due <= end]:
            timer = min(due, key=lambda timer: timer.due)
            self.timers.remove(timer)
            self.time = timer.due
            timer.callback()
        self.time = end


class Client:
    """A peer that asks the services of one little broker and reads what they answer to it alone."""

    def __init__(self, desk: Desk, number: int, cred: Credentials, kind: int = 0) -> None:
        self.desk = desk
        self.cred = cred
        self.uuid = f"{number:08x}-1111-4111-8111-111111111111"
        self.link = Link(self.uuid, kind, cred)
        self._tag = 0
        desk.context.peers[self.uuid.encode()] = self.link

    def send(
        self,
        topic: str,
        data: Any = None,
        *,
        flags: int = 0,
        tag: int | None = None,
        cred: Credentials | None = None,
        nodeid: int = NODEID_ANY,
        below: bytes = b"",
    ) -> int:
        """Deliver one request as the router would; returns its matchtag. ``below``: a route under the link's hop."""
        self._tag += 1
        tag = self._tag if tag is None else tag
        payload = json.dumps(data).encode() + b"\0" if isinstance(data, dict) else data
        who = cred or self.cred
        message = request(
            topic,
            payload,
            nodeid=nodeid,
            matchtag=tag,
            flags=flags,
            userid=who.userid,
            rolemask=int(who.rolemask),
        )
        if below:
            message.push_route(below)
        message.push_route(self.uuid.encode())
        self.desk.dispatcher.deliver(message)
        return tag

    def take(self, tag: int) -> list[Message]:
        """All answers to this client with ``tag``, taken out."""
        mine = [
            m for m in self.desk.context.sent if m.routes[:1] == [self.uuid.encode()] and m.matchtag == tag
        ]
        for message in mine:
            self.desk.context.sent.remove(message)
        return mine

    def ask(self, topic: str, data: Any = None, **how: Any) -> Message:
        """One request, exactly one answer."""
        answers = self.take(self.send(topic, data, **how))
        assert len(answers) == 1, f"{topic}: {answers}"
        return answers[0]

    def silent(self, topic: str, data: Any = None, **how: Any) -> None:
        """One request that must not be answered."""
        assert self.take(self.send(topic, data, **how)) == []

    def refused(self, topic: str, data: Any = None, **how: Any) -> tuple[int, str]:
        """One request, one error answer: (errnum, text)."""
        answer = self.ask(topic, data, **how)
        assert answer.errnum, f"{topic} was not refused: {answer}"
        return answer.errnum, text(answer)

    def stream(self, topic: str, data: Any = None, **how: Any) -> Stream:
        """Open a stream; read it with ``news``."""
        flags = how.pop("flags", 0) | STREAMING
        return Stream(self, self.send(topic, data, flags=flags, **how))


class Stream:
    def __init__(self, client: Client, tag: int) -> None:
        self.client, self.tag = client, tag

    def news(self) -> list[Any]:
        """What came since last time: the JSON objects, and at an end the errnum."""
        return [message.errnum or value(message) for message in self.client.take(self.tag)]


class Desk:
    """A little broker with its services started."""

    def __init__(
        self, rank: int = 0, size: int = 4, services: Callable[[Any], list[Service]] = built_in, **how: Any
    ) -> None:
        self.context = LittleBroker(rank, size)
        for name, given in how.pop("context", {}).items():
            setattr(self.context, name, given)
        self.services = services(self.context)
        self.dispatcher = Dispatcher(self.context, **how)
        self.dispatcher.add(self.services)
        for service in self.services:
            self.context.providers[service.name.encode()] = None
        self.dispatcher.start()
        self._clients = 0

    def client(self, cred: Credentials = OWNER, kind: int = 0) -> Client:
        self._clients += 1
        return Client(self, self._clients, cred, kind)

    def service(self, kind: type) -> Any:
        return next(service for service in self.services if isinstance(service, kind))


def value(message: Message) -> Any:
    """The payload: a JSON object, a string, or None."""
    payload = message.payload
    if payload is None:
        return None
    assert payload.endswith(b"\0"), payload
    return json.loads(payload[:-1]) if payload.startswith(b"{") else payload[:-1].decode()


def text(message: Message) -> str:
    return value(message) or ""


def hop(route: str) -> bytes:
    return encode_part(route.encode())
