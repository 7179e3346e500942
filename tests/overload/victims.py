"""Who notices: an owner at rank 0 and a user two hops below, each a thread that does one thing after the other.

All that they do is timed and counted: calls of either end of the tree and of a service of the owner's, events (one's
own and the others', which are numbered), new connections, subscriptions. A bystander at each rank does nothing.
"""

import contextlib
import http.client
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import zmq

from broker.nfp.names import Command
from broker.oslo.frames import Kind
from broker.oslo.node import NodeConfig
from broker.wire.message import EVENT, REQUEST, Message, event, request, response
from broker.wire.payload import encode_json
from tests.live.doors import JsonDoor
from tests.live.gateways import GatewayProcess
from tests.live.load import is_closed, numbered, numbers
from tests.live.nfp import NfpProcess
from tests.live.nfp import ready as nfp_ready
from tests.live.nfp import reply as nfp_reply
from tests.live.nfp import request as nfp_request
from tests.live.oslo import Proxy
from tests.live.oslo_raw import Client, Node, Server
from tests.live.speaker import Closed, Speaker, provide, subscribe
from tests.overload.stand import FAR, VICTIM_UID, Stand

PATIENCE_S = 40.0
REST_S = 0.002
TOPIC = "victim.event"
SERVICE = "victims-own"


class Notes:
    """What the victims have noticed; each op's seconds, errors by text, ends of links, events lost."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.failed: Counter[str] = Counter()
        self.ended: list[str] = []
        self.lost = 0
        self.published: dict[int, int] = {}
        """Who -> how many events; complete when all have stopped."""

    @contextlib.contextmanager
    def timed(self, op: str) -> Iterator[None]:
        begin = monotonic()
        yield
        self.seconds[op].append(monotonic() - begin)


class Victim(threading.Thread):
    """``stop``, then ``finish`` when all have stopped: it waits for the events that are still on their way."""

    def __init__(self, name: str, who: int, notes: Notes) -> None:
        super().__init__(name=name, daemon=True)
        self.who, self.notes = who, notes
        self.seen: dict[int, int] = {}
        """Publisher -> the number of its next event."""
        self.stopping = threading.Event()
        self.rounds = 0
        self.busy = True
        self._all_stopped = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.round()
                self.rounds += 1
                time.sleep(REST_S)
        except Closed as error:
            self.notes.ended.append(f"{self.name}: {error}")
        except Exception as error:
            self.notes.failed[f"{self.name}: {error!r}"] += 1
        self.stopping.set()
        self.busy = False
        self._all_stopped.wait()
        with contextlib.suppress(Closed, OSError, AssertionError):  # which stands in the notes already
            self.await_events()
        self.notes.lost += sum(
            self.notes.published[who] - seen for who, seen in self.seen.items() if who in self.notes.published
        )
        self.close()

    def await_events(self) -> None:
        until = monotonic() + PATIENCE_S
        while monotonic() < until and any(
            self.seen.get(who, count) < count for who, count in self.notes.published.items()
        ):
            self.receive()

    def note(self, message: Message) -> None:
        """An event came."""
        who, number = numbers(message)
        if number > self.seen.get(who, number):
            self.notes.failed[f"{self.name}: an event too late or too early"] += 1
        self.seen[who] = number + 1

    def finish(self) -> None:
        self._all_stopped.set()
        self.join(2 * PATIENCE_S)
        if self.is_alive():
            self.notes.failed[f"{self.name} does not end"] += 1

    def round(self) -> None:
        """Do everything once."""
        raise NotImplementedError

    def receive(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Local(Victim):
    """A user of a UNIX socket. ``far``: the rank at the other end."""

    def __init__(
        self, name: str, who: int, notes: Notes, uri: str, near: int, far: int, uid: int | None
    ) -> None:
        super().__init__(name, who, notes)
        self.uri, self.near, self.far, self.uid = uri, near, far, uid
        self.tag = 0
        self.count = 0
        self.speaker = Speaker(uri, uid)
        subscribe(self.speaker, "victim.")
        notes.published[who] = 0
        self.seen[who] = 0

    def round(self) -> None:
        self.call("call near", "broker.ping", self.near)
        self.call("call far", "broker.ping", self.far)
        self.call("call service", f"{SERVICE}.echo", 0xFFFFFFFF)
        self.publish()
        if self.rounds % 4 == 0:
            self.connect()

    def call(self, op: str, topic: str, nodeid: int) -> None:
        self.tag += 1
        with self.notes.timed(op):
            asked = request(topic, encode_json({"seq": self.tag}), nodeid=nodeid, matchtag=self.tag)
            answer = self.speaker.ask(asked, PATIENCE_S)
        self.expect(op, answer)
        self.take_events()

    def expect(self, op: str, answer: Message) -> None:
        if answer.errnum:
            self.notes.failed[f"{self.name}: {op}: errno {answer.errnum} {answer.payload!r}"] += 1

    def publish(self) -> None:
        with self.notes.timed("event"):
            self.speaker.tell(event(TOPIC, numbered(self.who, self.count)))
            self.count += 1
            self.notes.published[self.who] = self.count
            until = monotonic() + PATIENCE_S
            while self.seen[self.who] < self.count:
                self.speaker.receive(until - monotonic())
                self.take_events()

    def connect(self) -> None:
        with self.notes.timed("connect"):
            other = Speaker(self.uri, self.uid)
        with other:
            for word in ("subscribe", "unsubscribe"):
                with self.notes.timed(word):
                    asked = request(f"event.{word}", encode_json({"topic": f"own.{self.who}"}), matchtag=1)
                    answer = other.ask(asked, PATIENCE_S)
                self.expect(word, answer)

    def take_events(self) -> None:
        seen, self.speaker.seen = self.speaker.seen, []
        for message in seen:
            if message.type == EVENT:
                self.note(message)

    def receive(self) -> None:
        with contextlib.suppress(TimeoutError):
            self.speaker.receive(0.2)
        self.take_events()

    def close(self) -> None:
        self.speaker.close()


class Echo(threading.Thread):
    """The owner's service at rank 0, which answers each call with its own payload."""

    def __init__(self, uri: str, notes: Notes) -> None:
        super().__init__(name="service", daemon=True)
        self.speaker, self.notes = Speaker(uri), notes
        self.stopping = threading.Event()
        provide(self.speaker, SERVICE)

    def run(self) -> None:
        speaker = self.speaker
        try:
            while not self.stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    speaker.receive(0.1)
                asked = [
                    one for one in speaker.seen if one.type == REQUEST and one.topic == f"{SERVICE}.echo"
                ]
                speaker.seen = []
                if asked:
                    speaker.tell(*(response(one, one.payload) for one in asked))
        except (Closed, OSError) as error:
            self.notes.ended.append(f"{self.name}: {error}")
        speaker.close()


