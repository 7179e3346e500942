"""Attributes, hostlists and metrics text: what clients and scrapers read."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.exposition import PageListener, render
from broker.node.assembly import Node
from broker.node.attributes import configuration, fold, initial
from broker.routing.topology import Topology
from broker.secret import SecretPlace, SecretUrl
from broker.settings import HostEntry, JournalSection, ListenEntry, OsloSection, Settings, loads
from tests.tables import for_each
from tests.unit.node import desk


@for_each(
    ("names", "folded"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "a"], "a,a"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n09", "n10"], "n[09-10]"),
        (["n1", "n3"], "n1,n3"),
        (["n1", "m2"], "n1,m2"),
        (["n2", "n1"], "n2,n1"),
        (["1", "2"], "[1-2]"),
    ],
)
def test_hostlists(names, folded):
    assert fold(names) == folded


def unfold(text):
    names = []
    for item in [item for item in text.split(",") if item]:
        stem, bracket, span = item.rstrip("]").partition("[")
        if not bracket:
            names.append(stem)
            continue
        first, last = span.split("-")
        names += [f"{stem}{str(n).zfill(len(first))}" for n in range(int(first), int(last) + 1)]
    return names


@given(st.lists(st.builds("{}{}".format, st.sampled_from(("n", "m0x")), st.integers(0, 120)), max_size=20))
def test_a_hostlist_names_the_same_hosts_in_the_same_order(names):
    assert unfold(fold(names)) == names


def test_what_every_guest_may_read_of_the_configuration_has_no_key_and_no_password():
    settings = Settings(
        journal=JournalSection(
            ship_to=SecretPlace("abfs://c@a.dfs.core.windows.net/j?client_id=x&client_secret=secret#secret")
        ),
        oslo=OsloSection(
            redis=tuple(
                map(
                    SecretUrl,
                    (
                        "redis://me:secret@host:6379/1?password=secret",
                        "sentinel://:secret@a:1,b:2/name",
                        "redis://:a/secret@h:1/0",
                    ),
                )
            )
        ),
        listen=(ListenEntry(uri="mqtt://me:secret@h", options={"password": "secret", "qos": 1}),),
    )
    told = configuration(settings)["headgate"]
    assert "secret" not in str(told).replace("client_secret=", "")
    assert (
        told["journal"]["ship_to"] == "abfs://c@a.dfs.core.windows.net/j?client_id=***&client_secret=***#***"
    )
    assert list(told["oslo"]["redis"][1:]) == ["sentinel://a:1,b:2/name", "redis://h:1/0"]
    assert (
        told["listen"][0] | {"uri": "mqtt://h", "options": {"password": "***", "qos": 1}} == told["listen"][0]
    )
    assert configuration(Settings())["headgate"]["oslo"] is None


def test_what_children_dial_is_told_without_its_secret():
    hosts = tuple(HostEntry(rank=rank, address="mqtt://me:hush@h/t") for rank in range(2))
    for endpoint in (None, "mqtt://me:hush@h/t"):
        told = initial(Settings(hosts=hosts).at_rank(0), Topology(2), str, 0, lambda: endpoint)  # noqa: B023
        assert told["tbon.endpoint"][0]() == "mqtt://h/t"


def test_prometheus_text():
    text = render([("x_total", "counter", "Help.", [({}, 3.0), ({"reason": 'a"b\\c\nd'}, 1.5)])])
    assert text == (
        "# HELP headgate_x_total Help.\n# TYPE headgate_x_total counter\n"
        'headgate_x_total 3\nheadgate_x_total{reason="a\\"b\\\\c\\nd"} 1.5\n'
    )


def test_prometheus_counters_keep_their_last_digits():
    """Found here: a counter above a million lost all but six digits, so that its rate was zero or a jump."""
    assert "headgate_x_total 12345678\n" in render([("x_total", "counter", "Help.", [({}, 12_345_678.0)])])


@for_each("place", ["http://127.0.0.1:nonsense", "unix:///no/such/directory/m", "nothing"])
def test_a_place_that_cannot_be(place):
    async def script():
        with pytest.raises(ConfigError, match="metrics_listen"):
            await PageListener("broker.metrics_listen", place, None, "").start()

    desk.run(script())


@for_each(
    ("head", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"404"),
        (b"x" * 9000, b""),
    ],
)
def test_only_metrics_are_served(rundir, head, status):
    async def script():
        text = f'[broker]\nrundir = "{rundir}"\nmetrics_listen = "unix://{rundir}/m"\n'
        node = Node(loads(text).at_rank(0))
        await node.start()
        reader, writer = await asyncio.open_unix_connection(rundir / "m")
        writer.write(head)
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        assert answer.split(b" ", 2)[1:2] == ([status] if status else [])
        writer.close()
        await node.stop()

    desk.run(script())
