"""The client of ``broker.client`` in every dialect, against a listener of the same."""

import asyncio
import errno

import pytest

import broker.client
from broker.errors import LinkRefused, RpcError
from broker.transport import curve
from broker.transport.link import Options
from tests.conftest import short_directory
from tests.live.brokers import one_broker
from tests.live.listeners import one_place
from tests.live.speaker import Speaker, subscribe
from tests.tables import for_each

pytestmark = pytest.mark.story

SPOKEN = [
    ("cmb1", {"dialect": "cmb1"}, 'dialect = "cmb1"'),
    ("cmb1rev", {"dialect": "cmb1rev"}, 'dialect = "cmb1rev"'),
    ("strict", {"strict_rfc3": True}, "strict_rfc3 = true"),
    ("deployed", {}, ""),
]


async def calls_and_events(h: broker.client.Handle) -> None:
    assert (await h.rpc("broker.ping", {"seq": 3})).json()["seq"] == 3
    assert await h.size() == 1
    with pytest.raises(RpcError) as caught:
        await h.rpc("no.such")
    assert caught.value.errno == errno.ENOSYS
    async with h.subscribe("news.") as events:
        sequence = await h.publish("news.one", {"n": 1})
        h.publish_nowait("news.two", "text")
        first, second = await anext(events), await anext(events)
    assert (first.sequence, first.topic, first.json()) == (sequence, "news.one", {"n": 1})
    assert (second.topic, second.text) == ("news.two", "text")


async def streams(h: broker.client.Handle, service: str = "echo") -> list[object]:
    async with h.stream(f"{service}.count", {"to": 2}) as answers:
        return [answer.json()["n"] async for answer in answers]


async def count(request):
    for n in range(request.json()["to"]):
        yield {"n": n}


METHODS = {"run": lambda request: request.json(), "count": count}


@for_each(("name", "ours", "theirs"), SPOKEN, ids=[row[0] for row in SPOKEN])
def test_calls_events_and_services(name, ours, theirs):
    """Where one of them speaks the first text there are no streams, and whoever asks is told so."""

    async def script():
        old = broker.client.connect(place.uri, options=place.options(**ours))
        async with old as here, broker.client.connect(place.broker.uri) as there:
            await calls_and_events(here)
            for service, provider, caller in (("old", here, there), ("new", there, here)):
                async with provider.service(service, METHODS):
                    assert (await caller.rpc(f"{service}.run", {"a": "b"})).json() == {"a": "b"}
                    if name != "cmb1":
                        assert await streams(caller, service) == [0, 1]
                        continue
                    with pytest.raises(RpcError, match="cmb1 cannot carry flag STREAMING") as caught:
                        await streams(caller, service)
                    assert caught.value.errno == errno.EOPNOTSUPP

    with short_directory() as rundir, one_place(rundir, theirs) as place:
        asyncio.run(script())


def test_strict_over_a_unix_socket(rundir):
    async def script():
        async with broker.client.connect(uri, options=Options(strict_rfc3=True)) as h:
            await calls_and_events(h)
            async with h.service("echo", METHODS), broker.client.connect(running.uri) as other:
                assert (await other.rpc("echo.run", {"a": "b"})).json() == {"a": "b"}
                assert await streams(other) == [0, 1]

    uri = f"local://{rundir}/strict"
    with one_broker(rundir, f'[[listen]]\nuri = "{uri}"\nstrict_rfc3 = true\n') as running:
        asyncio.run(script())


def test_a_wrong_key_is_refused(rundir):
    async def script():
        with pytest.raises(LinkRefused) as caught:
            await broker.client.connect(stranger.uri, options=stranger.options(dialect="cmb1"))
        assert caught.value.errno == errno.EPERM

    with one_place(rundir, 'dialect = "cmb1"') as place:
        stranger = place._replace(client=curve.generate())
        asyncio.run(script())


def test_credentials_are_those_of_the_key(rundir):
    async def script():
        async with broker.client.connect(place.uri, options=place.options(dialect="cmb1rev")) as h:
            h.publish_nowait("who", {})
            assert (await h.rpc("broker.ping", {})).json()["userid"] == 4711

    with (
        one_place(rundir, 'dialect = "cmb1rev"', userid=4711, roles="user") as place,
        Speaker(place.broker.uri) as modern,
    ):
        subscribe(modern, "who")
        asyncio.run(script())
        seen = modern.next()
        assert (seen.userid, seen.rolemask) == (4711, 2)
