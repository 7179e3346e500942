"""``headgate cluster VERB ...``: test clusters, and faults in them; the verbs by what they are about.

``life``     init, up, down, ls
``looking``  status, logs
``faults``   kill, start, pause, resume, partition, heal
``which``    the options that name a cluster, and what is done with them
``telling``  how a cluster is drawn and told
"""

from __future__ import annotations

from typing import Final

from broker.cli import options
from broker.cli.exits import USAGE
from gateway.cli.cluster import faults, life, looking

EXAMPLES: Final = (
    "headgate cluster up --size 7                  seven brokers, a gateway, a dashboard; returns when all are there",
    "headgate cluster status",
    "headgate cluster kill 3                       it comes back after a second; --stay: it does not",
    "headgate cluster partition 1                  1 and all below it lose rank 0, silently",
    "headgate cluster heal",
    "headgate cluster down",
    "headgate cluster init keys --size 7           keys and settings only, for containers",
)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    app = options.application("cluster")

    @app.callback()
    def cluster() -> None:
        """Run a test cluster on this machine, and cause faults in it.

        The members are processes, each in a network namespace of its own where root runs it, or containers.
        """

    for verb, command in (life.VERBS | looking.VERBS | faults.VERBS).items():
        app.command(verb)(command)
    code = options.run_app("cluster", app, EXAMPLES, argv or ["--help"])
    return code if argv else USAGE
