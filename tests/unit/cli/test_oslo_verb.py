"""``headgate oslo``: its verbs, settings of ``proxy`` and ``bridge``, what is said about where it is; rank 0's wing."""

import argparse
import contextlib
import io
import json
from importlib import import_module

import pytest

from broker.cli import content, exits, wings
from broker.cli.main import main
from broker.cli.oslo import VERBS, bridge, call, listen, notify, picture, proxy, sending
from broker.cli.oslo.children import orders
from broker.cli.screen import Screen
from broker.cli.start import arguments as start_arguments
from broker.cli.start import settings_for
from broker.errors import ConfigError, RpcError
from broker.nesting import NESTED_MAX
from broker.oslo.contract import Address
from broker.oslo.records import Record, State
from broker.oslo.service.topics import result_of
from broker.secret import SecretUrl
from broker.settings import OsloSection, loads
from tests.tables import for_each


def section(*words):
    return proxy.section_of(proxy.arguments().parse_args(words))


# ---------------------------------------------------------------- the verbs


def test_help_names_every_verb(capsys):
    assert main(["oslo", "--help"]) == exits.OK
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in VERBS)
    assert main(["oslo"]) == exits.USAGE
    assert main(["help", "oslo"]) == exits.OK


def test_an_unknown_verb_is_told_with_its_neighbour(capsys):
    assert main(["oslo", "statu"]) == exits.USAGE
    assert capsys.readouterr().err == "headgate oslo: 'statu' is no verb of oslo; did you mean status?\n"
    assert main(["oslo", "xyzzy"]) == exits.USAGE


@for_each("name", VERBS)
def test_every_verb_has_its_help_with_examples_and_exit_codes(name, capsys):
    with contextlib.suppress(SystemExit):  # argparse leaves
        import_module(f"broker.cli.oslo.{name}").main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"headgate oslo {name}" in text
    assert "xamples:" in text
    assert "xit codes: 0" in text


# ---------------------------------------------------------------- headgate oslo proxy


def test_options_are_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = section(
        "--run", "call,cast,directory", "--host", "127.0.0.9", "--advertise", "a.example", "--node", "n7",
        "--call-port", "9601", "--directory-port", "0", "--directory", "tcp://127.0.0.1:1", "--directory",
        "tcp://127.0.0.1:2", "--redis", "redis://r", "--ipc-dir", "ipc", "--ipc-group", "g", "--curve-cert", "c",
        "--set", "oslo.lease_s=10", "--set", "queue_msgs=5",
    )  # fmt: skip
    assert made == OsloSection(
        run=("call", "cast", "directory"),
        host="127.0.0.9",
        advertise="a.example",
        node="n7",
        call_port=9601,
        directory_port=0,
        directories=("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"),
        redis=(SecretUrl("redis://r"),),
        ipc_dir=f"{tmp_path}/ipc",
        ipc_group="g",
        curve_cert=f"{tmp_path}/c",
        lease_s=10.0,
        queue_msgs=5,
    )
    assert section() == OsloSection()


def test_options_go_before_the_file(tmp_path):
    (tmp_path / "o.toml").write_text("[oslo]\nnode = 'a'\ncast_port = 7\ncurve_cert = 'c'\n")
    made = section("--config", str(tmp_path / "o.toml"), "--node", "b")
    assert (made.node, made.cast_port, made.curve_cert) == ("b", 7, f"{tmp_path}/c")


@for_each(
    ("words", "said"),
    [
        (("--host", "0.0.0.0"), "oslo.host: saw '0.0.0.0', expected a loopback address"),
        (("--run", "call,calls"), "--run: saw 'calls', expected some of directory,call"),
        (("--run", ""), "--run: saw '', expected some of"),
        (("--call-port", "9504"), "oslo.cast_port: saw '9504', expected another port"),
        (("--set", "oslo.leas_s=1"), "did you mean lease_s?"),
        (("--directory", "controller"), "oslo.directories[0]: saw 'controller'"),
    ],
)
def test_wrong_options(words, said):
    with pytest.raises(ConfigError) as caught:
        section(*words)
    assert said in str(caught.value)


@for_each(
    ("words", "said"),
    [
        (["--call-port", "99999"], "--call-port 99999: Expected `int` <= 65535"),
        (["--cast-port=-1"], "--cast-port -1: Expected `int` >= 0"),
        (["--node", ""], "--node '': Expected `str` of length >= 1"),
    ],
)
def test_options_are_checked_as_in_a_file(words, said, capsys):
    assert main(["oslo", "proxy", *words]) == exits.CONFIG
    assert said in capsys.readouterr().err


def test_a_certificate_that_is_none(tmp_path, capsys):
    (tmp_path / "directory.ctl").touch()
    (tmp_path / "a.cert").write_text("nothing")
    words = ["call", "t", "m", "--ipc-dir", str(tmp_path), "--curve-cert", str(tmp_path / "a.cert")]
    assert main(["oslo", *words]) == exits.CONFIG
    assert "a.cert" in capsys.readouterr().err


