"""What a verb prints: colours and tables on a terminal, plain text when piped, one JSON value a line with ``--json``.

``Redraw`` draws the same picture again and again (``--watch``), ``progress_bar`` how far long work is. rich is loaded
only where something is drawn: it costs 60 ms.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from broker.errors import print_error
from broker.safe_text import one_line, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


Row = Sequence[str]
T = TypeVar("T")


def compact(value: Any) -> str:
    r"""``value`` as JSON in one line, which reaches a terminal without control characters, as ``one_line``.

    >>> compact({"rank": 0, "said": "\x9b2J"})
    '{"rank":0,"said":"\\u009b2J"}'
    >>> compact("caf\udce9")
    '"caf\\udce9"'
    """
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a name of a file that is no UTF-8
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def columns(heads: Row, rows: Sequence[Row]) -> list[str]:
    """Heads and rows as lines of aligned columns, two blanks apart; columns of figures stand to the right.

    >>> columns(("name", "n"), [("rank", "10")])
    ['name   n', 'rank  10']
    """
    lines = ["" for _ in range(1 + len(rows))]
    for at, head in enumerate(heads):
        cells = [head, *(row[at] for row in rows)]
        width = max(map(len, cells))
        put = str.rjust if _is_figures(rows, at) else str.ljust
        lines = [f"{line}{put(cell, width)}  " for line, cell in zip(lines, cells, strict=True)]
    return [line.rstrip() for line in lines]


def _is_figures(rows: Sequence[Row], at: int) -> bool:
    """Whether a column holds nothing but numbers and gaps."""
    cells = [row[at].replace(",", "").replace(".", "", 1) for row in rows]
    return any(cells) and all(cell.isdigit() for cell in cells if cell)


class Screen:
    """One verb's output.

    Attributes:
        as_json: ``--json`` was given.
        rich: draw: a terminal, and not JSON.
    """

    def __init__(self, as_json: bool = False, out: IO[str] | None = None) -> None:
        self.out: IO[str] = out if out is not None else sys.stdout
        self.as_json = as_json
        self.rich: bool = not as_json and self.out.isatty()
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """The rich console over the same stream."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(file=self.out, highlight=False)
        return self._console

    def line(self, text: str, style: str = "") -> None:
        """Text of ours; ``style`` (rich) counts on a terminal only. No control characters of a peer, but for ends of
        lines, leave here, into a pipe either: who reads it may be a terminal. Flushed: someone may be following.
        """
        text = visible(text)
        if self.rich and style:
            self.console.print(text, style=style, markup=False, soft_wrap=True)
        else:
            # in one write, its end included: verbs that share a pipe must not cut each other's lines (PYTHONUNBUFFERED)
            self.out.write(f"{text}\n")
            self.out.flush()

    def note(self, verb: str, text: str) -> None:
        """Tell, beside the output, what its reader should know: on stderr, with ``--json`` as JSON, too."""
        print_error(compact({"note": text}) if self.as_json else f"headgate {verb}: {one_line(text)}")

    def record(self, value: Any, text: str | Sequence[str], style: str = "") -> None:
        """``value`` with ``--json``, else ``text``, or each of several: one line each, whatever is in it."""
        if self.as_json:
            self.line(compact(value))
            return
        for each in [text] if isinstance(text, str) else text:
            self.line(one_line(each), style)

    def value(self, value: Any) -> None:
        """A JSON value: indented and coloured on a terminal, one line elsewhere."""
        text = compact(value)
        if self.rich and "\\u" not in text:
            self.console.print_json(text)
        else:  # rich would show the control characters that are escaped here
            self.line(text)

    def draw(self, what: RenderableType) -> None:
        """Anything rich can draw."""
        self.console.print(what)

    def table(
        self,
        heads: Row,
        rows: Sequence[Row],
        style_of: Callable[[Row], str] | None = None,
        narrow: Row | None = None,
    ) -> None:
        """A table under ``heads``; aligned columns when piped.

        Args:
            heads: the name of each column.
            rows: its cells.
            style_of: what a whole row looks like on a terminal.
            narrow: those of ``heads`` that matter most: of a terminal that has no room for all. None: all.
        """
        rows = [[one_line(cell) for cell in row] for row in rows]
        if not self.rich:
            for text in columns(heads, rows):
                self.line(text)
            return
        styles = [style_of(row) if style_of is not None else "" for row in rows]
        if narrow is not None and max(map(len, columns(heads, rows))) + 2 > self.console.width:
            kept = [heads.index(head) for head in narrow]
            heads, rows = narrow, [[row[at] for at in kept] for row in rows]
        self.draw(build_table(heads, rows, styles))

    def records(
        self,
        heads: Row,
        values: Sequence[Mapping[str, Any]],
        rows: Sequence[Row],
        narrow: Row | None = None,
        style_of: Callable[[Row], str] | None = None,
    ) -> None:
        """``values`` as JSON lines with ``--json``, else ``rows`` as a table."""
        if self.as_json:
            for value in values:
                self.line(compact(value))
        else:
            self.table(heads, rows, style_of, narrow)


def build_table(heads: Row, rows: Sequence[Row], styles: Sequence[str]) -> RenderableType:
    """A rich table without vertical lines; columns of numbers stand to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if _is_figures(rows, at) else "left", overflow="fold")
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*(Text(cell, style) for cell in row))
    return table


def local_clock(seconds: float) -> str:
    """The time of day here, to the millisecond, of seconds since 1970."""
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{int(seconds % 1 * 1000):03}"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(0.25), duration(75), duration(7200), duration(200000)
    ('0.2 s', '75.0 s', '2.0 h', '2.3 d')
    """
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


_ENTER: Final = "\x1b[?1049h\x1b[?25l"
"""The terminal's other page, cursor hidden: what was on the screen comes back at the end."""
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H\x1b[2J"


class Redraw:
    """Frames of one picture, for the time of a ``with`` block."""

    def __init__(self, screen: Screen, watch: bool) -> None:
        self._out = screen.out
        self._in_place: bool = watch and screen.rich

    def __enter__(self) -> Self:
        if self._in_place:
            self._out.write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_place:
            self._out.write(_LEAVE)
        self._out.flush()

    def frame(self, draw: Callable[[], None]) -> None:
        """Draw the next frame."""
        if self._in_place:
            self._out.write(_HOME)
        draw()
        self._out.flush()


Update = Callable[[int, int], None]
"""Done, and in all."""


async def watched(
    screen: Screen,
    look: Callable[[T | None], Awaitable[T]],
    show: Callable[[T], None],
    every_s: float | None,
) -> T:
    """Look once and show what was seen; with ``every_s`` again and again, so many seconds apart, until Ctrl-C.

    Args:
        screen: where it is drawn, in place on a terminal.
        look: is given what it saw the time before; None the first time.
        show: prints what was seen.
        every_s: None: once.
    """
    import asyncio  # late: most verbs print once, some without a loop

    seen: T | None = None
    with Redraw(screen, every_s is not None) as redraw:
        while True:
            seen = await look(seen)
            redraw.frame(partial(show, seen))
            if every_s is None:
                return seen
            await asyncio.sleep(every_s)


@contextmanager
def progress_bar(what: str, *, in_bytes: bool = True) -> Iterator[Update | None]:
    """A bar named ``what`` for the time of a block; None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    name = TextColumn("{task.description}", markup=False)
    columns = (
        (name, BarColumn(), DownloadColumn(), TransferSpeedColumn())
        if in_bytes
        else (name, BarColumn(), MofNCompleteColumn())
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        line = progress.add_task(what, total=None)
        yield lambda done, whole: progress.update(line, completed=done, total=whole)


def size(count: int | None) -> str:
    """Bytes for people.

    >>> size(0), size(2048), size(5 << 30)
    ('0 B', '2.0 KiB', '5.0 GiB')
    """
    if count is None:
        return ""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} B"
