"""A real session with journals: a tree of two brokers, a gateway, a broker of NFP and a proxy of oslo, started by one
command; people and programs speak with all of them, and what each end sent and received is written down here.

    session = captured(folder)                   # capture = both; some seconds
    session.journals                             # the folder of the segments: rank0, rank1, nfp, oslo-proxy
    session.said("nfp", end="client", did="sent")

The log is of this process alone: what the ends handed to their libraries or sockets, and what they got from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from broker.nfp.client import NfpClient
from broker.nfp.frames import Packet
from broker.nfp.names import Sender
from broker.nfp.peer.channel import Receiver
from broker.nfp.peer.dealer import DealerChannel
from broker.nfp.peer.keys import credentials
from broker.nfp.worker import Worker
from broker.oslo.client import open_session
from broker.oslo.contract import Address, Settings
from broker.wire.framing import Splitter
from broker.wire.message import NORESPONSE, RESPONSE, Message, event, request
from broker.wire.payload import encode_json
from gateway.settings import load
from tests.live.gateways import USERS, make_tokens
from tests.live.speaker import Speaker
from tests.live.starter import UP, Started, started

START_S = 40.0
LEAVE_S = 20.0
WITHIN_S = 30.0
SECRET = "a-secret-nobody-else-has"
"""Stands in the bodies of all kinds of messages, and nowhere else."""
EXCHANGE = "openstack"


@dataclass(frozen=True)
class Said:
    """One message at one end."""

    wing: str
    """flux, nfp or oslo."""
    end: str
    """unix0, unix1, web; client, worker; client, server, listener."""
    did: str
    """sent or received."""
    facts: dict[str, Any]


@dataclass
class Captured:
    """What a session left."""

    journals: Path
    log: list[Said] = field(default_factory=list)

    def add(self, wing: str, end: str, did: str, **facts: Any) -> None:
        self.log.append(Said(wing, end, did, facts))

    def said(self, wing: str, *, end: str = "", did: str = "", **facts: Any) -> list[Said]:
        """What was said there; "" and left out: anything."""
        return [
            each
            for each in self.log
            if each.wing == wing
            and end in ("", each.end)
            and did in ("", each.did)
            and facts.items() <= each.facts.items()
        ]


def captured(
    folder: Path, *, capture: str = "both", payload: bool = True, times: int = 5, ranks: int = 2
) -> Captured:
    """Run a session in ``folder`` (a short path) of so many brokers, each part ``times`` times."""
    session = Captured(folder / "journal")
    with running(folder, session.journals, capture=capture, payload=payload, ranks=ranks) as live:
        flux_part(session, live, times, ranks)
        asyncio.run(asyncio.wait_for(web_part(session, live, times), WITHIN_S))
        asyncio.run(asyncio.wait_for(nfp_part(session, live, folder, times), WITHIN_S))
        oslo_part(session, live, times)
    return session


# -- what runs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Running:
    """Where everything is reached."""

    uri: str
    url: str
    tokens: dict[str, str]
    nfp: str
    nfp_key: str
    ipc_dir: str


@contextlib.contextmanager
def running(
    folder: Path, journals: Path, *, capture: str, payload: bool, ranks: int = 2
) -> Iterator[Running]:
    """`headgate up` with both wings and journals; ended in order, so that all of them are complete."""
    brokers = folder / "broker.toml"
    brokers.write_text(
        f'[journal]\ncapture = "{capture}"\npayload = {str(payload).lower()}\n'
        f'[nfp]\nendpoint = "tcp://127.0.0.1:*"\nbase_dir = "{folder}/nfp"\nfiles = ""\n'
        f'[oslo]\nnode = "here"\nipc_dir = "{folder}/oslo"\nbridge = false\n'
        "call_port = 0\nfanout_port = 0\nnotify_port = 0\ncast_port = 0\ndirectory_port = 0\n"
        f'[[oslo.rules]]\ntopics = ["forbidden*"]\naction = "send"\nroles = ["user", "owner"]\nallow = false\n'
    )
    config = folder / "gateway.toml"
    config.write_text(
        f'[gateway]\nstatedir = "{folder}/state"\ndrain_s = 0.2\n[[listen]]\nurl = "http://127.0.0.1:0"\n{USERS}'
    )
    tokens = make_tokens(load(config))
    words = ["up", "--size", str(ranks), "--rundir", f"{folder}/run", "--config", str(config)]
    words += ["--broker-config", str(brokers), "--journal", str(journals), "--no-login"]
    errors = folder / "up.log"
    with errors.open("wb") as log:
        argv = [sys.executable, "-m", "broker.cli.main", *words]
        process = started(argv, loads=UP, stdout=subprocess.PIPE, stderr=log)
    try:
        text = _printed(process, errors)
        endpoint, key = _found(r"NFP broker at (\S+), key (\S+)", text)
        (uri,) = _found(r"FLUX_URI=(\S+)", text)
        (url,) = _found(r"^(http://\S+)$", text)
        yield Running(uri, url, tokens, endpoint, key, f"{folder}/oslo")
        process.send_signal(signal.SIGINT)
        code = process.wait(LEAVE_S)
        assert code == 0, f"it left with code {code}: {errors.read_text()[-2000:]}"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _printed(process: subprocess.Popen[bytes] | Started, errors: Path) -> str:
    assert process.stdout is not None
    said, end = "", time.monotonic() + START_S
    while "Ctrl-C ends it" not in said:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
        some = os.read(process.stdout.fileno(), 4096) if ready else b""
        assert some, f"it is not up: {said!r} {errors.read_text()[-2000:]}"
        said += some.decode()
    return said


def _found(pattern: str, text: str) -> tuple[str, ...]:
    match = re.search(pattern, text, re.MULTILINE)
    assert match is not None, f"no {pattern} in {text!r}"
    return match.groups()


# -- Flux: two clients on UNIX sockets, one on a WebSocket ----------------------------------------


def flux_part(session: Captured, live: Running, times: int, ranks: int = 2) -> None:
    """Calls on all ranks, from one to the other, one that nobody serves, and events."""
    for rank in range(ranks):
        end = f"unix{rank}"
        with Speaker(live.uri.replace("local-0", f"local-{rank}")) as speaker:
            for number in range(times):
                _call(session, end, speaker, "attr.get", {"name": "rank"}, 1 + 3 * number)
                _call(session, end, speaker, "broker.ping", {"seq": number, "pad": SECRET}, 2 + 3 * number)
                _call(session, end, speaker, "nobody.here", {"number": number}, 3 + 3 * number)
                happened = event(f"captured.{end}", encode_json({"number": number, "pad": SECRET}))
                speaker.tell(happened)
                session.add("flux", end, "sent", type="event", topic=f"captured.{end}")


def _call(
    session: Captured, end: str, speaker: Speaker, topic: str, payload: dict[str, Any], tag: int
) -> None:
    session.add("flux", end, "sent", type="request", topic=topic, matchtag=tag)
    answer = speaker.ask(request(topic, encode_json(payload), matchtag=tag))
    session.add("flux", end, "received", type="response", topic=topic, matchtag=tag, errnum=answer.errnum)


async def web_part(session: Captured, live: Running, times: int) -> None:
    """A user behind the gateway: calls that are answered, and some that the gateway refuses."""
    address = live.url.replace("http", "ws", 1) + "/v1/ws"
    headers = {"Authorization": f"Bearer {live.tokens['bob']}"}
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(address, protocols=("flux.v1",), headers=headers) as ws,
    ):
        splitter = Splitter()
        for number in range(times):
            for at, topic in enumerate(("broker.ping", "secret.thing")):
                tag = 1 + 2 * number + at
                asked = request(topic, encode_json({"seq": number, "pad": SECRET}), matchtag=tag, userid=77)
                session.add("flux", "web", "sent", type="request", topic=topic, matchtag=tag)
                await ws.send_bytes(asked.framed())
                answer = await _answer(ws, splitter, tag)
                session.add(
                    "flux",
                    "web",
                    "received",
                    type="response",
                    topic=topic,
                    matchtag=tag,
                    errnum=answer.errnum,
                )
        quiet = request("secret.quiet", flags=NORESPONSE, userid=77)
        await ws.send_bytes(quiet.framed())
        session.add("flux", "web", "sent", type="request", topic="secret.quiet", matchtag=0)
        await ws.send_bytes(event("secret.event", encode_json({}), userid=77).framed())
        session.add("flux", "web", "sent", type="event", topic="secret.event")
        last = request("broker.ping", encode_json({"seq": -1}), matchtag=1 + 2 * times)
        await ws.send_bytes(last.framed())
        session.add("flux", "web", "sent", type="request", topic="broker.ping", matchtag=1 + 2 * times)
        answer = await _answer(ws, splitter, 1 + 2 * times)
        session.add(
            "flux",
            "web",
            "received",
            type="response",
            topic="broker.ping",
            matchtag=1 + 2 * times,
            errnum=answer.errnum,
        )


async def _answer(ws: aiohttp.ClientWebSocketResponse, splitter: Splitter, tag: int) -> Message:
    while True:
        frame = await ws.receive(timeout=WITHIN_S)
        if frame.type is not aiohttp.WSMsgType.BINARY:  # a control object
            assert frame.type is aiohttp.WSMsgType.TEXT, frame
            continue
        for message in splitter.feed(frame.data):
            if message.type == RESPONSE and message.matchtag == tag:
                return message


# -- NFP ------------------------------------------------------------------------------------------


class LoggingChannel(DealerChannel):
    """A channel that writes down every packet its owner sends and gets; OPEN is the channel's own, and not there."""

    def __init__(
        self, session: Captured, end: str, live: Running, folder: Path, name: str, sender: Sender
    ) -> None:
        curves = credentials(folder / "peers", name, [live.nfp], server_key=live.nfp_key)
        super().__init__([live.nfp], identity=name, sender=sender, curves=curves)
        self._captured = session
        self._end = end

    def start(self, receiver: Receiver, open_body: Callable[[], dict[str, Any]]) -> None:
        super().start(_Listening(receiver, self._log), open_body)

    def send(self, packet: Packet) -> bool:
        queued = super().send(packet)
        if queued:
            self._log("sent", packet)
        return queued

    def _log(self, did: str, packet: Packet) -> None:
        self._captured.add(
            "nfp",
            self._end,
            did,
            command=packet.command.name,
            service=packet.service,
            uuid=packet.uuid,
            code=packet.status,
            size=len(packet.data),
        )


