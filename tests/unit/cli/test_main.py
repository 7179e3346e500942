"""The dispatcher: verbs, help, exit codes."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from broker import __version__, errors
from broker.cli import exits, verbs
from broker.cli.main import main
from broker.cli.screen import Screen
from gateway.identity.store import Store
from tests.tables import for_each

pytestmark = pytest.mark.interpreter

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_our_verbs_stand_in_one_table():
    points = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]
    assert verbs.GROUP not in points, "entry points are for other packages"
    for verb in verbs.BUILT_IN:
        assert callable(verbs.load(verb)), verb


def test_overview_names_every_verb_and_exit_code(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in verbs.BUILT_IN:
        assert f"\n  {verb} " in text
    for code, meaning in exits.MEANINGS:
        assert f" {code} {meaning}" in " ".join(text.split())


@for_each(
    "words",
    [
        *("broker", "gateway", "up", "status"),
        *(
            "journal show",
            "nfp broker",
            "nfp jobs",
            "nfp up",
            "oslo call",
            "oslo proxy",
            "pipeline report",
            "nfp nonsense",
        ),
    ],
)
def test_with_json_a_wrong_word_is_told_as_json(words, capsys):
    try:
        code = main([*words.split(), "--no-such-option", "--json"])
    except SystemExit as left:
        code = left.code
    lines = capsys.readouterr().err.splitlines()
    assert code == exits.USAGE
    assert [json.loads(line)["exit_code"] for line in lines] == [exits.USAGE]


def test_what_is_near_is_suggested(capsys):
    assert main(["stauts"]) == exits.USAGE
    assert "did you mean status?" in capsys.readouterr().err
    assert main(["--uri", "local:///x", "status"]) == exits.USAGE
    assert "headgate VERB --uri" in capsys.readouterr().err


@for_each(
    "verb", ["attr", "cluster", "config", "journal", "login", "nfp", "oslo", "pipeline", "tls", "token"]
)
def test_a_verb_of_verbs_without_one_shows_its_help_and_is_a_usage_error(verb, capsys):
    assert main([verb]) == exits.USAGE
    assert f"Usage: headgate {verb} " in capsys.readouterr().out


def test_no_words_show_the_overview_and_are_a_usage_error(capsys):
    assert main([]) == exits.USAGE
    assert "Usage: headgate VERB" in capsys.readouterr().out


@for_each("verb", sorted(verbs.BUILT_IN))
def test_help_of_a_verb_has_an_example(verb, capsys):
    try:
        code = main([verb, "--help"])
    except SystemExit as left:  # argparse
        code = left.code
    text = capsys.readouterr().out
    assert code == 0
    assert "xamples" in text.lower()
    assert f"headgate {verb} " in text


@for_each(
    ("words", "columns"),
    [
        (words.split(), columns)
        for words in ("", "broker", "up", "health", "status", "nfp", "nfp up", "oslo proxy", "config check")
        for columns in (60, 80, 240)
    ],
)
def test_help_is_as_wide_as_the_terminal(words, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    with contextlib.suppress(SystemExit):  # argparse
        main([*words, "--help"])
    text = capsys.readouterr().out
    assert "  headgate" in text or not words, "examples are there to be copied"
    wide = [line for line in text.splitlines() if len(line) > min(columns, 100)]
    assert not [line for line in wide if not line.startswith("  ") or "   " in line.strip()], wide


def test_sentences_of_a_help_page_flow_and_paragraphs_stay(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["journal", "--help"]) == 0
    assert "read take a URL, where segments" in capsys.readouterr().out
    with contextlib.suppress(SystemExit):  # argparse
        main(["nfp", "worker", "--help"])
    assert "\n\ngreet.py:\n" in capsys.readouterr().out


@for_each("columns", ["", "0", "-5", "many"])
def test_help_in_a_terminal_that_nobody_has_given_a_size(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((0, 0)))
    assert main(["--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) > 80


@for_each("rank", ["4294967294", "99999999999", "-1"])
def test_a_rank_that_no_broker_can_have(rank, capsys):
    assert main(["rpc", "--rank", rank, "attr.get"]) == exits.USAGE
    assert "--rank" in capsys.readouterr().err


@for_each("verb", ["keygen", "attr"])
def test_help_keeps_what_stands_in_brackets(verb, capsys):
    main([verb, "--help"])
    assert "[]" not in capsys.readouterr().out


def test_help_as_a_verb(capsys):
    main(["help", "ping"])
    assert "headgate ping" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headgate {__version__}\n"


def test_unknown_verb_suggests(capsys):
    assert main(["statuss"]) == exits.USAGE
    assert capsys.readouterr().err == "headgate: 'statuss' is no verb; did you mean status?\n"


def test_unknown_option_is_one_line(capsys):
    assert main(["ping", "--cuont", "3"]) == exits.USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--cuont" in error
    assert "headgate ping --help" in error


class Point:
    """An entry point of another package."""

    name = "dam"
    dist = None

    def load(self):
        return lambda argv: 40 + len(argv)


def test_verb_of_another_package(monkeypatch, capsys):
    monkeypatch.setattr(
        metadata, "entry_points", lambda **which: [Point()] if which.get("name") in (None, "dam") else []
    )
    assert main(["dam", "a", "b"]) == 42
    main(["--help"])
    assert "\n  dam " in capsys.readouterr().out


@for_each(
    ("error", "code"),
    [
        (errors.RpcError(2, "", "attr.get"), exits.FAILED),
        (errors.ProtocolError("odd"), exits.FAILED),
        (exits.UsageError("odd"), exits.USAGE),
        (errors.LinkRefused("no", 1), exits.NO_CONNECTION),
        (errors.LinkBroken("gone", 111), exits.NO_CONNECTION),
        (errors.LinkEnded("gone"), exits.NO_CONNECTION),
        (errors.LinkBroken("slow", 110), exits.TIMEOUT),
        (TimeoutError("slow"), exits.TIMEOUT),
        (errors.ConfigError("wrong"), exits.CONFIG),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a/b"), exits.CONFIG),
        (OSError(errno.ENOSPC, "No space left on device"), exits.TEMPFAIL),
        (KeyboardInterrupt(), exits.INTERRUPTED),
        (BrokenPipeError(), exits.PIPE_CLOSED),
    ],
)
def test_what_a_verb_raises_becomes_an_exit_code(error, code, monkeypatch, capfd):
    def verb(argv):
        raise error

    monkeypatch.setattr(verbs, "load", lambda name: verb)
    monkeypatch.setattr("broker.cli.main.load", lambda name: verb)
    monkeypatch.setattr("broker.cli.main._pipe_closed", lambda: exits.PIPE_CLOSED)
    assert main(["ping"]) == code
    said = capfd.readouterr().err
    assert said.count("\n") == (0 if code in (exits.INTERRUPTED, exits.PIPE_CLOSED) else 1)


@for_each(
    ("words", "code"),
    [
        (["token", "remove", "nobody"], exits.FAILED),
        (["token", "restore", "nothing"], exits.FAILED),
        (["login", "end", "nobody"], exits.FAILED),
        (["keygen", "key", "--name", "caf\udce9"], exits.USAGE),
        (["config", "check", "caf\udce9"], exits.CONFIG),
        (["nfp", "keys", "list", "--base-dir", "a" * 5000], exits.CONFIG),
    ],
)
def test_with_json_whatever_ends_a_verb_is_json(words, code, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    Store(tmp_path / "headgate").close()
    assert main([*words, "--json"]) == code
    out, err = capsys.readouterr()
    assert (out, json.loads(err)["exit_code"]) == ("", code)
    assert "secret" not in err  # what was to be written when a word was none


@for_each(
    "words",
    [
        ["keygen", "key"],
        ["token", "add", "ada", "--config", "gateway.toml"],
        ["tls", "self-signed", "tls"],
        ["cluster", "init", "keys"],
        ["cluster", "compose", "containers"],
    ],
)
def test_a_full_disk_may_pass_by_itself_whoever_writes(words, monkeypatch, tmp_path, capsys):
    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    Path("gateway.toml").write_text('[[users]]\nname = "ada"\nuserid = 5001\n')
    with monkeypatch.context() as disk:
        disk.setattr("broker.atomic.write", full)
        disk.setattr(Path, "write_text", full)
        assert main(words) == exits.TEMPFAIL
    assert "No space left on device" in capsys.readouterr().err


@for_each(
    "words",
    [
        ["status", "--uri", "u:hidden@h"],
        ["rpc", "x", "--uri", "tcp://u:hidden@h:1"],
        ["doctor", "--uri", "ws://u:hidden@127.0.0.1:1/?token=hidden"],
        ["health", "--url", "tcp://u:hidden@h:1"],
        ["health", "--url", "http://u:hidden@127.0.0.1:1"],
        ["oslo", "status", "--directory", "u:hidden@h"],
        ["oslo", "status", "--directory", "tcp://u:hidden@h:1"],
        ["nfp", "services", "--broker", "u:hidden@h", "--base-dir", "keys"],
    ],
)
def test_an_address_of_the_command_line_is_told_without_its_login(words, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) != exits.OK
    assert "hidden" not in "".join(capsys.readouterr())


def test_a_name_that_is_no_utf8_is_told_as_json(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["keygen", "caf\udce9", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out)["file"] == "caf\udce9"


@for_each(
    ("note", "told"),
    [(False, "headgate sub: one\\ntwo\n"), (True, '{"note":"one\\ntwo"}\n')],
)
def test_what_is_told_beside_the_output_is_json_where_that_is(note, told, capsys):
    Screen(note).note("sub", "one\ntwo")
    assert capsys.readouterr() == ("", told)


def test_who_closed_what_a_process_prints_to_gives_it_no_file_in_that_place():
    look = "import os; print(*(os.path.realpath(f'/proc/self/fd/{each}') for each in (0, 2)))"
    words = ["health", "--url", "unix:///nowhere"]
    code = f"""
