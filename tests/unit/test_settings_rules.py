"""Rules between the fields of a configuration: each fault names its line."""

import pytest

from broker.errors import ConfigError
from broker.settings import Settings, TreeSection, check, loads
from tests.tables import for_each
from tests.unit.configuration import KEY, OTHER_KEY, host, refusal

CURVE = "[tree]\ncurve_cert = '/c'\n"
TWO = host(0, f"public_key = '{KEY}'") + host(1, f"public_key = '{OTHER_KEY}'")


@for_each(
    ("text", "expected"),
    [
        (host(0) + host(0), "f:5: hosts[1].rank: saw '0', expected each rank once"),
        (host(0) + host(2), "f:5: hosts[1].rank: saw '2', expected ranks 0 to 1"),
        (
            "[tree]\nsize = 3\n" + host(0) + host(1),
            "f:2: tree.size: saw no host with rank 2, expected one for each",
        ),
        ("[tree]\nsize = 2", "f:2: tree.size: saw no host with rank 0"),
        ("[tree]\nsize = 4000000000", "f:2: tree.size: saw no host with rank 0"),
        ("[broker]\nrank = 1", "f:2: broker.rank: saw '1', expected a rank below the size of the tree, 1"),
        ("[broker]\nrundir = 'run'", "f:2: broker.rundir: saw 'run', expected an absolute path"),
        (
            f"[broker]\nrundir = '/{'x' * 107}'",
            "f:2: broker.rundir: saw '/xxx",
        ),
        (
            "[broker]\nlocal_uri = 'tcp://a:1'",
            "f:2: broker.local_uri: saw 'tcp://a:1', expected local:///ABSOLUTE/PATH",
        ),
        (
            "[broker]\nmetrics_listen = 'http://0.0.0.0:80'",
            "f:2: broker.metrics_listen: saw 'http://0.0.0.0:80', ",
        ),
        (
            host(0, address="wss://x"),
            "f:3: hosts[0].address: saw 'wss://x', expected an address of a transport that can join brokers",
        ),
        (host(0, address="tcp://a"), "f:3: hosts[0].address: saw 'tcp://a', expected tcp://HOST:PORT"),
        (host(0, address="tcp://*:80"), "f:3: hosts[0].address: saw 'tcp://*:80', expected a host and port"),
        (
            host(0, address="tcp://10.0.0.1:80"),
            "f:3: hosts[0].address: saw 'tcp://10.0.0.1:80', expected a loopback",
        ),
        (
            host(0, "bind = 'tcp://*:80'"),
            "f:4: hosts[0].bind: saw 'tcp://*:80', expected a loopback",
        ),
        (
            CURVE + host(0),
            "f:3: hosts[0].public_key: missing, expected a Z85 key since tree.curve_cert is set",
        ),
        (host(0) + host(1, "parent = 0"), "f:7: hosts[1].parent: saw '0', expected no parent unless"),
        (
            "[tree]\ntopology = 'custom'\n" + host(0, "parent = 0"),
            "f:6: hosts[0].parent: saw '0', expected no parent",
        ),
        (
            "[tree]\ntopology = 'custom'\n" + host(0) + host(1),
            "f:6: hosts[1].parent: missing, expected the parent",
        ),
        (
            "[tree]\ntopology = 'custom'\n" + host(0) + host(1, "parent = 7"),
            "f:9: hosts[1].parent: saw '7', expected the rank of another host",
        ),
        (
            "[tree]\ntopology = 'custom'\n" + host(0) + host(1, "parent = 2") + host(2, "parent = 1"),
            "f:9: hosts[1].parent: saw '2', expected a parent outside the subtree of rank 1",
        ),
        (
            "[tree]\ntorpid_min_s = 60",
            "f:2: tree.torpid_min_s: saw '60.0', expected less than torpid_max_s, 30.0",
        ),
        (
            "[broker]\nheartbeat_period_s = 31",
            "f:2: broker.heartbeat_period_s: saw '31.0', expected less than",
        ),
        ("[[listen]]\nuri = 'x'", "f:2: listen[0].uri: saw 'x', expected SCHEME://ADDRESS"),
        (
            "[[listen]]\nuri = 'carrier://dove'",
            "f:2: listen[0].uri: saw 'carrier://dove', no transport for scheme 'carrier'; known: inproc, ipc",
        ),
        (
            "[[listen]]\nuri = 'tcp://0.0.0.0:99'",
            "f:2: listen[0].uri: saw 'tcp://0.0.0.0:99', expected a loopback",
        ),
        ("[[listen]]\nuri = 'ipc:///a'\n" * 2, "f:4: listen[1].uri: saw 'ipc:///a', expected each URI once"),
        (
            "[[listen]]\nuri = 'ipc:///a'\ndialect = 'cmb1'\nstrict_rfc3 = true",
            "f:4: listen[0].strict_rfc3: saw 'True', expected false unless dialect",
        ),
        (
            host(0, "public_key = 'short'"),
            "f:4: hosts[0].public_key: saw 'short', expected 40 characters of Z85, no",
        ),
        (
            host(0, f"public_key = '{'~' * 40}'"),
            "expected characters of Z85 only, not another one behind position 0",
        ),
        (
            host(0, f"public_key = '{'#' * 40}'"),
            "expected Z85 of 32 bytes; five characters from position 0 are more than 32 bits",
        ),
        (
            CURVE + TWO + f"[[clients]]\nuserid = 1\npublic_key = '{KEY}'",
            "f:13: clients[0].public_key: saw 'Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID', expected a key",
        ),
        (
            f"[[clients]]\nuserid = 1\npublic_key = '{KEY}'",
            "f:1: clients: saw client keys without tree.curve_cert",
        ),
        (
            "[limits]\npending_total = 1",
            "limits.pending_per_link: saw '65536', expected at most pending_total, 1",
        ),
        (
            "[limits]\noutbox_high_bytes = 536870913",
            "f:2: limits.outbox_high_bytes: saw '536870913', expected at m",
        ),
        (
            "[limits]\nbroker_budget_bytes = 200000000",
            "limits.owner_message_bytes: saw '268435456', expected at most broker_budget_bytes, 200000000",
        ),
        (
            "[limits]\nguest_message_bytes = 134217729",
            "f:2: limits.guest_message_bytes: saw '134217729', expected at most user_budget_bytes, 134217728",
        ),
        (
            "[limits]\nuser_budget_bytes = 536870913",
            "f:2: limits.user_budget_bytes: saw '536870913', expected at most broker_budget_bytes",
        ),
    ],
)
def test_broken_rule_names_its_line(text, expected):
    assert any(expected in line for line in refusal(text)), refusal(text)