class _Listening:
    """Between a channel and its owner."""

    def __init__(self, owner: Receiver, log: Callable[[str, Packet], None]) -> None:
        self._owner = owner
        self._log = log
        self.on_connect = owner.on_connect
        self.on_disconnect = owner.on_disconnect

    def on_packet(self, packet: Packet) -> None:
        self._log("received", packet)
        self._owner.on_packet(packet)


async def nfp_part(session: Captured, live: Running, folder: Path, times: int) -> None:
    """Jobs that succeed, one that raises (a result like another), one that nobody does in time, and one that is
    cancelled; then the worker leaves.
    """
    worker = Worker(
        "lab", name="lab-1", channel=LoggingChannel(session, "worker", live, folder, "lab-1", Sender.WORKER)
    )

    @worker.task
    def echo(text: str, number: int) -> dict[str, Any]:
        return {"text": text, "number": number}

    @worker.task
    def fail() -> None:
        raise ValueError("no such device")

    running_worker = asyncio.get_running_loop().create_task(worker.run())
    try:
        channel = LoggingChannel(session, "client", live, folder, "cli-1", Sender.CLIENT)
        async with NfpClient("cli-1", channel=channel) as client:
            await client.wait_connected(WITHIN_S)
            while not any(each["name"] == "lab-1" for each in await client.workers("lab")):
                await asyncio.sleep(0.02)
            for number in range(times):
                job = await client.submit(
                    "lab", "echo", kwargs={"text": SECRET, "number": number}, target="any"
                )
                found = (await job)["lab-1"]["result"]
                assert found == {"text": SECRET, "number": number}
                session.add("nfp", "client", "outcome", uuid=job.uuid, task="echo", status="COMPLETED")
            job = await client.submit("lab", "fail", target="any")
            await _settled(job)
            session.add("nfp", "client", "outcome", uuid=job.uuid, task="fail", status="FAILED")
            late = await client.submit("nobody", "wait", target="any", timeout_s=0.3)
            await _settled(late)
            session.add("nfp", "client", "outcome", uuid=late.uuid, task="wait", status="EXPIRED")
            given_up = await client.submit("nobody", "leave", target="any", timeout_s=WITHIN_S)
            await given_up.cancel()
            session.add("nfp", "client", "outcome", uuid=given_up.uuid, task="leave", status="CANCELLED")
    finally:
        worker.stop()
        await asyncio.wait({running_worker}, timeout=LEAVE_S)