class Listening(JsonDoor):
    """A WebSocket that hands events on."""

    on_event: Callable[[Message], Any]

    def receive(self) -> list[Message]:
        until = monotonic() + PATIENCE_S
        while True:
            try:
                came = super().receive()
                break
            except TimeoutError:
                if monotonic() > until:
                    raise
        for message in came:
            if message.type == EVENT:
                self.on_event(message)
        return came


class Web(Victim):
    """Another user of the gateway than the attacker: calls over a WebSocket and HTTP, the victims' events, connects."""

    def __init__(self, name: str, who: int, notes: Notes, gateway: GatewayProcess) -> None:
        super().__init__(name, who, notes)
        self.gateway = gateway
        self.headers = gateway.bearer("ada")
        self.door = Listening("ws", 0, gateway.ws, self.headers)
        self.door.on_event = self.note
        answer = self.door.one("event.subscribe", b'{"topic":"victim."}\0')
        assert answer.errnum == 0, answer
        self.address = gateway.urls[0].removeprefix("http://")
        self.kept = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)

    def round(self) -> None:
        with self.notes.timed("ws call"):
            answer = self.door.one("broker.ping", b'{"seq":1}\0')
        if answer.errnum:
            self.notes.failed[f"{self.name}: ws call: {answer}"] += 1
        with self.notes.timed("http call"):
            self.http(self.kept)
        if self.rounds % 4 == 0:
            with (
                self.notes.timed("http connect"),
                contextlib.closing(http.client.HTTPConnection(self.address, timeout=PATIENCE_S)) as fresh,
            ):
                self.http(fresh)

    def http(self, connection: http.client.HTTPConnection) -> None:
        connection.request("POST", "/v1/rpc/broker.ping?nodeid=3", b"{}", self.headers | _JSON)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            self.notes.failed[f"{self.name}: http {answer.status} {body[:80]!r}"] += 1

    def receive(self) -> None:
        with contextlib.suppress(TimeoutError):
            self.door.receive()

    def close(self) -> None:
        self.kept.close()
        self.door.close()


