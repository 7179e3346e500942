"""The authorisation hook over HTTP: what it is asked, what is remembered, and that nothing but a yes is one."""

import asyncio
import errno
import ssl
import time
from collections import Counter

import pytest
from aiohttp import web

from broker.secret import SecretUrl
from gateway import selfsigned
from gateway.identity import hook as hooks
from gateway.identity.hook import AWAY, AWAY_S, AuthorizationHook
from gateway.settings.schema import AccessSection
from tests.tables import for_each
from tests.unit.gateway.sessions.desk import principal

ADA = principal()


class Program:
    """The operator's program."""

    def __init__(self):
        self.asked = []
        self.answer = {"body": b'{"allow": true}'}
        self.gate = asyncio.Event()
        self.gate.set()
        self.url = ""

    async def handle(self, request):
        assert (request.method, request.content_type) == ("POST", "application/json")
        self.asked.append(await request.json())
        await self.gate.wait()
        return web.Response(**self.answer)


@pytest.fixture
async def program(aiohttp_server):
    made = Program()
    app = web.Application()
    app.router.add_route("*", "/allow", made.handle)
    made.url = str((await aiohttp_server(app)).make_url("/allow"))
    yield made
    made.gate.set()


@pytest.fixture
def clock():
    return [100.0]


def hook_of(program, clock, **more):
    return AuthorizationHook(AccessSection(hook_url=SecretUrl(program.url), **more), lambda: clock[0])


async def test_what_it_is_asked(program, clock):
    hook = hook_of(program, clock)
    assert (await hook.ask(ADA, "call", b"attr.get")).allowed
    assert program.asked == [
        {"user": "ada", "userid": 1001, "roles": ["user"], "kind": "call", "topic": "attr.get"}
    ]


async def test_its_no_comes_with_its_words(program, clock):
    program.answer = {"body": b'{"allow": false, "text": "not on Sundays", "more": 1}'}
    hook = hook_of(program, clock)
    said = await hook.ask(ADA, "call", b"attr.get")
    assert (said.allowed, said.text, said.errnum) == (False, "not on Sundays", errno.EPERM)
    program.answer = {"body": b'{"allow": false, "text": "' + b"x" * 1000 + b'"}'}
    assert len((await hook.ask(ADA, "call", b"b")).text) == hooks.TEXT_CHARS
    assert hook.outcomes == {"allowed": 0, "denied": 2, "failed": 0}


async def test_answers_are_remembered_for_a_while_by_user_roles_kind_and_topic(program, clock):
    hook = hook_of(program, clock, hook_cache_s=30.0)
    for _ in range(3):
        await hook.ask(ADA, "call", b"a")
    assert len(program.asked) == 1
    for other in (principal("bob"), principal(roles=("user", "admin")), principal(userid=7)):
        assert hook.known(other, "call", b"a") is None
    assert hook.known(ADA, "publish", b"a") is hook.known(ADA, "call", b"b") is None
    clock[0] += 30
    assert hook.known(ADA, "call", b"a") is None


async def test_without_a_cache_it_is_asked_each_time(program, clock):
    hook = hook_of(program, clock, hook_cache_s=0)
    for _ in range(2):
        assert (await hook.ask(ADA, "call", b"a")).allowed
    assert len(program.asked) == 2


async def test_who_asks_the_same_at_a_time_asks_once(program, clock):
    hook = hook_of(program, clock)
    program.gate.clear()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(hook.ask(ADA, "call", b"a"), name="asks") for _ in range(20)]
    while not program.asked:
        await asyncio.sleep(0)
    tasks[0].cancel()
    program.gate.set()
    assert all(each.allowed for each in await asyncio.gather(*tasks[1:]))
    assert len(program.asked) == 1


async def test_memory_is_bounded(program, clock, monkeypatch):
    monkeypatch.setattr(hooks, "REMEMBERED", 2)
    hook = hook_of(program, clock)
    for topic in (b"a", b"b", b"c"):
        await hook.ask(ADA, "call", topic)
    assert [hook.known(ADA, "call", topic) is not None for topic in (b"a", b"b", b"c")] == [False, True, True]


@for_each(
    "answer",
    [
        {"status": 500},
        {"status": 204},
        {"status": 302, "headers": {"Location": "/allow"}, "body": b'{"allow": true}'},
        {"body": b""},
        {"body": b"true"},
        {"body": b'{"allow": "true"}'},
        {"body": b'{"allow": 1}'},
        {"body": b'{"allowed": true}'},
        {"body": b'{"allow": true}' + b" " * 300_000},
        {"body": b'{"allow": false, "allow": true}'},
        {"body": b'{"allow": true, "more": {"a": 1, "a": 2}}'},
    ],
    ids=lambda value: str(value)[:40],
)
async def test_nothing_but_a_yes_is_one(program, clock, answer):
    program.answer = answer
    hook = hook_of(program, clock)
    said = await hook.ask(ADA, "call", b"a")
    assert (said.allowed, said.text, said.errnum) == (False, AWAY, errno.EHOSTUNREACH)
    assert hook.outcomes["failed"] == 1
    assert hook.known(ADA, "call", b"a") == said
    assert hook.known(ADA, "call", b"b") is None, "others are asked for"
    clock[0] += AWAY_S
    assert hook.known(ADA, "call", b"a") is None


