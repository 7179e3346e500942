"""``headgate nfp VERB ...``: the NORFAB protocol on the command line; one file a verb, each ``main(argv) -> int``.

    broker     run a broker of NFP
    worker     offer the tasks of a Python file as a service
    up         the broker and workers that an inventory's topology names
    run        have a task run, with its events, and print its results
    jobs       list, show, cancel jobs, and take up their results
    services   services, workers and clients of a broker
    events     what happens to jobs, as it happens
    fetch      a file from ``nf://``
    manage     ask a broker about itself, restart it, disconnect workers, read its log
    keys       show, make and pass on keys

A verb's file is loaded when it is called: ``broker``, ``worker`` and ``up`` load neither typer nor rich. Files that
several verbs share stand beside them: ``embedded`` is the broker as a part of another process, ``session`` the
connection of the client verbs with its options, ``following`` a job on the screen while it runs, ``norfab_worker`` what
``up`` runs in an interpreter that has NorFab.
"""

from __future__ import annotations

from typing import Final

from broker.cli.verbs import run_family

VERBS: Final = {
    "broker": "a broker of NFP, alone or attached to a broker of this machine",
    "worker": "offer the tasks of a Python file as a service",
    "up": "start and look after what an inventory's topology names",
    "run": "have a task run, with its events, and print its results",
    "jobs": "list, show and cancel jobs, take up their results",
    "services": "services, workers and clients",
    "events": "what happens to jobs, as it happens",
    "fetch": "fetch, list and describe files (nf://)",
    "manage": "ask a broker about itself, restart it, disconnect workers, read its log",
    "keys": "show, make and pass on keys",
}
"""Verb -> what it does; the order of ``headgate nfp --help``."""
_ABOUT: Final = "The NORFAB protocol: a broker of jobs, its workers, its clients."
_MORE: Final = """

Examples:
  headgate nfp broker                      prints its key and the two commands below in full
  headgate nfp worker tasks.py             the functions in it that are marked @worker.task
  headgate nfp run SERVICE TASK            what the worker answers"""


def main(argv: list[str]) -> int:
    """Entry point of the verb ``nfp``."""
    return run_family("nfp", VERBS, _ABOUT, _MORE, argv)