class Nfp(Victim):
    """A client of NFP and the worker that does its jobs."""

    def __init__(self, name: str, who: int, notes: Notes, nfp: NfpProcess) -> None:
        super().__init__(name, who, notes)
        self.worker, self.client = (
            nfp.dealer(f"calm-{time.time_ns()}"),
            nfp.dealer(f"client-{time.time_ns()}"),
        )
        self.worker.say(nfp_ready("calm"))

    def round(self) -> None:
        uuid = f"calm-{time.time_ns()}"
        with self.notes.timed("nfp job"):
            self.client.say(nfp_request(Command.POST, uuid, "calm"))
            post = self.worker.until(lambda packet: packet.uuid == uuid, PATIENCE_S)
            self.worker.say(nfp_reply(post, 200, b'{"w1":1}', service="calm"))
            self.client.until(lambda packet: packet.uuid == uuid and packet.status == 200, PATIENCE_S)

    def receive(self) -> None:
        pass

    def close(self) -> None:
        self.worker.close()
        self.client.close()


class Elsewhere(Node):
    """A node of oslo.messaging that another process is."""

    def __init__(self, folder: Path) -> None:
        self.config = NodeConfig(str(folder))
        self.context: zmq.Context[Any] = zmq.Context()
        self._sockets: list[Any] = []

    def close(self) -> None:
        for sock in self._sockets:
            sock.close(0)
        self.context.term()


class Oslo(Victim):
    """A client of oslo.messaging and the server that answers its calls."""

    def __init__(self, name: str, who: int, notes: Notes, proxy: Proxy) -> None:
        super().__init__(name, who, notes)
        self.node = Elsewhere(proxy.folder)
        patience = {"rcvtimeo": int(PATIENCE_S * 1000)}
        self.server = Server(self.node, "call", **patience)
        self.server.open("calm")
        self.client = Client(self.node.socket(zmq.DEALER, self.node.config.path("call.in"), **patience))

    def round(self) -> None:
        with self.notes.timed("oslo call"):
            number = self.client.call("calm", b"{}")
            self.server.reply(self.server.get(), b"{}")
            while (answer := self.client.get()).envelope.id != number:
                pass
        if answer.kind != Kind.REPLY:
            self.notes.failed[f"{self.name}: oslo call: kind {answer.kind}, reason {answer.reason}"] += 1

    def receive(self) -> None:
        pass

    def close(self) -> None:
        self.node.close()


_JSON = {"Content-Type": "application/json"}


class Victims:
    """All of them, running until ``finish``."""

    def __init__(self, stand: Stand) -> None:
        self.notes = Notes()
        uris = stand.place.uris
        self.echo = Echo(uris[0], self.notes)
        self.all: list[Victim] = [
            Local("owner", 1, self.notes, uris[0], 0, FAR, None),
            Local("user", 2, self.notes, uris[FAR], FAR, 0, VICTIM_UID),
        ]
        if stand.gateway is not None:
            self.all.append(Web("web user", 3, self.notes, stand.gateway))
        if stand.nfp is not None:
            self.all.append(Nfp("user of nfp", 4, self.notes, stand.nfp))
        if stand.oslo is not None:
            self.all.append(Oslo("user of oslo", 5, self.notes, stand.oslo))
        self.bystanders = {
            f"bystander of rank {rank}": Speaker(uri, VICTIM_UID) for rank, uri in enumerate(uris)
        }
        self.echo.start()
        for victim in self.all:
            victim.start()

    def await_rounds(self, rounds: int = 3) -> None:
        """Until each has done everything so often since now."""
        wanted = {victim: victim.rounds + rounds for victim in self.all}
        while any(victim.rounds < count and not victim.stopping.is_set() for victim, count in wanted.items()):
            time.sleep(0.005)

    def finish(self) -> Notes:
        """Stop them, wait for what is under way, and look who is still there."""
        for victim in self.all:
            victim.stopping.set()
        while any(victim.busy for victim in self.all):
            time.sleep(0.005)
        for victim in self.all:
            victim.finish()
        self.echo.stopping.set()
        self.echo.join()
        for name, bystander in self.bystanders.items():
            if is_closed(bystander):
                self.notes.ended.append(name)
            bystander.close()
        return self.notes
