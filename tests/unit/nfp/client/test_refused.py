"""A broker that does not let a client in, because of keys: whoever waits is told at once."""

import asyncio

import pytest

from broker.errors import LinkBroken, LinkRefused
from broker.nfp.client import BlockingClient, JobTimeout, NfpClient
from broker.transport import curve
from tests.live.nfp import nfp_broker
from tests.unit.nfp.client.running import WITHIN_S

WRONG = "its key is probably not {} as configured"


@pytest.fixture
def live(rundir):
    with nfp_broker(rundir) as live:
        yield live


def outcome(work, **options):
    """What each of the coroutines that ``work(client)`` returns came to."""

    async def main():
        async with asyncio.timeout(WITHIN_S), NfpClient(**options) as client:
            return await asyncio.gather(*work(client), return_exceptions=True)

    return asyncio.run(main())


def everything(client):
    return [
        client.wait_connected(),
        client.run("filesharing", "list_files", args=["nf://"], target="any"),
        client.run("mmi.service.broker", "show_broker"),
        client.mmi("show_broker", timeout_s=WITHIN_S),
        client.services(),
    ]


def test_a_broker_with_another_key(live):
    other = curve.generate().public_key
    said = outcome(everything, broker=live.endpoint, server_key=other)
    assert [type(error) for error in said] == [LinkRefused] * 5
    assert all(WRONG.format(other) in str(error) for error in said)


def test_a_broker_that_wants_keys(live):
    said = outcome(everything, broker=live.endpoint, server_key="")
    assert [type(error) for error in said] == [LinkRefused] * 5
    assert all("CURVE" in str(error) for error in said)


def test_a_broker_that_does_not_list_our_key(rundir):
    with nfp_broker(rundir, unlisted="deny") as live:
        said = outcome(everything, broker=live.endpoint, server_key=live.server_key)
    assert [type(error) for error in said] == [LinkRefused] * 5
    assert all("is probably not on its list" in str(error) for error in said)


def test_threads_are_told_as_well(live):
    with (
        BlockingClient(broker=live.endpoint, server_key=curve.generate().public_key) as nfp,
        pytest.raises(LinkRefused, match="its key is probably not"),
    ):
        nfp.run("filesharing", "list_files")


@pytest.mark.patient
def test_a_broker_of_the_list_that_is_away_may_still_come(live):
    """Not all of them refuse: a job waits for the other one, and says at its deadline what is in the way."""

    async def work(client):
        with pytest.raises(LinkBroken, match="not connected within"):
            await client.wait_connected(0.2)
        with pytest.raises(JobTimeout, match=r"no broker has confirmed that it has it: .*tcp://127\.0\.0\.1"):
            await client.run("filesharing", "list_files", timeout_s=0.3)

    brokers = [live.endpoint, "tcp://127.0.0.1:1"]
    options = {"broker": brokers, "server_key": curve.generate().public_key, "failover_s": 0.1}
    assert outcome(lambda client: [work(client)], **options) == [None]


def test_once_it_has_let_us_in_jobs_wait_for_it(live):
    async def work(client):
        await client.wait_connected()
        client._channel._brokers.current.curve = curve.CurveClient(own, curve.generate().public_key)
        client._channel.reopen("for a test")
        with pytest.raises(JobTimeout):
            await client.run("filesharing", "list_files", timeout_s=0.3)

    own = curve.generate()
    assert outcome(
        lambda client: [work(client)], broker=live.endpoint, server_key=live.server_key, key=own
    ) == [None]


def test_a_later_attempt_goes_well_once_the_keys_are_right(live):
    async def work(client):
        with pytest.raises(LinkRefused):
            await client.run("filesharing", "list_files", args=["nf://"])
        client._channel._brokers.current.curve = curve.CurveClient(own, live.server_key)
        await client.wait_connected(WITHIN_S)
        assert await client.run("filesharing", "list_files", args=["nf://"], target="any")

    own = curve.generate()
    wrong = curve.generate().public_key
    said = outcome(lambda client: [work(client)], broker=live.endpoint, server_key=wrong, key=own)
    assert said == [None]


def named(live, key=None):
    """A client called c1, with a key of its own."""
    keys = {"server_key": live.server_key, "key": key or curve.generate()}
    return NfpClient("c1", broker=live.endpoint, store=False, **keys)


def test_a_name_of_another_key_is_told_at_the_first_try(live):
    """Long before any deadline, and the broker is not asked ten times a second."""

    async def main():
        async with asyncio.timeout(WITHIN_S), named(live) as client:
            began = asyncio.get_running_loop().time()
            said = await asyncio.gather(*everything(client), return_exceptions=True)
            took_s = asyncio.get_running_loop().time() - began
            refused = live.broker.name_owners.violations
            await asyncio.sleep(1.0)
            return said, took_s, live.broker.name_owners.violations - refused

    assert live.call(lambda: live.broker.name_owners.pin("c1", curve.generate().public_key))
    said, took_s, more = asyncio.run(main())
    assert [type(error) for error in said] == [LinkRefused] * 5
    assert all("the name c1 belongs to another key; take another name" in str(error) for error in said)
    assert took_s < 1.0
    assert more <= 6


@pytest.mark.parametrize("key", ["another", "the same"])
def test_a_name_that_is_connected_is_told_at_once(live, key):
    ours = curve.generate()
    why = "belongs to another key" if key == "another" else "is in use"

    async def main():
        async with asyncio.timeout(WITHIN_S), named(live, key=ours) as first:
            await first.wait_connected()
            async with named(live, key=curve.generate() if key == "another" else ours) as second:
                with pytest.raises(LinkRefused, match=f"the name c1 {why}; take another name"):
                    await second.run("nosuch", "task")
            assert await first.run("filesharing", "list_files", args=["nf://"], target="any")

    asyncio.run(main())
