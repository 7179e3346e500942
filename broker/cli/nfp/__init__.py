"""``headgate nfp VERB ...``: the NORFAB protocol on the command line; one file a verb, each ``main(argv) -> int``.

    broker     run a broker of NFP
    worker     offer the tasks of a Python file as a service
    run        have a task run, with progress, and print its results
    jobs       list, show, cancel jobs, and take up their results
    services   services, workers and clients of a broker
    events     what happens to jobs, as it happens
    fetch      a file from ``nf://``
    keys       show, make and pass on keys

A verb's file is loaded when it is called: ``broker`` and ``worker`` load neither typer nor rich. Files that several
verbs share stand beside them: ``inside`` is the broker as a part of another process, ``session`` the connection of the
client verbs, ``following`` a job on the screen while it runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from broker.cli.exits import OK, USAGE, UsageError

VERBS: Final = {
    "broker": "a broker of NFP, alone or attached to a broker of this machine",
    "worker": "offer the tasks of a Python file as a service",
    "run": "have a task run, with progress, and print its results",
    "jobs": "list, show and cancel jobs, take up their results",
    "services": "services, workers and clients",
    "events": "what happens to jobs, as it happens",
    "fetch": "fetch, list and describe files (nf://)",
    "keys": "show, make and pass on keys",
}
"""Verb -> what it does; the order of ``headgate nfp --help``."""


def main(argv: list[str]) -> int:
    """Entry point of the verb ``nfp``."""
    words = argv
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("--help", "-h"):
        print(overview())
        return OK if words else USAGE
    if words[0] not in VERBS:
        raise UsageError(_unknown(words[0]))
    code: int | None = import_module(f"broker.cli.nfp.{words[0]}").main(words[1:])
    return code or OK


def _unknown(word: str) -> str:
    import difflib  # late: only an error asks

    near = difflib.get_close_matches(word, VERBS, 1)
    hint = f"did you mean {near[0]}?" if near else "`headgate nfp --help` lists the verbs"
    return f"{word!r} is no verb of nfp; {hint}"


def overview() -> str:
    """The text of ``headgate nfp --help``."""
    return "\n".join(
        [
            "Usage: headgate nfp VERB [OPTIONS] ...",
            "",
            "The NORFAB protocol: a broker of jobs, its workers, its clients.",
            "",
            *(f"  {verb:8} {what}" for verb, what in VERBS.items()),
            "",
            "`headgate nfp VERB --help` has the options and an example of each.",
            "",
            "examples:",
            "  headgate nfp broker                      prints its key and the two commands below in full",
            "  headgate nfp worker tasks.py             the functions in it that are marked @worker.task",
            "  headgate nfp run SERVICE TASK            what the worker answers",
        ]
    )
