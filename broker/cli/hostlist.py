"""Lists of hosts in one text: ``node[0-3,8],login`` (RFC 29, "Hostlist Format")."""

from __future__ import annotations

import re
from collections.abc import Iterator

HOSTS_MAX = 1 << 22
"""Names that one text may stand for: a short text can name four thousand million."""

_WORD = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_RUN = re.compile(r"\[([^\]]*)\]")


def expand(text: str) -> list[str]:
    """The names by rank; words that are no hostlist stay as they are.

    >>> expand("node[08-10,12],login")
    ['node08', 'node09', 'node10', 'node12', 'login']
    """
    names: list[str] = []
    for word in _WORD.findall(text):
        for name in _word(word):
            names.append(name)
            if len(names) >= HOSTS_MAX:
                return names
    return names


def _word(word: str) -> Iterator[str]:
    found = _RUN.search(word)
    if found is None:
        yield word
        return
    head, tail = word[: found.start()], word[found.end() :]
    for number in _numbers(found[1]):
        for rest in _word(tail):
            yield f"{head}{number}{rest}"


def _numbers(runs: str) -> Iterator[str]:
    for run in runs.split(","):
        low, dash, high = run.partition("-")
        if not dash or not (low.isdecimal() and high.isdecimal()):
            yield run
            continue
        for number in range(int(low), min(int(high), int(low) + HOSTS_MAX) + 1):
            yield str(number).zfill(len(low))