async def _settled(job: Any) -> None:
    with contextlib.suppress(Exception):
        await job


# -- oslo -----------------------------------------------------------------------------------------


def oslo_part(session: Captured, live: Running, times: int) -> None:
    """Calls, casts, fan-outs and notifications from one port to another, and some that a rule refuses."""
    with contextlib.ExitStack() as stack:
        serving = open_session(Settings(live.ipc_dir))
        stack.callback(serving.close)
        server = serving.listen(Address(EXCHANGE, "compute", "a1"))
        forbidden = serving.listen(Address(EXCHANGE, "forbidden", "a1"))  # or nobody would send there
        listener = serving.listen_notifications([(EXCHANGE, "notifications.info")], "pool")
        wanted = {"request": times, "cast": times, "fanout": times}
        heard = threading.Thread(target=_serve, args=(session, server, sum(wanted.values())))
        noticed = threading.Thread(target=_notice, args=(session, listener, times))
        for thread in (heard, noticed):
            thread.start()
        sending = open_session(Settings(live.ipc_dir, linger_s=5.0))
        try:
            _send(session, sending, times)
        finally:
            for thread in (heard, noticed):
                thread.join(WITHIN_S)
            sending.close()
            for intake in (server, forbidden, listener):
                intake.close()
        assert not heard.is_alive()
        assert not noticed.is_alive()


