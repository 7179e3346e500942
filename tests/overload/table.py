"""The loads by name: a way, a dot, and what it does there."""

from collections.abc import Callable

from tests.overload import loads, web, wings
from tests.overload.grammar import drawn
from tests.overload.ground import Ground

WAYS = ["unix", "child", "curve", "ws", "json", "zws"]
BESIDE = {**dict.fromkeys(("ws", "json", "zws", "http", "sse"), "web"), "nfp": "nfp", "oslo": "oslo"}
"""Way -> what stands beside the tree for it."""
CALM = "calm"


def _calm(ground: Ground) -> None:
    """Nothing at all: what the machine itself costs."""
    loads.time.sleep(max(0.0, ground.until - loads.time.monotonic()))


TABLE: dict[str, Callable[[Ground], None]] = {
    CALM: _calm,
    **{f"{way}.{name}": load for way in WAYS for name, load in loads.EVERYWHERE.items()},
    **{f"{way}.{name}": load for way in ("unix", "child") for name, load in loads.ON_SOCKETS.items()},
    **{f"{way}.random": drawn for way in WAYS},
    **web.LOADS,
    **wings.LOADS,
    "random": drawn,
}
"""Name -> what makes it. Those named ``random`` need a seed."""


def way_of(name: str) -> str:
    return name.partition(".")[0]


def beside(name: str) -> str:
    """What it needs besides the tree: "web", "nfp", "oslo" or "" for nothing."""
    return BESIDE.get(way_of(name), "")


def chosen(words: list[str]) -> list[str]:
    """The names that are meant: whole ones, a way for all of its loads, ``all``.

    Raises:
        KeyError: nothing is called so.
    """
    found: list[str] = []
    for word in words or ["all"]:
        some = [name for name in TABLE if word in ("all", name, way_of(name))]
        if not some:
            raise KeyError(word)
        found += [name for name in some if name not in found]
    return found


def is_random(name: str) -> bool:
    """Whether it is drawn by seed."""
    return TABLE[name] is drawn
