"""What a session of a verb makes of errors: ``--watch`` goes on over the next link; an odd answer is told."""

import asyncio
import re
from contextlib import asynccontextmanager

import pytest

from broker.cli import exits, session
from broker.cli.main import main
from broker.cli.session import looked
from broker.errors import LinkEnded
from tests.tables import for_each


class Handle:
    def __init__(self, ended=None):
        self.ended = ended
        self.waited = 0

    async def writable(self):
        self.waited += 1


def looking(handle, watch, *outcomes):
    left = list(outcomes)

    async def look():
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    return asyncio.run(looked(handle, look, watch))


def test_a_look_is_had_again_when_its_link_was_lost():
    handle = Handle()
    assert looking(handle, True, LinkEnded("away"), LinkEnded("again"), "picture") == "picture"
    assert handle.waited == 3


@for_each(("watch", "ended"), [(False, None), (True, LinkEnded("for good"))])
def test_one_look_or_the_end_of_all_links_is_an_error(watch, ended):
    with pytest.raises(LinkEnded):
        looking(Handle(ended), watch, LinkEnded("away"), "picture")


def test_a_fault_while_an_answer_is_read_is_told_with_its_place_and_trace(monkeypatch, caplog, capsys):
    class Answer:
        def json(self):
            return ["no", "object"]

    class Odd:
        async def rpc(self, *_args, **_more):
            return Answer()

    @asynccontextmanager
    async def connect(_uri, **_more):
        yield Odd()

    monkeypatch.setattr(session, "connect", connect)
    caplog.set_level("DEBUG", "headgate.cli")
    assert main(["attr", "list", "--uri", "local:///none"]) == exits.FAILED
    assert re.search(
        r"an answer is none that a broker gives: TypeError: .* \(attr\.py:\d+\)$", capsys.readouterr().err
    )
    assert [record.exc_info[0] for record in caplog.records] == [TypeError]
