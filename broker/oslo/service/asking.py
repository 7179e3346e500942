"""What the rooms of a node count, and what its directory knows: asked once each, from any thread (blocking).

A room is asked over its control socket with a STATUS envelope (``frames``); the directory's states come as for any
reader: HELLO, then STATES until they are complete. Whoever says nothing in time, or something else, counts as silent.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, Final

import zmq

from broker.nesting import read_json
from broker.oslo import frames
from broker.oslo.contract import Settings
from broker.oslo.directory import wire
from broker.oslo.directory.wire import DirectoryKind, Hello
from broker.oslo.frames import Kind
from broker.oslo.names import DIRECTORY_SOCKET, Pipeline, control_file
from broker.oslo.node import DIRECTORY
from broker.oslo.reactor.bundle import frames_of
from broker.oslo.reactor.tuning import Tuning, curve_to_directory, tune_local, tune_tcp
from broker.oslo.records import State
from broker.transport import curve
from broker.trust import folder_objection

ANSWER_S: Final = 1.0
"""How long a room may take: it answers between two messages."""
ROOMS: Final = (DIRECTORY, *map(str, Pipeline))
"""In the order in which they are shown."""


def socket_of(room: str) -> str:
    """The control socket of a room, a file in the node's folder."""
    return DIRECTORY_SOCKET if room == DIRECTORY else control_file(Pipeline(room))


def present(ipc_dir: str) -> tuple[str, ...]:
    """Rooms that have a control socket in the folder, whether they live or not."""
    return tuple(room for room in ROOMS if os.path.exists(os.path.join(ipc_dir, socket_of(room))))


def statuses(
    ipc_dir: str, answer_s: float = ANSWER_S, *, figures: bool = False
) -> dict[str, dict[str, Any] | None]:
    """What each room that is ``present`` says of itself; None: nothing within ``answer_s``, all in all.

    ``figures``: only what the pipelines count by topic, under ``figures``; an older one says all, and not that.
    """
    there = () if folder_objection(ipc_dir) else present(ipc_dir)
    asked = [room for room in there if not (figures and room == DIRECTORY)]
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(asked)
    number = frames.new_id()
    question = frames.encode(Kind.STATUS, id=number, word=int(figures))
    with _context() as context, contextlib.ExitStack() as stack:
        poller = zmq.Poller()
        rooms: dict[Any, str] = {}
        for room in found:
            sock = stack.enter_context(context.socket(zmq.DEALER))
            tune_local(sock)
            sock.connect(f"ipc://{os.path.join(ipc_dir, socket_of(room))}")
            poller.register(sock, zmq.POLLOUT)
            rooms[sock] = room
        end = time.monotonic() + answer_s
        while rooms and (left_s := end - time.monotonic()) > 0:
            for sock, event in poller.poll(_ms(left_s)):
                if event & zmq.POLLOUT:  # connected: an unconnected one would keep it for itself
                    sock.send_multipart([question, b""], zmq.NOBLOCK)
                    poller.modify(sock, zmq.POLLIN)
                    continue
                said = _status(sock.recv_multipart(zmq.NOBLOCK), number)
                if said is not None:
                    found[rooms.pop(sock)] = said
                    poller.unregister(sock)
    return found


def _status(received: list[bytes], number: bytes) -> dict[str, Any] | None:
    """The object in the answer to our question; None for anything else."""
    try:
        parts = frames_of(received)
        envelope = frames.decode(parts[0])
        if envelope.kind != Kind.STATUS or envelope.id != number:
            return None
        said = read_json(parts[1])
    except (IndexError, ValueError):
        return None
    return said if isinstance(said, dict) else None


# ---------------------------------------------------------------- the directory


def states(settings: Settings, answer_s: float = ANSWER_S) -> list[State] | None:
    """What the node's directory knows, or the first of ``settings.directories`` that answers; None when none does."""
    local = os.path.join(settings.ipc_dir, DIRECTORY_SOCKET)
    endpoints = [f"ipc://{local}"] if os.path.exists(local) and not folder_objection(settings.ipc_dir) else []
    with _context() as context:
        for endpoint in (*endpoints, *settings.directories):
            with context.socket(zmq.DEALER) as sock:
                _tune(sock, endpoint, settings)
                sock.connect(endpoint)
                found = _states_from(sock, time.monotonic() + answer_s)
            if found is not None:
                return found
    return None


def _tune(sock: zmq.Socket[bytes], endpoint: str, settings: Settings) -> None:
    if endpoint.startswith("ipc:"):
        tune_local(sock)
        return
    own = curve.load(settings.curve_cert) if settings.curve_cert else None
    tune_tcp(sock, Tuning(curve=curve_to_directory(own, settings.directory_key)))


def _states_from(sock: zmq.Socket[bytes], end: float) -> list[State] | None:
    if not sock.poll(_ms(end - time.monotonic()), zmq.POLLOUT):
        return None
    sock.send_multipart(wire.encode(DirectoryKind.HELLO, Hello(want=True)), zmq.NOBLOCK)
    found: list[State] = []
    while (left_s := end - time.monotonic()) > 0:
        if not sock.poll(_ms(left_s)):
            return None
        try:
            kind, body = wire.decode(frames_of(sock.recv_multipart(zmq.NOBLOCK)))
        except ValueError:
            return None
        if kind is DirectoryKind.STATES:
            found += body.states
            if body.complete:
                return found
    return None


def listened(settings: Settings, answer_s: float = ANSWER_S) -> list[dict[str, Any]] | None:
    """Where rpc-servers listen: a row {"exchange", "topic", "servers", "nodes"} each; None as of ``states``."""
    known = states(settings, answer_s)
    if known is None:
        return None
    rows: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    for state in known:
        if state.pipeline not in (Pipeline.CALL, Pipeline.CAST):
            continue
        for record in state.records:
            servers, nodes = rows.setdefault((record.exchange, record.topic), (set(), set()))
            servers.add(record.server)
            nodes.add(state.node)
    return [
        {"exchange": exchange, "topic": topic, "servers": sorted(servers), "nodes": sorted(nodes)}
        for (exchange, topic), (servers, nodes) in sorted(rows.items())
    ]


def _ms(seconds: float) -> int:
    return max(0, int(seconds * 1000) + 1)


@contextlib.contextmanager
def _context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    context.set(zmq.BLOCKY, False)
    try:
        yield context
    finally:
        context.destroy(0)
