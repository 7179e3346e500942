"""Calls over a connection that is kept open: one session, judged once where nothing changed, and no word to services
of calls that were answered.
"""

import asyncio
import contextlib
import gc
import json
import sys
import time
from pathlib import Path

import aiohttp
from msgspec.structs import replace

import broker
from broker.client import connect
from gateway.administration import listing
from gateway.closes import BUSY
from gateway.identity.store import Store
from gateway.identity.tokens import TokenFile, token_path
from gateway.principal import Denied
from tests.unit.gateway.web.site import EVERYBODY, methods

ROOT = f"{Path(broker.__file__).parent.parent}/"
FUNCTIONS, FILES = 119, 36
"""Of ours that a call runs through, from the socket to the service of a client of the broker and back."""


class Door:
    """One HTTP/1.1 connection, byte for byte."""

    def __init__(self, live, reader, writer):
        self.live, self.reader, self.writer = live, reader, writer

    def ask(self, topic="lab.echo", user="bob", body=b'{"a":1}', wanted=None, head=""):
        credential = head or f"Authorization: {self.live.bearer(user)['Authorization']}\r\n"
        self.writer.write(
            f"POST /v1/rpc/{topic} HTTP/1.1\r\nHost: localhost\r\n{credential}Content-Type: application/json\r\n"
            f"Content-Length: {wanted or len(body)}\r\n\r\n".encode()
            + body
        )

    async def answer(self):
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)).decode().lower()
        length = head.partition("content-length:")[2].partition("\r\n")[0]
        return int(head.split()[1]), await self.reader.readexactly(int(length or 0))

    async def call(self, *args, **more):
        self.ask(*args, **more)
        return await self.answer()

    def close(self):
        self.writer.close()


class Stage:
    """A gateway with its listener, a service behind it, and what the gateway sends there."""

    def __init__(self, live, sent, senders, stack):
        self.live, self.sent, self.senders, self._stack = live, sent, senders, stack

    @property
    def gateway(self):
        return self.live.gateway

    async def door(self):
        host, _, port = self.live.url.removeprefix("http://").rpartition(":")
        door = Door(self.live, *await asyncio.open_connection(host, int(port)))
        self._stack.callback(door.close)
        return door

    async def sessions(self, count):
        async with asyncio.timeout(5):
            while len(self.gateway.sessions) != count:
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def staged(rundir, live):
    sent, senders, upstream = [], [], live.gateway.delivery.upstream
    way = upstream.way
    upstream.way = lambda message: sent.append(message.topic) or way(message)
    async with (
        contextlib.AsyncExitStack() as stack,
        connect(f"inproc://{rundir}") as handle,
        handle.service("lab") as lab,
    ):
        for name, handler in methods(asyncio.Queue()).items():
            lab.add(name, handler, allow=EVERYBODY)

        async def late(request):
            await asyncio.sleep(0.1)
            return {"late": True}

        def sender(request):
            senders.append(request.sender)
            return {}

        lab.add("late", late, allow=EVERYBODY)
        lab.add("sender", sender, allow=EVERYBODY)
        yield Stage(live, sent, senders, stack)


async def test_a_warm_call_is_short(rundir, live):
    async with staged(rundir, live) as stage:
        door = await stage.door()
        seen = []
        for number in range(30):
            called = set()

            def note(frame, event, _arg, called=called):
                code = frame.f_code
                if event == "call" and code.co_filename.startswith((ROOT + "broker/", ROOT + "gateway/")):
                    called.add((code.co_filename.removeprefix(ROOT), code.co_qualname))

            sys.setprofile(note if number >= 20 else None)
            try:
                assert await door.call() == (200, b'{"a":1}')
            finally:
                sys.setprofile(None)
            seen.append(called)
        shortest = min(seen[20:], key=len)  # what runs besides is not in all of them
        files = {file for file, _name in shortest}
        assert 0 < len(shortest) <= FUNCTIONS, sorted(shortest)
        assert len(files) <= FILES, sorted(files)


