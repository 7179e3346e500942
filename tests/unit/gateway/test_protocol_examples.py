"""PROTOCOL.md is true: its examples run against a live gateway, its tables are compared with the code.

How blocks are marked::

    python                    a program; a ``text`` block behind it is its output
    console                   shell lines that begin with ``$``, and their output
    json client, json server  what either side may send: messages of ``flux.v1.json`` and control objects
    hex NAME                  a binary WebSocket message; words behind the bytes are notes
    js                        run in a browser by ``tests/interop/test_jszmq.py``

``...`` in an output stands for anything.
"""

import asyncio
import doctest
import errno
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec
import pytest

from broker.rfc6455 import reconnects
from broker.wire import message as wire
from broker.wire.message import Message
from gateway import notices
from gateway.closes import MEANINGS
from gateway.codecs import CODECS, control, jsonview, new_codec, zws
from gateway.settings.schema import LimitsSection
from gateway.web.answers import STATUS
from gateway.web.routes import ROUTES
from tests.conftest import OPTIONAL
from tests.live.gateways import Live
from tests.tables import for_each
from tests.unit.gateway.web.site import Site

PAGE = Path(__file__).parents[3] / "gateway" / "PROTOCOL.md"
PROGRAM_S = 30.0


class Block(NamedTuple):
    """A fenced block, and the one behind it."""

    line: int
    kind: str
    text: str
    output: str


def blocks() -> list[Block]:
    page = PAGE.read_text()
    fences = list(re.finditer(r"^```([^`\n]+)\n((?:(?!```).*\n)*)```$", page, re.MULTILINE))
    found = []
    for fence, behind in zip(fences, [*fences[1:], None], strict=True):
        adjacent = behind is not None and behind[1] == "text" and behind.start() == fence.end() + 1
        line = page.count("\n", 0, fence.start()) + 1
        found.append(Block(line, fence[1], fence[2], behind[2] if adjacent else ""))
    return found


def of_kind(kind: str) -> list:
    return [pytest.param(each, id=f"line{each.line}") for each in blocks() if each.kind == kind]


def check_output(expected: str, seen: str) -> None:
    if not doctest.OutputChecker().check_output(expected, seen, doctest.ELLIPSIS):
        raise AssertionError(f"expected:\n{expected}\nseen:\n{seen}")


def table(heading: str, behind: str = "") -> list[list[str]]:
    """The rows below the first table head that begins with ``heading`` behind a line, cells stripped."""
    lines = PAGE.read_text().splitlines()
    lines = lines[lines.index(behind) if behind else 0 :]
    begin = next(number for number, line in enumerate(lines) if line.startswith(heading))
    rows = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows


async def output_of(*argv: str, gateway: Live) -> str:
    env = {**os.environ, "URL": gateway.url, "WS": gateway.ws, "TOKEN": gateway.tokens["ada"]}
    process = await asyncio.create_subprocess_exec(
        *argv, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PROGRAM_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert not err, err.decode()
    return out.decode()


# -- what runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", of_kind("python"))
async def test_programs(live, block):
    assert block.output, "a program without output shows nothing"
    check_output(block.output, await output_of(sys.executable, "-c", block.text, gateway=live))


@pytest.mark.parametrize("block", of_kind("console"))
async def test_commands(live, block):
    if shutil.which("curl") is None:
        pytest.skip(f"{OPTIONAL} there is no curl")
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
        seen = await output_of("sh", "-c", command, gateway=live)
        check_output(expected, seen.replace("\r\n", "\n").rstrip("\n") + "\n")


# -- what is decoded --------------------------------------------------------------------------------


def compact(obj: object) -> bytes:
    return json.dumps(obj, separators=(",", ":")).encode()


@for_each("block", of_kind("json client"))
def test_what_clients_may_send(block):
    obj = json.loads(block.text)
    items = new_codec("flux.v1.json").decode(compact(obj), text=True)
    sent = obj if isinstance(obj, list) else [obj]
    for said, item in zip(sent, items, strict=True):
        again = json.loads(jsonview.encode(item)) if isinstance(item, Message) else item
        assert again | {"matchtag": said.get("matchtag"), "sequence": said.get("sequence")} == said | {
            "matchtag": said.get("matchtag"),
            "sequence": said.get("sequence"),
        }


@for_each("block", of_kind("json server"))
def test_what_the_gateway_sends(block):
    obj = json.loads(block.text)
    for each in obj if isinstance(obj, list) else [obj]:
        if each["type"] in ("request", "response", "event"):
            (message,) = jsonview.decode(compact(each))
            assert json.loads(jsonview.encode(message)) == each
        elif each["type"] == "error":
            assert notices.error(each["code"], each["text"]) == each
        elif each["type"] == "gap":
            assert notices.gap(each["lost"], each["from"], each["to"]) == each
        else:
            assert each["type"] in LIVE


NULLABLE = ("expires", "epoch", "lost")
LIVE = {"welcome", "resumed", "refreshed", "pong", "upstream"}
"""What a session of `live_objects` is told."""


async def test_the_objects_of_a_live_session(site):
    """They have the fields of the examples with values of the same types, and those of the table."""
    shown = [json.loads(each.text) for each in blocks() if each.kind == "json server"]
    examples = {each["type"]: each for each in shown if isinstance(each, dict)}
    found = await live_objects(site)
    assert set(found) == LIVE
    for kind, seen in found.items():
        if kind != "welcome":
            assert told()[kind] == set(seen) - {"type"}
        if kind in examples:
            same(seen, examples[kind])


def same(found: dict, example: dict) -> None:
    """The same fields with values of the same types."""
    assert set(found) == set(example)
    for name, value in example.items():
        if name not in NULLABLE:
            assert type(found[name]) is type(value), name
        if isinstance(value, dict):
            assert set(found[name]) == set(value)


async def live_objects(site: Site) -> dict[str, dict]:
    """The control objects of one session, by type."""
    found: dict[str, dict] = {}
    token = site.live.tokens["ada"]
    async with site.client.ws_connect("/v1/ws", protocols=("flux.v1.json",)) as ws:

        async def until(kind: str) -> None:
            while kind not in found:
                obj = await ws.receive_json()
                found.setdefault(obj["type"], obj)

        await ws.send_json({"type": "auth", "token": token})
        await until("welcome")
        position = {key: found["welcome"][key] for key in ("epoch", "sequence")}
        resume = {"type": "resume", "token": found["welcome"]["resume"], "subscriptions": ["a."]}
        await ws.send_json(resume | position)
        await until("resumed")
        await ws.send_json({"type": "refresh", "token": token})
        await until("refreshed")
        await ws.send_json({"type": "ping"})
        await until("pong")
        site.gateway.delivery.upstream_joined(False, 0)
        await until("upstream")
    return found


HEX = {
    "request": wire.request("attr.get", b'{"name":"size"}\0', nodeid=0, matchtag=1),
    "event": wire.event("job.state", b"\xff\x00", sequence=43, flags=wire.PRIVATE, userid=1001, rolemask=2),
}


@for_each("name", HEX)
def test_bytes(name):
    (block,) = [each for each in blocks() if each.kind == f"hex {name}"]
    rows = [
        re.match(r"(?:[0-9a-f]{2} {1,2})*[0-9a-f]{2}(?= |$)", line.strip())
        for line in block.text.splitlines()
    ]
    assert all(rows)
    data = bytes.fromhex("".join(row[0] for row in rows))
    assert new_codec("flux.v1").decode(data, text=False) == [HEX[name]]
    assert new_codec("flux.v1").encode(HEX[name])[2:] == data


# -- what is compared -------------------------------------------------------------------------------


def test_no_block_is_without_a_test():
    known = {
        "python",
        "text",
        "console",
        "json client",
        "json server",
        "js",
        *(f"hex {name}" for name in HEX),
    }
    assert {each.kind for each in blocks()} <= known


def test_the_subprotocols():
    assert [row[0].strip("`") for row in table("| Subprotocol | WebSocket messages |")] == list(CODECS)
    assert f"at most {zws.MAX_PARTS} parts" in PAGE.read_text()


def test_the_fields_of_json():
    described = {}
    for fields, kinds, *_ in table("| Field | In | Meaning"):
        for field in re.findall(r"`(\w+)`", fields):
            described[field] = {"request", "response", "event"} if kinds == "all" else set(kinds.split(", "))
    for kind in (jsonview.Request, jsonview.Response, jsonview.Event):
        name = kind.__struct_config__.tag
        assert {field for field, kinds in described.items() if name in kinds} == set(
            kind.__struct_fields__
        ), name
    flags = next(row[2] for row in table("| Field | In | Meaning") if row[0] == "`flags`")
    assert set(re.findall(r"`(\w+)`", flags)) == set(jsonview.FLAGS)


def test_the_control_objects_of_clients():
    rows = table("| `type` | Other fields | Meaning |")
    described = {row[0].strip("`"): tuple(re.findall(r"`(\w+)`", row[1])) for row in rows}
    known = (control.Auth, control.Refresh, control.Resume, control.Ping)
    assert described == {kind.__struct_config__.tag: kind.__struct_fields__ for kind in known}


def told() -> dict[str, set[str]]:
    """Type of a control object of the gateway -> its other fields, as the table has them."""
    rows = table("| `type` | Other fields | Meaning |", "From the gateway:")
    return {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in rows}


def test_the_control_objects_of_the_gateway():
    fields = {
        kind.__name__.lower(): set(kind.__annotations__) - {"type"} for kind in get_args(notices.Notice)
    }
    assert told() == fields | {"welcome": set()}  # its own section has them


def test_the_close_codes():
    rows = {
        int(code): (name, text, again)
        for code, name, text, again in table("| Code | Name | Meaning | Reconnect |")
    }
    assert rows == {
        code: (meaning.name, meaning.text, "yes" if meaning.reconnect else "no")
        for code, meaning in MEANINGS.items()
    }
    assert all(reconnects(code) == (4000 <= code < 4500) for code in range(4000, 5000))
    assert [code for code in range(1000, 1015) if reconnects(code)] == [1001, 1006, 1011, 1012, 1013]


def test_the_http_operations():
    assert [row[0].strip("`") for row in table("| Method and path |")] == [
        f"{each.method} {each.path}" for each in ROUTES
    ]
    assert [row[1] for row in table("| Method and path |")] == [each.text for each in ROUTES]


def test_the_error_numbers():
    rows = [(int(number), name, int(status)) for number, name, _, status in table("| errnum | Name |")]
    assert rows == [(number, errno.errorcode[number], status) for number, status in STATUS.items()]


def test_the_limits():
    defaults = msgspec.structs.asdict(LimitsSection())
    for name, value, _ in table("| Setting | Default |"):
        assert str(defaults[name.strip("`").removeprefix("limits.")]) == value, name


def test_links_inside_the_page():
    page = PAGE.read_text()
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors
