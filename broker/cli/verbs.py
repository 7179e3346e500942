"""The verbs of this distribution, so that finding one costs no scan of entry points; verbs that have verbs.

``headgate nfp run``, ``headgate journal ls``: the inner verb is loaded when it is called (``run_family``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Final

from broker.cli.exits import OK, USAGE, UsageError

GROUP: Final = "headgate.verbs"
"""Entry-point group: NAME -> ``main(argv: list[str]) -> int``. Other packages add their verbs to it."""

Main = Callable[[list[str]], int]

SECTIONS: Final[Sequence[tuple[str, dict[str, str]]]] = (
    (
        "run brokers",
        {
            "start": "a tree of brokers on this machine, for a command or until Ctrl-C",
            "broker": "one broker, as a configuration file says",
            "cluster": "a test cluster on this machine, and faults in it",
            "config": "check or show a configuration",
            "keygen": "make a CURVE certificate",
        },
    ),
    (
        "reach it from the web",
        {
            "up": "a tree of brokers and a gateway on this machine, with a login link",
            "gateway": "a gateway in front of a broker, ours or flux-core's",
            "token": "add, list and remove bearer tokens",
            "login": "make a one-time login link",
            "tls": "make a self-signed certificate",
        },
    ),
    (
        "have jobs done (NFP)",
        {
            "nfp": "a broker of the NORFAB protocol, its workers, jobs, events and files",
        },
    ),
    (
        "carry oslo.messaging (zmq://)",
        {
            "oslo": "the proxy of a node, its status, calls, casts, fan-outs and notifications",
        },
    ),
    (
        "talk through a broker",
        {
            "ping": "time the way to a service and back",
            "rpc": "call a method of a service",
            "pub": "publish an event",
            "sub": "print events as they come",
        },
    ),
    (
        "look at brokers",
        {
            "status": "the tree and the health of every rank",
            "health": "whether one process lives or is ready, for probes",
            "services": "what clients provide, at which ranks",
            "stats": "message counts and rates",
            "trace": "watch calls pass: who, where, how long, errors",
            "attr": "get, set, list and remove attributes",
            "log": "read, follow or write the log",
            "doctor": "find out why a connection fails",
            "completion": "what a shell offers while a command is typed",
        },
    ),
    (
        "ask what passed",
        {
            "journal": "what was recorded: list, verify, follow, show, replay",
            "pipeline": "tables and charts of it",
        },
    ),
)
"""Heading, then verb -> what it does; the order of ``headgate --help``."""

_GATEWAY: Final = frozenset({"up", "cluster", "gateway", "token", "login", "tls", "pipeline"})
"""Verbs whose modules are the gateway's; found by name, for the broker's side imports nothing of it."""

BUILT_IN: Final = {verb: what for _heading, verbs in SECTIONS for verb, what in verbs.items()}


def module_of(verb: str) -> str:
    """The module of one of our verbs."""
    return f"{'gateway' if verb in _GATEWAY else 'broker'}.cli.{verb}"


def load(verb: str) -> Main | None:
    """The ``main`` of a verb, ours or another package's; None when there is no such verb."""
    if verb in BUILT_IN:
        main: Main = import_module(module_of(verb)).main
        return main
    from importlib import metadata  # it loads the e-mail parser: 25 ms that our own verbs need not pay

    for point in metadata.entry_points(group=GROUP, name=verb):
        other: Main = point.load()
        return other
    return None


def others() -> dict[str, str]:
    """Verbs that other packages add -> the name of the package."""
    from importlib import metadata

    points = metadata.entry_points(group=GROUP)
    return {
        point.name: point.dist.name if point.dist else "?" for point in points if point.name not in BUILT_IN
    }


def run_family(
    family: str,
    verbs: Mapping[str, str],
    about: str,
    more: str,
    argv: list[str],
    package: str = "broker.cli",
) -> int:
    """Run ``argv[0]`` of a family whose verbs are modules of ``PACKAGE.FAMILY``.

    Args:
        family: the outer verb.
        verbs: the inner ones, with what each does.
        about: what ``headgate FAMILY --help`` says first.
        more: what it says last, examples above all.
        argv: what stands behind the outer verb; nothing prints that help and is wrong usage.
        package: where the families of this distribution's part are.

    Raises:
        UsageError: no such verb.
    """
    words = argv
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("--help", "-h"):
        from broker.cli import pages  # late, as in `main`

        lines = [f"Usage: headgate {family} VERB [OPTIONS] ...", "", about, ""]
        widest = max(map(len, verbs))
        lines += [f"  {verb:{widest}}  {what}" for verb, what in verbs.items()]
        lines += ["", f"`headgate {family} VERB --help` has the options and an example of each.{more}"]
        print(pages.fit("\n".join(lines), pages.width()))
        return OK if words else USAGE
    if words[0] not in verbs:
        raise UsageError(_unknown_inner(family, words[0], verbs))
    code: int | None = import_module(f"{package}.{family}.{words[0]}").main(words[1:])
    return code or OK


def _unknown_inner(family: str, word: str, verbs: Mapping[str, str]) -> str:
    near = nearest(word, verbs)
    hint = f"did you mean {near}?" if near else f"`headgate {family} --help` lists the verbs"
    return f"{word!r} is no verb of {family}; {hint}"


def nearest(word: str, verbs: Iterable[str]) -> str:
    """The verb that was meant, "" if none is near.

    >>> nearest("stauts", ["stats", "status"]), nearest("pong", ["ping"]), nearest("xyzzy", ["ping"])
    ('status', 'ping', '')
    """
    import difflib  # late: only an error asks

    near = difflib.get_close_matches(word, verbs, 3)
    # who types fast swaps letters more often than leaving some out
    near.sort(key=lambda each: sorted(each) != sorted(word))
    return near[0] if near else ""
