"""Real oslo.messaging through a proxy with a bridge on a Flux broker: what passes is in the table of that broker."""

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.client.blocking import connect
from tests.live.attached import HEADGATE, until_said
from tests.live.brokers import one_broker
from tests.live.oslo import Proxy, Sides, nodes, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


@contextmanager
def bridge(rundir: Path, node: Proxy, uri: str) -> Iterator[None]:
    """``headgate oslo bridge`` of the node on the broker at ``uri``."""
    log = rundir / "bridge.log"
    argv = [*HEADGATE, "oslo", "bridge", "--uri", uri, "--ipc-dir", str(node.folder)]
    with log.open("ab") as errors, subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors) as process:
        try:
            until_said(process, "Ctrl-C", log)
            yield
        finally:
            process.terminate()


def test_what_applications_send_is_counted_by_topic(rundir: Path, sides: Sides) -> None:
    with nodes(rundir, 1) as (node,), one_broker(rundir) as broker, bridge(rundir, node, broker.uri):
        log = rundir / "log"
        sides("server", node.url, topic="t", server="s", log=str(log))
        client = sides("client", node.url)
        for _ in range(3):
            client.result("call", topic="t", method="who")
        client.result("cast", topic="t", method="note", args={"n": 1})
        client.result("cast", topic="t", fanout=True, method="note", args={"n": 2})
        assert "error" in client.ask("call", topic="nobody", method="who", timeout=1)
        client.result("listen", topic="n")
        client.result("notify", topic="n", numbers=[1, 2])
        until(lambda: len(client.result("heard")) == 2, what="two")
        with connect(broker.uri) as h:
            told = h.rpc("broker.calls").json()
        assert told["silent"] == []
        figures = told["others"]["oslo"]
        sent = {name: each["calls"] for name, each in figures.items() if name.endswith("/t")}
        assert {name.partition(" ")[0] for name in sent} >= {"call", "fanout"}
        assert sum(count for name, count in sent.items() if name.startswith(("call", "cast"))) == 4
        assert next(count for name, count in sent.items() if name.startswith("fanout")) == 1
        assert next(each["calls"] for name, each in figures.items() if name.startswith("notify")) == 2
        assert all(each["open"] == 0 and not each["buckets"] for each in figures.values())
        lost = {number for each in figures.values() for number in each["errors"]}
        assert lost <= {str(errno.EHOSTUNREACH)}