def _send(session: Captured, port: Any, times: int) -> None:
    where = Address(EXCHANGE, "compute", "a1")
    for number in range(times):
        body = _body("reboot", number)
        session.add(
            "oslo", "client", "sent", what="request", topic="compute", method="reboot", size=len(body)
        )
        reply = port.call(where, body, timeout_s=WITHIN_S)
        session.add(
            "oslo", "client", "received", what="reply", topic="compute", method="reboot", size=len(reply)
        )
        for what, give in (("cast", port.cast), ("fanout", port.fanout)):
            body = _body(f"{what}ed", number)
            session.add(
                "oslo", "client", "sent", what=what, topic="compute", method=f"{what}ed", size=len(body)
            )
            give(Address(EXCHANGE, "compute", "a1" if what == "cast" else ""), body)
        notice = json.dumps(
            {
                "ctxt": {},
                "message": {
                    "oslo.version": "2.0",
                    "oslo.message": json.dumps(
                        {
                            "event_type": "compute.end",
                            "publisher_id": "compute.a1",
                            "priority": "INFO",
                            "message_id": str(number),
                            "payload": {"secret": SECRET},
                        }
                    ),
                },
            }
        ).encode()
        session.add(
            "oslo", "client", "sent", what="notification", topic="notifications", method="", size=len(notice)
        )
        port.notify(EXCHANGE, "notifications.info", notice, retry=-1)
    for number in range(times):
        body = _body("never", number)
        session.add(
            "oslo", "client", "sent", what="request", topic="forbidden", method="never", size=len(body)
        )
        try:
            port.call(Address(EXCHANGE, "forbidden"), body, timeout_s=2.0)
        except Exception as error:
            session.add(
                "oslo",
                "client",
                "received",
                what="error",
                topic="forbidden",
                method="never",
                text=type(error).__name__,
            )


def _body(method: str, number: int) -> bytes:
    message = {"method": method, "args": {"secret": SECRET, "number": number}, "version": "1.0"}
    return json.dumps({"ctxt": {"user": SECRET}, "message": message}).encode()


def _serve(session: Captured, intake: Any, count: int) -> None:
    until = time.monotonic() + WITHIN_S
    while count and time.monotonic() < until:
        item = intake.get(0.2)
        if item is None:
            continue
        count -= 1
        method = json.loads(item.body)["message"]["method"]
        what = {"reboot": "request", "casted": "cast", "fanouted": "fanout"}[method]
        session.add(
            "oslo",
            "server",
            "received",
            what=what,
            topic=item.address.topic,
            method=method,
            size=len(item.body),
        )
        if item.wants_reply:
            reply = json.dumps({"result": {"secret": SECRET}}).encode()
            item.reply(reply)
            session.add(
                "oslo",
                "server",
                "sent",
                what="reply",
                topic=item.address.topic,
                method=method,
                size=len(reply),
            )


def _notice(session: Captured, intake: Any, count: int) -> None:
    until = time.monotonic() + WITHIN_S
    while count and time.monotonic() < until:
        item = intake.get(0.2)
        if item is None:
            continue
        count -= 1
        session.add(
            "oslo",
            "listener",
            "received",
            what="notification",
            topic="notifications",
            method="",
            size=len(item.body),
        )
