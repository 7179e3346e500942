"""Where each key of a TOML text stands: key path -> line number.

`tomllib` gives values without positions. This scanner walks the same text and notes the line on which each
key begins; it reads no values. Rules of this file:

- `tomllib` has accepted the text already: what is not valid TOML never gets here, so nothing is reported.
- One pass, no backtracking: cost grows with the length of the text.
- A path is a tuple of table names and of indexes into arrays: `("hosts", 2, "address")`. Arrays of tables
  (`[[hosts]]`) and arrays of inline tables (`hosts = [{...}]`) get the same paths.
"""

import re
import tomllib

KeyPath = tuple[str | int, ...]
"""The way from the document's root to one value; `str` steps into a table, `int` into an array."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"[ \t]*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SCALAR = re.compile(r"[^,\]}#\n]*")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'  # up to two quotes may stand before the closing three
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


def key_lines(text: str) -> dict[KeyPath, int]:
    r"""Map every key path of a valid TOML text to its line, counted from 1.

    A table that has no header of its own (`a` in `[a.b]` or `a.b = 1`) gets the line that first names it.

    >>> key_lines('[tree]\nsize = 2\n[[hosts]]\nrank = 0\n')[("hosts", 0, "rank")]
    4
    """
    return _Scan(text).document()


class _Scan:
    """One walk over one text: a position, the table that is open, and what was found."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.counted_to = 0
        self.line = 1
        self.found: dict[KeyPath, int] = {}
        self.last_index: dict[KeyPath, int] = {}  # array of tables -> index of its open entry

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self.skip(_BLANK_LINES)
        while self.at < len(self.text):
            if self.text.startswith("[[", self.at):
                table = self.header(2)
            elif self.text[self.at] == "[":
                table = self.header(1)
            else:
                self.pair(table)
            self.skip(_BLANK_LINES)
        return self.found

    def header(self, brackets: int) -> KeyPath:
        self.at += brackets
        steps = self.key()
        self.at += brackets
        path: KeyPath = ()
        for step in steps[:-1]:
            path = self.enter((*path, step))
        path = (*path, steps[-1])
        self.note(path)
        if brackets == 2:
            self.last_index[path] = self.last_index.get(path, -1) + 1
            path = self.enter(path)
        return path

    def enter(self, path: KeyPath) -> KeyPath:
        """Note `path`; where it is an array of tables, go on to the entry that is open."""
        self.note(path)
        if path in self.last_index:
            path = (*path, self.last_index[path])
            self.note(path)
        return path

    def pair(self, table: KeyPath) -> None:
        path = table
        for step in self.key():
            path = (*path, step)
            self.note(path)
        self.at += 1  # the equals sign
        self.skip(_BLANK)
        self.value(path)

    def key(self) -> list[str]:
        """Read a dotted key and the blanks around it."""
        steps: list[str] = []
        while True:
            self.skip(_BLANK)
            steps.append(self.name())
            self.skip(_BLANK)
            if not self.text.startswith(".", self.at):
                return steps
            self.at += 1

    def name(self) -> str:
        quote = self.text[self.at]
        raw = self.skip(_STRING if quote in "\"'" else _BARE_KEY)
        if quote == '"':
            return str(tomllib.loads(f"name = {raw}")["name"])
        return raw[1:-1] if quote == "'" else raw

    def value(self, path: KeyPath) -> None:
        first = self.text[self.at]
        if first in "\"'":
            self.skip(_STRING)
        elif first == "[":
            self.array(path)
        elif first == "{":
            self.inline_table(path)
        else:
            self.skip(_SCALAR)

    def array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        self.skip(_BLANK_LINES)
        while self.text[self.at] != "]":
            entry = (*path, index)
            self.note(entry)
            self.value(entry)
            index += 1
            self.skip_comma()
        self.at += 1

    def inline_table(self, path: KeyPath) -> None:
        self.at += 1
        self.skip(_BLANK_LINES)
        while self.text[self.at] != "}":
            self.pair(path)
            self.skip_comma()
        self.at += 1

    def skip_comma(self) -> None:
        self.skip(_BLANK_LINES)
        if self.text[self.at] == ",":
            self.at += 1
            self.skip(_BLANK_LINES)

    def note(self, path: KeyPath) -> None:
        """Give `path` the present line, unless an earlier line named it."""
        self.line += self.text.count("\n", self.counted_to, self.at)
        self.counted_to = self.at
        self.found.setdefault(path, self.line)

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Step over what `pattern` matches here and return it; refuse to stand still inside a value."""
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(
                f"line {self.line}: the text is not valid TOML; key_lines expects a text that is"
            )
        self.at = match.end()
        return match.group()
