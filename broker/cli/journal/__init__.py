"""``headgate journal VERB ...``: what passed, on disk; a file a verb, each ``main(argv)``.

    ls       the segments of a journal: writer, run, records, time
    verify   every torn or damaged block with its extent, every gap with its cause
    tail     the last records, and with -f those that come
    show     records, filtered
    replay   a captured session, sent again
    ship     sealed segments to a store: S3, GCS, HDFS, a mount
    status   what a running broker records

All but ``status`` and ``replay`` read files and need no broker. Beside the verbs: ``shared_options`` reads
options, the filter of records among them, ``lines`` writes a record as a line or as JSON.
"""

from __future__ import annotations

from typing import Final

from broker.cli.verbs import run_family

VERBS: Final = {
    "status": "what a running broker records, and where to",
    "ls": "the segments: writer, rank, run, records, bytes, time",
    "verify": "every torn or damaged block, every gap with its cause",
    "tail": "the last records; -f: those that come, too",
    "show": "records by type, topic, user, direction, time",
    "replay": "send a captured session again",
    "ship": "sealed segments to a store: s3://, gs://, abfs://, hdfs://, file://",
}
"""Verb -> what it does; the order of ``headgate journal --help``."""
_ABOUT: Final = "What passed through a broker, on disk. `headgate start --journal DIR` records it."
_MORE: Final = """

DIR is the journal's directory; without it $XDG_STATE_HOME/headgate/journal. Verbs that read take a URL,
where segments were shipped to.

Examples:
  headgate journal ls DIR                              what there is
  headgate journal tail -f DIR                         what passes now
  headgate journal show DIR --direction denied         who was refused
  headgate journal ship DIR --to s3://bucket/journals   where all ranks come together
  headgate journal replay DIR --to local:///run/b.sock --speed max"""


def main(argv: list[str]) -> int:
    """Entry point of the verb ``journal``."""
    return run_family("journal", VERBS, _ABOUT, _MORE, argv)