async def test_calls_of_one_connection_are_one_session_and_its_end_says_nothing_of_what_was_answered(
    rundir, live
):
    async with staged(rundir, live) as stage:
        door, other = await stage.door(), await stage.door()
        for _ in range(3):
            assert (await door.call("lab.sender"))[0] == 200
        assert (await other.call("lab.sender"))[0] == 200
        assert stage.senders[0] == stage.senders[1] == stage.senders[2] != stage.senders[3]
        (mine,) = [each for each in stage.gateway.sessions.by_id.values() if each.answered_msgs == 3]
        row = listing.row(mine)
        assert (row["kind"], row["user"], row["in_flight"], row["received"]) == ("http", "bob", 0, 3)
        assert stage.gateway.sessions.counters.opened["http"] == 2
        door.close()
        other.close()
        await stage.sessions(0)
        assert stage.sent == ["lab.sender"] * 4
        assert not stage.gateway.sessions.resting
        assert not stage.gateway.sessions.by_route


async def test_an_error_is_an_answer_and_a_stream_that_ended_owes_nothing(rundir, live):
    async with staged(rundir, live) as stage:
        door = await stage.door()
        assert (await door.call("lab.fail", body=b'{"errno":2}'))[0] == 404
        assert (await door.call("lab.nothing"))[0] == 404
        assert len(stage.gateway.sessions.by_id) == len(stage.gateway.sessions.resting) == 1
        door.ask("lab.count?stream=1", body=b'{"to":3}')
        await door.reader.readuntil(b'{"end":true}\n')
        await stage.sessions(1)
        assert not [topic for topic in stage.sent if topic.endswith(".disconnect")]


async def test_a_client_that_hangs_up_has_its_service_told(rundir, live):
    async with staged(rundir, live) as stage:
        door = await stage.door()
        await door.call()
        door.ask("lab.never")
        while "lab.never" not in stage.sent:
            await asyncio.sleep(0.005)
        door.close()
        await stage.sessions(0)
        assert stage.sent == ["lab.echo", "lab.never", "lab.disconnect"]


async def test_a_late_answer_is_not_that_of_the_next_call(rundir, live):
    async with staged(rundir, live) as stage:
        door = await stage.door()
        assert (await door.call("lab.late?timeout_s=0.02"))[0] == 504
        for _ in range(30):
            assert await door.call() == (200, b'{"a":1}')
            await asyncio.sleep(0.005)
        assert stage.sent.count("lab.disconnect") == 1


async def test_calls_in_a_pipeline_are_answered_in_order(rundir, live):
    async with staged(rundir, live) as stage:
        door = await stage.door()
        door.ask("lab.late")
        for number in range(3):
            door.ask(body=b'{"n":%d}' % number)
        assert await door.answer() == (200, b'{"late":true}')
        for number in range(3):
            assert json.loads((await door.answer())[1]) == {"n": number}
        assert stage.gateway.sessions.counters.opened["http"] == 1


async def test_each_service_hears_of_the_caller_that_it_knows(rundir, live):
    """What a service keeps for a caller it keeps until it is told: so is the next one, and calls go on."""
    async with staged(rundir, live) as stage, connect(f"inproc://{rundir}") as handle:
        left = []
        async with handle.service("shed") as shed:
            shed.add("sender", lambda request: {"sender": repr(request.sender)}, allow=EVERYBODY)
            shed.add("disconnect", lambda request: left.append(repr(request.sender)), allow=EVERYBODY)
            door = await stage.door()
            assert (await door.call("lab.sender"))[0] == 200
            mine = json.loads((await door.call("shed.sender"))[1])["sender"]
            for topic in ("lab.cancel", "lab.disconnect", "shed.disconnect"):
                assert (await door.call(topic))[0] == 202
            assert json.loads((await door.call("shed.sender"))[1])["sender"] == mine
            assert left == [mine]
            assert stage.gateway.sessions.counters.opened["http"] == 1
            assert len(stage.gateway.sessions.resting) == 1