@for_each(
    "text",
    [
        "[tree]\ninsecure = true\n" + host(0, address="tcp://node0:8050"),
        host(0, address="ipc:///run/tree-0") + host(1, address="tcp://localhost:1"),
        host(0, address="tcp://[::1]:8050"),
        "[tree]\ncurve_cert = '/c'\n" + host(0, f"public_key = '{KEY}'") + host(1, f"public_key = '{KEY}'"),
        "[tree]\ntopology = 'custom'\n" + host(0) + host(1, "parent = 2") + host(2, "parent = 0"),
        "[tree]\ntorpid_max_s = 0\n[broker]\nheartbeat_period_s = 60",
        "[[listen]]\nuri = 'tcp://0.0.0.0:99'\ninsecure = true",
        "[[listen]]\nuri = 'tcp://127.0.0.1:*'",
        "[broker]\nmetrics_listen = 'unix:///run/metrics'",
        "[limits]\nresponse_cap_bytes = 2097152",
    ],
)
def test_allowed(text):
    loads(text)


def test_options_of_an_unknown_scheme_are_no_second_fault():
    text = "[tree.options]\nx = 1\n" + "[[hosts]]\nrank = 0\naddress = 'carrier://dove'\n"
    (said,) = refusal(text)
    assert "no transport for scheme 'carrier'" in said
    (said,) = refusal("[tree.options]\nx = 1\n")
    assert "takes none" in said


def test_check_tells_of_broken_rules_without_a_file():
    with pytest.raises(ConfigError, match=r"^tree\.size: saw no host with rank 0"):
        check(Settings(tree=TreeSection(size=2)))
