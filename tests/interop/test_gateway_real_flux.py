"""The gateway in front of a real flux-core, with its own programs and bindings on the other side. Needs FLUX_PREFIX."""

import asyncio
import contextlib
import json
import os
import subprocess

import pytest

import broker.client
from broker.wire import message as wire
from gateway.upstream.upstream import Upstream
from tests.interop.fronting import CHECKS, fronting, hold, traffic_and_health_are_known
from tests.interop.test_client_real_flux import running
from tests.unit.gateway.sessions.desk import until
from tests.unit.gateway.upstream.recorder import Recorder, hop, session_request

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

LIMIT_S = 30
CALL = (
    "import flux, json, sys; print(json.dumps(flux.Flux().rpc(sys.argv[1], json.loads(sys.argv[2])).get()))"
)
PROVIDER = """
import json, sys
import flux
from flux.constants import FLUX_MSGTYPE_REQUEST

handle = flux.Flux()
handle.service_register(sys.argv[1]).get()


def requested(handle, kind, message, _arg):
    print(message.topic, flush=True)
    if not message.topic.endswith(".disconnect"):
        handle.respond(message, json.loads(message.payload_str))


watcher = handle.msg_watcher_create(requested, FLUX_MSGTYPE_REQUEST, sys.argv[1] + ".*")
watcher.start()
print("ready", flush=True)
handle.reactor_run()
"""


