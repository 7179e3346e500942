"""The units under a real systemd: they start in their sandboxes, come back or stay away as they should, and leave.

See `tests.deploy.machine`. `test_unit_programs` does what can be done without root.
"""

import contextlib

import pytest

from broker.transport import curve
from tests.deploy import machine, units
from tests.live.brokers import eventually

BROKER, GATEWAY, NFP, PROXY = (
    f"headgate-{name}.service" for name in ("broker", "gateway", "nfp", "oslo-proxy")
)
ALL = (BROKER, GATEWAY, NFP, PROXY)
SETTINGS = {
    "broker": "",
    "gateway": "",
    "nfp": '[nfp]\nbase_dir = "/var/lib/headgate/nfp"\n',
    "oslo": "[oslo]\n",
}
URI = "local:///run/headgate/local-0"
READYZ = "http://127.0.0.1:8280"
GUEST = 4711

pytestmark = [
    pytest.mark.story,
    pytest.mark.slow,
    pytest.mark.skipif(bool(machine.lacking()), reason=f"optional: {machine.lacking()}"),
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module")
def booted():
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(machine.machine())
        except OSError as error:
            pytest.skip(f"optional: no machine of namespaces: {error}")
        yield made


@pytest.fixture
def box(booted):
    """The machine with the settings that a test may change put back, and nothing running."""
    for name, text in SETTINGS.items():
        booted.write(f"/etc/headgate/{name}.toml", text)
    for name in ALL:
        booted.drop_in(name)
    yield booted
    booted.systemctl("stop", *ALL, *machine.rooms())
    booted.systemctl("reset-failed")


def ready(box):
    return box.headgate("health", "--url", READYZ).returncode == 0


def test_all_start_in_their_sandboxes_and_leave_without_a_fault(box):
    box.start(*ALL)
    assert box.show(BROKER, "StatusText") == "rank 0 of 1, state run, tree full"
    assert box.headgate("health", "--uri", URI).returncode == 0
    eventually(lambda: ready(box), timeout=20)
    assert box.headgate("health", "--nfp", "/etc/headgate/nfp.toml").returncode == 0
    assert "5 of 5 rooms answer" in box.headgate("oslo", "status").stdout
    for name in ALL:
        status = box.run("cat", f"/proc/{box.main_pid(name)}/status").stdout
        for line in (
            "CapEff:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ):
            assert line in status, name
        assert f"Uid:\t{machine.UID}\t" in status
    assert box.systemctl("stop", *ALL) == 0
    for name in ALL:
        assert (box.show(name, "Result"), box.show(name, "ExecMainStatus")) == ("success", "0"), box.log(name)


def test_a_socket_is_private_unless_guests_are_let_in(box):
    box.write("/etc/headgate/broker.toml", "[access]\nallow_guest_user = true\n")
    box.start(BROKER)
    ping = ("ping", "--uri", URI, "--count", "1", "broker")
    assert box.headgate(*ping, uid=GUEST).returncode != 0
    box.drop_in(BROKER, units.FOLDER / f"{BROKER}.d" / "guests.conf")
    assert box.systemctl("restart", BROKER) == 0
    done = box.headgate(*ping, uid=GUEST)
    assert done.returncode == 0, done.stderr


def test_a_wrong_file_is_not_tried_again_and_a_crash_is(box):
    box.write("/etc/headgate/broker.toml", "nonsense = 1\n")
    assert box.systemctl("start", BROKER) != 0
    assert box.show(BROKER, "ActiveState") == "failed"
    assert (box.show(BROKER, "ExecMainStatus"), box.show(BROKER, "NRestarts")) == ("78", "0")
    assert "nonsense" in box.log(BROKER)

    box.write("/etc/headgate/broker.toml", "")
    box.start(BROKER, GATEWAY)
    eventually(lambda: ready(box), timeout=20)
    before = box.main_pid(BROKER)
    box.run("kill", "-KILL", str(before))
    eventually(lambda: box.main_pid(BROKER) not in (0, before), timeout=20)
    assert box.show(BROKER, "NRestarts") == "1"
    eventually(lambda: ready(box), timeout=30)
    assert box.show(GATEWAY, "NRestarts") == "0"


def test_a_reload_keeps_the_process(box):
    box.start(BROKER, GATEWAY)
    before = {name: box.main_pid(name) for name in (BROKER, GATEWAY)}
    for name in before:
        assert box.systemctl("reload", name) == 0
    eventually(lambda: ready(box), timeout=20)
    assert {name: box.main_pid(name) for name in before} == before
    assert box.headgate("health", "--uri", URI).returncode == 0


def test_a_process_that_hangs_is_ended_and_started_again(box):
    box.drop_in(BROKER, text="[Service]\nWatchdogSec=6\nTimeoutAbortSec=1\n")
    box.start(BROKER)
    before = box.main_pid(BROKER)
    box.run("kill", "-STOP", str(before))
    eventually(lambda: box.main_pid(BROKER) not in (0, before), timeout=40)
    assert "Watchdog timeout" in box.log(BROKER)
    eventually(lambda: box.headgate("health", "--uri", URI).returncode == 0, timeout=20)


def test_a_certificate_may_come_as_a_credential_and_a_journal_may_be_written(box):
    certificate = curve.generate()
    box.write("/etc/headgate/broker.cert", curve.encode(certificate), mode=0o400)  # root's
    box.write(
        "/etc/headgate/broker.toml",
        '[tree]\ncurve_cert = "not-there.cert"\n[[listen]]\nuri = "tcp://127.0.0.1:8051"\n'
        '[journal]\nenabled = true\ndirectory = "/var/lib/headgate/journal"\n',
    )
    box.drop_in(BROKER, units.FOLDER / f"{BROKER}.d" / "credential.conf")
    box.start(BROKER)
    assert box.headgate("ping", "--uri", URI, "--count", "1", "broker").returncode == 0
    assert box.systemctl("stop", BROKER) == 0
    found = box.run("ls", "/var/lib/headgate/journal").stdout.split()
    assert [name for name in found if name.endswith(".fj")], found


def test_a_proxy_and_its_rooms_take_turns(box):
    status = ("oslo", "status")
    box.start(PROXY)
    box.start(*machine.rooms())
    assert box.show(PROXY, "ActiveState") == "inactive"
    eventually(lambda: "5 of 5 rooms answer" in box.headgate(*status).stdout, timeout=20)
    box.start(PROXY)
    assert {box.show(name, "ActiveState") for name in machine.rooms()} == {"inactive"}
    eventually(lambda: "5 of 5 rooms answer" in box.headgate(*status).stdout, timeout=20)