async def test_another_user_over_the_same_connection_has_another_session(rundir, live):
    async with staged(rundir, live) as stage:
        door = await stage.door()
        for user, userid in (("bob", 1002), ("eve", 1003), ("bob", 1002)):
            assert json.loads((await door.call("lab.who", user))[1])["userid"] == userid
            assert [each.principal.name for each in stage.gateway.sessions.by_id.values()] == [user]
        assert (await door.call(head="Authorization: Bearer hgt_000000000000_x\r\n"))[0] == 401
        assert (await door.call(head="Accept: */*\r\n"))[0] == 401


async def test_sessions_that_rest_count_for_no_limit(rundir, open_live):
    live = await open_live("[limits]\nconnections = 2\nconnections_per_user = 1\n")
    async with staged(rundir, live) as stage:
        doors = [await stage.door() for _ in range(2)]
        for door in doors * 2:
            assert (await door.call())[0] == 200
        doors[0].ask("lab.late")
        while "lab.late" not in stage.sent:
            await asyncio.sleep(0.005)
        assert (await doors[1].call())[0] == 429
        assert (await doors[0].answer())[0] == 200
        assert (await doors[1].call())[0] == 200


async def test_sessions_that_rest_keep_no_websocket_out(rundir, open_live):
    live = await open_live("[limits]\nconnections = 2\nconnections_per_user = 2\n")
    async with staged(rundir, live) as stage:
        for _ in range(2):
            assert (await (await stage.door()).call())[0] == 200
        async with (
            aiohttp.ClientSession(headers=live.bearer("bob")) as client,
            client.ws_connect(f"{live.url}/v1/ws", protocols=["flux.v1.json"]) as web,
        ):
            assert (await web.receive_json())["type"] == "welcome"


# ---------------------------------------------------------------- what changes between two calls


async def refused(stage, change, status, meanwhile, topic="lab.echo", head=""):
    """Statuses of a call after the change, and of one whose body was under way, where both had been let in before."""
    door, slow = await stage.door(), await stage.door()
    for each in (door, slow):
        assert (await each.call(topic, head=head))[0] == 200
    slow.ask(topic, body=b'{"a"', wanted=7, head=head)
    await asyncio.sleep(0.05)
    await change()
    assert (await door.call(topic, head=head))[0] == status
    slow.writer.write(b":1}")
    assert (await slow.answer())[0] == meanwhile
    assert stage.sent.count(topic) == 2 + (meanwhile == 200)


def token_file(live):
    return TokenFile(token_path(live.gateway.settings))


async def test_a_token_that_is_taken_out_of_its_file(rundir, live):
    async def remove():
        token_file(live).remove(lambda token: token.user == "bob")

    async with staged(rundir, live) as stage:
        await refused(stage, remove, 401, 401)
        await stage.sessions(0)


async def test_a_credential_that_another_process_revokes(rundir, live):
    async def revoke():
        with contextlib.closing(Store(live.gateway.settings.gateway.statedir)) as store:
            store.revoke(
                next(iter(stage.gateway.sessions.by_id.values())).principal.credential, time.time() + 60
            )

    async with staged(rundir, live) as stage:
        await refused(stage, revoke, 401, 401)


async def test_a_token_that_expires(rundir, live):
    until = time.time() + 0.6
    text = token_file(live).add("bob", now=0.0, expires=until)[1]

    async def wait():
        await asyncio.sleep(until - time.time() + 0.01)

    async with staged(rundir, live) as stage:
        # what was let in before counts until `Deadlines` ends its session
        await refused(stage, wait, 401, 200, head=f"Authorization: Bearer {text}\r\n")
        await stage.sessions(0)


async def test_a_user_who_is_none_any_more(rundir, live):
    async def remove():
        await reloaded(live, users=[each for each in live.gateway.settings.users if each.name != "bob"])

    async with staged(rundir, live) as stage:
        await refused(stage, remove, 403, 401)


