"""The inventory file and those it names: loaded, looked at again, merged for one worker; and that in a thread, since
files of many hosts take seconds and the broker has others to answer meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import translate
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker.errors import ConfigError
from broker.nfp.inventory.mappings import copied, merged
from broker.nfp.inventory.mappings import redacted as without_secrets
from broker.nfp.inventory.reading import EMPTY, Document, Source, read
from broker.nfp.rendering import render
from broker.nfp.threads import Threads

log = logging.getLogger("headgate")

FILE_BYTES_MAX: Final = 16 << 20
"""Of one file: a thousand devices of 16 KiB each."""
FILES_MAX: Final = 20_000
"""Files named: each is looked at, in the reader's thread, when somebody asks, to see whether it changed."""
CHECK_S: Final = 1.0
"""Files are not looked at more often than this."""
PATIENCE_S: Final = 2.0
"""How long an answer waits for what was just written; then it is given from what was read before."""
SECTIONS: Final = ("broker", "workers", "topology", "logging", "client", "hooks", "plugins")
"""What NorFab's file has at its top; other names are left alone."""

Stamp = tuple[int, int, int] | None
"""Time of change, size and number of a file; None when it is not there."""
_Seen = dict[Path, tuple[Stamp, Document | None]]
"""Files that were looked at; None when one could not be read."""
Item = str | dict[str, Any]
"""A file's name, relative to the folder of the inventory, or a mapping in its place."""


class Pattern(NamedTuple):
    """A glob of workers' names and what they are given."""

    fits: Callable[[str], object]
    items: tuple[Item, ...]


class Loaded(NamedTuple):
    """An inventory that was read without fault."""

    main: Document = EMPTY
    patterns: tuple[Pattern, ...] = ()
    files: dict[str, dict[str, Any]] = {}  # noqa: RUF012 (a default that nobody writes to)
    notes: tuple[str, ...] = ()


class Datastore:
    """Inventory data from ``path``; without one, there is nothing for anybody.

    ``load`` and ``look`` read files and take their time; they may be called in a thread, one at a time, while others
    are answered from what was read before.

    Args:
        path: the YAML file; files it names lie in its folder or below.
        environ: what templates see as ``env``; None: this process's environment.
        clock: monotonic seconds.
        check_s: see ``CHECK_S``.

    Attributes:
        problem: "" or what is wrong with the files as they are now; what was read before is then kept.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        check_s: float = CHECK_S,
    ) -> None:
        self.problem = ""
        self._path = None if path is None else Path(os.path.abspath(path))
        self._environ = environ
        self._clock = clock
        self._check_s = check_s
        self._checked = clock()
        self._loaded = Loaded()
        self._seen: _Seen = {}

    def load(self) -> Mapping[str, Any]:
        """Read everything that changed, and tell what there is: file, patterns, files and notes.

        Raises:
            ConfigError: file, line and what is wrong; what was read before is kept.
        """
        self._checked = self._clock()
        if self._path is None:
            return {"file": None, "patterns": 0, "files": 0, "notes": []}
        seen: _Seen = {}
        try:
            loaded = self._read_all(self._path, seen)
        except ConfigError as error:
            self.problem = str(error)
            self._seen |= seen
            raise
        self._seen = seen
        self._loaded, self.problem = loaded, ""
        for note in loaded.notes:
            log.warning("inventory: %s", note)
        return {
            "file": self._path.name,
            "patterns": len(loaded.patterns),
            "files": len(loaded.files),
            "notes": list(loaded.notes),
        }

    def get_inventory(self, name: str) -> dict[str, Any] | None:
        """What the worker ``name`` is given; None when no pattern fits it, or those that do give nothing."""
        items: list[Item] = []
        for pattern in self._loaded.patterns:
            if pattern.fits(name):
                items += [item for item in pattern.items if item not in items]
        files = self._loaded.files
        return merged(*(files[item] if isinstance(item, str) else item for item in items)) or None

    def whole(self, *, redacted: bool = False) -> dict[str, Any]:
        """Everything at the top of the file, as deployed NorFab shows it; files appear by name.

        ``redacted`` hides what looks like a secret (see ``mappings``).
        """
        shown = {section: self._loaded.main.value.get(section) or {} for section in SECTIONS}
        return without_secrets(shown, everything=False) if redacted else copied(shown)  # type: ignore[no-any-return]

    @property
    def document(self) -> Document:
        """The inventory file itself, as it was last read without fault."""
        return self._loaded.main

    # -- reading ----------------------------------------------------------------------------------

    @property
    def watched(self) -> bool:
        """Whether there is a file at all."""
        return self._path is not None

    @property
    def due(self) -> bool:
        """Whether the last look was ``check_s`` ago."""
        return self._path is not None and self._clock() - self._checked >= self._check_s

    def look(self) -> None:
        """Read anew what changed since, if a look is due; a fault keeps what there was and is logged once."""
        if not self.due:
            return
        self._checked = self._clock()
        if all(_stamp(path) == known for path, (known, _) in self._seen.items()):
            return
        try:
            self.load()
        except ConfigError as error:
            log.error("inventory: %s; the one that was read before is kept", error)
        else:
            log.info("inventory: read again")

    def _read_all(self, path: Path, seen: _Seen) -> Loaded:
        try:
            main = self._document(path, str(path), seen)
        except _UnusableError as error:
            raise ConfigError(f"{path} {error}") from error
        workers = main.value.get("workers") or {}
        if not isinstance(workers, dict):
            raise main.fault(("workers",), "workers is no mapping, expected globs of names and lists")
        patterns = tuple(_pattern(main, glob, items) for glob, items in workers.items())
        files: dict[str, dict[str, Any]] = {}
        notes = list(main.notes)
        for name, where in _named(workers):
            if name in files:
                continue
            if len(files) >= FILES_MAX:
                raise main.fault(where, f"more than {FILES_MAX} files")
            try:
                document = self._document(_confined(path.parent, name), name, seen)
            except _UnusableError as error:
                raise main.fault(where, f"{name[:200]!r} {error}") from error
            files[name] = document.value
            notes += document.notes
        return Loaded(main, patterns, files, tuple(notes))

    def _document(self, path: Path, name: str, seen: _Seen) -> Document:
        """The file's mapping; as it was read before when it did not change."""
        stamp = _stamp(path)
        known, document = self._seen.get(path, (None, None))
        seen[path] = stamp, None
        if document is None or known != stamp or stamp is None:
            document = self._fresh(path, name)
        seen[path] = stamp, document
        return document

    def _fresh(self, path: Path, name: str) -> Document:
        text = _text_of(path)
        rendered = render(text, name, {"env": dict(os.environ if self._environ is None else self._environ)})
        return read(rendered, Source(name, rendered != text))