async def test_a_certificate_that_is_not_trusted_is_looked_at_once(program, clock, aiohttp_server, tmp_path):
    """It is nobody's question that is wrong with it: others do not ask meanwhile."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*selfsigned.save(selfsigned.make([], now=time.time()), tmp_path / "tls"))
    app = web.Application()
    app.router.add_route("*", "/allow", program.handle)
    program.url = str((await aiohttp_server(app, ssl=context)).make_url("/allow"))
    assert program.url.startswith("https:")
    hook = hook_of(program, clock)
    assert not (await hook.ask(ADA, "call", b"a")).allowed
    assert hook.known(ADA, "call", b"b").text == AWAY
    assert hook.outcomes["failed"] == 1
    assert program.asked == []


async def test_a_hook_that_is_slow_is_waited_for_once_and_asked_again_in_a_moment(program, clock):
    hook = hook_of(program, clock, hook_s=0.05)
    program.gate.clear()
    assert not (await hook.ask(ADA, "call", b"a")).allowed
    for topic in (b"a", b"b", b"c"):
        assert hook.known(ADA, "call", topic).errnum == errno.EHOSTUNREACH
    assert len(program.asked) <= 1
    program.gate.set()
    hook._limit_s = 5.0
    clock[0] += AWAY_S
    assert (await hook.ask(ADA, "call", b"a")).allowed


async def test_a_question_that_it_is_slow_with_shuts_nobody_else_out(clock):
    hook = AuthorizationHook(
        AccessSection(hook_url=SecretUrl("http://127.0.0.1:1/"), hook_s=0.05), lambda: clock[0]
    )
    stuck = asyncio.Event()

    async def post(key, _mine):
        if key[4] != b"slow":
            return hooks._Said(True)
        await stuck.wait()
        clock[0] += 1
        raise TimeoutError

    hook._post = post
    slow = asyncio.get_running_loop().create_task(hook.ask(ADA, "call", b"slow"), name="asks")
    for _ in range(5):
        await asyncio.sleep(0)
    clock[0] += 0.5
    assert (await hook.ask(ADA, "call", b"a")).allowed
    stuck.set()
    assert (await slow).errnum == errno.EHOSTUNREACH
    assert (await hook.ask(ADA, "call", b"b")).allowed, "it answers others"


async def test_users_get_its_slots_in_turns_and_none_all_of_them():
    slots, got = hooks.Slots(4, 2), []

    async def ask(user):
        await slots.take(user)
        got.append(user)

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(ask(user), name=user) for user in "aaaaabbbb"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sorted(got) == ["a", "a", "b", "b"]
    tasks.append(loop.create_task(ask("c"), name="c"))
    await asyncio.sleep(0)
    tasks[2].cancel()
    for user in "abab":
        slots.give(user)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert got[4] == "a"
    assert "c" in got[:7], "before those who have many more to ask"
    for user in ("c", *"ab" * 5):
        if slots._held.of(user):
            slots.give(user)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    assert Counter(got) == {"a": 4, "b": 4, "c": 1}
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (slots._held.total, slots._held.counts) == (0, {}), "none is lost"


async def test_time_in_our_queue_is_not_its_silence(program, clock, monkeypatch):
    hook = hook_of(program, clock, hook_s=0.3)
    hook._slots = hooks.Slots(1, 1)
    program.gate.clear()
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)  # of a busy machine each answer could take as long
    tasks = [loop.create_task(hook.ask(ADA, "call", topic), name="asks") for topic in (b"a", b"b", b"c")]
    for number in range(3):
        while len(program.asked) <= number:
            await asyncio.sleep(0)
        now += 0.2
        program.gate.set()
        await asyncio.sleep(0)
        program.gate.clear()
    assert [each.allowed for each in await asyncio.gather(*tasks)] == [True] * 3


async def test_what_it_said_before_counts_while_it_is_away(program, clock):
    hook = hook_of(program, clock, hook_s=5.0)
    await hook.ask(ADA, "call", b"a")
    program.gate.clear()
    hook._limit_s = 0.05
    await hook.ask(ADA, "call", b"b")
    assert hook.known(ADA, "call", b"a").allowed


async def test_nobody_listens(clock):
    hook = AuthorizationHook(AccessSection(hook_url=SecretUrl("http://127.0.0.1:1/")), lambda: clock[0])
    assert (await hook.ask(ADA, "call", b"a")).errnum == errno.EHOSTUNREACH


@pytest.mark.parametrize("topic", [b"\xff", b"x" * 2000])
async def test_topics_that_cannot_be_asked_for(program, clock, topic):
    hook = hook_of(program, clock)
    assert not (await hook.ask(ADA, "call", topic)).allowed
    assert program.asked == []
    assert hook.outcomes["failed"] == 0
    assert (await hook.ask(ADA, "call", b"a")).allowed, "and nobody else is shut out by it"