import os, subprocess, sys
from broker.cli.main import main
from broker.cli.screen import Screen
from gateway.identity.store import Store
print(main({words!r}), flush=True)
subprocess.run([sys.executable, "-c", {look!r}])
"""
    command = ["sh", "-c", '"$0" -c "$1" <&- 2>&-', sys.executable, code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout.split() == [str(exits.NO_CONNECTION), os.devnull, os.devnull]
    command = ["sh", "-c", '"$0" -m broker.cli.main config show >&-', sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (exits.OK, "")


def test_rpc_error_says_topic_text_and_number():
    error = errors.RpcError(38, "No service matching a.b is registered", "a.b")
    assert exits.lines_of(error) == [
        "a.b: No service matching a.b is registered (Function not implemented) [ENOSYS 38]"
    ]
    assert exits.lines_of(errors.RpcError(2, "", "a.b")) == ["a.b: No such file or directory [ENOENT 2]"]


def test_every_fault_of_a_configuration_has_its_line(capsys):
    assert exits.report(errors.ConfigError("f:1: one\nf:2: two"), "broker") == exits.CONFIG
    assert capsys.readouterr().err == "headgate broker: f:1: one\nheadgate broker: f:2: two\n"


def test_a_reader_that_has_enough_is_no_error():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "broker.cli.main", "config", "show"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == exits.PIPE_CLOSED
    assert done.stderr == ""


def test_what_a_peer_put_into_its_error_moves_no_cursor(capsys):
    error = errors.RpcError(22, "one\x1b]0;title\x07\ntwo\x9b2J", "a.b")
    exits.report(error, "rpc")
    assert capsys.readouterr().err == (
        "headgate rpc: a.b: one\\x1b]0;title\\x07\ntwo\\x9b2J (Invalid argument) [EINVAL 22]\n"
    )
