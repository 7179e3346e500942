"""The recorded dialogues between deployed brokers, replayed over real ZeroMQ against ours.

A record is what one side sent. Here a bare socket says the recorded peer's part, byte for byte as far as it does
not name somebody's uuid, and what ours answers is compared with what was recorded: type, flags, topic, errnum, error
text, JSON keys.
"""

import asyncio
import json
from dataclasses import replace

import pytest
import zmq

from broker import settings
from broker.node.assembly import Node
from broker.transport import curve
from broker.wire.decoding import from_parts
from broker.wire.message import CONTROL, EVENT, REQUEST, RESPONSE, UPSTREAM, Message, event
from broker.wire.parts import encode_part
from broker.wire.payload import any_text, decode_json, encode_json
from tests import vectors
from tests.unit.node.overlay.trees import tcp_place, until

UP, DOWN = "child->parent", "parent->child"
SPOKEN_BY_A_REAL_CHILD = 18
"""The first records are of a real child with a parent of the recorder's; the others of a real parent."""


def said(record) -> Message:
    """A recorded message."""
    return from_parts([bytes.fromhex(part) if isinstance(part, str) else part for part in record.parts])


def looks(message, without=("headgate",)):
    """What must be as recorded."""
    payload = message.payload
    keys = None
    if payload and payload.startswith(b"{"):
        keys = sorted(key for key in json.loads(payload[:-1]) if key not in without)
    text = any_text(payload) if message.errnum and message.type == RESPONSE else ""
    errnum = message.errnum if message.type == RESPONSE else 0
    kind = message.aux1 if message.type == CONTROL else None
    return (message.type, message.flags, message.topic, errnum, text, keys, kind)


def dialogues():
    """The records in which a real broker was the parent, cut at each hello."""
    cut = []
    for record in vectors.tbon()[SPOKEN_BY_A_REAL_CHILD:]:
        if record.decoded["topic"] == "overlay.hello" and record.direction == UP:
            cut.append([])
        cut[-1].append(record)
    return cut


class Stage:
    """One of our ranks, whose peer the test plays; ranks form a chain, hosts are fake0, fake1, fake2."""

    def __init__(self, rundir):
        self.rundir = rundir
        self.certificate = curve.generate()
        self.addresses = [tcp_place() for _ in range(3)]
        self.context = zmq.Context()
        self.sockets = []
        self.node = None

    async def play(self, rank):
        curve.save(self.certificate, self.rundir / "curve.cert", replace=True)
        hosts = "".join(
            f'[[hosts]]\nrank = {rank}\naddress = "{address}"\nhostname = "fake{rank}"\n'
            f"public_key = '{self.certificate.public_key}'\n"
            for rank, address in enumerate(self.addresses)
        )
        text = (
            f'[broker]\nrank = {rank}\nrundir = "{self.rundir}"\n'
            f'[tree]\ntopology = "kary:1"\ncurve_cert = "{self.rundir}/curve.cert"\n{hosts}'
        )
        self.node = Node(settings.loads(text).at_rank(rank))
        await self.node.start()

    def socket(self, kind, certificate=None):
        mine = certificate or self.certificate
        sock = self.context.socket(kind)
        self.sockets.append(sock)
        sock.curve_publickey = mine.public_key.encode()
        sock.curve_secretkey = mine.secret_key.encode()
        return sock

    def dealer(self, identity, certificate=None):
        """A child's socket, connected to our rank 0."""
        sock = self.socket(zmq.DEALER, certificate)
        sock.curve_serverkey = self.certificate.public_key.encode()
        sock.identity = identity.encode()
        sock.connect(self.addresses[0])
        return sock

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_error):
        if self.node is not None:
            self.node.overlay._config = replace(self.node.overlay._config, goodbye_timeout_s=0.1)
            self.node.overlay.refuse_children()
            await self.node.overlay.stop()
            await self.node.stop()
        for sock in self.sockets:
            sock.close(0)
        self.context.term()


async def receive(sock, wanted=lambda message: True, routed=False):
    """The next message that is wanted; heartbeats of the instance may come at any time."""
    async with asyncio.timeout(10):
        while True:
            while not sock.poll(0):
                await asyncio.sleep(0.002)
            parts = sock.recv_multipart()
            message = from_parts(parts[1:] if routed else parts)
            if wanted(message) and message.topic != "heartbeat.pulse":
                return (parts[0], message) if routed else message


def send(sock, message):
    sock.send_multipart([bytes(part) for part in message.parts()])


def run(rundir, tell):
    async def main():
        async with Stage(rundir) as stage:
            await tell(stage)

    asyncio.run(main())


def is_refusal(dialogue):
    return len(dialogue) > 1 and dialogue[1].decoded["errnum"] != 0


REFUSALS = [dialogue for dialogue in dialogues() if is_refusal(dialogue)]
ADMITTED = [dialogue for dialogue in dialogues() if len(dialogue) > 1 and not is_refusal(dialogue)]
UNHEARD = [dialogue for dialogue in dialogues() if len(dialogue) == 1]


def test_the_records_are_all_used():
    assert (len(REFUSALS), len(ADMITTED), len(UNHEARD)) == (5, 1, 1)


@pytest.mark.parametrize("dialogue", REFUSALS, ids=lambda dialogue: dialogue[0].place)
def test_ours_refuses_as_a_real_parent_did(dialogue, rundir):
    async def tell(stage):
        await stage.play(0)
        sock = stage.dealer(dialogue[0].decoded["payload_json"]["uuid"])
        for record in dialogue:
            if record.direction == UP:
                send(sock, said(record))
            else:
                assert looks(await receive(sock)) == looks(said(record))
        assert stage.node.overlay.online_children() == []

    run(rundir, tell)


