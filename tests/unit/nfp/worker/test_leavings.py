"""Whatever a task leaves, and in whatever way: its job ends with a result, and its slot comes back."""

import asyncio
import functools
import logging
import os
import pathlib
import types
from collections.abc import Mapping

import pydantic

from broker.nfp.names import Command
from broker.nfp.worker import Result
from tests.unit.nfp.worker.rig import PATIENCE_S, RawBroker, body, made, post, result, working

HALF = os.fsdecode(b"caf\xe9")


class BadText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class NoText(Exception):
    def __str__(self):
        return None  # noqa: PLE0307 (that is the point)


class Ends(Exception):
    def __str__(self):
        raise SystemExit(3)


class NoClass(Exception):
    @property
    def __class__(self):
        raise RuntimeError("no class")


class NoName(type):
    @property
    def __name__(cls):
        raise RuntimeError("no name")


class Nameless(Exception, metaclass=NoName):
    def __str__(self):
        raise RuntimeError("no text")


class Detached(Mapping):
    """As lazily loaded rows are when their session is gone."""

    def __getitem__(self, key):
        raise KeyError(key)

    def __iter__(self):
        raise RuntimeError("detached")

    def __len__(self):
        return 1

    def __bool__(self):
        raise RuntimeError("neither")


def odd_syntax_error():
    error = SyntaxError("odd")
    error.text, error.lineno, error.offset = 5, "x", ()
    return error


def itself():
    loop = [HALF]
    return [*loop, loop.append(loop) or loop, loop]


THINGS = {
    "half a character": HALF,
    "bytes": b"\xff",
    "a path": pathlib.Path(HALF),
    "an exception": ValueError("no"),
    "one whose text raises": BadText("x"),
    "one without text": NoText("x"),
    "one whose text ends the process": Ends("x"),
    "one without class": NoClass("x"),
    "one without a name": Nameless("x"),
    "an interrupt": KeyboardInterrupt("x"),
    "an end": SystemExit(3),
    "a cancellation": asyncio.CancelledError(),
    "one of odd attributes": odd_syntax_error(),
    "one of half a character": FileNotFoundError(HALF),
    "a mapping that raises": Detached(),
    "what holds itself": itself(),
    "keys that JSON has not": {(1, 2): BadText("x"), HALF: {HALF}},
    "a number": 5,
    "nothing": None,
}


def raised(thing):
    raise thing if isinstance(thing, BaseException) else RuntimeError(thing)


def set_each(job, thing):
    job.messages = job.resources = job.resources_failed = job.errors = job.diff = job.dry_run = thing


WAYS = {
    "returned": lambda job, thing: thing,
    "within": lambda job, thing: {"a": [thing]},
    "raised": lambda job, thing: raised(thing),
    "with a note": lambda job, thing: raised(_noted(thing)),
    "progress": lambda job, thing: job.progress(thing),
    "progress of": lambda job, thing: job.progress(
        "x", resource=thing, severity=thing, status=thing, more=thing
    ),
    "message": lambda job, thing: job.messages.append(thing),
    "fail": lambda job, thing: job.fail(thing),
    "resource": lambda job, thing: job.resources.append(thing),
    "attributes": set_each,
    "result": lambda job, thing: Result(errors=[thing], messages=thing, resources=thing, failed=thing),
    "fields": lambda job, thing: Result(task=thing, juuid=thing, status=thing, diff=thing, service=thing),
    "log": lambda job, thing: logging.getLogger("headgate.odd").warning(thing),
    "log of": lambda job, thing: logging.getLogger("headgate.odd").warning("%d of it", thing),
}


def _noted(thing):
    error = RuntimeError("noted")
    error.__notes__ = thing
    return error


async def ended(broker):
    while True:
        packet = await broker.take_only(Command.RESPONSE, Command.EVENT, Command.KEEPALIVE)
        if packet.status != 201:
            return packet


def tasks(worker):
    @worker.task
    def ordinary(job, way, thing):
        return WAYS[way](job, THINGS[thing])

    @worker.task
    async def asynchronous(job, way, thing):
        return WAYS[way](job, THINGS[thing])

    @worker.task
    def ordinary_ask(job, thing):
        return job.ask(THINGS[thing], default=THINGS[thing], timeout_s=0.01, about=THINGS[thing])

    @worker.task
    async def asynchronous_ask(job, thing):
        return await job.ask(THINGS[thing], default=THINGS[thing], timeout_s=0.01, about=THINGS[thing])


async def ends():
    raise SystemExit(3)


async def interrupts():
    raise KeyboardInterrupt


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(PATIENCE_S)


async def is_cancelled_by_a_timer():
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
    await asyncio.sleep(PATIENCE_S)


async def in_a_group(what):
    async with asyncio.TaskGroup() as group:
        group.create_task(what())


IN_THE_LOOP = {
    "ends in a gather": (lambda: asyncio.gather(ends(), interrupts()), "SystemExit: 3"),
    "ends in a group": (lambda: in_a_group(ends), "SystemExit: 3"),
    "is interrupted in a group": (lambda: in_a_group(interrupts), "KeyboardInterrupt"),
    "cancels itself": (cancels_itself, "CancelledError"),
    "is cancelled by a timer": (is_cancelled_by_a_timer, "CancelledError"),
}


