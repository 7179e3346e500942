"""Chunks from a socket, in any pieces; what is no chunk; the begin of a last one."""

import socket

import pytest

from broker.errors import ProtocolError
from broker.journal import marks
from broker.journal.writer.intake import AHEAD_BYTES, CHUNK_MAX_BYTES, Intake
from tests.tables import for_each
from tests.unit.journal.writer.plain import calls, encoded


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_chunks_in_pieces_of_any_size(pair):
    ours, theirs = pair
    said = [calls(0, 3), calls(3, 0), calls(3, 1)]
    data = b"".join(map(encoded, said))
    for size in (1, 5, 24, 25, 100):
        intake, heard = Intake(theirs), []
        for at in range(0, len(data), size):
            ours.sendall(data[at : at + size])
            while (chunk := intake.receive()) is not None:
                heard.append(chunk)
        assert heard == said
        assert not intake.ended
        assert intake.rest() is None


def test_an_end_between_two_chunks(pair):
    ours, theirs = pair
    intake = Intake(theirs)
    ours.sendall(encoded(calls(0, 1)))
    ours.close()
    assert intake.receive() == calls(0, 1)
    assert intake.receive() is None
    assert intake.ended
    assert intake.rest() is None


def test_an_end_inside_a_chunk(pair):
    data = encoded(calls(7, 3, cause=1))
    for cut in range(len(data)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            intake = Intake(theirs)
            ours.sendall(data[:cut])
            ours.close()
            while not intake.ended:
                assert intake.receive() is None
            rest = intake.rest()
            if cut < marks.CHUNK_HEAD.size:
                assert rest is None
            else:
                assert rest == (7, 3, 1, data[marks.CHUNK_HEAD.size : cut], False)


def test_a_recorder_that_left_reports_unread_has_ended_as_well(pair):
    ours, theirs = pair
    theirs.send(b"report")
    ours.sendall(encoded(calls(0, 1)))
    ours.close()  # the kernel now says ECONNRESET, behind the data
    intake = Intake(theirs)
    assert intake.receive() == calls(0, 1)
    assert intake.receive() is None
    assert intake.ended


@for_each("head", [b"X", b"HGJX", b"H\0", b"\0" * 24, b"hgjc" + bytes(20)])
def test_what_is_no_chunk(head):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encoded(calls(0, 1)) + head)
        intake = Intake(theirs)
        assert intake.receive() == calls(0, 1)
        with pytest.raises(ProtocolError, match="expected 48 47 4a 43"):
            intake.receive()


def test_a_chunk_that_is_too_large_is_refused_before_anything_is_allocated(pair):
    ours, theirs = pair
    ours.sendall(marks.CHUNK_HEAD.pack(marks.CHUNK_MAGIC, CHUNK_MAX_BYTES + 1, 0, 1, 0))
    with pytest.raises(ProtocolError, match=str(CHUNK_MAX_BYTES + 1)):
        Intake(theirs).receive()


def test_memory_follows_what_came_not_what_was_announced(pair):
    ours, theirs = pair
    ours.sendall(marks.CHUNK_HEAD.pack(marks.CHUNK_MAGIC, CHUNK_MAX_BYTES, 0, 1, 0) + b"abc")
    intake = Intake(theirs)
    assert intake.receive() is None
    assert len(intake._data) == AHEAD_BYTES


def test_a_chunk_larger_than_every_buffer(pair):
    ours, theirs = pair
    ours.setblocking(False)
    said = calls(0, 2, payload=bytes(range(256)) * 20_000)
    data, sent, intake, chunk = memoryview(encoded(said)), 0, Intake(theirs), None
    while chunk is None:
        if sent < len(data):
            sent += ours.send(data[sent : sent + 100_000])
        chunk = intake.receive()
    assert chunk == said