class FluxCore:
    """An instance of one broker at a fixed place, so that it can be killed and started again there."""

    def __init__(self, prefix, rundir):
        self.flux = str(prefix / "bin" / "flux")
        self.rundir = rundir
        self.uri = f"local://{rundir}/local-0"
        self.env = {**os.environ, "FLUX_URI": self.uri}
        self.process = None
        self.start()

    def start(self):
        command = [self.flux, "start", f"-Srundir={self.rundir}", f"-Slocal-uri={self.uri}", "-Sbroker.rc1_path=",
                   "-Sbroker.rc3_path=", "sh", "-c", "echo ready; exec cat"]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.process.stdout.readline() == b"ready\n"

    def end(self):
        """End it, in good order if it still runs."""
        self.process.stdin.close()
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    async def run(self, *args):
        process = await asyncio.create_subprocess_exec(
            self.flux, *args, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
        if process.returncode:
            raise OSError(err.decode())
        return out.decode()

    # -- tests.interop.fronting.Other ----------------------------------------------------------

    async def publish(self, topic, payload):
        await self.run("event", "pub", topic, json.dumps(payload))

    async def call(self, topic, payload):
        return json.loads(await self.run("python", "-c", CALL, topic, json.dumps(payload)))

    @contextlib.asynccontextmanager
    async def provide(self, name):
        process = await asyncio.create_subprocess_exec(
            self.flux, "python", "-c", PROVIDER, name, env=self.env, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        seen = []

        async def read():
            async for line in process.stdout:
                seen.append(line.decode().strip())

        reader = asyncio.get_running_loop().create_task(read(), name="provider")
        try:
            await until(lambda: seen == ["ready"])
            yield seen
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await reader

    async def change_group(self):
        async with broker.client.connect(self.uri) as h:
            await h.rpc("groups.join", {"name": "checks"})
            await h.rpc("groups.leave", {"name": "checks"})

    async def kill(self):
        self.process.kill()
        await asyncio.to_thread(self.end)

    async def restart(self):
        await asyncio.to_thread(self.start)


@pytest.fixture
def flux(flux_prefix, rundir):
    instance = FluxCore(flux_prefix, rundir)
    yield instance
    instance.end()


@pytest.mark.parametrize("check", [*CHECKS, traffic_and_health_are_known], ids=lambda check: check.__name__)
def test_through_the_gateway(check, flux):
    hold(check, flux)


def run(script):
    async def main():
        async with asyncio.timeout(LIMIT_S):
            await script()

    asyncio.run(main())


def test_programs_of_flux_see_what_a_session_publishes(flux):
    async def script():
        async with fronting(flux.uri) as front:
            watching = asyncio.get_running_loop().create_task(
                flux.run("event", "sub", "--count=1", "web."), name="event sub"
            )
            owner = front.owner()
            number = 0
            while not watching.done():
                number = (
                    await owner.rpc("event.publish", {"topic": "web.x", "flags": 0, "payload": "e30A"})
                )["seq"]
                await asyncio.sleep(0.1)
            assert number
            assert (await watching).split() == ["web.x", "{}"]

    run(script)


def test_it_is_known_for_what_it_is(flux):
    async def script():
        async with fronting(flux.uri) as front:
            up = front.upstream
            version = (await flux.run("getattr", "version")).strip()
            assert (up.headgate, up.rank, up.size, up.version) == (False, 0, 1, version)
            assert up.epoch == (await flux.run("getattr", "broker.uuid")).strip()

    run(script)


def test_behind_another_rank_numbers_are_rank_0_s(flux_prefix):
    async def script(instance):
        centre = Recorder()
        upstream = Upstream(instance.uri_of_rank_1)
        await upstream.start(centre)
        assert await upstream.wait_joined(10), upstream.reason
        assert (upstream.rank, upstream.size) == (1, 2)
        async with broker.client.connect(instance.uri) as h:
            assert upstream.epoch == await h.attr("broker.uuid")
            numbers = [await h.publish("t.x", {"n": n}) for n in range(30)]
        await until(lambda: centre.history.last >= numbers[-1])
        assert [m.sequence for m in centre.events if m.topic == "t.x"] == numbers
        assert centre.history.covers(upstream.epoch, numbers[0] - 1)
        assert upstream.handle.numbering.missed == 0
        assert not upstream.handle.root_lost
        assert len(upstream.handle._calls) == 1  # the stream that watches rank 0
        await upstream.stop()

    with running(flux_prefix, 2) as (instance, _process):
        run(lambda: script(instance))


def test_a_crowd_of_sessions_gets_links_of_their_own(flux):
    """A deployed connector lets five connections wait to be accepted."""

    async def script():
        centre = Recorder()
        upstream = Upstream(flux.uri)
        await upstream.start(centre)
        assert await upstream.wait_joined(10)
        payload = b'{"name":"checks"}\0'
        for number in range(100):
            upstream.send(
                session_request(hop(f"{number:03}"), "groups.get", payload, matchtag=1, flags=wire.STREAMING)
            )
        await until(lambda: len(centre.answers) == 100)
        seen = json.loads(await flux.run("module", "stats", "connector-local"))
        assert len(seen["server"]["clients"]) >= 101
        await upstream.stop()

    run(script)


async def processes(flux):
    return [line.split()[0] for line in (await flux.run("sproc", "ps")).splitlines() if "sleep" in line]


def start_sleep(upstream, who):
    command = {"cwd": "/", "cmdline": ["sleep", "300"], "env": {"PATH": os.environ["PATH"]}, "opts": {},
               "channels": []}  # fmt: skip
    payload = json.dumps({"cmd": command, "flags": 3, "local_flags": 0}).encode() + b"\0"
    upstream.send(
        session_request(who, "rexec.exec", payload, matchtag=1, flags=wire.STREAMING, userid=0, rolemask=1)
    )


def test_a_gateway_that_dies_leaves_nothing_running(flux):
    """Every session's processes end with the link that started them, though nobody could say a notice."""

    async def script():
        centre = Recorder()
        upstream = Upstream(flux.uri)
        await upstream.start(centre)
        assert await upstream.wait_joined(10)
        for name in "abc":
            start_sleep(upstream, hop(name))
        await until(lambda: len({m.front for m in centre.answers}) == 3)
        assert len(await processes(flux)) == 3
        await upstream.stop()  # without a word of any session
        for _ in range(100):
            if not await processes(flux):
                break
            await asyncio.sleep(0.05)
        assert await processes(flux) == []

    run(script)


def test_one_session_s_end_ends_its_processes_only(flux):
    async def script():
        async with fronting(flux.uri) as front:
            first, second = front.owner(), front.owner()
            command = {"cwd": "/", "cmdline": ["sleep", "300"], "env": {"PATH": os.environ["PATH"]}, "opts": {},
                       "channels": []}  # fmt: skip
            for client in (first, second):
                tag = client.send(
                    "rexec.exec", {"cmd": command, "flags": 3, "local_flags": 0}, flags=wire.STREAMING
                )
                assert (await client.answer(tag)).errnum == 0
            assert len(await processes(flux)) == 2
            first.leave()
            for _ in range(100):
                if len(await processes(flux)) == 1:
                    break
                await asyncio.sleep(0.05)
            assert len(await processes(flux)) == 1

    run(script)
