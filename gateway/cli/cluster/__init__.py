"""``headgate cluster VERB ...``: test clusters, and faults in them; the verbs by what they are about.

``lifecycle``  up, down
``status``     ls, status, logs
``faults``     kill, start, pause, resume, partition, heal
``files``      init, compose
``shared_options``      what several verbs are given
``drawing``    how a cluster is shown
"""

from __future__ import annotations

from typing import Final

from broker.cli import options
from gateway.cli.cluster import faults, files, lifecycle, status

EXAMPLES: Final = (
    "headgate cluster up --size 7                  seven brokers, a gateway, a dashboard; returns when all are there",
    "headgate cluster status",
    "headgate cluster kill 3                       it comes back after a second; --stay: it does not",
    "headgate cluster partition 1                  1 and all below it lose rank 0, silently",
    "headgate cluster heal",
    "headgate cluster down",
    "headgate cluster init keys --size 7           keys and settings only, for members that run elsewhere",
    "headgate cluster compose . --size 7           compose.yaml, for Docker and Podman",
)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    app = options.application("cluster")

    @app.callback()
    def cluster() -> None:
        """Run a test cluster on this machine, and cause faults in it.

        Its members are processes of yours; nothing needs root. For containers write a compose file.
        """

    for verb, command in (lifecycle.VERBS | status.VERBS | faults.VERBS | files.VERBS).items():
        app.command(verb)(command)
    return options.run_app("cluster", app, EXAMPLES, argv)
