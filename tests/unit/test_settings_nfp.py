"""`[nfp]`: read, rooted, held against its rules; set from the command line and shown."""

import msgspec
import pytest

from broker.cli import settings_text
from broker.errors import ConfigError
from broker.settings import (
    KeyEntry,
    NfpSection,
    RuleEntry,
    Settings,
    TaskEntry,
    check,
    load,
    load_wing,
    loads,
    read,
)
from broker.settings.nfp import default_base_dir
from tests.tables import for_each
from tests.unit.configuration import KEY, OTHER_KEY, refusal


def nfp(text):
    section = loads(f"[nfp]\n{text}").nfp
    assert section is not None
    return section


# ---------------------------------------------------------------- what is right


def test_without_the_section_there_is_no_such_broker():
    assert loads("").nfp is None
    assert loads("[nfp]").nfp == NfpSection()


def test_defaults_break_no_rule():
    assert check(Settings(nfp=NfpSection())).nfp == NfpSection()


def test_everything_is_read():
    section = nfp(
        f"""
        endpoint = "tcp://*:5555"
        worker_endpoint = "ipc:///run/workers"
        sync = "full"
        files = ""
        unlisted = "deny"
        [[nfp.keys]]
        key = '{KEY}'
        name = "lab"
        standing = "owner"
        userid = 1000
        services = ["lab-*"]
        [[nfp.keys]]
        key = '{OTHER_KEY}'
        [[nfp.rules]]
        tasks = ["ping"]
        standings = ["guest"]
        [[nfp.rules]]
        services = ["a", "b"]
        names = ["uid:7"]
        allow = false
        [[nfp.tasks]]
        service = "lab-*"
        idempotent = false
        """
    )
    assert section.keys == (
        KeyEntry(key=KEY, name="lab", standing="owner", userid=1000, services=("lab-*",)),
        KeyEntry(key=OTHER_KEY),
    )
    assert section.rules == (
        RuleEntry(tasks=("ping",), standings=("guest",)),
        RuleEntry(services=("a", "b"), names=("uid:7",), allow=False),
    )
    assert section.tasks == (TaskEntry(service="lab-*", idempotent=False),)
    assert (section.files_dir, section.sync) == ("", "full")


def test_places_follow_the_folder():
    section = NfpSection(base_dir="/srv/nfp")
    assert section.secret_file == "/srv/nfp/broker.key_secret"
    assert (section.store_file, section.files_dir) == ("/srv/nfp/nfp.db", "/srv/nfp/files")
    other = NfpSection(base_dir="/srv/nfp", key_secret="/etc/k", files="/data", store=False)
    assert (other.secret_file, other.store_file, other.files_dir) == ("/etc/k", "", "/data")


def test_the_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_base_dir() == "/state/headgate/nfp"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_base_dir() == "/home/ada/.local/state/headgate/nfp"


def test_files_are_taken_from_beside_the_configuration(tmp_path):
    file = tmp_path / "nfp.toml"
    file.write_text("[nfp]\nbase_dir = 'state'\nkey_secret = 'k'\ninventory = '/etc/i.yaml'\nfiles = ''\n")
    section = load_wing(NfpSection, file)
    assert section == load(file).nfp
    assert (section.base_dir, section.key_secret) == (f"{tmp_path}/state", f"{tmp_path}/k")
    assert (section.inventory, section.files) == ("/etc/i.yaml", "")
    file.write_text("[broker]\nrank = 0\n")
    assert load_wing(NfpSection, file) == NfpSection()


# ---------------------------------------------------------------- what is wrong


