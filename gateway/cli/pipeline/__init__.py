"""``headgate pipeline VERB ...``: the journal as tables; a file a verb, each ``main(argv)``.

    ingest     segments -> bronze
    batch      bronze -> gold; with --journal bronze first
    stream     the journal as it grows -> bronze and gold
    compact    many small files -> few large ones
    describe   what a warehouse holds
    verify     whether it holds every record of the journal once
    report     the history of a warehouse as one HTML page

``shared_options`` has what they share: options, the session, how far a job is on a terminal. A verb's file is loaded
when it is called; ``ingest``, ``batch`` and ``stream`` run on Spark, which needs Java, the others never do.
"""

from __future__ import annotations

from typing import Final

from broker import extras
from broker.cli.verbs import run_family
from broker.errors import ConfigError

VERBS: Final = {
    "ingest": "segments of a journal -> bronze (messages)",
    "batch": "bronze -> gold tables; with --journal both",
    "stream": "the journal as it grows -> bronze and gold",
    "compact": "many small files -> few large ones",
    "describe": "what a warehouse holds, or the columns of its tables",
    "verify": "whether it holds every record of the journal once",
    "report": "the history of a warehouse as one HTML page",
}
"""Verb -> what it does; the order of ``headgate pipeline --help``."""
_ABOUT: Final = "What a journal holds as Delta Lake tables, made on Spark (the extra spark, and Java 17)."
_MORE: Final = """ Under spark-submit:
  spark-submit --master spark://HOST:7077 $(python -m gateway.pipeline --path) batch --warehouse DIR

Examples:
  headgate up --journal journal --pipeline                               record what passes, and make tables of it
  headgate pipeline batch --journal journal --warehouse warehouse        tables of it
  headgate pipeline stream --journal journal --warehouse live            the same, every few seconds
  headgate pipeline report --warehouse warehouse -o report.html          charts"""


_EXTRAS: Final = {
    **dict.fromkeys(("ingest", "batch", "stream"), ("history", "journal", "spark")),
    "verify": ("history", "journal"),
}
"""What a verb needs, if it is more than to read tables."""


def needed(verb: str) -> list[str]:
    """The modules of other projects that a verb needs."""
    wanted = _EXTRAS.get(verb, ("history",))
    own = [] if verb == "report" else ["rich", "typer"]
    return sorted([*own, *(module for module, extra in extras.EXTRA_OF.items() if extra in wanted)])


def main(argv: list[str]) -> int:
    """Entry point of the verb ``pipeline``.

    Raises:
        ConfigError: a library is missing; it names all that are.
    """
    try:
        return run_family("pipeline", VERBS, _ABOUT, _MORE, argv, package="gateway.cli")
    except ModuleNotFoundError as error:
        if error.name not in extras.EXTRA_OF:
            raise
        raise ConfigError(extras.lacking(*extras.absent(needed(argv[0])))) from None
