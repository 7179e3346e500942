"""Several gateway processes behind one port: one answer to /metrics, one use of a link, one limit for a user."""

import asyncio
import contextlib
import json
import os
import re
import signal
import time

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.live.brokers import eventually
from tests.live.gateways import USERS, gateway_process
from tests.unit.gateway.identity.authority import public_pem
from tests.unit.gateway.identity.issuer import AUDIENCE, ISSUER, KEYS, signed

pytestmark = pytest.mark.story
JSON = ("flux.v1.json",)
WORKERS = "workers = 2\n"
LINKS = USERS.replace("[access]", '[access]\nlogin_links = "owner"')


def going(work, timeout=50.0):
    async def bounded():
        async with asyncio.timeout(timeout), aiohttp.ClientSession(connector=fresh()) as http:
            await work(http)

    asyncio.run(bounded())


def fresh():
    """Every request by a connection of its own, which the kernel gives to either worker."""
    return aiohttp.TCPConnector(force_close=True)


def children(pid):
    """Child processes of ``pid``."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as stat:
                if int(stat.read().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(name))
    return sorted(found)


def listening(pid, port):
    """Sockets of ``pid`` that listen at ``port``."""
    with open(f"/proc/{pid}/net/tcp") as table:
        wanted = {line.split()[9] for line in table if re.search(rf":{port:04X} 00000000:0000 0A", line)}
    held = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed while we look
            held.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return {inode for inode in wanted if f"socket:[{inode}]" in held}


def saved(tmpdir):
    """Sessions over HTTP in the counts that living workers have saved."""
    found = 0
    for path in tmpdir.glob("headgate-workers-*/[0-9]-*.json"):
        for name, _kind, _help, values in json.loads(path.read_bytes()):
            if name == "sessions_opened":
                found += sum(value for labels, value in values if labels == {"kind": "http"})
    return found


async def metrics(http, running):
    async with http.get(f"{running.urls[0]}/metrics", headers=running.bearer()) as answer:
        assert answer.status == 200
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(await answer.text())
            for sample in family.samples
        }


async def call(http, running):
    async with http.post(
        f"{running.urls[0]}/v1/rpc/attr.get", json={"name": "rank"}, headers=running.bearer()
    ) as answer:
        assert (await answer.json())["value"] == "0"


async def login_link_is_good_for_one_of_many_at_once(http, running):
    link = (await asyncio.to_thread(running.process.stdout.readline)).decode().strip()
    page, _, secret = link.partition("/login#once=")
    assert page == running.urls[0]

    async def attempt():
        async with http.post(f"{page}/v1/login", json={"once": secret}, headers={"Origin": page}) as answer:
            return answer.status, answer.cookies

    found = await asyncio.gather(*(attempt() for _ in range(16)))
    assert sorted(status for status, _cookies in found)[:2] == [200, 401]
    cookie = next(cookies for status, cookies in found if status == 200)["headgate"].value
    for _ in range(8):  # whichever worker is asked
        async with http.get(f"{page}/v1/session", cookies={"headgate": cookie}) as answer:
            assert answer.status == 200
    headers = {"Origin": page}
    async with http.post(f"{page}/v1/logout", cookies={"headgate": cookie}, headers=headers) as answer:
        assert answer.status == 204
    for _ in range(8):
        async with http.get(f"{page}/v1/session", cookies={"headgate": cookie}) as answer:
            assert answer.status == 401


async def streams_of_a_user_count(http, running):
    async with contextlib.AsyncExitStack() as stack:
        statuses = []
        for _ in range(14):
            opened = http.post(
                f"{running.urls[0]}/v1/rpc/attr.get?stream=1",  # one answer, and the stream stays open
                json={"name": "rank"},
                headers=running.bearer("bob"),
            )
            statuses.append((await stack.enter_async_context(opened)).status)
        assert sorted(statuses) == [200] * 8 + [429] * 6


async def ask(http, running, method, arguments):
    url = f"{running.urls[0]}/v1/rpc/gateway.{method}"
    async with http.post(url, json=arguments, headers=running.bearer()) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def connected(http, running, stack):
    """A session of bob, and its name; the streams of before may still count for a moment."""
    while True:
        opened = http.ws_connect(running.ws, protocols=JSON, headers=running.bearer("bob"))
        sock = await stack.enter_async_context(opened)
        said = await sock.receive_json()
        if said["type"] == "welcome":
            return said["session"], sock
        assert said["code"] == 4504
        await asyncio.sleep(0.02)


async def admin_sees_and_ends_the_sessions_of_every_worker(http, running):
    async with contextlib.AsyncExitStack() as stack:
        known = dict([await connected(http, running, stack) for _ in range(8)])
        for _ in range(4):  # whichever worker answers
            rows = (await ask(http, running, "sessions", {}))["sessions"]
            assert {row["session"] for row in rows if row["user"] == "bob"} == set(known)
        for name, sock in known.items():
            assert (await ask(http, running, "session", {"session": name}))["user"] == "bob"
            await ask(http, running, "end", {"session": name})
            assert (await sock.receive_json())["type"] == "error"


async def drain_by_call_tells_clients(http, running):
    async with contextlib.AsyncExitStack() as stack:
        _name, sock = await connected(http, running, stack)
        url = f"{running.urls[0]}/v1/rpc/gateway.drain"
        async with http.post(url, json={"reason": "tried"}, headers=running.bearer("bob")) as answer:
            assert answer.status == 403

        async def drain():
            async with http.post(url, json={"reason": "tried"}, headers=running.bearer()) as answer:
                return answer.status, await answer.json()

        answers = await asyncio.gather(*(drain() for _ in range(8)), return_exceptions=True)
        assert (200, {}) in answers, "asked for more than once, too"
        assert (await sock.receive_json())["type"] == "shutdown"


def test_many_at_once_are_known_to_all_workers(rundir, broker):
    """Who uses a link, how many streams a user has, whose sessions there are; in the end it is drained by a call."""

    async def work(http):
        await login_link_is_good_for_one_of_many_at_once(http, running)
        await streams_of_a_user_count(http, running)
        await admin_sees_and_ends_the_sessions_of_every_worker(http, running)
        await drain_by_call_tells_clients(http, running)

    limits = "[limits]\nconnections_per_user = 8\n"
    with gateway_process(rundir, broker.uri, WORKERS + limits, "--login-link", users=LINKS) as running:
        going(work)
        assert running.process.wait(30) == 0


@pytest.mark.patient
def test_a_gateway_of_one_process_is_drained_by_call(rundir, broker):
    async def work(http):
        await drain_by_call_tells_clients(http, running)

    with gateway_process(rundir, broker.uri) as running:
        going(work)
        assert running.process.wait(30) == 0


@pytest.mark.patient
def test_one_port_one_set_of_counts_and_a_worker_that_dies(rundir, broker, monkeypatch):
    async def work(http):
        port = int(running.urls[0].rpartition(":")[2])
        first = children(running.process.pid)
        assert len(first) == 2
        assert all(listening(pid, port) for pid in first)
        for _ in range(20):
            await call(http, running)
        for _ in range(6):  # whichever worker answers
            assert (await metrics(http, running))["headgate_gateway_sessions_opened_total", "http"] == 20
        assert (await metrics(http, running))["headgate_gateway_workers",] == 2
        await asyncio.to_thread(
            eventually, lambda: saved(rundir) == 20
        )  # a killed worker takes the rest with it
        os.kill(first[0], signal.SIGKILL)
        await asyncio.to_thread(eventually, lambda: len(set(children(running.process.pid)) - {first[0]}) == 2)
        second = children(running.process.pid)
        assert first[1] in second
        await asyncio.to_thread(eventually, lambda: all(listening(pid, port) for pid in second))
        async with asyncio.timeout(15):
            while (await metrics(http, running))["headgate_gateway_workers",] != 2:
                await asyncio.sleep(0.1)
        for _ in range(4):
            assert (await metrics(http, running))["headgate_gateway_sessions_opened_total", "http"] == 20
        for _ in range(5):
            await call(http, running)
        assert (await metrics(http, running))["headgate_gateway_sessions_opened_total", "http"] == 25

    monkeypatch.setenv("TMPDIR", str(rundir))  # where workers save their counts
    with gateway_process(rundir, broker.uri, WORKERS) as running:
        going(work)
        assert any("ended with signal 9 (SIGKILL)" in line for line in running.lines())
        assert running.stop() == 0
        assert not children(running.process.pid)


@pytest.mark.patient
def test_the_limit_of_a_user_counts_in_all_workers(rundir, broker):
    async def work(http):
        async with contextlib.AsyncExitStack() as stack:
            welcomed, closed = 0, []
            for _ in range(12):
                opened = http.ws_connect(running.ws, protocols=JSON, headers=running.bearer("bob"))
                each = await stack.enter_async_context(opened)
                said = await each.receive_json()
                if said["type"] == "welcome":
                    welcomed += 1
                else:
                    closed.append(said["code"])
            assert welcomed == 6
            assert closed == [4504] * 6

    limits = "[limits]\nconnections_per_user = 6\n"
    with gateway_process(rundir, broker.uri, WORKERS + limits) as running:
        going(work)
        assert running.stop() == 0


@pytest.mark.patient
def test_clients_come_back_when_every_worker_was_killed(rundir, broker):
    async def welcomed(http, stack):
        """A connection once there is somebody to take it; what it is told first must be the welcome."""
        while True:
            try:
                opened = http.ws_connect(running.ws, protocols=JSON, headers=running.bearer("bob"))
                each = await stack.enter_async_context(opened)
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.02)
                continue
            said = await each.receive_json()
            assert said["type"] == "welcome", said
            return each

    async def work(http):
        async with contextlib.AsyncExitStack() as stack:
            before = [await welcomed(http, stack) for _ in range(4)]
            for pid in children(running.process.pid):
                os.kill(pid, signal.SIGKILL)
            for each in before:
                assert (await each.receive()).type is not aiohttp.WSMsgType.TEXT
            for _ in range(4):
                await welcomed(http, stack)
            opened = http.ws_connect(running.ws, protocols=JSON, headers=running.bearer("bob"))
            assert (await (await stack.enter_async_context(opened)).receive_json())["code"] == 4504

    limits = "[limits]\nconnections_per_user = 4\n"
    with gateway_process(rundir, broker.uri, WORKERS + limits) as running:
        going(work)
        assert running.stop() == 0


@pytest.mark.patient
def test_a_revoked_jwt_ends_its_sessions_in_all_workers(rundir, broker):
    async def end(http, session):
        """``gateway.end`` at the worker that has the session, whichever that is."""
        while True:
            async with http.post(
                f"{running.urls[0]}/v1/rpc/gateway.end",
                json={"session": session, "revoke": True},
                headers=running.bearer("eve"),
            ) as answer:
                if answer.status != 404:
                    return answer.status

    async def work(http):
        bearer = {"Authorization": f"Bearer {signed(sub='bob', jti='stolen', exp=time.time() + 600)}"}
        async with contextlib.AsyncExitStack() as stack:
            taken, session = [], ""
            for _ in range(12):
                opened = http.ws_connect(running.ws, protocols=JSON, headers=bearer)
                taken.append(await stack.enter_async_context(opened))
                session = (await taken[-1].receive_json())["session"]
            other = http.ws_connect(running.ws, protocols=JSON, headers=running.bearer("bob"))
            stays = await stack.enter_async_context(other)
            assert (await stays.receive_json())["type"] == "welcome"
            assert await end(http, session) == 200
            for each in taken:
                said = await each.receive_json()
                assert (said["type"], said["code"]) == ("error", 4506)
            for _ in range(6):
                async with http.get(f"{running.urls[0]}/v1/session", headers=bearer) as answer:
                    assert answer.status == 401
            await stays.send_json({"type": "ping"})
            assert (await stays.receive_json())["type"] == "pong"

    (rundir / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    trusted = f'[jwt]\nkeys = ["{rundir}/key.pem"]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
    with gateway_process(rundir, broker.uri, WORKERS + trusted) as running:
        going(work)
        assert running.stop() == 0


@pytest.mark.patient
def test_a_client_resumes_at_another_worker(rundir, broker):
    async def work(http):
        seen = None
        for attempt in range(12):
            headers = {**running.bearer(), **({"Last-Event-ID": seen} if seen else {})}
            async with http.get(f"{running.urls[0]}/v1/events?prefix=a.", headers=headers) as answer:
                # a worker that has not heard of the event yet says "resumed" first and passes it on live
                found, due = [], {"resumed", f"a.{attempt - 1}"} if attempt else {"welcome"}
                while due:
                    kind, position, data = await event(answer)
                    found.append(json.loads(data).get("topic", kind))
                    due.remove(found[-1])
                    assert kind != "resumed" or '"recovered":true' in data
                    seen = position or seen
            async with http.post(
                f"{running.urls[0]}/v1/events/a.{attempt}", headers=running.bearer()
            ) as published:
                assert published.status == 200

    with gateway_process(rundir, broker.uri, WORKERS) as running:
        going(work)
        assert running.stop() == 0


async def event(answer):
    """(event, id, data) of the next server-sent event."""
    kind = position = ""
    while True:
        line = (await answer.content.readline()).decode().rstrip("\n")
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("id: "):
            position = line[4:]
        elif line.startswith("data: "):
            return kind, position, line[6:]


@pytest.mark.patient
def test_a_worker_that_cannot_start_ends_it_all_in_words(rundir, broker):
    (rundir / "state").mkdir(mode=0o700)
    (rundir / "state" / "gateway.db").write_bytes(b"no database" * 100)
    (rundir / "state" / "gateway.db").chmod(0o600)
    with pytest.raises(AssertionError, match=r"gateway\.db"), gateway_process(rundir, broker.uri, WORKERS):
        pass


@pytest.mark.patient
def test_a_worker_that_finds_something_wrong_later_has_no_successor_before_a_reload(rundir, broker):
    """Nobody is better off with a process that ends at once every ten seconds; without any worker it is all over."""
    store = rundir / "state" / "gateway.db"

    def left(count):
        return len(children(running.process.pid)) == count

    def kill_one():
        os.kill(children(running.process.pid)[0], signal.SIGKILL)
        seen = wrong()
        eventually(lambda: wrong() == seen + 1)

    def wrong():
        ends = [line for line in running.lines() if "ended with code 78" in line]
        return sum("is not started again before a reload" in line for line in ends)

    with gateway_process(rundir, broker.uri, WORKERS) as running:
        store.chmod(0o644)
        kill_one()
        eventually(lambda: left(1))
        store.chmod(0o600)
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: left(2))
        eventually(lambda: all(listens(pid, port_of(running)) for pid in children(running.process.pid)))
        store.chmod(0o644)
        kill_one()
        kill_one()
        assert running.process.wait(30) == 78


def port_of(running):
    return int(running.urls[0].rpartition(":")[2])


@pytest.mark.patient
def test_a_reload_by_call_counts_in_every_worker_and_in_those_that_come_later(rundir, broker):
    bob = '[[users]]\nname = "bob"\nuserid = 1002\nroles = ["user"]\n'
    file = rundir / "gateway.toml"

    async def status(http):
        async with http.get(f"{running.urls[0]}/v1/session", headers=running.bearer("bob")) as answer:
            return answer.status

    async def work(http):
        async with contextlib.AsyncExitStack() as stack:
            opened = []
            for _ in range(12):
                sock = http.ws_connect(running.ws, protocols=JSON, headers=running.bearer("bob"))
                opened.append(await stack.enter_async_context(sock))
                assert (await opened[-1].receive_json())["type"] == "welcome"
            assert bob in file.read_text()
            file.write_text(file.read_text().replace(bob, ""))
            url = f"{running.urls[0]}/v1/rpc/gateway.reload"
            async with http.post(url, json={}, headers=running.bearer()) as answer:
                assert await answer.json() == {"problems": []}
            for sock in opened:
                said = await sock.receive_json()
                assert (said["type"], said["code"]) == ("error", 4506)
        first = children(running.process.pid)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        port = int(running.urls[0].rpartition(":")[2])
        await asyncio.to_thread(eventually, lambda: len(serving(port) - set(first)), 2, 30.0)
        for _ in range(6):
            assert await status(http) == 403

    def serving(port):
        return {pid for pid in children(running.process.pid) if listens(pid, port)}

    with gateway_process(rundir, broker.uri, WORKERS) as running:
        going(work)
        assert running.stop() == 0


def listens(pid, port):
    """Whether ``pid`` listens at ``port``; not, when it has ended meanwhile."""
    try:
        return bool(listening(pid, port))
    except OSError:
        return False