def test_what_an_asynchronous_task_does_to_the_loop_is_its_own_failure():
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, jobs_at_a_time=1, store=False)

            @worker.task
            async def odd(name):
                await IN_THE_LOOP[name][0]()

            async with working(worker, broker):
                for name, (_task, said) in IN_THE_LOOP.items():
                    post(broker, name, "odd", name)
                    told = result(await asyncio.wait_for(ended(broker), PATIENCE_S))
                    assert (told["failed"], said in str(told["errors"])) == (True, True), (name, told)

    asyncio.run(main())


def test_every_job_ends_and_its_slot_comes_back():
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, jobs_at_a_time=2, store=False)
            tasks(worker)
            async with working(worker, broker):
                wanted = {}
                for kind in ("ordinary", "asynchronous"):
                    for thing in THINGS:
                        wanted[f"{kind} asks {thing}"] = (f"{kind}_ask", thing)
                        for way in WAYS:
                            wanted[f"{kind} {way} {thing}"] = (kind, way, thing)
                for uuid, (task, *args) in wanted.items():
                    post(broker, uuid, task, *args)
                missing = set(wanted)
                while missing:
                    try:
                        packet = await asyncio.wait_for(
                            broker.take_only(Command.RESPONSE, Command.EVENT, Command.KEEPALIVE), PATIENCE_S
                        )
                    except TimeoutError:
                        raise AssertionError(f"no result of {sorted(missing)}") from None
                    if packet.status != 201:
                        assert isinstance(result(packet)["failed"], bool), packet.uuid
                        missing.remove(packet.uuid)
                for uuid, built_in in enumerate(("get_logs", "job_list", "ping")):
                    post(broker, f"after {uuid}", built_in)
                    assert not result(await ended(broker))["failed"]

    asyncio.run(main())


def test_what_was_left_is_still_to_be_read():
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, store=False)
            tasks(worker)
            async with working(worker, broker):
                post(broker, "u1", "ordinary", "progress", "half a character")
                event = body(await broker.take_only(Command.EVENT))
                assert event["message"] == "caf\\udce9"
                assert result(await ended(broker))["status"] == "completed"
                post(broker, "u2", "asynchronous", "raised", "one whose text raises")
                bad = result(await ended(broker))
                assert bad["messages"] == ["BadText: (BadText, whose text cannot be read: RuntimeError)"]
                assert "in raised" in bad["errors"][0]
                post(broker, "u3", "ordinary_ask", "a path")
                asked = body(await broker.take_only(Command.EVENT))["extras"]["input_request"]
                assert (asked["default"], asked["metadata"]) == ("caf\\udce9", {"about": "caf\\udce9"})
                await ended(broker)
                post(broker, "u4", "job_details", uuid="u3")
                events = result(await ended(broker))["result"]["job_events"]
                assert [each["message"] for each in events] == ["caf\\udce9"] * 2

    asyncio.run(main())


def test_an_event_that_the_broker_does_not_take_fails_where_it_is_said():
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, store=False)

            @worker.task
            def much(job):
                job.progress("x" * 3000)

            @worker.task
            async def asks(job):
                await job.ask("x" * 3000)

            async with working(worker, broker):
                worker._session.said = worker._session.said._replace(message_bytes=2000)
                for uuid in ("much", "asks"):
                    post(broker, uuid, uuid)
                    assert "the broker takes 2000" in result(await ended(broker))["messages"][0]

    asyncio.run(main())


class Port(pydantic.BaseModel):
    path: pathlib.PurePosixPath
    vlan: int = 1


def test_a_returned_model_is_what_it_stands_for():
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, store=False)
            worker.task(name="port")(lambda: [Port(path="/a")])
            async with working(worker, broker):
                post(broker, "u1", "port")
                assert result(await ended(broker))["result"] == [{"path": "/a", "vlan": 1}]

    asyncio.run(main())


def test_an_asynchronous_function_behind_a_decorator_is_awaited():
    def decorated(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return function(*args, **kwargs)

        return call

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, store=False)

            @worker.task
            @decorated
            async def asks(job, n):
                job.progress("asks")
                try:
                    await job.ask("well?", timeout_s=0.01)
                except TimeoutError:
                    return n

            @worker.task
            @decorated
            async def forever(job):
                job.progress("waits")
                await asyncio.Event().wait()

            @worker.task
            async def unawaited(n):
                return asks(types.SimpleNamespace(progress=bool, ask=no_answer), n)

            async with working(worker, broker):
                for uuid, task in enumerate(("asks", "unawaited")):
                    post(broker, str(uuid), task, n=7)
                    assert result(await ended(broker))["result"] == 7
                post(broker, "u2", "forever")
                assert body(await broker.take_only(Command.EVENT))["message"] == "waits"
                broker.say("w1", Command.DELETE, client=b"c#1", uuid="u2", body=b"{}")
                assert result(await ended(broker), 417)["errors"] == ["job u2 was cancelled"]

    async def no_answer(*_args, **_kwargs):
        raise TimeoutError

    asyncio.run(main())
