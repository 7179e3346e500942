"""The configuration: defaults, types, files, and errors that name the line."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import settings as public
from broker.cli import settings_text
from broker.errors import ConfigError
from broker.settings import ListenEntry, Settings, check, load, loads, sample
from broker.settings.schema import default_rundir
from broker.settings.showing import secrets, shown
from tests.tables import for_each
from tests.unit.configuration import KEY, OTHER_KEY, host, refusal

pytestmark = pytest.mark.interpreter

SAMPLE = Path(__file__).parents[2] / "deploy" / "broker.toml"


# ---------------------------------------------------------------- what is right


def test_empty_file_gives_the_defaults():
    assert loads("") == Settings.defaults()
    assert Settings.defaults().size == 1
    assert Settings.defaults().limits.owner_message_bytes == 256 * 2**20


def test_defaults_break_no_rule():
    assert check(Settings.defaults()) == Settings.defaults()


def test_every_section_is_read():
    read = loads(
        f"""
        [broker]
        rank = 1
        heartbeat_period_s = 1
        [broker.attrs]
        "site.name" = "north"
        [tree]
        topology = "custom"
        size = 2
        curve_cert = "/etc/cert"
        {host(0, f"public_key = '{KEY}'", address="tcp://node0:8050")}
        {host(1, f"public_key = '{OTHER_KEY}'", "parent = 0", address="tcp://node1:8050")}
        [[listen]]
        uri = "tcp://*:9000"
        dialect = "cmb1rev"
        [[clients]]
        public_key = '{"0" * 40}'
        userid = 1000
        roles = ["owner", "admin"]
        [access]
        admin_users = ["ada", 7]
        [limits]
        event_policy = "drop"
        """
    )
    assert read.broker.attrs == {"site.name": "north"}
    assert read.broker.heartbeat_period_s == 1.0
    assert [entry.parent for entry in read.hosts] == [None, 0]
    assert read.listen == (ListenEntry(uri="tcp://*:9000", dialect="cmb1rev"),)
    assert read.clients[0].roles == ("owner", "admin")
    assert read.access.admin_users == ("ada", 7)
    assert read.limits.event_policy == "drop"
    assert read.host(1) is read.hosts[1]
    assert read.host(9) is None


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        Settings.defaults().tree.size = 3  # type: ignore[misc]


def test_public_names_exist():
    assert all(hasattr(public, name) for name in public.__all__)


# ---------------------------------------------------------------- the sample file


def test_sample_is_made_of_the_schema():
    """`headgate config sample broker > deploy/broker.toml` makes it."""
    made = list(settings_text.sample(Settings))
    heads = [line for line, following in pairwise(made) if following.startswith("#[")]
    assert not [line for line in heads if line.endswith(" Default")], "a section without its default"
    assert SAMPLE.read_text() == "\n".join(made).rstrip() + "\n"
    assert not [line for line in made if line.endswith("= null")], "a field without an example"


def test_every_example_is_of_a_setting():
    shown = SAMPLE.read_text()
    for name, value in sample.EXAMPLES.items():
        section, _, field = name.rpartition(".")
        assert re.search(rf"(?ms)^#?\[\[?{re.escape(section)}\]\]?$.*?^#{field} = ", shown), name
        assert f"#{field} = {settings_text.toml(value)}" in shown.splitlines()


def test_sample_is_a_tree_of_one():
    assert load(SAMPLE) == Settings.defaults()


def test_sample_is_valid_with_its_comments_removed():
    live = re.sub(r"(?m)^#(?=\w+ = |\[)", "", SAMPLE.read_text())
    live = live.replace("parent = 0\n", "")  # of a tree whose topology is "custom"
    read = loads(live)
    assert read.size == 1
    assert read.clients[0].name == "dashboard"
    assert read.nfp is not None
    assert read.nfp.keys[0].name == "lab-worker"
    assert read.oslo is not None
    assert read.oslo.calls[0].roles == ("user",)


# ---------------------------------------------------------------- names and types


@for_each(
    ("text", "expected"),
    [
        ("[broker]\n\nrnk = 1", "f:3: broker.rnk: saw an unknown key, expected one of attrs,"),
        ("[acess]", "f:1: acess: saw an unknown key"),
        ("[broker]\nrank = '1'", "f:2: broker.rank: saw '1', expected int"),
        ("[broker]\nrank = -1", "f:2: broker.rank: saw -1, expected int >= 0"),
        ("[broker]\nrank = 4294967294", "f:2: broker.rank: saw 4294967294, expected int <= 4294967293"),
        ("[broker]\nrundir = ''", "f:2: broker.rundir: saw '', expected str of length >= 1"),
        (
            "[broker]\non_parent_loss = 'x'",
            'f:2: broker.on_parent_loss: saw \'x\', expected one of "rejoin", "exit"',
        ),
        ("[broker]\nversion_announced = 'v1'", "saw 'v1', expected a version like 0.88.0"),
        ("[broker]\nheartbeat_period_s = 0", "f:2: broker.heartbeat_period_s: saw 0, expected float >= 0.1"),
        ("[broker.attrs]\na = 'x'\nb = 1", "f:3: broker.attrs.b: saw 1, expected str"),
        ("broker = 3", "f:1: broker: saw 3, expected a table"),
        ("hosts = 3", "f:1: hosts: saw 3, expected an array of tables, [[hosts]]"),
        ("hosts = [\n 3]", "f:2: hosts[0]: saw 3, expected a table"),
        (
            "[tree]\ntopology = 'kary:0'",
            "f:2: tree.topology: saw 'kary:0', expected \"kary:K\" with K from 1",
        ),
        ("[tree]\nsize = 0", "f:2: tree.size: saw 0, expected int >= 1"),
        ("[tree]\nbatch = 1", "f:2: tree.batch: saw 1, expected bool"),
        ("[tree]\ntorpid_max_s = inf", "f:2: tree.torpid_max_s: saw inf, expected float <= "),
        ("[limits]\nstall_s = nan", "f:2: limits.stall_s: saw nan, expected float"),
        ("[tree]\ntorpid_max_s = nan", "f:2: tree.torpid_max_s: saw nan, expected"),
        ("[limits]\nbatch_msgs = true", "f:2: limits.batch_msgs: saw True, expected int"),
        ("[limits]\nrouts_max = 3", "did you mean routes_max?"),
        (
            "[[clients]]\nuserid = 4294967295",
            "f:2: clients[0].userid: saw 4294967295, expected int <= 4294967294",
        ),
        (
            "[[clients]]\nroles = ['root']",
            'f:2: clients[0].roles: saw [\'root\'], expected one of "owner", "user"',
        ),
        ("[[clients]]\nroles = []", "f:2: clients[0].roles: saw [], expected array of length >= 1"),
        ("[[hosts]]\nrank = 0", "f:1: hosts[0].address: missing, expected a value"),
        ("[[hosts]]\nrank = 0\n[[hosts]]\nrank = 'x'", "f:4: hosts[1].rank: saw 'x', expected int"),
        ("[access]\nadmin_users = 'ada'", "f:2: access.admin_users: saw 'ada', expected array"),
    ],
)
def test_wrong_name_or_type_names_its_line(text, expected):
    assert any(expected in line for line in refusal(text)), refusal(text)


def test_all_problems_are_told_in_the_order_of_their_lines():
    found = refusal("[limits]\nx = 1\nstall_s = 'a'\n[broker]\ny = 1\n")
    assert [line.split(": ")[:2] for line in found] == [
        ["f:2", "limits.x"],
        ["f:3", "limits.stall_s"],
        ["f:5", "broker.y"],
    ]


def test_a_long_value_is_cut():
    assert len(refusal(f"[broker]\nrank = '{'x' * 10_000}'")[0]) < 150


@for_each(
    ("text", "line"),
    [("a = [\n1,", 2), ("\n\nb == 1", 3), ("[broker]\nrank = 1\nrank = 2", 3), ("", None), ("x = ", 1)],
)
def test_syntax_errors_name_their_line(text, line):
    if line is None:
        assert loads(text)
    else:
        assert refusal(text)[0].startswith(f"f:{line}: not TOML: ")


# ---------------------------------------------------------------- files


def test_load_names_the_file(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text("[broker]\nx = 1\n")
    with pytest.raises(ConfigError, match=re.escape(f"{file}:2: broker.x: ")):
        load(file)


def test_load_takes_the_certificate_from_beside_the_file(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text("[tree]\ncurve_cert = 'keys/own.cert'\n")
    assert load(file).tree.curve_cert == str(tmp_path / "keys" / "own.cert")
    file.write_text("[tree]\ncurve_cert = '/keys/own.cert'\n")
    assert load(file).tree.curve_cert == "/keys/own.cert"


def test_load_of_what_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory, expected a readable TOML file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)
    (tmp_path / "latin").write_bytes(b"x = '\xe9'")
    with pytest.raises(ConfigError, match="not UTF-8 at offset 5"):
        load(tmp_path / "latin")


@given(st.text(alphabet=st.sampled_from("[]{}=.,#\"'\\ \n\tab1-"), max_size=40))
def test_any_text_is_read_or_refused(text):
    said = ""
    try:
        loads(text)
    except ConfigError as error:
        said = str(error)
    assert not said or re.match(r"<text>:[1-9][0-9]*: ", said)


# ---------------------------------------------------------------- one's own rank and sockets

THREE = loads(
    "[broker]\nrundir = '/r'\n" + "".join(host(rank, f"hostname = 'node{rank}.example'") for rank in range(3))
)


def test_own_rank_from_the_name_of_the_machine():
    assert THREE.at_rank(hostname="node2").broker.rank == 2
    assert THREE.at_rank(hostname="node1.elsewhere").broker.local_uri == "local:///r/local-1"


def test_own_rank_given_or_set():
    assert THREE.at_rank(0).broker.rank == 0
    assert loads("[broker]\nrank = 0").at_rank(hostname="x").broker.rank == 0
    assert Settings.defaults().at_rank(hostname="x").broker.rank == 0


def test_own_rank_unknown_or_outside():
    with pytest.raises(ConfigError, match="0 of hosts have hostname 'other', expected one"):
        THREE.at_rank(hostname="other")
    with pytest.raises(ConfigError, match=r"saw 3, expected 0 to 2"):
        THREE.at_rank(3)


def test_local_uri_that_is_set_stays():
    assert loads("[broker]\nlocal_uri = 'local:///x'").at_rank(0).broker.local_uri == "local:///x"


def test_rundir_follows_the_environment(monkeypatch):
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/headgate:/run/other")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_rundir() == "/run/headgate"
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    assert default_rundir() == "/run/user/7/headgate"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert re.fullmatch(r"/tmp/headgate-\d+", default_rundir())


def test_a_public_key_that_looks_like_a_login_is_no_secret():
    key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
    settings = loads(
        f'[tree]\ncurve_cert = "c"\n[[hosts]]\nrank = 0\naddress = "tcp://a:1"\npublic_key = "{key}"\n'
    )
    assert [*secrets(settings)] == []
    assert shown(settings)["hosts"][0]["public_key"] == key
    assert shown(key, "public_key") == key
    assert shown("user:password@host", "upstream_key") == "***"
    assert shown(key, "address") == "***"
