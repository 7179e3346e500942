"""What systemd's units say: how they start, what they may do, how they end."""

import shlex
from types import SimpleNamespace

import pytest

from broker import endings
from broker.cli.address import SYSTEM_RUNDIR, choose
from broker.node import drain
from broker.settings import NfpSection, OsloSection, Settings
from gateway.settings import GatewaySettings
from gateway.web.admission import fitted
from tests.deploy import commands, units
from tests.deploy.every import every

pytestmark = pytest.mark.tools

BROKER = "headgate-broker.service"
GATEWAY = "headgate-gateway.service"
NFP = "headgate-nfp.service"
OSLO = ("headgate-oslo-proxy.service", "headgate-oslo-room@.service")
ALL = (BROKER, GATEWAY, NFP, *OSLO)
_SAME = {
    "CapabilityBoundingSet": "",
    "LockPersonality": "yes",
    "MemoryDenyWriteExecute": "yes",
    "NoNewPrivileges": "yes",
    "PrivateDevices": "yes",
    "PrivateTmp": "yes",
    "ProtectClock": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHome": "yes",
    "ProtectHostname": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectSystem": "strict",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
}


@every
def in_every_unit():
    return [SimpleNamespace(name=name, unit=units.read(name)) for name in ALL]


def started(unit):
    """The words behind the program."""
    program, *words = shlex.split(units.one(unit, "ExecStart").replace("%i", "call"))
    assert program == "headgate"  # systemd looks for it in /usr/local/bin and /usr/bin
    return words


def test_these_are_all_of_them():
    assert units.names() == sorted(ALL)


@in_every_unit
def test_what_starts_is_ours(unit):
    given = commands.parsed(started(unit))
    assert given.config.startswith("/etc/headgate/")


@in_every_unit
def test_systemd_hears_of_the_start_and_of_a_loop_that_hangs(unit):
    assert (units.one(unit, "Type"), units.one(unit, "NotifyAccess")) == ("notify", "main")
    assert units.seconds(units.one(unit, "WatchdogSec")) >= 10


@in_every_unit
def test_a_wrong_configuration_is_not_tried_again_and_everything_else_for_ever(unit):
    left = {int(code) for code in units.one(unit, "RestartPreventExitStatus").split()}
    assert left == endings.NOT_AGAIN - {endings.OK}
    assert units.one(unit, "Restart") in ("on-failure", "always")
    assert units.one(unit, "StartLimitIntervalSec", "Unit") == "0"
    # the exit code of a check in front would not count as the main process's: a wrong file would be tried for ever
    assert "ExecStartPre" not in unit["Service"]


def test_a_broker_comes_back_after_its_parent_has_taken_it_along():
    """The end of a parent in order is one in order of all below it: exit code 0."""
    assert units.one(units.read("headgate-broker.service"), "Restart") == "always"


@in_every_unit
def test_a_process_has_time_to_leave(name, unit):
    stop_s = units.seconds(units.one(unit, "TimeoutStopSec"))
    drains = {
        BROKER: drain.bound_s(Settings.defaults().broker.drain_s),
        GATEWAY: GatewaySettings.defaults().gateway.drain_s + 10,
        NFP: 10,
        OSLO[0]: 10,
        OSLO[1]: 5,
    }
    assert stop_s > drains[name]
    assert units.one(unit, "KillMode") == "mixed"


@in_every_unit
def test_what_reads_its_files_again_can_be_told_to(name, unit):
    told = unit["Service"].get("ExecReload", [])
    assert told == (["kill -HUP $MAINPID"] if name != NFP else [])


@in_every_unit
def test_all_are_confined_alike(unit):
    section = unit["Service"]
    assert {key: section[key] for key in _SAME} == {key: [value] for key, value in _SAME.items()}
    assert section["SystemCallFilter"][:2] == ["@system-service", "~@privileged"]


@in_every_unit
def test_what_binds_zeromq_sockets_may_look_through_the_interfaces(name, unit):
    """libzmq ends the process when it cannot: a socket bound to an address, not to `*`, asks by netlink."""
    families = units.one(unit, "RestrictAddressFamilies").split()
    assert families[:3] == ["AF_UNIX", "AF_INET", "AF_INET6"]
    assert families[3:] == ([] if name == GATEWAY else ["AF_NETLINK"])


@in_every_unit
def test_peers_are_seen_as_they_are(unit):
    """With user namespaces or dynamic users every peer's uid would be 65534."""
    assert units.one(unit, "PrivateUsers") == "no"
    assert "DynamicUser" not in unit["Service"]
    assert units.one(unit, "User") == units.one(unit, "Group") == "headgate"