@pytest.mark.parametrize("dialogue", UNHEARD, ids=lambda dialogue: dialogue[0].place)
def test_an_unknown_key_is_not_heard_at_all(dialogue, rundir, caplog):
    async def tell(stage):
        await stage.play(0)
        sock = stage.dealer(dialogue[0].decoded["payload_json"]["uuid"], curve.generate())
        send(sock, said(dialogue[0]))
        await until(lambda: "unknown CURVE key" in caplog.text)
        assert not sock.poll(100)

    run(rundir, tell)


def test_ours_serves_a_child_as_a_real_parent_did(rundir):
    """Hello, a request up, status, heartbeat, an event up, a request down, goodbye, a word too many."""
    (dialogue,) = ADMITTED

    async def tell(stage):
        await stage.play(0)
        uuid = dialogue[0].decoded["payload_json"]["uuid"]
        sock = stage.dealer(uuid)
        down = {}
        for record in dialogue:
            message = said(record)
            if record.direction == UP and message.type == RESPONSE:
                asked = down[message.topic]
                message.front = asked.front
                message.tag = asked.tag
                send(sock, message)
            elif record.direction == UP:
                send(sock, message)
            elif message.type == REQUEST:
                down[message.topic] = await check_request_down(stage, sock, message)
            else:
                await check_answer(stage, sock, message)
        assert stage.node.overlay.child_health()[0]["error"] == "administrative shutdown"

    run(rundir, tell)


async def check_answer(stage, sock, recorded):
    if recorded.type == EVENT and recorded.topic == "foo.bar":  # published at rank 0 itself
        stage.node.context.publish(event("foo.bar", **stage.node.context.cred._asdict()))
    got = await receive(sock, lambda message: message.type == recorded.type)
    assert looks(got) == looks(recorded)
    if recorded.type == RESPONSE:
        assert got.routes == recorded.routes
        assert got.matchtag == recorded.matchtag


async def check_request_down(stage, sock, recorded):
    """Our rank 0 passes a request to rank 1: its own uuid is on top, as recorded."""
    if not recorded.topic.endswith(".disconnect"):
        stage.node.context.call(
            recorded.topic, recorded.payload, lambda _answer: None, nodeid=1, flags=recorded.flags & ~0x0B
        )
    else:
        stage.node.context.call(recorded.topic, None, None, nodeid=1)
    got = await receive(sock, lambda message: message.type == REQUEST)
    assert looks(got) == looks(recorded)
    assert got.routes[0] == stage.node.broker.router.uuid.encode()
    assert got.nodeid == recorded.nodeid
    return got


def test_ours_serves_a_real_childs_first_minutes(rundir):
    """What a real child asks of its parent until it runs, and its goodbye."""
    records = vectors.tbon()[:SPOKEN_BY_A_REAL_CHILD]

    async def tell(stage):
        await stage.play(0)
        sock = stage.dealer(records[0].decoded["payload_json"]["uuid"])
        for record in records:
            message = said(record)
            name = message.topic
            if record.direction == UP:
                if name == "overlay.hello":
                    message = without_hostname(message)
                message.front = message.front[37:]  # the record was made behind the parent's ROUTER
                send(sock, message)
            elif message.type == RESPONSE:
                got = await receive(sock, lambda m, name=name: m.type == RESPONSE and m.topic == name)
                assert got.routes == message.routes[1:]
                assert got.matchtag == message.matchtag
                if name != "broker.ping":  # the recorder's parent knew no ping
                    compare_as_a_child_needs(got, message)
        assert stage.node.overlay.child_health()[0]["status"] == "offline"

    run(rundir, tell)


def without_hostname(message):
    told = decode_json(message.payload)
    told.pop("hostname")
    message.payload_part = encode_part(encode_json(told))
    return message


def compare_as_a_child_needs(got, recorded):
    """The recorder's parent left UPSTREAM out of its answers, and had a configuration of its own."""
    got.set_flags(got.flags & ~UPSTREAM)
    ours, theirs = looks(got), looks(recorded)
    if recorded.topic == "config.get":
        ours, theirs = ours[:5], theirs[:5]
    assert ours == theirs


def test_ours_answers_a_parent_as_the_recorded_child_did(rundir):
    """Requests come down with the parent's uuid on top and are answered with the identical stack."""
    (dialogue,) = ADMITTED
    parent = "2ba7bac6-e529-408c-a75c-127c7019ad52"

    async def tell(stage):
        sock = stage.socket(zmq.ROUTER)
        sock.curve_server = True
        sock.bind(stage.addresses[0])
        starting = asyncio.get_running_loop().create_task(stage.play(1))
        identity, hello = await receive(sock, lambda m: m.topic == "overlay.hello", routed=True)
        expected = looks(said(dialogue[0]))
        assert looks(hello)[:5] == expected[:5]
        assert looks(hello)[5] == ["hostname", "rank", "status", "uuid", "version"]
        answer = said(next(r for r in dialogue if r.decoded["type"] == "response"))
        assert json.loads(answer.payload[:-1])["uuid"] == parent
        sock.send_multipart([identity, *answer.parts()])
        await starting
        for record in dialogue:
            message = said(record)
            if record.direction == DOWN and message.type == REQUEST:
                sock.send_multipart([identity, *message.parts()])
            if record.direction == UP and message.type == RESPONSE and message.errnum == 0:
                name = message.topic
                _, got = await receive(
                    sock, lambda m, name=name: m.type == RESPONSE and m.topic == name, routed=True
                )
                assert looks(got) == looks(message)
                assert got.front == message.front

    run(rundir, tell)
