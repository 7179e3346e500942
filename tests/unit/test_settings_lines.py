"""The line scanner: every key path of a TOML text, on the line that names it."""

import textwrap
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.settings import key_lines
from tests.tables import for_each


def lines(text: str) -> dict[tuple[str | int, ...], int]:
    text = textwrap.dedent(text).lstrip("\n")
    tomllib.loads(text)
    return key_lines(text)


def test_tables_and_dotted_keys():
    assert lines(
        """
        a = 1
        [b]  # comment [x]
        c.d = 2
        [e.f]
        g = 3
        """
    ) == {
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "c", "d"): 3,
        ("e",): 4,
        ("e", "f"): 4,
        ("e", "f", "g"): 5,
    }


def test_arrays_of_tables():
    found = lines(
        """
        [[hosts]]
        rank = 0

        [[hosts]]
        rank = 1
        [hosts.more]
        x = 1
        [[hosts.ports]]
        y = 1
        [[hosts.ports]]
        y = 2
        """
    )
    assert found["hosts",] == 1
    assert (found["hosts", 0], found["hosts", 0, "rank"]) == (1, 2)
    assert (found["hosts", 1], found["hosts", 1, "rank"]) == (4, 5)
    assert found["hosts", 1, "more", "x"] == 7
    assert [found["hosts", 1, "ports", index, "y"] for index in (0, 1)] == [9, 11]


def test_inner_arrays_count_anew_in_each_entry():
    found = lines("[[a]]\n[[a.b]]\nx = 1\n[[a]]\n[[a.b]]\nx = 2\n")
    assert (found["a", 0, "b", 0, "x"], found["a", 1, "b", 0, "x"]) == (3, 6)


def test_arrays_and_inline_tables_over_several_lines():
    found = lines(
        """
        hosts = [  # first
            { rank = 0, at = { x = 1 } },
            # between ]
            { rank = 1 },
        ]
        after = [[1, 2], [3]]
        last = {}
        """
    )
    assert found["hosts", 0, "at", "x"] == 2
    assert found["hosts", 1, "rank"] == 4
    assert (found["after", 1, 0], found["last",]) == (6, 7)


@for_each(
    "value",
    [
        '"a # b ] } \\" c"',
        "'a # \\'",
        '"""\nx = 1\n[table]\n\\""""',
        '"""a""b"""',
        '"""a"""""',
        '""""a"""',
        "'''\n[[x]]\n''b'''",
        "'''a'''''",
        '""',
        "''",
        '""""""',
        "1979-05-27 07:32:00",
        "-1.5e3",
        "[ '#', \"]\", [], {a = '}'} ]",
        '"\\u00e9\\\\"',
    ],
)
def test_values_are_stepped_over(value):
    text = f"first = {value} # comment = 1\nnext = 1\n"
    tomllib.loads(text)
    assert key_lines(text)["next",] == 2 + value.count("\n")


def test_quoted_keys():
    found = lines('"a.b" = 1\n\'c d\' . "e\\u0041" = 2\n["x#]".\'y\']\nz = 1\n')
    assert found["a.b",] == 1
    assert found["c d", "eA"] == 2
    assert found["x#]", "y", "z"] == 4


def test_carriage_returns():
    assert key_lines("a = 1\r\n\r\n[b]\r\nc = 1\r\n")["b", "c"] == 4


def test_no_newline_at_the_end():
    assert key_lines("a = 1\n[b]")["b",] == 2


def test_what_is_not_toml_is_refused_not_looped_on():
    with pytest.raises((ValueError, IndexError)):
        key_lines("= 1")


# ---------------------------------------------------------------- any document

names = st.text(alphabet="ab-_1", min_size=1, max_size=3) | st.text(alphabet='a."# ]=\\é', max_size=3)
leaves = (
    st.integers(-9, 9)
    | st.booleans()
    | st.text(alphabet="a'\"#]}=,\\\n[", max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


class Writer:
    """Writes a document as TOML and knows the line of each key it has written."""

    def __init__(self, choose) -> None:
        self.choose = choose
        self.text = ""
        self.lines: dict[tuple[str | int, ...], int] = {}

    def note(self, path) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def quoted(self, text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        if "\n" not in escaped:
            return f'"{escaped}"'
        return f'"""{escaped}"""' if self.choose(st.booleans()) else '"' + escaped.replace("\n", "\\n") + '"'

    def space(self) -> None:
        self.text += self.choose(st.sampled_from(["", " ", "\n", " # ] } x = 1\n"]))

    def value(self, value, path) -> None:
        if isinstance(value, list):
            self.text += "["
            for index, each in enumerate(value):
                self.space()
                self.note((*path, index))
                self.value(each, (*path, index))
                self.space()
                self.text += ","
            self.text += "]"
        elif isinstance(value, dict):
            self.text += "{"
            for index, (name, each) in enumerate(value.items()):
                self.text += ", " if index else " "
                self.pair(name, each, path)
            self.text += "}"
        elif isinstance(value, str):
            # the newline right behind three quotes is not part of the text
            self.text += self.quoted(value)
        else:
            self.text += str(value).lower()

    def pair(self, name, value, path) -> None:
        self.note((*path, name))
        self.text += self.quoted(name) + " = "
        self.value(value, (*path, name))

    def table(self, table, path) -> None:
        later = {n: v for n, v in table.items() if self.as_section(v)}
        for name, value in table.items():
            if name not in later:
                self.pair(name, value, path)
                self.text += "\n"
        for name, value in later.items():
            self.sections(value, (*path, name), [step for step in (*path, name) if isinstance(step, str)])

    def sections(self, value, path, steps) -> None:
        dotted = ".".join(self.quoted(step) for step in steps)
        entries = (
            [(path, value)] if isinstance(value, dict) else [((*path, i), v) for i, v in enumerate(value)]
        )
        for place, table in entries:
            self.note(path)
            self.note(place)
            self.text += f"[{dotted}]\n" if place == path else f"[[{dotted}]]\n"
            self.table(table, place)

    def as_section(self, value) -> bool:
        if isinstance(value, list) and not (value and all(isinstance(each, dict) for each in value)):
            return False
        return isinstance(value, dict | list) and self.choose(st.booleans())


@settings(max_examples=settings.default.max_examples * 3 // 10)  # each is a whole document
@given(st.dictionaries(names, values, max_size=4), st.data())
def test_any_document(document, data):
    writer = Writer(data.draw)
    writer.table(document, ())
    tomllib.loads(writer.text)  # the writer writes TOML
    assert key_lines(writer.text) == writer.lines
