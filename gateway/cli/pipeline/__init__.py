"""``headgate pipeline VERB ...``: the journal as tables; a file a verb, each ``main(argv)``.

    ingest     segments -> bronze
    batch      bronze -> gold; with --journal bronze first
    stream     the journal as it grows -> bronze and gold
    compact    many small files -> few large ones
    describe   what a warehouse holds
    verify     whether it holds every record of the journal once
    report     charts of a warehouse as one HTML page

``given`` has the options that they share, and the session. A verb's file is loaded
when it is called; ``stream`` needs Java, ``ingest`` and ``batch`` where they are told to go to a cluster, the others
never.
"""

from __future__ import annotations

from typing import Final

from broker.cli import family

VERBS: Final = {
    "ingest": "segments of a journal -> bronze (messages)",
    "batch": "bronze -> gold tables; with --journal both",
    "stream": "the journal as it grows -> bronze and gold",
    "compact": "many small files -> few large ones",
    "describe": "what a warehouse holds, or the columns of its tables",
    "verify": "whether it holds every record of the journal once",
    "report": "charts of a warehouse as one HTML page",
}
"""Verb -> what it does; the order of ``headgate pipeline --help``."""
_ABOUT: Final = "What a journal holds as Delta Lake tables (the extra spark); stream needs Java 17."
_MORE: Final = """ Under spark-submit:
  spark-submit --master spark://HOST:7077 $(python -m gateway.pipeline --path) batch --warehouse DIR

Examples:
  headgate up --journal journal                                          record what passes
  headgate pipeline batch --journal journal --warehouse warehouse        tables of it
  headgate pipeline stream --journal journal --warehouse live            the same, every few seconds
  headgate pipeline report --warehouse warehouse -o report.html          charts"""


def main(argv: list[str]) -> int:
    """Entry point of the verb ``pipeline``."""
    return family.run("pipeline", VERBS, _ABOUT, _MORE, argv, package="gateway.cli")
