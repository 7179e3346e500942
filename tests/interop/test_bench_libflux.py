"""The load generator that is a real libflux client, against ours: it is built, and what it reports is whole."""

import pytest

from tests.bench.contenders import Headgate
from tests.bench.libflux_works import SOURCE, flags
from tests.bench.loadgen import LoadError, Loadgen, compiler

pytestmark = pytest.mark.interop

BRIEF_S = 0.1


@pytest.fixture(scope="module")
def client(flux_prefix):
    assert compiler(), "no C compiler"
    built = Loadgen(SOURCE, *flags(flux_prefix))
    yield built
    built.close()


@pytest.fixture(scope="module")
def tree():
    with Headgate(4) as started:
        yield started


@pytest.mark.parametrize("window", [1, 64])
@pytest.mark.parametrize("payload", [0, 4096])
def test_pings(client, tree, window, payload):
    pids = tree.pids
    result = client.run(
        "ping", caller=tree.uri(), nodeid=3, window=window, payload=payload, seconds=BRIEF_S, pids=pids
    )
    assert result["count"] > 0
    assert len(result["cpu_s"]) == len(pids)
    assert ("p50_us" in result) == (window == 1)


@pytest.mark.parametrize("payload", [1, 4096])
def test_a_service_of_another_process(client, tree, payload):
    result = client.run(
        "service", caller=tree.uri(), provider=tree.uri(3), nodeid=3, payload=payload, seconds=BRIEF_S
    )
    assert result["count"] > 0
    assert result["p50_us"] <= result["p99_us"]


def test_events_between_ranks(client, tree):
    result = client.run("event", caller=tree.uri(3), provider=tree.uri(2), payload=16, seconds=BRIEF_S)
    assert result["samples"] == result["count"] > 0


def test_it_goes_on_until_there_are_enough_samples(client, tree):
    result = client.run("ping", caller=tree.uri(), nodeid=3, seconds=0.0, warmup=0.0, least=50)
    assert result["samples"] >= 50


def test_a_refusal_is_an_error(client, tree):
    with pytest.raises(LoadError, match=r'"refused": [1-9]'):
        client.run("ping", caller=tree.uri(), nodeid=99, seconds=BRIEF_S)


def test_nobody_there_is_an_error(client, tree):
    with pytest.raises(LoadError, match="connect"):
        client.run("ping", caller=f"{tree.uri()}-nowhere", seconds=BRIEF_S)
