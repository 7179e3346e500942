"""What transports can do, by scheme, and plugins that are not what they should be."""

from importlib import metadata

import msgspec
import pytest

from broker import schemes
from broker.cli.main import main
from broker.errors import ConfigError
from broker.schemes import Capabilities, FilePath, capabilities_of
from broker.settings import load, loads
from broker.settings.transport_options import from_words, typed
from broker.transport import registry
from broker.transport.link import Options
from tests.tables import for_each


class Colours(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    file: FilePath
    shade: int = 3


class Pigeons:
    """A transport of which only the declaration matters."""

    def __init__(self, **can):
        self.capabilities = Capabilities(**can)
        self.dialled = []

    async def dial(self, uri, options):
        self.dialled.append(uri)


@pytest.fixture
def pigeon(monkeypatch):
    """Makes the scheme ``pigeon`` one that can do what is said."""

    def known(**can):
        monkeypatch.setitem(schemes._loaded, "pigeon", Pigeons(**can))
        return schemes._loaded["pigeon"]

    return known


def refusal(text):
    with pytest.raises(ConfigError) as caught:
        loads(text, "f")
    return str(caught.value)


LISTEN = '[[listen]]\nuri = "pigeon://loft"\n'
HOSTS = '[[hosts]]\nrank = 0\naddress = "pigeon://loft"\n'


@for_each("scheme", sorted(schemes.BUILT_IN))
def test_what_is_declared_in_the_table_is_what_the_transport_declares(scheme):
    module = schemes.find(scheme)
    name = schemes.BUILT_IN[scheme].module
    assert module.capabilities in [
        each.capabilities for each in schemes.BUILT_IN.values() if each.module == name
    ]
    assert capabilities_of(f"{scheme}://x:1") is schemes.BUILT_IN[scheme].capabilities


def test_a_declaration_that_is_none_is_told(pigeon):
    pigeon().capabilities = {"tree": True}
    assert "f:2: listen[0].uri: saw 'pigeon://loft', the transport of scheme 'pigeon' declares" in refusal(
        LISTEN
    )


def test_what_is_not_declared_is_not_done(pigeon):
    pigeon()
    assert "f:2: listen[0].uri: saw 'pigeon://loft', expected a loopback address, or insecure" in refusal(
        LISTEN
    )
    assert (
        "f:3: hosts[0].address: saw 'pigeon://loft', expected an address of a transport that can"
        in refusal(HOSTS)
    )
    safe = LISTEN + "insecure = true\n"
    assert loads(safe).listen[0].uri == "pigeon://loft"
    assert "strict_rfc3: saw 'True', expected false" in refusal(safe + "strict_rfc3 = true")
    assert "dialect: saw 'cmb1', expected what this transport carries, \"flux1\"" in refusal(
        safe + 'dialect = "cmb1"'
    )
    assert "f:4: listen[0].options: saw options, expected none" in refusal(safe + "options = { a = 1 }")


@for_each(
    ("text", "said"),
    [
        ('[[listen]]\nuri = "local:///a"\ndialect = "cmb1"', "listen[0].dialect"),
        ('[[listen]]\nuri = "local://a"', "local:///ABSOLUTE/PATH"),
        ('[[listen]]\nuri = "wss://h:1"', "a transport that listens"),
        ('[[listen]]\nuri = "inproc://x"\nstrict_rfc3 = true', "one form only"),
    ],
)
def test_what_listening_would_refuse_is_refused_by_the_check(text, said):
    assert said in refusal(text)


def test_a_tree_takes_every_transport_that_can_join_brokers(pigeon):
    pigeon(
        tree=True, protection="own", proves=("key",), check_key=lambda key: "" if key == "k" else "the key k"
    )
    assert "hosts[0].public_key: missing, expected the key that its handshake proves" in refusal(HOSTS)
    assert "public_key: saw 'x', expected the key k" in refusal(HOSTS + 'public_key = "x"\n')
    assert loads(HOSTS + 'public_key = "k"\n').size == 1
    assert "the scheme of address" in refusal(HOSTS + 'public_key = "k"\nbind = "tcp://127.0.0.1:1"\n')


def test_keys_of_clients_are_those_of_any_transport_that_proves_keys(pigeon):
    client = '[[clients]]\npublic_key = "k"\nuserid = 5\n'
    assert "clients: saw client keys without tree.curve_cert" in refusal(client)
    pigeon(protection="own", proves=("key",))
    assert loads(LISTEN + client).clients[0].public_key == "k"


def test_options_are_typed_shown_and_their_files_found(pigeon, tmp_path, capsys):
    pigeon(tree=True, proves=("uid",), protection="own", options=Colours)
    file = tmp_path / "b.toml"
    file.write_text(
        f'[broker]\nrank = 0\n[tree]\noptions = {{ file = "{{rank}}.txt" }}\n{HOSTS}{LISTEN}'
        'options = { file = "a.txt", shade = 4 }\n'
    )
    settings = load(file).at_rank(0)
    assert settings.tree.options == {"file": f"{tmp_path}/0.txt"}
    found = typed(settings.listen[0].options, capabilities_of("pigeon://loft"))
    assert found == Colours(file=f"{tmp_path}/a.txt", shade=4)
    assert main(["config", "show", str(file), "--brief"]) == 0
    # nobody here knows which of another package's options are secrets
    assert 'options = { file = "***", shade = 4 }' in capsys.readouterr().out


@for_each(
    ("options", "said"),
    [
        ("", "listen[0].options.file: missing, expected a value"),
        ("options = { file = 3 }", "listen[0].options.file: saw 3, expected str"),
        (
            'options = { file = "a", shape = 1 }',
            "f:3: listen[0].options.shape: saw an unknown key, expected one of",
        ),
    ],
)
def test_wrong_options_are_refused_with_their_line(pigeon, options, said):
    pigeon(protection="own", options=Colours)
    assert said in refusal(LISTEN + options)


def test_a_tree_that_strangers_could_join_is_refused(pigeon):
    pigeon(tree=True, protection="own")
    assert "expected a transport that proves who its peers are, or tree.insecure" in refusal(HOSTS)
    assert loads("[tree]\ninsecure = true\n" + HOSTS).hosts
    pigeon(tree=True, protection="own", is_exposed=schemes.nobody)
    assert loads(HOSTS).hosts


def test_options_of_a_tree_are_for_its_transports_only():
    hosts = '[[hosts]]\nrank = 0\naddress = "ipc:///x"\n'
    assert "tree.options: saw options, expected none" in refusal(f"[tree]\noptions = {{ a = 1 }}\n{hosts}")


def test_options_of_the_environment_are_words(pigeon):
    pigeon(options=Colours)
    assert from_words("file='a b' shade=4", "pigeon://x") == Colours(file="a b", shade=4)
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        from_words("file", "pigeon://x")
    with pytest.raises(ConfigError, match="No closing quotation"):
        from_words("file='a", "pigeon://x")
    with pytest.raises(ConfigError, match="shade"):
        from_words("file=a shade=dark", "pigeon://x")


async def test_the_same_holds_where_no_settings_are(pigeon):
    transport = pigeon()
    for options, said in (
        (Options(), "plaintext off loopback"),
        (Options(insecure=True, dialect="cmb1"), "dialect"),
        (Options(insecure=True, strict_rfc3=True), "strict_rfc3"),
        (Options(insecure=True, tree=True), "does not join brokers"),
    ):
        with pytest.raises(ConfigError, match=said):
            await registry.dial("pigeon://x", options)
    await registry.dial("pigeon://x", Options(insecure=True))
    assert transport.dialled == ["pigeon://x"]


@for_each(
    "words",
    [
        ("config", "check", "FILE"),
        ("broker", "--config", "FILE"),
        ("ping", "--uri", "broken://x"),
        ("doctor", "--uri", "broken://x"),
    ],
    ids=lambda words: words[0],
)
def test_a_plugin_that_cannot_be_loaded_is_one_line(monkeypatch, tmp_path, capsys, words):
    point = metadata.EntryPoint("broken", "no_such_package:transport", schemes.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda **_which: metadata.EntryPoints([point]))
    file = tmp_path / "b.toml"
    file.write_text('[[listen]]\nuri = "broken://x"\n')
    assert main([str(file) if word == "FILE" else word for word in words]) != 0
    said = "".join(capsys.readouterr())
    line = (
        "the transport of scheme 'broken' (no_such_package:transport) cannot be loaded: ModuleNotFoundError"
    )
    assert said.count(line) == 1, said
    assert "Traceback" not in said
