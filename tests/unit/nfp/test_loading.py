"""What a worker and a client load: nothing that they do not need."""

import subprocess
import sys

import broker.nfp.client

PROGRAM = """
import sys, broker.cli.nfp.worker, broker.nfp.client as client
print([name for name in ("typer", "rich", "aiohttp", "broker.nfp.client.blocking") if name in sys.modules])
print(client.BlockingClient.__module__)
"""


def test_neither_what_draws_and_serves_nor_the_client_for_threads_before_it_is_asked_for():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "broker.nfp.client.blocking"]
    assert not hasattr(broker.nfp.client, "Nonsense")
