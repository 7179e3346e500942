"""SIGHUP at proxies as processes: one, and one beside a broker."""

import json
import signal
import subprocess
import sys

import pytest

from broker.cli.oslo.plan import read_again
from broker.errors import ConfigError
from broker.node.reload import may_change
from broker.settings import OsloSection
from broker.transport import curve
from tests.unit.cli.test_oslo_processes import ANY, PATIENCE_S, eventually, proxy, status


def in_force(rundir, capsys):
    """What each room says of its settings."""
    _code, told = status(rundir, capsys, "--json")
    found = json.loads(told.out)["rooms"] if told.out else {}
    return {room: said["settings"] for room, said in found.items() if said}


def rotated(rundir):
    made = curve.generate()
    curve.save(made, rundir / "node.cert", replace=True)
    return made.public_key


@pytest.mark.patient
def test_keys_rules_and_certificate_are_read_again(rundir, capsys):
    file = rundir / "oslo.toml"
    file.write_text("[oslo]\ncurve_cert = 'node.cert'\n")
    former = rotated(rundir)
    with proxy(rundir, "--config", str(file)) as (process, _said):
        before = in_force(rundir, capsys)
        assert {each["public_key"] for each in before.values()} == {former}
        new = rotated(rundir)
        file.write_text("[oslo]\ncurve_cert = 'node.cert'\n[[oslo.rules]]\nallow = false\n")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: {each["public_key"] for each in in_force(rundir, capsys).values()}, {new})
        assert len(in_force(rundir, capsys)) == 5
        after = {each["fingerprint"] for each in in_force(rundir, capsys).values()}
        assert len(after) == 1
        assert after != {each["fingerprint"] for each in before.values()}
        log = rundir / "proxy.log"
        assert "reloaded: oslo.rules, our certificate (public key" in log.read_text()
        file.write_text("[oslo]\ncurve_cert = 'node.cert'\nlease_s = 9\n")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "oslo.lease_s: cannot change while the proxy runs" in log.read_text())
        assert {each["fingerprint"] for each in in_force(rundir, capsys).values()} == after
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_what_cannot_change_is_named():
    before = OsloSection()
    with pytest.raises(
        ConfigError, match=r"oslo\.call_port, oslo\.ipc_dir: cannot change while the proxy runs"
    ):
        read_again(before, lambda: OsloSection(call_port=1, ipc_dir="/srv/x", unlisted="deny"))
    assert read_again(before, lambda: OsloSection(unlisted="deny")).unlisted == "deny"


def test_a_broker_takes_over_what_a_proxy_beside_it_may_change():
    assert may_change(("oslo", "keys"))
    assert may_change(("oslo", "rules"))
    assert not may_change(("oslo", "call_port"))
    assert not may_change(("oslo",))


@pytest.mark.patient
def test_a_broker_passes_it_on_to_the_proxy_beside_it(rundir, capsys):
    ports = "".join(f"{name} = 0\n" for name in ANY)
    oslo = f'[oslo]\nipc_dir = "{rundir}/ipc"\nbridge = false\nrun = ["directory", "call"]\n{ports}'
    file = rundir / "broker.toml"
    file.write_text(f'[broker]\nrundir = "{rundir}"\n{oslo}')
    command = [sys.executable, "-m", "broker.cli.main", "broker", "--config", str(file)]
    with (rundir / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as broker:
        try:
            eventually(lambda: set(in_force(rundir, capsys)), {"directory", "call"})
            before = {each["fingerprint"] for each in in_force(rundir, capsys).values()}
            file.write_text(file.read_text() + "[[oslo.rules]]\nallow = false\n")
            broker.send_signal(signal.SIGHUP)
            eventually(lambda: {each["done"] for each in in_force(rundir, capsys).values()}, {1})
            after = {each["fingerprint"] for each in in_force(rundir, capsys).values()}
            assert len(after) == 1
            assert after != before
            assert "reloaded: oslo.rules" in (rundir / "log").read_text()
        finally:
            broker.terminate()
