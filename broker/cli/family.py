"""A verb that has verbs: ``headgate nfp run``, ``headgate oslo call``; each is loaded when it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module

from broker.cli.exits import OK, USAGE, UsageError


def run(
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
        lines += [f"  {verb:8} {what}" for verb, what in verbs.items()]
        lines += ["", f"`headgate {family} VERB --help` has the options and an example of each.{more}"]
        print(pages.fit("\n".join(lines), pages.width()))
        return OK if words else USAGE
    if words[0] not in verbs:
        raise UsageError(_unknown(family, words[0], verbs))
    code: int | None = import_module(f"{package}.{family}.{words[0]}").main(words[1:])
    return code or OK


def _unknown(family: str, word: str, verbs: Mapping[str, str]) -> str:
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
