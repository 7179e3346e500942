"""A real service of OpenStack, unmodified, does its work over ``zmq://`` (Z28)."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.ironic import EVENTS, EXCHANGE, Ironic
from tests.live.oslo import Proxy, Sides, executions, nodes, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

MACHINE = "machine"
WAY = (("manage", "manageable"), ("provide", "available"), ("active", "active"))
"""From a machine that is new to one that is in use: the target of each step, and where it ends."""

TOLD = {
    "baremetal.node.create.start",
    "baremetal.node.create.end",
    "baremetal.node.provision_set.start",
    "baremetal.node.provision_set.end",
    "baremetal.node.power_set.start",
    "baremetal.node.power_set.end",
}
"""What Ironic notifies of on the way."""


@pytest.fixture
def node(rundir: Path) -> Iterator[Proxy]:
    with nodes(rundir, 1) as (started,):
        yield started


@pytest.fixture
def ironic(rundir: Path, node: Proxy) -> Iterator[Ironic]:
    started = Ironic(rundir / "ironic", node.folder)
    try:
        yield started
    finally:
        started.kill()


def entered(node: Proxy, room: str) -> int:
    return sum(entry["in"] for entry in node.status(room)["entries"])


def heard(log: Path) -> Counter[str]:
    """The events that a listener wrote down."""
    return Counter(line.split()[3] for line in executions(log))


def until_all_are_heard(ironic: Ironic, log: Path) -> None:
    """Wait until a listener has what Ironic says that it notified of."""
    until(lambda: ironic.told().keys() >= TOLD, what="the last event")
    until(lambda: heard(log).total() >= ironic.told().total(), what="hearing all that Ironic notified of")


def test_ironic_brings_a_machine_into_use(rundir: Path, node: Proxy, ironic: Ironic, sides: Sides) -> None:
    """Z28: an API that calls its conductor, and a conductor that notifies of what becomes of a machine."""
    log = rundir / "events"
    sides("listener", node.url, topic=EVENTS, exchange=EXCHANGE, log=str(log))
    ironic.wait()
    assert node.status("call")["topics"].keys() == {"ironic/ironic.conductor_manager"}
    ironic.ask("POST", "/v1/nodes", {"driver": "fake-hardware", "name": MACHINE})
    checks = ironic.ask("GET", f"/v1/nodes/{MACHINE}/validate")
    assert all(each["result"] for each in checks.values()), checks
    for target, state in WAY:
        ironic.provision(MACHINE, target, state)
    ironic.power(MACHINE, "power on")
    machine = ironic.node(MACHINE)
    assert (machine["provision_state"], machine["last_error"]) == ("active", None), (
        "Z28: runs with real services"
    )
    assert entered(node, "call") == len(("create", "validate", *WAY, "power")), "Z28: runs with real services"
    until_all_are_heard(ironic, log)
    assert heard(log) == ironic.told(), "Z28: runs with real services"
    assert heard(log).keys() == TOLD, "Z28: runs with real services"
    assert entered(node, "notify") == heard(log).total(), "Z28: runs with real services"
    assert ironic.stop() == {"ironic-conductor": 0, "ironic-api": 0}


def test_ironic_does_not_see_that_the_proxy_is_started_again(
    rundir: Path, node: Proxy, ironic: Ironic, sides: Sides
) -> None:
    """Between any two of its steps: no request fails, no notification is lost or comes twice."""
    log = rundir / "events"
    sides("listener", node.url, topic=EVENTS, exchange=EXCHANGE, log=str(log))
    ironic.wait()
    ironic.ask("POST", "/v1/nodes", {"driver": "fake-hardware", "name": MACHINE})
    for target, state in WAY:
        node.stop()
        node.start()
        ironic.provision(MACHINE, target, state)
    node.stop()
    node.start()
    ironic.power(MACHINE, "power on")
    machine = ironic.node(MACHINE)
    assert (machine["provision_state"], machine["last_error"]) == ("active", None)
    until_all_are_heard(ironic, log)
    assert heard(log) == ironic.told()