@in_every_unit
def test_descriptors_are_enough_for_what_asks_for_them(unit):
    limit = int(units.one(unit, "LimitNOFILE"))
    limits = GatewaySettings.defaults().limits
    assert limit >= 65_536
    assert fitted(limits, limit) == limits


@in_every_unit
def test_folders_are_private(name, unit):
    section = unit["Service"]
    for kind in ("RuntimeDirectory", "StateDirectory"):
        if kind in section:
            assert units.one(unit, f"{kind}Mode") == ("0750" if name in OSLO else "0700")


def test_units_of_one_user_do_not_share_runtime_folders():
    """systemd removes a runtime directory when its unit ends, whoever else is in it."""
    folders = [
        units.read(name)["Service"].get("RuntimeDirectory", []) for name in (BROKER, GATEWAY, NFP, OSLO[0])
    ]
    flat = [folder for each in folders for folder in each]
    assert len(flat) == len(set(flat))


# ---------------------------------------------------------------- each for itself


def test_the_broker_is_found_where_clients_look_for_it(monkeypatch):
    unit = units.read(BROKER)
    assert f"/run/{units.one(unit, 'RuntimeDirectory')}" == SYSTEM_RUNDIR
    (uri,) = [value.partition("=")[2] for value in units.read(GATEWAY)["Service"]["Environment"]]
    monkeypatch.setenv("RUNTIME_DIRECTORY", SYSTEM_RUNDIR)
    assert uri == Settings.defaults().at_rank(0).broker.local_uri == choose(uri, {})


def test_the_gateway_does_not_need_the_broker_to_start():
    section = units.read(GATEWAY)["Unit"]
    assert BROKER in " ".join(section["After"])
    assert {"Requires", "BindsTo", "PartOf", "Requisite"} & section.keys() == set()


def test_guests_can_enter_the_folder_of_the_sockets_with_a_drop_in():
    (drop,) = [path for path in units.drop_ins(BROKER) if path.name == "guests.conf"]
    assert units.one(units.read(BROKER), "RuntimeDirectoryMode") == "0700"
    assert int(units.read(BROKER, drop)["Service"]["RuntimeDirectoryMode"][-1], 8) == 0o711


def test_the_certificate_may_be_a_credential():
    (drop,) = [path for path in units.drop_ins(BROKER) if path.name == "credential.conf"]
    unit = units.read(BROKER, drop)
    name, _, source = units.one(unit, "LoadCredential").partition(":")
    words = started(unit)
    assert commands.parsed(words).config == commands.parsed(started(units.read(BROKER))).config
    assert commands.settings_of(words) == {"tree.curve_cert": f"${{CREDENTIALS_DIRECTORY}}/{name}"}
    assert source.startswith("/etc/headgate/")


def test_nfp_keeps_its_state_where_it_may_write():
    unit = units.read(NFP)
    given = commands.parsed(started(unit))
    assert given.base_dir == f"/var/lib/{units.one(unit, 'StateDirectory')}"
    assert given.base_dir.removeprefix("/var/lib/") in units.one(units.read(BROKER), "StateDirectory").split()


def test_oslo_gives_its_folder_to_the_group_and_rooms_leave_it_to_each_other():
    for name in OSLO:
        unit = units.read(name)
        given = commands.parsed(started(unit))
        assert given.ipc_dir == f"/run/{units.one(unit, 'RuntimeDirectory')}"
        assert given.ipc_group == units.one(unit, "SupplementaryGroups")
        assert unit["Service"]["SystemCallFilter"][2:] == ["@chown"]
        assert units.one(unit, "RuntimeDirectoryPreserve") == ("yes" if "@" in name else "restart")
    section = units.read(OSLO[0])["Unit"]
    conflicts = " ".join(section["Conflicts"]).split()
    # one starts when the other is gone, its folder included
    assert set(conflicts) <= set(" ".join(section["After"]).split())
    assert OSLO[0] in units.read(OSLO[1])["Unit"]["After"]
    assert conflicts == [OSLO[1].replace("@", f"@{room}") for room in OsloSection().run]


def test_settings_named_in_comments_exist():
    """The units tell of settings: these are."""
    text = "".join((units.FOLDER / name).read_text() for name in ALL)
    for section, keys in {
        "broker.drain_s": Settings.defaults().broker,
        "journal.directory": Settings.defaults().journal,
        "nfp.base_dir": NfpSection(),
        "gateway.drain_s": GatewaySettings.defaults().gateway,
        "gateway.upstream": GatewaySettings.defaults().gateway,
        "access.allow_guest_user": Settings.defaults().access,
    }.items():
        assert section in text
        assert hasattr(keys, section.partition(".")[2])
