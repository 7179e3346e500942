"""Certificates of nodes and of applications are replaced while real clients and servers of oslo.messaging work."""

import signal
import threading
import time
from pathlib import Path

import pytest

from broker.identity import Role
from broker.transport import curve
from tests.live.oslo import Proxy, Side, Sides, executions, nodes, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]
ROTATIONS = 3


def reloaded(proxy: Proxy) -> str:
    """SIGHUP; the public key that is shown afterwards."""
    done = proxy.status("call")["settings"]["done"]
    proxy.signal(signal.SIGHUP)
    until(lambda: proxy.status("call")["settings"]["done"] == done + 1, what="the settings to be read")
    return str(proxy.status("call")["settings"]["public_key"])


class Publishing:
    """Notifications and fan-outs, one after the other until the end."""

    def __init__(self, client: Side) -> None:
        self.notified = self.fanned_out = 0
        self._client = client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            numbers = list(range(self.notified, self.notified + 20))
            self._client.result("notify", topic="n", numbers=numbers)
            self._client.result(
                "cast", topic="t", fanout=True, method="note", args={"n": f"f{self.fanned_out}"}
            )
            self.notified += 20
            self.fanned_out += 1

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def test_nothing_is_lost_or_doubled_while_certificates_are_replaced(rundir: Path, sides: Sides) -> None:
    """As the guide has it: first the keys to come are owners everywhere, then each node gets its certificate."""
    log, notes, shared = rundir / "log", rundir / "notes", rundir / "proxy.cert"
    former, *following = (curve.generate() for _ in range(1 + ROTATIONS))
    curve.save(former, shared)
    curve.save(curve.generate(), rundir / "app.cert")
    keys = [{"key": each.public_key, "rolemask": 1} for each in (former, *following)]
    secure = {"curve_cert": str(shared), "keys": keys, "unlisted": int(Role.USER)}
    with nodes(rundir, 2, **secure) as (near, far):
        for name in ("s1", "s2"):
            sides("server", far.url, topic="t", server=name, log=str(log))
        sides("listener", far.url, topic="n", log=str(notes))
        url = f"{near.url}&zmq_curve_cert={rundir}/app.cert"
        casts, calls, others = (sides("client", url) for _ in range(3))
        for client in (casts, calls, others):
            assert client.result("call", topic="t", method="echo", args={"value": 1}) == 1
        before = len(executions(log))
        during = 2.0 + 1.5 * ROTATIONS
        casts.tell(do="load", topic="t", during=during, threads=2, cast=True, pause=0.002)
        calls.tell(do="load", topic="t", during=during, threads=4, first=10**6)
        publishing = Publishing(others)
        for certificate in following:
            time.sleep(1.5)
            curve.save(certificate, shared, replace=True)
            curve.save(curve.generate(), rundir / "app.cert", replace=True)
            assert [reloaded(proxy) for proxy in (near, far)] == [certificate.public_key] * 2
        publishing.end()
        done = [client.next()["result"] for client in (casts, calls)]
        assert not any(each["timeout"] or each["error"] for each in done)
        expected = sum(len(each["ok"]) for each in done) + 2 * publishing.fanned_out
        until(lambda: len(executions(log)) >= before + expected, what="each of them")
        until(lambda: len(executions(notes)) >= publishing.notified, what="each notification")
        ran = executions(log)[before:]
        assert (len(ran), len(set(ran))) == (expected, expected)
        assert len(executions(notes)) == len(set(executions(notes))) == publishing.notified
        far.kill()
        far.start()  # with the new key alone
        answer = calls.result("call", topic="t", method="echo", args={"value": 2}, timeout=20)
        assert answer == 2