def test_plaintext_off_loopback_when_it_is_wanted():
    assert section("--host", "*", "--insecure").insecure is True


# ---------------------------------------------------------------- headgate oslo bridge


def test_options_of_the_bridge(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = bridge.arguments().parse_args(
        ["--uri", "local:///a", "--ipc-dir", "x", "--notify", "a/b", "--notify", "c/d", "--public"]
    )
    assert bridge.section_of(given) == OsloSection(
        ipc_dir=f"{tmp_path}/x", notify=("a/b", "c/d"), notify_public=True
    )
    assert bridge.flux_uri(given, {"FLUX_URI": "local:///b"}) == "local:///a"


def test_which_flux_broker():
    nothing = argparse.Namespace(uri=None)
    assert bridge.flux_uri(nothing, {"FLUX_URI": "local:///a", "HEADGATE_URI": "local:///b"}) == "local:///b"
    assert bridge.flux_uri(nothing, {"FLUX_URI": "local:///a"}) == "local:///a"
    with pytest.raises(exits.UsageError, match="no broker is named"):
        bridge.flux_uri(nothing, {})


def test_what_the_bridge_says():
    said = bridge.said(OsloSection(ipc_dir="/i"), "local:///a")
    assert said[0] == "oslo.EXCHANGE.TOPIC.METHOD on local:///a, through the proxy in /i"
    assert said[1] == "notifications of openstack/notifications as events oslo.notify.* for owners"
    assert bridge.said(OsloSection(notify=()), "u")[1] == "no notifications"


# ---------------------------------------------------------------- sending


@for_each("word", ["novalue", "=3", "[1]", "{broken"])
def test_words_that_are_no_arguments(word):
    with pytest.raises(exits.UsageError):
        content.keywords([word])


def test_words_that_cannot_be_sent():
    for body in (
        lambda: sending.request_of("m", ["a=\udcff"], "{}", None, None),
        lambda: sending.request_of("\udcff", [], "{}", None, None),
        lambda: notify.body_of("e\udcff", {}, "info", "p", {}),
    ):
        with pytest.raises(exits.UsageError, match="not UTF-8"):
            body()
    deep = "[" * 100_000
    assert content.value_of(deep) == deep
    for levels in (NESTED_MAX + 1, 100_000):
        nested: list[object] = []
        for _ in range(levels):
            nested = [nested]
        with pytest.raises(exits.UsageError, match="nested too deeply"):
            sending.encoded(nested)


class Heard:
    """A notification, or the reply to a call."""

    address = Address("openstack", "notifications.info")

    def __init__(self, body):
        self.body = body


def shown(body):
    out = io.StringIO()
    listen.show(Screen(as_json=True, out=out), Heard(body))
    return out.getvalue()


@for_each(
    "body",
    [b"", b"\xff", b"[]", b"3", b'{"message":{"a":"\xff"}}', b"[" * 100_000, b'{"message":{"a":1e999}}',
     b'{"message":{"oslo.version":"2.0","oslo.message":"[[["}}'],
    ids=range(8),
)  # fmt: skip
def test_notifications_that_cannot_be_read_are_shown_as_far_as_that_goes(body):
    assert json.loads(shown(body)) == {
        "exchange": "openstack", "topic": "notifications", "priority": "info",
        "unreadable": body[:64].decode(errors="replace"),
    }  # fmt: skip


def test_what_is_nested_as_deeply_as_can_be_read_is_shown(monkeypatch, capsys):
    class Port:
        def call(self, *_args, **_options):
            return b'{"result":' + deep + b"}"

    monkeypatch.setattr(sending.Sender, "run", lambda _sender, work: work(Port()))
    deep = b"[" * (NESTED_MAX - 2) + b"]" * (NESTED_MAX - 2)
    assert json.loads(shown(b'{"message":{"a":' + deep + b"}}"))["message"] == {"a": json.loads(deep)}
    deep = b"[" + deep + b"]"
    assert "unreadable" in json.loads(shown(b'{"message":{"a":' + deep + b"}}"))
    assert call.main(["t", "m"]) == exits.OK
    assert capsys.readouterr().out.encode().rstrip() == deep
    deep = b"[" + deep + b"]"
    with pytest.raises(RpcError, match="expected a JSON object"):
        result_of(b'{"result":' + deep + b"}")
    with pytest.raises(exits.Failed, match="expected a JSON object"):
        call.main(["t", "m"])


def test_without_a_proxy_verbs_say_what_to_do(tmp_path, capsys):
    for words in (
        ["call", "t", "m"],
        ["cast", "t", "m"],
        ["fanout", "t", "m"],
        ["notify", "t", "e"],
        ["listen", "t"],
    ):
        assert main(["oslo", *words, "--ipc-dir", str(tmp_path)]) == exits.USAGE
        assert (
            f"no proxy of this node in {tmp_path}; `headgate oslo proxy` starts one"
            in capsys.readouterr().err
        )
    assert main(["oslo", "status", "--ipc-dir", str(tmp_path)]) == exits.FAILED
    assert f"no proxy of this node in {tmp_path}" in capsys.readouterr().err


@for_each(
    ("words", "said"),
    [
        (["call", "t", "m", "x"], "argument 'x': expected KEY=VALUE or a JSON object"),
        (["call", "t", "m", "--ctxt", "[]"], "--ctxt '[]': expected a JSON object"),
        (["cast", "t" * 300, "m"], "expected 255 at most"),
        (["notify", "t", "e", "--priority", "loud"], "--priority 'loud': expected one of audit,"),
        (["listen", "t", "--priority", "loud"], "--priority 'loud': expected one of audit,"),
        *(
            (words, "TOPIC: saw none")
            for words in (
                ["call", "", "m"],
                ["cast", "", "m"],
                ["fanout", "", "m"],
                ["notify", "", "e"],
                ["listen", "t", ""],
            )
        ),
        (["call", "t", "m", "--timeout", "inf"], "--timeout inf: expected a number of seconds"),
        (["call", "t", "m", "--timeout", "nan"], "Invalid value for '--timeout'"),
        (["call", "t", "m", "--directory", "foo"], "--directory 'foo': expected tcp://HOST:PORT"),
        (["call", "t", "m", "--directory", "tcp://a"], "expected tcp://HOST:PORT"),
        (["call", "t", "m", "--directory", "tcp://a:99999"], "expected a port up to 65535"),
        (["call", "t", "m", "--directory", "ipc:///a"], "expected tcp://HOST:PORT"),
        (["cast", "t", "m", "--directory-key", "abc"], "--directory-key 'abc': expected 40 characters"),
        (["status", "--json", "--watch"], "--watch and --json: expected one of them"),
    ],
)
def test_wrong_words(words, said, capsys):
    assert main(["oslo", *words]) == exits.USAGE
    assert said in capsys.readouterr().err


# ---------------------------------------------------------------- pictures


def test_sockets_are_found_wherever_they_stand():
    one = {"type": "ROUTER", "endpoint": "ipc:///a", "in": 1, "out": 2, "waiting": 0, "refused": 0}
    other = {"type": "XPUB", "endpoint": "ipc:///b"}
    said = {"entries": [one], "deep": {"exit": other}, "counts": {"type": 3}}
    assert picture.socket_rows("call", said) == [
        ("call", "ROUTER", "ipc:///a", "1", "2", "0", "0"),
        ("call", "XPUB", "ipc:///b", "", "", "", ""),
    ]
    assert picture.socket_rows("call", None) == []


def test_rooms_and_nodes():
    assert picture.room_row("call", None) == ("call", "no answer", "", "")
    assert picture.room_row("call", {"listeners": 3, "counts": {"late": 1}}) == ("call", "up", "3", "late=1")
    assert picture.room_row("call", {"listeners": 0, "rejoining": 2})[1] == "waits for 2 server processes"
    many = {"counts": {f"c{number:02}": 1 for number in range(15)}}
    assert picture.counters(many).endswith("(and 3 more)")
    records = (Record("x", "t", "s1", "l1"), Record("x", "t", "s2", "l2"), Record("x", "u", "s1", "l1"))
    state = State("n", "call", 1, 4, "tcp://n:9501", "key", records)
    assert picture.node_row(state) == ("n", "call", "tcp://n:9501", "2", "2", "CURVE", "4")
    assert picture.node_row(State("n", "cast", 1, 1, ""))[2:] == (
        "this node only",
        "0",
        "0",
        "plaintext",
        "1",
    )


# ---------------------------------------------------------------- beside rank 0


def test_the_wing_is_rank_0s():
    text = "[broker]\nrundir = '/r'\n[tree]\nsize = 2\n[oslo]\n" + "".join(
        f"[[hosts]]\nrank = {rank}\naddress = 'ipc:///r/{rank}'\n" for rank in range(2)
    )
    both = loads(text)
    assert len(wings.wings_of(both.at_rank(0))) == 1
    assert wings.wings_of(both.at_rank(1)) == wings.wings_of(loads("").at_rank(0)) == []


def test_start_with_oslo_takes_the_section_or_the_defaults(tmp_path):
    def oslo(*words):
        return settings_for(start_arguments().parse_args(words)).oslo

    assert oslo() is None
    assert oslo("--oslo") == OsloSection()
    assert oslo("--oslo", "--set", "oslo.lease_s=9").lease_s == 9
    (tmp_path / "b.toml").write_text("[oslo]\nlease_s = 8\n")
    assert oslo("--config", str(tmp_path / "b.toml")).lease_s == 8


def test_which_processes():
    def names(**settings):
        return [(order.name, order.bridge) for order in orders(OsloSection(**settings), "local:///a")]

    assert names() == [("proxy", ""), ("bridge", "local:///a")]
    assert [order.name for order in orders(OsloSection(run=("call",)))] == ["proxy"]


def test_split_names_the_services_that_do_it(capsys):
    with pytest.raises(SystemExit) as ended:
        section("--split")
    assert ended.value.code == 2
    assert "headgate-oslo-room@ROOM.service" in capsys.readouterr().err