async def test_a_rule_that_forbids_what_was_called(rundir, live):
    async def forbid():
        wide, narrow = live.gateway.settings.rules
        await reloaded(live, rules=(wide, replace(narrow, prefixes=("lab.",))))

    async with staged(rundir, live) as stage:
        await refused(stage, forbid, 403, 403)


async def test_roles_that_are_others_now(rundir, live):
    async with staged(rundir, live) as stage:
        door = await stage.door()
        assert json.loads((await door.call("lab.who"))[1]) == {"userid": 1002, "rolemask": 2}
        users = live.gateway.settings.users
        await reloaded(
            live, users=[replace(one, roles=("admin",)) if one.name == "bob" else one for one in users]
        )
        assert json.loads((await door.call("lab.who"))[1]) == {"userid": 1002, "rolemask": 10}


async def test_a_login_that_was_ended(rundir, live):
    identity = live.gateway.identity
    mine = await identity.authenticate_token(live.tokens["bob"], address="127.0.0.1")
    logged_in = identity.user_logins.by_token(mine)

    async def end():
        identity.logins.end(logged_in.cookie)

    async with staged(rundir, live) as stage:
        await refused(
            stage, end, 401, 401, head=f"Cookie: headgate={logged_in.cookie}\r\nOrigin: http://localhost\r\n"
        )


async def test_a_page_that_may_not_ask_is_no_page_that_may(rundir, live):
    async with staged(rundir, live) as stage:
        door = await stage.door()
        assert (await door.call())[0] == 200
        credential = f"Authorization: {live.bearer('bob')['Authorization']}\r\n"
        assert (await door.call(head=f"{credential}Origin: http://evil.example\r\n"))[0] == 403


async def test_a_gateway_that_leaves_waits_for_no_session_that_rests(rundir, live):
    async with staged(rundir, live) as stage:
        door, other = await stage.door(), await stage.door()
        await door.call()
        other.ask("lab.late")
        while "lab.late" not in stage.sent:
            await asyncio.sleep(0.005)
        await live.gateway.sessions.drain(5)
        assert [each.calls.count for each in stage.gateway.sessions.by_id.values()] == [1]
        assert (await other.answer())[0] == 200
        assert not stage.gateway.sessions.by_id
        assert (await door.call())[0] == 503


async def test_a_store_that_cannot_be_read_is_told_and_logged(rundir, live, monkeypatch, caplog):
    def away(*_query):
        raise Denied("the store is away", public="come back later", status=503, close=BUSY)

    async with staged(rundir, live) as stage:
        door = await stage.door()
        assert (await door.call())[0] == 200
        with monkeypatch.context() as changed:
            changed.setattr(live.gateway.identity._store, "reading", away)
            assert (await door.call())[0] == 503
        assert [each.getMessage() for each in caplog.records if "the store is away" in each.getMessage()]
        assert (await door.call())[0] == 200


async def reloaded(live, **changes):
    settings = replace(live.gateway.settings, **{key: tuple(value) for key, value in changes.items()})
    live.gateway._reread = lambda: settings
    assert await live.gateway.reload() == []


async def test_who_has_ended_waits_for_no_collection_of_garbage(rundir, live):
    """Over HTTP, as an event stream and as a WebSocket: crowds that come and go would else add up for hours."""
    async with staged(rundir, live) as stage:
        gc.collect()
        gc.freeze()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            door = await stage.door()
            assert (await door.call())[0] == 200
            door.close()
            async with aiohttp.ClientSession(headers=live.bearer("bob")) as client:
                async with client.get(f"{live.url}/v1/events?topic=lab") as stream:
                    assert stream.status == 200
                async with client.ws_connect(f"{live.url}/v1/ws", protocols=["flux.v1.json"]) as web:
                    await web.receive()
            await stage.sessions(0)
            await asyncio.sleep(0.05)
            gc.collect()
            ours = (
                "gateway.sessions",
                "gateway.websocket",
                "gateway.web.rpc",
                "gateway.web.sse",
                "broker.transport",
            )
            left = {type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith(ours)}
            assert left == set()
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            gc.unfreeze()
