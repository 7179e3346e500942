import asyncio
import os
import socket

import pytest

from broker.errors import ConfigError, HeadgateError
from gateway.cluster import control
from tests.tables import for_each


async def do(words):
    if words["do"] == "hang":
        await asyncio.sleep(60)
    known = {
        "rank": ConfigError("rank: saw 9"),
        "broken": HeadgateError("ip failed"),
        "bug": KeyError("x"),
    }
    if words["do"] in known:
        raise known[words["do"]]
    return {"seen": words}


async def asked(path, seconds=5.0, **words):
    def ask():
        with control.connect(path, seconds) as sock:
            return control.ask(sock, **words)

    return await asyncio.to_thread(ask)


@pytest.fixture
def path(rundir):
    return rundir / "control"


def test_a_line_is_answered(path):
    async def run():
        async with await control.serve(path, do):
            return await asked(path, do="kill", rank=3, stay=False)

    assert asyncio.run(run()) == {"ok": True, "seen": {"do": "kill", "rank": 3, "stay": False}}


@for_each(
    ("verb", "kind", "text"),
    [
        ("rank", ConfigError, "rank: saw 9"),
        ("broken", HeadgateError, "ip failed"),
        ("bug", HeadgateError, "KeyError"),
    ],
)
def test_what_the_supervisor_raises_is_raised_at_the_verb(path, verb, kind, text):
    async def run():
        async with await control.serve(path, do):
            with pytest.raises(kind, match=text) as raised:
                await asked(path, do=verb)
            assert raised.type is kind
            assert (await asked(path, do="x"))["ok"]

    asyncio.run(run())


def test_several_lines_of_one_connection_and_what_is_no_json(path):
    async def run():
        async with await control.serve(path, do):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b'{"do": "a"}\nnot json\n[1]\n{"do": "b"}\n')
            lines = [await reader.readline() for _ in range(4)]
            writer.close()
            await writer.wait_closed()
            return [b'"ok":true' in line for line in lines]

    assert asyncio.run(run()) == [True, False, False, True]


def test_nobody_listens(path):
    with pytest.raises(control.NotUp, match="not up"), control.connect(path, 1.0):
        pass
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(control.NotUp, match="refused"), control.connect(path, 1.0):
        pass


def test_a_supervisor_that_says_nothing(path):
    async def run():
        server = await control.serve(path, do)
        with pytest.raises(TimeoutError, match=r"nothing within 0\.2 s"):
            await asked(path, 0.2, do="hang")
        server.close()

    asyncio.run(run())


def test_a_supervisor_that_leaves(path):
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        with control.connect(path, 5.0) as sock:
            door.accept()[0].close()
            with pytest.raises(control.NotUp, match="left before it answered"):
                control.ask(sock, do="status")


def test_who_listens_is_known(path):
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        with control.connect(path, 5.0) as sock:
            assert control.peer_pid(sock) == os.getpid()
