"""`[oslo]`: read, rooted, held against its rules; set from the command line and shown; what processes are told."""

import msgspec
import pytest
from msgspec import structs

from broker.cli import settings_text
from broker.cli.oslo import plan
from broker.errors import ConfigError
from broker.identity import USERID_UNKNOWN, Role
from broker.oslo.names import DIRECTORY_PORT, PORTS, Pipeline
from broker.oslo.node import EVERYTHING, KeyEntry, NodeConfig, Rule, proxy_ipc_dir
from broker.oslo.service import CallRule, FluxBridgeConfig
from broker.secret import SecretUrl
from broker.settings import (
    OsloCallEntry,
    OsloKeyEntry,
    OsloRuleEntry,
    OsloSection,
    Settings,
    check,
    load,
    load_wing,
    loads,
    read,
)
from tests.tables import for_each
from tests.unit.configuration import KEY, refusal


def oslo(text):
    section = loads(f"[oslo]\n{text}").oslo
    assert section is not None
    return section


# ---------------------------------------------------------------- what is right


def test_without_the_section_there_is_no_proxy():
    assert loads("").oslo is None
    assert loads("[oslo]").oslo == OsloSection()


def test_defaults_break_no_rule():
    assert check(Settings(oslo=OsloSection())).oslo == OsloSection()


def test_ports_are_those_of_the_specification():
    section = OsloSection()
    assert {pipeline: section.port_of(pipeline) for pipeline in Pipeline} == PORTS
    assert PORTS == {"call": 9501, "fanout": 9502, "notify": 9503, "cast": 9504}
    assert section.port_of("directory") == DIRECTORY_PORT


def test_everything_is_read():
    section = oslo(
        f"""
        host = "0.0.0.0"
        curve_cert = "c"
        run = ["call", "directory"]
        redis = ["sentinel://h:26379/main"]
        notify = ["/cell1/nova/notifications"]
        [[oslo.keys]]
        key = '{KEY}'
        roles = []
        [[oslo.rules]]
        topics = ["compute*"]
        action = "listen"
        roles = ["admin"]
        users = [7]
        allow = false
        [[oslo.calls]]
        methods = ["show"]
        modes = ["call", "cast"]
        """
    )
    assert section.keys == (OsloKeyEntry(key=KEY, roles=()),)
    assert section.rules == (
        OsloRuleEntry(topics=("compute*",), action="listen", roles=("admin",), users=(7,), allow=False),
    )
    assert section.calls == (OsloCallEntry(methods=("show",), modes=("call", "cast")),)


def test_the_certificate_is_taken_from_beside_the_configuration(tmp_path):
    file = tmp_path / "oslo.toml"
    file.write_text("[oslo]\ncurve_cert = 'c'\n")
    assert load_wing(OsloSection, file) == load(file).oslo
    assert load_wing(OsloSection, file).curve_cert == f"{tmp_path}/c"
    file.write_text("[broker]\nrank = 0\n")
    assert load_wing(OsloSection, file) == OsloSection()


@for_each("host", ["", "127.0.0.9", "::1", "localhost"])
def test_hosts_that_stay_here(host):
    assert oslo(f"host = '{host}'").host == host


# ---------------------------------------------------------------- what is wrong

LONG = "/" + "x" * 100