@for_each(
    ("text", "expected"),
    [
        ("credit = 1", "f:2: nfp.credit: saw an unknown key"),
        ("credits = 0", "f:2: nfp.credits: saw 0, expected int >= 1"),
        ("keepalive_ms = 10", "f:2: nfp.keepalive_ms: saw 10, expected int >= 50"),
        ("sync = 'off'", 'f:2: nfp.sync: saw \'off\', expected one of "normal", "full"'),
        ("keys = 1", "f:2: nfp.keys: saw 1, expected an array of tables, [[nfp.keys]]"),
        ("[[nfp.keys]]\nname = 'x'", "f:2: nfp.keys[0].key: missing, expected a value"),
        ("[[nfp.rules]]\nservice = 'x'", "f:3: nfp.rules[0].service: saw an unknown key"),
        ("[[nfp.rules]]\ntasks = []", "f:3: nfp.rules[0].tasks: saw [], expected array of length >= 1"),
        ("[[nfp.tasks]]\ntask = 'x'", "f:2: nfp.tasks[0].idempotent: missing"),
        ("endpoint = 'tcp://a'", "f:2: nfp.endpoint: saw 'tcp://a', expected tcp://HOST:PORT"),
        (
            "endpoint = 'local:///a'",
            "f:2: nfp.endpoint: saw 'local:///a', expected tcp://HOST:PORT or ipc://PATH",
        ),
        (
            "curve = false\nworker_endpoint = 'tcp://*:1'",
            "f:3: nfp.worker_endpoint: saw 'tcp://*:1', expected a loopback address, or nfp.curve",
        ),
        (
            "worker_endpoint = 'tcp://127.0.0.1:5555'",
            "f:2: nfp.worker_endpoint: saw 'tcp://127.0.0.1:5555', expected another address",
        ),
        ("[[nfp.keys]]\nkey = 'short'", "f:3: nfp.keys[0].key: saw 'short', expected 40 characters of Z85"),
        (
            f"[[nfp.keys]]\nkey = '{KEY}'\n[[nfp.keys]]\nkey = '{KEY}'",
            f"f:5: nfp.keys[1].key: saw '{KEY}', expected each key once",
        ),
        (
            f"[[nfp.keys]]\nkey = '{KEY}'\nstanding = 'none'\nservices = ['a']",
            "f:5: nfp.keys[0].services: saw \"['a']\", expected no services with none",
        ),
        (
            f"curve = false\n[[nfp.keys]]\nkey = '{KEY}'",
            "f:3: nfp.keys: saw keys without nfp.curve, expected it",
        ),
        ("curve = false\nunlisted = 'deny'", "f:3: nfp.unlisted: saw 'deny', expected a standing"),
        ("credits = 65", "f:2: nfp.credits: saw '65', expected at most credits_max, 64"),
        ("job_ttl_s = 30", "f:1: nfp.queue_ttl_s: saw '60.0', expected at most job_ttl_s, 30.0"),
        ("queue_per_client = 10001", "f:2: nfp.queue_per_client: saw '10001', expected at most queue_max"),
        (
            "peer_queue_bytes = 1048576",
            "f:1: nfp.message_bytes_max: saw '67108864', expected at most peer_queue_bytes, 1048576",
        ),
        ("grace_s = 16", "f:2: nfp.grace_s: saw '16.0', expected at most keepalive_ms x multiplier, 15 s"),
        (
            "base_dir = '/srv/nfp'\nfiles = '/srv'",
            "f:3: nfp.files: saw '/srv', expected a folder without the keys in /srv/nfp",
        ),
        ("base_dir = '/srv/nfp'\nfiles = '/srv/nfp/'", "expected a folder without the keys in /srv/nfp"),
        ("key_secret = '/etc/nfp/k'\nfiles = '/etc'", "expected a folder without the keys in /etc/nfp"),
    ],
)
def test_faults_name_their_line(text, expected):
    said = refusal(f"[nfp]\n{text}")
    assert len(said) == 1
    assert expected in said[0]


def test_a_section_that_is_none():
    assert refusal("nfp = 3") == ["f:1: nfp: saw 3, expected a table"]


def test_loopback_and_ipc_may_be_plaintext():
    assert nfp("curve = false").curve is False
    assert nfp("curve = false\nendpoint = 'ipc:///run/nfp'").curve is False
    assert nfp("curve = false\ninsecure = true\nendpoint = 'tcp://*:5555'").insecure is True


# ---------------------------------------------------------------- command line


def test_a_setting_of_the_command_line_makes_the_section(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = read(None, ["nfp.endpoint=tcp://127.0.0.1:7000", "nfp.base_dir=state", "nfp.files="])
    assert settings.nfp is not None
    assert (settings.nfp.endpoint, settings.nfp.files) == ("tcp://127.0.0.1:7000", "")
    assert settings.nfp.base_dir == f"{tmp_path}/state"
    assert read(None, ["broker.rank=0"]).nfp is None
    with pytest.raises(ConfigError, match=r"--set nfp.credits=65: |nfp.credits: saw '65'"):
        read(None, ["nfp.credits=65"])


def test_what_show_prints_says_the_same():
    settings = loads(f"[nfp]\ncredits = 3\n[[nfp.keys]]\nkey = '{KEY}'\n[[nfp.tasks]]\nidempotent = true\n")
    for explain in (True, False):
        assert loads("\n".join(settings_text.lines(settings, explain=explain))) == settings


def test_show_without_the_section_lists_it_as_a_comment():
    lines = list(settings_text.lines(Settings.defaults(), explain=True))
    assert "#[nfp]" in lines
    assert "#credits = 5" in lines
    assert loads("\n".join(lines)).nfp is None


def test_every_entry_has_its_meanings():
    for struct in (NfpSection, KeyEntry, RuleEntry, TaskEntry):
        for field in msgspec.structs.fields(struct):
            assert settings_text.meaning(struct, field.name), f"{struct.__name__}.{field.name}"
