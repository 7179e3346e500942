"""What lies in deploy/oslo does what it says: units, the DevStack plugin, the tables of the migration guide."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from broker.cli.oslo import VERBS, proxy
from broker.oslo.names import DIRECTORY_PORT, PORTS
from broker.secret import SecretUrl
from broker.settings import OsloSection
from tests.tables import for_each

FOLDER = Path(__file__).parents[3] / "deploy" / "oslo"
DEVSTACK = FOLDER / "devstack"
UNITS = FOLDER.parent / "systemd"
STUBS = """
set -eu
STACK_USER=stack
is_service_enabled() { [[ "$1" == "headgate-oslo" || "$1" == "${RABBIT:-}" ]]; }
get_python_exec_prefix() { echo /usr/local/bin; }
for name in iniset run_process stop_process pip_install install_package restart_service sudo echo_summary; do
    eval "$name() { echo $name \\"\\$@\\"; }"
done
enable_service() { echo enable "$@"; }
disable_service() { echo disable "$@"; }
die() { shift; echo "die $*"; exit 9; }
/usr/local/bin/headgate() { echo headgate "$@" >&2; }
source "$DEVSTACK/override-defaults"
source "$DEVSTACK/settings"
"""


def unit(name):
    """Keys of a systemd unit -> values."""
    found = {}
    for line in (UNITS / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def devstack(script, **environ):
    """What the stubs were told while ``script`` ran."""
    done = subprocess.run(
        ["bash", "-c", STUBS + script],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
        env={"PATH": "/usr/bin:/bin", "DEVSTACK": str(DEVSTACK), **environ},
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def phase(*words, **environ):
    return devstack(f'source "$DEVSTACK/plugin.sh" {" ".join(words)}', **environ)


# ---------------------------------------------------------------- systemd


@pytest.mark.parametrize("name", ["headgate-oslo-proxy.service", "headgate-oslo-room@.service"])
def test_units_start_what_there_is(name, tmp_path, monkeypatch):
    found = unit(name)
    program, *words = shlex.split(found["ExecStart"][0].replace("%i", "call"))
    assert program == "headgate"
    assert words[:2] == ["oslo", "proxy"]
    (tmp_path / "oslo.toml").write_text("[oslo]\nnode = 'n7'\n")
    words = [word.replace("/etc/headgate", str(tmp_path)) for word in words[2:]]
    made = proxy.section_of(proxy.arguments().parse_args(words))
    assert (made.node, made.ipc_dir, made.ipc_group) == ("n7", "/run/headgate-oslo", "openstack")
    assert made.run == (("call",) if "@" in name else OsloSection().run)
    assert (found["Type"], found["RuntimeDirectory"]) == (["notify"], ["headgate-oslo"])
    assert found["RestartPreventExitStatus"] == ["2 78"]
    assert found["RuntimeDirectoryPreserve"] == (["yes"] if "@" in name else ["restart"])


# ---------------------------------------------------------------- DevStack


def test_rabbit_goes_and_the_proxy_comes():
    code, said, errors = devstack("")
    assert (code, said) == (0, ["enable headgate-oslo", "disable rabbit"]), errors


def test_services_are_told_where_the_proxy_is():
    script = 'source "$DEVSTACK/plugin.sh" stack pre-install; iniset_rpc_backend nova /etc/nova.conf; '
    script += "iniset_rpc_backend nova /etc/cell.conf DEFAULT nova_cell1"
    code, said, errors = devstack(script, HEADGATE_OSLO_CURVE_CERT="/c")
    assert code == 0, errors
    assert said[2:] == [
        "iniset /etc/nova.conf DEFAULT transport_url zmq://",
        "iniset /etc/nova.conf oslo_messaging_notifications transport_url zmq://",
        "iniset /etc/nova.conf oslo_messaging_zmq rpc_zmq_ipc_dir /run/headgate-oslo",
        "iniset /etc/nova.conf oslo_messaging_zmq zmq_curve_cert /c",
        "iniset /etc/cell.conf DEFAULT transport_url zmq:///nova_cell1",
        "iniset /etc/cell.conf oslo_messaging_notifications transport_url zmq://",
        "iniset /etc/cell.conf oslo_messaging_zmq rpc_zmq_ipc_dir /run/headgate-oslo",
        "iniset /etc/cell.conf oslo_messaging_zmq zmq_curve_cert /c",
    ]


def test_notifications_may_stay_on_rabbit():
    script = 'source "$DEVSTACK/plugin.sh" stack pre-install; get_notification_url'
    assert devstack(script, HEADGATE_OSLO_NOTIFICATION_URL="rabbit://r")[1][-1] == "rabbit://r"


@for_each(
    ("environ", "expected"),
    [
        ({}, OsloSection(ipc_dir="/run/headgate-oslo")),
        (
            {
                "HEADGATE_OSLO_HOST": "0.0.0.0",
                "HEADGATE_OSLO_ADVERTISE": "10.0.0.7",
                "HEADGATE_OSLO_INSECURE": "True",
                "HEADGATE_OSLO_DIRECTORIES": "tcp://10.0.0.1:9500 tcp://10.0.0.2:9500",
            },
            OsloSection(
                ipc_dir="/run/headgate-oslo",
                host="0.0.0.0",
                advertise="10.0.0.7",
                insecure=True,
                directories=("tcp://10.0.0.1:9500", "tcp://10.0.0.2:9500"),
            ),
        ),
        (
            {
                "HEADGATE_OSLO_DIRECTORY": "redis",
                "HEADGATE_OSLO_CURVE_CERT": "/c",
                "SERVICE_HOST": "10.0.0.1",
            },
            OsloSection(
                ipc_dir="/run/headgate-oslo", redis=(SecretUrl("redis://10.0.0.1:6379/0"),), curve_cert="/c"
            ),
        ),
    ],
)
def test_the_proxy_is_started_with_options_that_there_are(environ, expected):
    code, said, errors = phase("stack", "post-config", **environ)
    assert code == 0, errors
    assert f"sudo install -d -m 0750 -o stack {expected.ipc_dir}" in said
    (started,) = [line for line in said if line.startswith("run_process headgate-oslo ")]
    program, first, second, *words = started.split()[2:]
    assert (program, first, second) == ("/usr/local/bin/headgate", "oslo", "proxy")
    assert proxy.section_of(proxy.arguments().parse_args(words)) == expected


def test_what_is_installed_and_removed():
    assert "pip_install headgate[cli,oslo]" in phase("stack", "install")[1]
    said = phase("stack", "install", HEADGATE_OSLO_DIRECTORY="redis", SERVICE_HOST="10.0.0.1")[1]
    assert "pip_install headgate[cli,oslo,redis]" in said
    assert "install_package redis-server" in said
    far = phase("stack", "install", HEADGATE_OSLO_DIRECTORY="redis", HEADGATE_OSLO_REDIS="redis://other:1/0")[
        1
    ]
    assert "install_package redis-server" not in far
    assert "stop_process headgate-oslo" in phase("unstack")[1]
    assert "sudo rm -rf /run/headgate-oslo" in phase("clean")[1]


def test_both_at_once_are_refused():
    code, said, _errors = phase("stack", "pre-install", RABBIT="rabbit")
    assert (code, said[-1]) == (9, "die rabbit and headgate-oslo are both enabled, expected one of them")


# ---------------------------------------------------------------- the guide


@pytest.mark.filterwarnings("ignore")  # of eventlet, which oslo.messaging loads
def test_the_guide_names_options_and_ports_that_there_are():
    text = (FOLDER / "MIGRATING.md").read_text()
    names = {option.dest for option in driver_options()}
    named = set(re.findall(r"`((?:rpc_)?zmq_[a-z_]+)`", text))
    assert {"zmq_linger", "rpc_zmq_ipc_dir", "zmq_curve_cert"} <= named
    assert named - names == set()
    section = set(OsloSection.__struct_fields__)
    told = set(re.findall(r"`\[oslo\] ([a-z_]+)`", text))
    assert {"lease_s", "rules", "redis"} <= told
    assert told - section == set()
    for port in (DIRECTORY_PORT, *PORTS.values()):
        assert f"{port} " in text
    for verb in re.findall(r"headgate oslo ([a-z]+)", text):
        assert verb in VERBS


@pytest.mark.filterwarnings("ignore")  # of eventlet, which oslo.messaging loads
def test_the_page_for_those_of_2018_names_every_option_that_there_was():
    options = driver_options()
    from broker.oslo.driver.options import REPLACED

    text = (FOLDER / "MIGRATING-ZMQ.md").read_text()
    named = set(re.findall(r"`([a-z_]+)`", text))
    assert set(REPLACED) - named <= {f"{each}_port" for each in PORTS}
    told = set(re.findall(r"`\[oslo\] ([a-z_]+)`", text))
    assert told - set(OsloSection.__struct_fields__) == set()
    assert {"rpc_zmq_host", "rpc_zmq_ipc_dir", "zmq_inbox_messages"} <= named & {
        each.dest for each in options
    }
    now = "".join(line.rpartition(" | ")[2] for line in text.splitlines() if line.startswith("| `--"))
    for option in re.findall(r"`--([a-z-]+)", now):
        assert f"--{option}" in proxy.arguments().format_help()


def driver_options():
    """The options of the driver, where oslo.config is installed."""
    pytest.importorskip("oslo_config", reason="optional: oslo.messaging is not installed")
    from broker.oslo.driver.options import OPTIONS

    return OPTIONS