@for_each(
    ("text", "expected"),
    [
        ("hosts = ''", "f:2: oslo.hosts: saw an unknown key"),
        ("call_port = 65536", "f:2: oslo.call_port: saw 65536, expected int <= 65535"),
        ("run = []", "f:2: oslo.run: saw [], expected array of length >= 1"),
        ("run = ['calls']", 'f:2: oslo.run: saw [\'calls\'], expected one of "directory", "call"'),
        ("run = ['call', 'call']", "f:2: oslo.run: saw 'call', expected each room once"),
        ("host = '*'", "f:2: oslo.host: saw '*', expected a loopback address, or oslo.curve_cert"),
        ("host = 'node7'", "f:2: oslo.host: saw 'node7', expected a loopback address, or oslo.curve_cert"),
        (
            "host = 'tcp://h:1'",
            "f:2: oslo.host: saw 'tcp://h:1', expected an address or host name without port",
        ),
        ("cast_port = 9501", "f:2: oslo.cast_port: saw '9501', expected another port than that of call"),
        ("ipc_dir = 'run'", "f:2: oslo.ipc_dir: saw 'run', expected an absolute path"),
        (f"ipc_dir = '{LONG}'", "expected room for directory.ctl within 107 bytes"),
        ("directories = ['h:9500']", "f:2: oslo.directories[0]: saw 'h:9500', expected tcp://HOST:PORT"),
        ("directories = ['ipc:///x']", "f:2: oslo.directories[0]: saw 'ipc:///x', expected tcp://HOST:PORT"),
        (
            "directories = ['tcp://h:9500']",
            "saw 'tcp://h:9500', expected a loopback address, or oslo.curve_cert",
        ),
        ("redis = ['http://u:secret@h']", "f:2: oslo.redis[0]: saw 'http', expected redis://"),
        ("redis = ['u:secret@h']", "f:2: oslo.redis[0]: saw '...', expected redis://"),
        ("redis = ['redis://[::1']", "f:2: oslo.redis[0]: saw 'redis', expected redis://"),
        ("redis = ['rediss://h:abc']", "f:2: oslo.redis[0]: saw 'rediss', expected redis://"),
        (
            "curve_cert = 'c'\n[[oslo.keys]]\nkey = 'short'",
            "oslo.keys[0].key: saw 'short', expected 40 characters",
        ),
        (f"[[oslo.keys]]\nkey = '{KEY}'", "f:2: oslo.keys: saw keys without oslo.curve_cert"),
        (f"directory_key = '{KEY}'", "f:2: oslo.directory_key: saw a key without oslo.curve_cert"),
        (
            f"curve_cert = 'c'\n[[oslo.keys]]\nkey = '{KEY}'\n[[oslo.keys]]\nkey = '{KEY}'",
            f"f:6: oslo.keys[1].key: saw '{KEY}', expected each key once",
        ),
        ("beat_s = 3", "f:2: oslo.beat_s: saw '3.0', expected at most half of lease_s, 5"),
        ("call_timeout_max_s = 1", "oslo.call_timeout_s: saw '60.0', expected at most call_timeout_max_s, 1"),
        ("queue_bytes = 1024", "saw '67108864', expected at most queue_bytes"),
        ("notify = ['notifications']", "f:2: oslo.notify[0]: saw 'notifications', expected EXCHANGE/TOPIC"),
        ("notify = ['a/b', 'a/b']", "f:2: oslo.notify[1]: saw 'a/b', expected each place once"),
        (f"notify = ['a/{'b' * 250}']", "expected names of at most 255 bytes without control characters"),
        (f"notify_pool = '{'b' * 256}'", "expected at most 255 bytes without control characters"),
    ],
)
def test_faults_name_their_line(text, expected):
    said = refusal(f"[oslo]\n{text}")
    assert len(said) == 1
    assert expected in said[0]


def test_no_fault_repeats_a_password():
    for url in ("http://u:secret@h", "u:secret@h", "secret"):
        assert "secret" not in refusal(f"[oslo]\nredis = ['{url}']")[0]


# ---------------------------------------------------------------- command line


