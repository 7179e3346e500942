"""Rubbish from whatever sits where the proxy of a node should: an application counts it, and finds a right proxy.

Fixed seeds; ``HEADGATE_FUZZ_LIVE`` and ``make soak`` as in ``test_oslo``.
"""

import contextlib
import os
import time
from collections import Counter

import pytest

from broker.oslo.client import open_session, proxy_links
from broker.oslo.client.inbox import ClientInbox
from broker.oslo.client.session import ClientSession
from broker.oslo.contract import Address, OsloFailure, Settings
from broker.oslo.frames import new_id
from tests.live.oslo import Proxy, until
from tests.live.oslo_liar import Liar

MESSAGES = int(os.environ.get("HEADGATE_FUZZ_LIVE", "20000")) // 4
SOAK_MESSAGES = 50_000
SEED = int(os.environ.get("HEADGATE_FUZZ_SEED", "0"))
RECOVERY_S = 25.0
GROWTH_KIB = 32 << 10
CONFIG = {"lease_s": 2.0, "beat_s": 0.5}


def use(port: ClientSession, intakes: list[ClientInbox], found: Counter[str]) -> None:
    """Everything an application does; it may fail, but only as it was told it would."""
    address = Address("x", "t")
    for name, do in (
        ("call", lambda: port.call(address, b"lie", timeout_s=0.02)),
        ("mandatory call", lambda: port.call(address, b"lie", timeout_s=0.02, mandatory=True)),
        ("cast", lambda: port.cast(address, b"lie", retry=0)),
        ("fanout", lambda: port.fanout(address, b"lie", retry=0)),
        ("notify", lambda: port.notify("x", "t.info", b"lie", retry=0)),
    ):
        try:
            do()
        except OsloFailure as error:
            found[f"{name}: {type(error).__name__}"] += 1
        else:
            found[name] += 1
    for intake in intakes:
        while (item := intake.get(0)) is not None:
            found["item"] += 1
            item.beat()
            item.reply(item.body)
            item.requeue()


def served(intakes: list[ClientInbox], body: bytes) -> bool:
    """Look whether a message with that body is there; others are passed over."""
    for intake in intakes:
        while (item := intake.get(0)) is not None:
            if item.wants_reply:
                item.reply(item.body)
            if item.body == body:
                return True
    return False


def works_again(port: ClientSession, intakes: list[ClientInbox]) -> None:
    """One of each kind arrives; tried until the application has found its new proxy."""
    address = Address("x", "t")

    def called() -> bool:
        body, answers = new_id(), []
        port.start_call(address, body, answers.append, timeout_s=1.0)
        until(lambda: served(intakes, body) or answers, what="an answer to a call")
        until(lambda: answers, what="the end of a call")
        return answers == [body]

    def given(send) -> bool:
        body = new_id()
        with contextlib.suppress(OsloFailure):
            send(body)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            if served(intakes, body):
                return True
            time.sleep(0.01)
        return False

    until(called, RECOVERY_S, "a call")
    until(lambda: given(lambda body: port.cast(address, body, retry=0)), RECOVERY_S, "a cast")
    until(lambda: given(lambda body: port.fanout(address, body, retry=0)), RECOVERY_S, "a fan-out")
    until(lambda: given(lambda body: port.notify("x", "t.info", body, retry=0)), RECOVERY_S, "a notification")


def mislead(folder, messages: int, log: pytest.LogCaptureFixture) -> None:
    """Let a liar take the place of the node's proxy, and a right one come after it."""
    settings = Settings(str(folder / "n"), ready_s=0.2, fanout_wait_s=0.05, retry_s=0.02, linger_s=0.5)
    found: Counter[str] = Counter()
    port = open_session(settings)
    proxy = None
    try:
        with Liar(folder / "n", messages, f"{SEED}-liar") as liar:
            intakes = [
                port.listen(Address("x", "t", "s")),
                port.listen_notifications([("x", "t.info")], None),
            ]
            resident = resident_kib()
            while liar.total < messages:
                use(port, intakes, found)
                if liar.total < messages // 2:
                    resident = resident_kib()
            told = port.status()
        assert {name for name, number in liar.said.items() if number > 10} >= {
            "call.ctl",
            "cast.ctl",
            "notify.ctl",
        }
        assert {"directory.ctl", "call.in", "fanout.pub"} <= set(liar.said)
        assert told["counts"]["malformed"] > 0, told
        assert resident_kib() - resident < GROWTH_KIB
        proxy = Proxy(folder / "n", **CONFIG)
        works_again(port, intakes)
    finally:
        port.close()
        if proxy is not None:
            proxy.stop()
    broken = [line for line in log.messages if "thread of the sockets" in line]
    assert not broken, broken[:2]


def resident_kib() -> int:
    """Memory of this process."""
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmRSS:")).split()[1])


@pytest.mark.patient
def test_an_application_survives_a_proxy_that_answers_rubbish(rundir, caplog, monkeypatch):
    monkeypatch.setattr(proxy_links, "DENIED_S", 2.0)
    mislead(rundir, MESSAGES, caplog)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_an_application_survives_very_much_rubbish(rundir, caplog, monkeypatch):
    monkeypatch.setattr(proxy_links, "DENIED_S", 2.0)
    mislead(rundir, SOAK_MESSAGES, caplog)
