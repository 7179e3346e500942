"""`headgate up`: one command from nothing to a page that is logged in."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from broker.wire.message import request
from broker.wire.payload import decode_json, encode_json
from tests.live.brokers import eventually, without_progress
from tests.live.speaker import Speaker
from tests.live.starter import UP, started
from tests.live.verbs import headgate

pytestmark = pytest.mark.story
START_S = 30.0


@contextlib.contextmanager
def up(*words):
    """A running `headgate up`, and what it printed."""
    argv = [sys.executable, "-m", "broker.cli.main", "up", "--listen", "http://127.0.0.1:0", *words]
    process = started(argv, loads=UP, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lines = []
    try:
        until = time.monotonic() + START_S
        while "Ctrl-C ends it" not in lines and time.monotonic() < until:
            if select.select([process.stdout], [], [], 1)[0]:
                line = process.stdout.readline()
                if not line:
                    break
                lines.append(line.decode().rstrip("\n"))
        yield process, lines
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def ask(url, *, cookie="", origin="", body=None):
    headers = {"Content-Type": "application/json"}
    headers |= {"Cookie": cookie} if cookie else {}
    headers |= {"Origin": origin} if origin else {}
    asked = urllib.request.Request(url, data=body, headers=headers)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return answer.read(), answer.headers


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as found:
        return [int(word) for word in found.read().split()]


def test_from_nothing_to_a_logged_in_page_and_back(rundir):
    with up("--size", "3", "--rundir", str(rundir / "run")) as (process, lines):
        text = "\n".join(lines)
        assert lines[0].startswith("3 brokers and a gateway are up after")
        uri = re.search(r"^FLUX_URI=(.*)$", text, re.MULTILINE)[1]
        page, _, secret = re.search(r"(http\S+/login#once=\S+)", text)[1].partition("/login#once=")
        body, headers = ask(f"{page}/v1/login", origin=page, body=b'{"once":"%b"}' % secret.encode())
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert b'"roles":["owner"]' in body
        assert b"<title>Headgate" in ask(f"{page}/", cookie=cookie)[0]
        for rank in range(3):
            call = f"{page}/v1/rpc/attr.get?nodeid={rank}"
            answer, _ = ask(call, cookie=cookie, origin=page, body=b'{"name":"rank"}')
            assert b'"value":"%d"' % rank in answer
        with Speaker(uri) as speaker:
            answer = speaker.ask(request("attr.get", encode_json({"name": "size"}), matchtag=1))
            assert decode_json(answer.payload)["value"] == "3"
        assert in_another_terminal(lines, f"headgate attr get size; python -c '{ASK}'").startswith("3\n3\n")
        (words,) = [line for line in lines if line.startswith("  . ")]
        assert os.stat(words.removeprefix("  . ")).st_mode & 0o777 == 0o600
        ranks = children(process.pid)
        assert len(ranks) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert without_progress(process.stderr.read().decode()) == ""
        assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks)
        assert not (rundir / "run").exists()


def test_without_login_there_is_no_link_and_a_rank_that_dies_is_told():
    with up("--no-login", "--verbose", "--size", "2") as (process, lines):
        uri = next(line.partition("=")[2] for line in lines if line.startswith("FLUX_URI="))
        assert "state run" in headgate("log", "--uri", uri).stdout
        assert "once=" not in "\n".join(lines)
        page = next(line for line in lines if line.startswith("http://"))
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(f"{page}/v1/session")
        refused.value.close()
        assert refused.value.code == 401
        assert in_another_terminal(lines, 'echo "${HEADGATE_TOKEN-none}"') == "none\n"
        (rank,) = children(process.pid)
        os.kill(rank, signal.SIGKILL)
        said = b""
        while b"rank 1" not in said:  # behind what --verbose says
            assert select.select([process.stderr], [], [], 10)[0], said
            said = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def in_another_terminal(lines, script):
    (words,) = [line for line in lines if line.startswith("  . ")]
    done = subprocess.run(
        ["bash", "-c", f"{words}\n{script}"],
        env={"PATH": os.defpath, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return done.stdout


ASK = """
import asyncio, os, broker.client
async def main():
    async with broker.client.connect("ws" + os.environ["URL"].removeprefix("http")) as h:
        print((await h.rpc("attr.get", {"name": "size"})).json()["value"])
asyncio.run(main())
"""


@pytest.mark.patient
def test_the_demo_is_a_board_that_lives_and_that_the_printed_line_breaks():
    with up("--size", "2", "--demo") as (process, lines):
        seen = {
            "shop.price",
            "shop.order",
            "shop.report",
            "shop.watch",
            "shop.sold",
            "sensor.rank1",
        }

        def figures():
            told = json.loads(in_another_terminal(lines, "headgate stats --services --json"))
            return {row["method"]: row for row in told["methods"]}

        def refused():
            return sum(figures()["shop.order"]["errors"].values())

        eventually(lambda: seen <= figures().keys())
        eventually(lambda: '"sensor."' in in_another_terminal(lines, "headgate rpc gateway.sessions"))
        (line,) = [line for line in lines if "shop.break" in line]
        before = refused()
        assert json.loads(in_another_terminal(lines, line)) == {"seconds": 30}
        eventually(lambda: refused() > before + 3)
        there = children(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert without_progress(process.stderr.read().decode()) == ""
        assert not any(os.path.exists(f"/proc/{pid}") for pid in there)


@pytest.mark.patient
def test_the_log_ends_with_what_each_has_done():
    with up("--size", "2", "--nfp", "--verbose", "--broker-set", "nfp.endpoint=tcp://127.0.0.1:*") as (
        process,
        lines,
    ):
        in_another_terminal(lines, 'headgate rpc no.such || headgate rpc attr.get \'{"name": "size"}\'')
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        assert process.wait(20) == 0
        told = [line.partition(" INFO ")[2] for line in said.splitlines() if "has left after" in line]
        figures = {who: rest for who, _, rest in (line.partition(" has left after ") for line in told)}
        assert re.fullmatch(
            r"\d+ s: [1-9]\d* messages came in, [1-9]\d* requests were refused, .*", figures["rank 0"]
        )
        assert re.fullmatch(r"\d+ s: [1-9]\d* messages came in, .*", figures["rank 1"])
        assert re.fullmatch(r"\d+ s: 0 sessions, 0 calls, .*", figures["gateway"])
        assert re.fullmatch(r"\d+ s: 0 jobs came, .*", figures["NFPBroker"])


@pytest.mark.patient
def test_who_drains_its_gateway_by_a_call_ends_all_of_it():
    drain = ASK.replace('"attr.get", {"name": "size"}', '"gateway.drain", {"reason": "tried"}').replace(
        '["value"]', ""
    )
    with up("--size", "2") as (process, lines):
        assert in_another_terminal(lines, f"python -c '{drain}'").startswith("{}\n")
        assert process.wait(20) == 0


@pytest.mark.patient
def test_the_ranks_end_when_it_is_killed(rundir):
    """And it has made no token: what is in the folder of a gateway stays there."""
    words = ("--size", "3", "--rundir", str(rundir / "run"), "--set", f"gateway.statedir={rundir}/state")
    with up(*words) as (process, lines):
        assert in_another_terminal(lines, 'echo "${HEADGATE_TOKEN-none}"') == "none\n"
        ranks = children(process.pid)
        process.kill()
        process.wait(10)
        eventually(lambda: any(alive(pid) for pid in ranks), False, timeout=20)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.patient
def test_two_signals_end_it_at_once():
    with up("--size", "2", "--set", "gateway.drain_s=60") as (process, _lines):
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