def test_a_setting_of_the_command_line_makes_the_section(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = read(None, ["oslo.ipc_dir=ipc", "oslo.lease_s=10", "oslo.run=['call','directory']"]).oslo
    assert section is not None
    assert (section.ipc_dir, section.lease_s) == (f"{tmp_path}/ipc", 10.0)
    assert section.run == ("call", "directory")
    assert read(None, ["broker.rank=0"]).oslo is None
    with pytest.raises(ConfigError, match="did you mean lease_s"):
        read(None, ["oslo.lease=1"])


def test_what_show_prints_says_the_same():
    text = f"[oslo]\ncurve_cert = 'c'\n[[oslo.keys]]\nkey = '{KEY}'\n[[oslo.calls]]\nusers = [3]\n[[oslo.rules]]\n"
    settings = loads(text)
    for explain in (True, False):
        assert loads("\n".join(settings_text.lines(settings, explain=explain))) == settings
    assert "#[oslo]" in list(settings_text.lines(Settings.defaults(), explain=True))


def test_every_entry_has_its_meanings():
    for struct in (OsloSection, OsloKeyEntry, OsloRuleEntry, OsloCallEntry):
        for field in msgspec.structs.fields(struct):
            assert settings_text.meaning(struct, field.name), f"{struct.__name__}.{field.name}"


# ---------------------------------------------------------------- what processes are told


def test_a_certificate_closes_the_ports_to_keys_that_are_not_listed_unless_the_file_says_otherwise():
    for section, mask in (
        (OsloSection(), Role.USER),
        (OsloSection(curve_cert="/c"), Role.NONE),
        (OsloSection(curve_cert="/c", unlisted="user"), Role.USER),
        (OsloSection(unlisted="deny"), Role.NONE),
    ):
        assert plan.node_config(section).unlisted_mask == mask


def test_the_defaults_are_those_of_the_proxy():
    told = plan.node_config(OsloSection(node="n"))
    assert told == NodeConfig(ipc_dir=proxy_ipc_dir(), node="n", advertise="127.0.0.1")
    assert plan.bridge_config(OsloSection()) == FluxBridgeConfig(plan.client_settings(OsloSection()))


def test_a_proxy_is_told_everything():
    section = oslo(
        f"""
        node = "n7"
        host = "0.0.0.0"
        call_port = 1
        fanout_port = 2
        notify_port = 3
        cast_port = 4
        directory_port = 5
        ipc_dir = "/srv/oslo"
        ipc_group = "g"
        directories = ["tcp://h:5"]
        redis = ["redis://r"]
        curve_cert = "/c"
        directory_key = '{KEY}'
        unlisted = "deny"
        lease_s = 8
        beat_s = 2
        tcp_keepalive_count = 9
        message_bytes_max = 2048
        queue_msgs = 10
        queue_bytes = 4096
        pending_max = 11
        [[oslo.keys]]
        key = '{KEY}'
        name = "a"
        roles = ["user", "admin"]
        [[oslo.rules]]
        action = "send"
        users = [3]
        """
    )
    assert plan.node_config(structs.replace(section, run=("call",))) == NodeConfig(
        ipc_dir="/srv/oslo",
        ipc_group="g",
        node="n7",
        host="0.0.0.0",
        advertise="",
        ports={Pipeline.CALL: 1, Pipeline.FANOUT: 2, Pipeline.NOTIFY: 3, Pipeline.CAST: 4},
        directory_port=5,
        run=frozenset({"call"}),
        directories=("tcp://h:5",),
        redis=(SecretUrl("redis://r"),),
        curve_cert="/c",
        directory_key=KEY,
        keys=(KeyEntry(KEY, "a", USERID_UNKNOWN, int(Role.USER | Role.ADMIN)),),
        unlisted=0,
        rules=(Rule(action="send", users=(3,)),),
        lease_s=8.0,
        beat_s=2.0,
        keepalive=(True, 5, 9, 2),
        message_bytes_max=2048,
        queue_msgs=10,
        queue_bytes=4096,
        pending_max=11,
    )
    assert plan.node_config(section).run == EVERYTHING


@for_each(
    ("roles", "expected"),
    [
        ((), Role.NONE),
        (("user",), Role.USER),
        (("admin",), Role.USER | Role.ADMIN),
        (("owner",), Role.OWNER),
        (("deny", "admin"), Role.USER | Role.ADMIN),
    ],
)
def test_what_a_key_is_known_as(roles, expected):
    assert plan.held(roles) == expected


def test_a_rule_for_admins_is_not_one_for_users():
    section = OsloSection(rules=(OsloRuleEntry(roles=("admin",)),))
    assert plan.node_config(section).rules[0].roles == Role.ADMIN


@for_each(
    ("host", "advertise", "expected"),
    [("0.0.0.0", None, ""), ("::", None, ""), ("*", None, ""),
     ("10.0.0.7", None, "10.0.0.7"), ("*", "n.example", "n.example")],
)  # fmt: skip
def test_what_other_nodes_dial(host, advertise, expected):
    section = OsloSection(host=host, advertise=advertise, insecure=True)
    assert plan.node_config(section).advertise == expected


def test_a_face_is_told_everything():
    section = oslo(
        """
        call_timeout_s = 1
        call_timeout_max_s = 2
        notify = ["a/b", "/cell1/nova/n"]
        notify_pool = "p"
        notify_public = true
        [[oslo.calls]]
        topics = ["t"]
        roles = ["user", "admin"]
        ctxt = true
        """
    )
    told = plan.bridge_config(section)
    assert told.rules == (CallRule(topics=("t",), roles=int(Role.USER | Role.ADMIN), ctxt=True),)
    assert told.notify == (("a", "b"), ("/cell1/nova", "n"))
    assert (told.call_timeout_s, told.call_timeout_max_s) == (1.0, 2.0)
    assert (told.notify_pool, told.notify_public) == ("p", True)


def test_the_url_names_the_folder_unless_drivers_look_there_anyway(monkeypatch):
    monkeypatch.setenv("HEADGATE_OSLO_DIR", "/srv/oslo")
    assert (
        plan.transport_url(OsloSection()) == plan.transport_url(OsloSection(ipc_dir="/srv/oslo")) == "zmq://"
    )
    monkeypatch.delenv("HEADGATE_OSLO_DIR")
    assert plan.transport_url(OsloSection(ipc_dir="/srv/oslo")) == "zmq:///?rpc_zmq_ipc_dir=%2Fsrv%2Foslo"


def test_what_people_are_told():
    section = OsloSection(node="n7", ipc_dir="/srv/oslo", redis=(SecretUrl("redis://u:secret@r"),))
    lines = plan.where(section, plan.planned(section))
    assert lines == [
        "oslo.messaging proxy n7 in /srv/oslo",
        "  tcp://127.0.0.1: directory 9500, call 9501, fanout 9502, notify 9503, cast 9504 (plaintext)",
        "  directory shared through 1 Redis server(s)",
        "  transport_url = zmq:///?rpc_zmq_ipc_dir=%2Fsrv%2Foslo",
    ]
    assert plan.where(OsloSection(host=""), {})[1] == "  for this node only: no TCP port"
    assert plan.where(OsloSection(), {})[1].startswith("  free ports")
    assert plan.planned(OsloSection(host="::1"))["call"] == "tcp://[::1]:9501"