class Reader:
    """Keeps ``datastore`` up to date; everything but the reading happens in the loop.

    Args:
        datastore: which is not read by anybody else. loop: that of who asks. patience_s: see ``PATIENCE_S``.
    """

    def __init__(
        self, datastore: Datastore, loop: asyncio.AbstractEventLoop, patience_s: float = PATIENCE_S
    ) -> None:
        self._datastore = datastore
        self._patience_s = patience_s
        self._threads = Threads("nfp inventory", 1, loop)
        self._looking: asyncio.Future[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Read everything.

        Raises:
            ConfigError: file, line and what is wrong.
        """
        if self._datastore.watched:
            await self._threads.run(self._datastore.load)

    async def look(self) -> None:
        """Return once it is known that nothing has changed, or what has changed was read.

        That is at once when the last look was a moment ago, and in any case within the patience.
        """
        if self._looking is None and self._datastore.due and not self._closed:
            self._looking = self._threads.run(self._datastore.look)
            self._looking.add_done_callback(self._looked)
        if self._looking is not None:
            await asyncio.wait({self._looking}, timeout=self._patience_s)

    async def reload(self) -> Mapping[str, Any]:
        """Read what changed, now, and return what is told about it.

        Raises:
            ConfigError: file, line and what is wrong.
        """
        told: Mapping[str, Any] = await self._threads.run(self._datastore.load)
        return told

    def close(self) -> None:
        """Nothing is read any more; a file that is being read is read to its end. Harmless twice."""
        self._closed = True
        self._threads.close()

    def _looked(self, looking: asyncio.Future[None]) -> None:
        self._looking = None
        if not looking.cancelled() and (error := looking.exception()) is not None:
            log.error("the inventory could not be looked at", exc_info=error)


class _UnusableError(ConfigError):
    """A file cannot be used at all; the text says why."""


def _stamp(path: Path) -> Stamp:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _confined(folder: Path, name: str) -> Path:
    """The file ``name`` in ``folder`` or below, links followed."""
    if "\0" in name:
        raise _UnusableError("has a NUL, expected a file's name")
    try:
        real = Path(os.path.realpath(folder / name))
    except OSError as error:
        raise _UnusableError(f"cannot be found: {error.strerror}") from error
    if not real.is_relative_to(os.path.realpath(folder)):
        raise _UnusableError(f"is outside, expected a file in the inventory's folder {folder}")
    return folder / name


def _text_of(path: Path) -> str:
    try:
        with open(path, "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _UnusableError("is no regular file")
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _UnusableError(f"cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise _UnusableError(f"is larger than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _UnusableError(f"is not UTF-8 at byte {error.start}") from error


def _open(path: str, flags: int) -> int:
    """A pipe without writer must not stop the broker."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _pattern(main: Document, glob: str, items: Any) -> Pattern:
    if items is None:
        items = []
    if not isinstance(items, list):
        raise main.fault(("workers", glob), f"{glob[:64]!r} has no list, expected files and mappings")
    for at, item in enumerate(items):
        if not isinstance(item, (str, dict)):
            raise main.fault(
                ("workers", glob, at), f"an entry of {glob[:64]!r} is neither a file's name nor a mapping"
            )
    return Pattern(re.compile(translate(glob)).match, tuple(items))


def _named(workers: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    for glob, items in workers.items():
        for at, item in enumerate(items or ()):
            if isinstance(item, str):
                yield item, ("workers", glob, at)
