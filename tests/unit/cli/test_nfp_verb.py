"""``headgate nfp``: its verbs, the settings of ``nfp broker``, what is said about where it is; the wing of rank 0."""

from importlib import import_module
from socket import gethostname

import pytest

from broker.cli import exits, wings
from broker.cli.main import main
from broker.cli.nfp import VERBS
from broker.cli.nfp import broker as verb
from broker.cli.nfp.embedded import where
from broker.cli.start import arguments as start_arguments
from broker.cli.start import settings_for
from broker.errors import ConfigError
from broker.settings import NfpSection, loads
from tests.tables import for_each


def section(*words):
    return verb.section_of(verb.arguments().parse_args(words))


# ---------------------------------------------------------------- the verbs


def test_help_names_every_verb(capsys):
    assert main(["nfp", "--help"]) == exits.OK
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in VERBS)
    assert main(["nfp"]) == exits.USAGE
    assert main(["help", "nfp"]) == exits.OK


def test_an_unknown_verb_is_told_with_its_neighbour(capsys):
    assert main(["nfp", "job"]) == exits.USAGE
    assert capsys.readouterr().err == "headgate nfp: 'job' is no verb of nfp; did you mean jobs?\n"
    assert main(["nfp", "xyzzy"]) == exits.USAGE


@for_each("name", VERBS)
def test_every_verb_has_its_file(name):
    assert callable(import_module(f"broker.cli.nfp.{name}").main)


# ---------------------------------------------------------------- headgate nfp broker


def test_options_are_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = section(
        "--endpoint", "tcp://127.0.0.1:7000", "--base-dir", "state", "--key-secret", "k", "--inventory", "i.yaml",
        "--no-store", "--set", "nfp.credits=4", "--set", "queue_max=20000", "--files", "",
    )  # fmt: skip
    assert (made.endpoint, made.store, made.credits, made.queue_max) == (
        "tcp://127.0.0.1:7000",
        False,
        4,
        20000,
    )
    assert (made.base_dir, made.key_secret) == (f"{tmp_path}/state", f"{tmp_path}/k")
    assert (made.inventory, made.files, made.files_dir) == (f"{tmp_path}/i.yaml", "", "")


def test_an_option_without_a_value_is_refused_as_in_a_file():
    for name in ("--base-dir", "--key-secret", "--inventory", "--endpoint"):
        with pytest.raises(ConfigError, match=f"^{name} ''"):
            section(name, "")


def test_a_setting_goes_before_what_an_option_contradicts():
    words = ("--endpoint", "tcp://*:5555", "--no-curve")
    with pytest.raises(ConfigError, match=r"nfp\.insecure = true"):
        section(*words)
    assert section(*words, "--set", "nfp.insecure=true").insecure


def test_options_go_before_the_file_and_its_paths_start_from_it(tmp_path):
    (tmp_path / "nfp.toml").write_text(
        "[nfp]\nbase_dir = 'state'\ncredits = 2\nendpoint = 'tcp://127.0.0.1:7000'\n"
    )
    made = section("--config", str(tmp_path / "nfp.toml"), "--endpoint", "tcp://127.0.0.1:7001")
    assert (made.endpoint, made.credits, made.base_dir) == ("tcp://127.0.0.1:7001", 2, f"{tmp_path}/state")


@for_each(
    ("words", "said"),
    [
        (
            ("--no-curve", "--endpoint", "tcp://*:5555"),
            "nfp.endpoint: saw 'tcp://*:5555', expected a loopback",
        ),
        (
            ("--endpoint", "http://a:1"),
            "nfp.endpoint: saw 'http://a:1', expected tcp://HOST:PORT or ipc://PATH",
        ),
        (("--set", "nfp.credit=1"), "did you mean credits?"),
        (("--set", "nfp.credits=x"), "nfp.credits=x: saw 'x', expected int"),
    ],
)
def test_wrong_options(words, said):
    with pytest.raises(ConfigError) as caught:
        section(*words)
    assert said in str(caught.value)


def test_plaintext_off_loopback_when_it_is_wanted():
    assert section("--no-curve", "--insecure", "--endpoint", "tcp://*:5555").curve is False


def test_which_flux_broker():
    def uri(*words, **environ):
        return verb.flux_uri(verb.arguments().parse_args(words), environ)

    assert uri() == ""
    assert uri(FLUX_URI="local:///a", HEADGATE_URI="local:///b") == "local:///b"
    assert uri("--uri", "local:///c", FLUX_URI="local:///a") == "local:///c"
    assert uri("--no-flux", FLUX_URI="local:///a") == ""


def test_where_it_is(tmp_path):
    usual = NfpSection()
    assert where(usual, key="K" * 40) == [
        f"NFP broker at tcp://127.0.0.1:5555, key {'K' * 40}",
        "  headgate nfp worker FILE.py",
        "  headgate nfp run SERVICE TASK",
    ]
    other = NfpSection(base_dir=str(tmp_path / "a b"), curve=True)
    assert where(other, ["tcp://127.0.0.1:7"], "")[1] == (
        f"  headgate nfp worker FILE.py --broker tcp://127.0.0.1:7 --base-dir '{tmp_path}/a b'"
    )


def test_where_it_is_in_plaintext(tmp_path):
    """A key of an earlier broker in the folder must not be taken for one of this broker."""
    assert where(NfpSection(curve=False, base_dir=str(tmp_path))) == [
        "NFP broker at tcp://127.0.0.1:5555, in plaintext",
        "  headgate nfp worker FILE.py --no-curve",
        "  headgate nfp run SERVICE TASK --no-curve",
    ]
    everywhere = where(NfpSection(curve=False, insecure=True, endpoint="tcp://*:7"))
    host = gethostname()
    assert everywhere[2] == f"  headgate nfp run SERVICE TASK --broker tcp://{host}:7 --insecure --no-curve"


def test_where_it_is_when_workers_have_an_address_of_their_own():
    two = NfpSection(worker_endpoint="tcp://127.0.0.1:7")
    assert (
        where(two, key="K" * 40)[1:]
        == where(two, ["tcp://127.0.0.1:5555", "tcp://127.0.0.1:7"], "K" * 40)[1:]
    )
    assert where(two, key="K" * 40)[1:] == [
        "  headgate nfp worker FILE.py --broker tcp://127.0.0.1:7",
        "  headgate nfp run SERVICE TASK",
    ]


# ---------------------------------------------------------------- inside rank 0


def test_the_wing_is_rank_0s():
    text = "[broker]\nrundir = '/r'\n[tree]\nsize = 2\n[nfp]\n" + "".join(
        f"[[hosts]]\nrank = {rank}\naddress = 'ipc:///r/{rank}'\n" for rank in range(2)
    )
    both = loads(text)
    assert len(wings.wings_of(both.at_rank(0))) == 1
    assert wings.wings_of(both.at_rank(1)) == wings.wings_of(loads("").at_rank(0)) == []


def test_start_with_nfp_takes_the_section_or_the_defaults(tmp_path):
    def nfp(*words):
        return settings_for(start_arguments().parse_args(words)).nfp

    assert nfp() is None
    assert nfp("--nfp") == NfpSection()
    assert nfp("--nfp", "--set", "nfp.credits=3").credits == 3
    (tmp_path / "b.toml").write_text("[nfp]\ncredits = 5\n")
    assert nfp("--config", str(tmp_path / "b.toml")).credits == 5
