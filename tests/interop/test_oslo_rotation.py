"""Certificates of nodes and of applications are replaced while real clients and servers of oslo.messaging work."""

import signal
import time
from pathlib import Path

import pytest

from broker.identity import Role
from broker.transport import curve
from tests.live.oslo import Proxy, Sides, executions, nodes, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


def reloaded(proxy: Proxy) -> str:
    """SIGHUP; the public key that is shown afterwards."""
    done = proxy.status("call")["settings"]["done"]
    proxy.signal(signal.SIGHUP)
    until(lambda: proxy.status("call")["settings"]["done"] == done + 1, what="the settings to be read")
    return str(proxy.status("call")["settings"]["public_key"])


def test_everything_goes_on_while_certificates_are_replaced(rundir: Path, sides: Sides) -> None:
    """As the guide has it: first the key to come is an owner everywhere, then each node gets its certificate."""
    log = rundir / "log"
    former, new = curve.generate(), curve.generate()
    shared = rundir / "proxy.cert"
    curve.save(former, shared)
    curve.save(curve.generate(), rundir / "app.cert")
    keys = [{"key": each.public_key, "rolemask": 1} for each in (former, new)]
    with nodes(rundir, 2, curve_cert=str(shared), keys=keys, unlisted=int(Role.USER)) as (near, far):
        sides("server", far.url, topic="t", server="s", log=str(log))
        sides("listener", far.url, topic="n", log=str(log))
        client = sides("client", f"{near.url}&zmq_curve_cert={rundir}/app.cert")
        assert client.result("call", topic="t", method="echo", args={"value": 1}) == 1
        client.tell(do="load", topic="t", method="note", during=6, threads=4)
        time.sleep(1)
        curve.save(new, shared, replace=True)
        curve.save(curve.generate(), rundir / "app.cert", replace=True)
        for proxy in (near, far):
            assert reloaded(proxy) == new.public_key
        done = client.next()["result"]
        assert done["ok"]
        assert not done["timeout"]
        assert not done["error"]
        noted = [line for line in executions(log) if not line.endswith(" echo")]
        assert len(noted) == len(set(noted)) == len(done["ok"])
        client.result("cast", topic="t", method="note", numbers=list(range(10**6, 10**6 + 50)))
        client.result("cast", topic="t", fanout=True, method="note", args={"n": "all"})
        client.result("notify", topic="n", numbers=list(range(50)))
        until(lambda: len(executions(log)) == len(noted) + 102, what="each of them, once")
        far.kill()
        far.start()  # with the new key alone
        answer = client.result("call", topic="t", method="echo", args={"value": 2}, timeout=20)
        assert answer == 2
