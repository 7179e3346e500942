"""Rooms and directories that answer with something else than was asked for are silent ones."""

import contextlib
import threading

import pytest
import zmq

from broker.oslo.contract import Settings
from broker.oslo.directory import wire
from broker.oslo.frames import Kind, decode, encode
from broker.oslo.service import asking
from tests.live.oslo_wire import tell
from tests.tables import for_each

HEAD = wire.MAGIC + bytes([wire.VERSION, wire.DirectoryKind.STATES])
DEEP = b"[" * 100_000


@contextlib.contextmanager
def answering(path, answer):
    """A ROUTER at ``path`` that answers each message with what ``answer`` makes of its first frame."""
    context = zmq.Context()
    sock = context.socket(zmq.ROUTER)
    sock.bind(f"ipc://{path}")
    ended = threading.Event()

    def run():
        while not ended.is_set():
            if sock.poll(20):
                peer, head, *_ = sock.recv_multipart()
                tell(sock, peer, *answer(head))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sock.close(0)
        context.term()


def status(body):
    return lambda head: [encode(Kind.STATUS, id=decode(head).id), *body]


NONSENSE = [[], [b""], [b"\xff"], [b'{"a":"\xff"}'], [DEEP], [b"[]"], [b'{"a":1e999}'], [b"{"], [b"null"]]


@pytest.mark.patient
@for_each("bodies", [NONSENSE[at : at + 3] for at in range(0, len(NONSENSE), 3)])
def test_rooms_that_answer_nonsense_are_silent_and_the_others_are_heard(tmp_path, bodies):
    rooms = ("call", "fanout", "notify")
    with contextlib.ExitStack() as stack:
        stack.enter_context(answering(tmp_path / "cast.ctl", status([b'{"pipeline":"cast"}'])))
        for room, body in zip(rooms, bodies, strict=True):
            stack.enter_context(answering(tmp_path / f"{room}.ctl", status(body)))
        assert asking.statuses(str(tmp_path), 0.5) == {"cast": {"pipeline": "cast"}} | dict.fromkeys(rooms)


@for_each(
    "body",
    [
        b"",
        b"\xff",
        b'{"a":"\xff"}',
        DEEP,
        b"[]",
        b"{}",
        b'{"states":[],"complete":1e999}',
        b'{"states":3,"complete":true}',
    ],
    ids=range(8),
)
def test_a_directory_that_answers_nonsense_is_none(tmp_path, body):
    with answering(tmp_path / "directory.ctl", lambda _head: [HEAD, body]):
        assert asking.states(Settings(str(tmp_path)), 0.5) is None
        assert asking.listened(Settings(str(tmp_path)), 0.5) is None


def test_a_directory_without_anybody(tmp_path):
    with answering(tmp_path / "directory.ctl", lambda _head: [HEAD, b'{"states":[],"complete":true}']):
        assert asking.listened(Settings(str(tmp_path)), 10.0) == []
