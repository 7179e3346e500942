"""Pure parts of the verbs: parsing what people write, forming what they read."""

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cli import content, log, ping, screen, stats, sub, tree
from broker.cli.exits import UsageError
from broker.client import Event, Response
from broker.node.attributes import fold
from broker.wire.message import event, request, response
from tests.tables import for_each

FEW = settings(max_examples=settings.default.max_examples * 3 // 10)

# ---------------------------------------------------------------- ping


@for_each(
    ("text", "rank", "shown"),
    [
        ("broker", None, "any!broker"),
        ("broker", 2, "2!broker"),
        ("3", None, "3!broker"),
        ("0!kvs", None, "0!kvs"),
        ("any!kvs", None, "any!kvs"),
        ("upstream!kvs", None, "upstream!kvs"),
        ("job-list", None, "any!job-list"),
    ],
)
def test_ping_target(text, rank, shown):
    assert str(ping.parse_target(text, rank)) == shown


@for_each(("text", "rank"), [("3", 2), ("x!kvs", None), ("-1!kvs", None), ("4294967295", None), ("1!", None)])
def test_ping_target_that_is_none(text, rank):
    with pytest.raises(UsageError):
        ping.parse_target(text, rank)


def test_ping_line():
    message = response(request("kvs.ping"), b'{"seq":4,"route":"ab!cd","userid":0,"rolemask":5,"rank":2}\0')
    echo = ping.read_echo(4, 0.0015, Response(message))
    target = ping.parse_target("kvs")
    assert ping.line_of(target, echo) == "2!kvs.ping seq=4 time=1.500 ms (ab!cd)"


def test_ping_summary():
    assert ping.summary(3, [1.0, 4.0, 2.0]) == {
        "sent": 3,
        "received": 3,
        "min_ms": 1.0,
        "median_ms": 2.0,
        "max_ms": 4.0,
    }
    assert ping.summary_line(ping.summary(1, [])) == "1 sent, 0 answered"


# ---------------------------------------------------------------- payloads


@for_each("word", ["nope", "[1]", "1", '{"a":', ""])
def test_payload_that_is_no_object(word):
    with pytest.raises(UsageError, match="expected a JSON object"):
        content.payload_of(word, raw=False)


def test_payload_from_a_file(rundir):
    (rundir / "p").write_bytes(b'{"a":1}\n')
    assert content.payload_of(f"@{rundir}/p", raw=False) == b'{"a":1}\0'
    assert content.payload_of(f"@{rundir}/p", raw=True) == b'{"a":1}\n'
    with pytest.raises(UsageError, match="No such file"):
        content.payload_of(f"@{rundir}/q", raw=True)


def test_payload_of_any_bytes_is_shown_in_one_line():
    assert content.as_text(b"\xff\xfe") == "fffe"
    assert content.as_text(bytes([255]) * 100).endswith("... 100 bytes")
    assert content.as_text(b'{"a":1}\0') == '{"a":1}'
    assert content.as_text(b"plain\0") == "plain"
    assert content.as_text(None) == ""


@FEW
@given(st.none() | st.binary(max_size=200))
def test_any_payload_can_be_shown(payload):
    screen.compact(content.as_value(payload))
    content.as_text(payload)


# ---------------------------------------------------------------- log, hosts, events


def test_log_line_of_unknown_form_is_kept():
    assert log.parse("odd").text == "odd"
    assert log.parse("<56>1 T 3 app 7 - - ").severity == "debug"


@FEW
@given(
    st.lists(
        st.sampled_from(["a", "node", "x-"]).flatmap(lambda s: st.integers(0, 120).map(lambda n: f"{s}{n}")),
        max_size=40,
    )
)
def test_hosts_folded_by_the_broker_unfold(names):
    assert tree.expand_hosts(fold(names)) == names


def test_two_bracketed_parts():
    assert tree.expand_hosts("r[0-1]n[0-1]") == ["r0n0", "r0n1", "r1n0", "r1n1"]


def test_a_short_text_cannot_name_everything(monkeypatch):
    monkeypatch.setattr(tree, "HOSTS_MAX", 1000)
    assert len(tree.expand_hosts("n[0-4000000000]")) == 1000


def test_event_with_a_gap(capsys):
    out = screen.Screen(out=io.StringIO())
    sub.show(out, Event(event("a.b", b"hi\0", sequence=7), lost=3))
    assert out.out.getvalue() == "7 a.b hi\n"
    assert "3 events were lost" in capsys.readouterr().err


# ---------------------------------------------------------------- tree, figures, tables


def test_tree_is_drawn_with_branches():
    shape = {"rank": 0, "children": [{"rank": 1, "children": [{"rank": 3, "children": []}]}, {"rank": 2}]}
    root = tree.from_shape(shape, ["a", "b", "c"])
    lines = [branches + member.text() for branches, member in tree.drawn(root)]
    assert lines == ["0 a: unknown", "├─ 1 b: unknown", "│  └─ 3 ?: unknown", "└─ 2 c: unknown"]
    assert tree.count(root) == {"unknown": 4}


def test_rates_leave_out_what_was_cleared():
    before = {"rx.event": 10, "tx.event": 5, "name": "x"}
    assert stats.rates({"rx.event": 4, "tx.event": 9, "name": "y"}, before, 2.0) == {"tx.event": 2.0}


@for_each(
    ("value", "text"),
    [(1234567, "1,234,567"), (0.123456, "0.123"), (1234.5, "1,234.5"), (None, ""), ("x", "x")],
)
def test_figures(value, text):
    assert stats.shown(value) == text


def test_table_without_a_terminal_is_aligned_text():
    out = io.StringIO()
    screen.Screen(out=out).table(("name", "n"), [("rank", "10"), ("x", "7")])
    assert out.getvalue() == "name   n\nrank  10\nx      7\n"


def test_records_in_json_are_one_a_line():
    out = io.StringIO()
    screen.Screen(as_json=True, out=out).records(("a",), [{"a": 1}, {"a": 2}], [("1",), ("2",)])
    assert out.getvalue() == '{"a":1}\n{"a":2}\n'


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_is_one_write():
    """Verbs that share an unbuffered pipe must not cut each other's lines."""

    class Pipe(io.StringIO):
        def write(self, text):
            writes.append(text)
            return len(text)

    writes = []
    screen.Screen(out=Pipe()).line("all of it")
    assert writes == ["all of it\n"]


def test_on_a_terminal_there_are_tables_and_colours(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    shown = screen.Screen(out=out)
    shown.table(("name",), [("rank",)])
    shown.line("red [1] line", "red")
    text = out.getvalue()
    assert "─" in text
    assert "\x1b[31mred [1] line" in text


@for_each(("wide", "shown"), [(22, "name n text"), (21, "name text")])
def test_a_terminal_too_narrow_for_a_table_gets_the_columns_that_matter(wide, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(wide))
    out = Terminal()
    rows = [("rank", "10", "more of it")]
    screen.Screen(out=out).table(
        ("name", "n", "text"), rows, lambda row: "red" * (row[1] == "10"), ("name", "text")
    )
    words = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()]
    assert shown.split() in words
    assert ["more", "of", "it"] in [line[-3:] for line in words]
    assert "\x1b[31mrank" in out.getvalue(), "what a row looks like is of all its cells"


def test_json_on_a_terminal_is_not_drawn():
    out = Terminal()
    screen.Screen(as_json=True, out=out).value({"a": [1]})
    assert out.getvalue() == '{"a":[1]}\n'


def test_a_terminal_gets_no_control_characters_of_a_peer():
    evil = "one\n\ttwo\x1b[2J\x9b2J\x7f"
    out = Terminal()
    shown = screen.Screen(out=out)
    shown.line(evil)
    shown.line(evil, "red")
    shown.table(("text",), [(evil,)])
    shown.value({"text": evil})
    said = out.getvalue()
    assert said.count("two\\x1b[2J\\x9b2J\\x7f") == 3
    assert "one\\n\\ttwo\\x1b[2J\\x" in said, "a cell is one line"
    assert "\\u001b[2J\\u009b2J" in said
    assert "\x9b" not in said
    assert "\x1b[2J" not in said
    piped = io.StringIO()
    shown = screen.Screen(out=piped)
    shown.line(evil)
    shown.record({}, f"7 {evil}")
    shown.table(("text",), [(evil,)])
    whole, row = "one\n\ttwo\\x1b[2J\\x9b2J\\x7f", "one\\n\\ttwo\\x1b[2J\\x9b2J\\x7f"
    assert piped.getvalue() == f"{whole}\n7 {row}\ntext\n{row}\n"
