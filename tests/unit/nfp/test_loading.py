"""What a worker, a client and a broker load: nothing that they do not need."""

import subprocess
import sys

import broker.nfp.client

PROGRAM = """
import sys, broker.cli.nfp.worker, broker.nfp.client as client
print([name for name in ("typer", "rich", "aiohttp", "zmq", "broker.nfp.client.blocking") if name in sys.modules])
print(client.BlockingClient.__module__)
"""


def test_neither_what_draws_and_serves_nor_the_client_for_threads_before_it_is_asked_for():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "broker.nfp.client.blocking"]
    assert not hasattr(broker.nfp.client, "Nonsense")


AT_WORK = """
import asyncio, sys
import msgspec, broker.cli.nfp.broker
from broker.nfp.client import NfpClient
from broker.nfp.server.broker import NfpBroker
from broker.nfp.worker import Worker
from broker.settings.nfp import NfpSection

async def main():
    broker = NfpBroker(msgspec.convert({"endpoint": "tcp://127.0.0.1:*", "base_dir": sys.argv[1]}, NfpSection))
    await broker.start()
    keys = {"broker": broker.endpoints[0], "server_key": broker.server_key, "state_dir": sys.argv[1]}
    async with NfpClient("c1", **keys) as client:
        await client.run("filesharing", "list_files", args=["nf://"], target="any")
    await broker.stop()

asyncio.run(main())
print([name for name in sys.modules if name.startswith("zmq")])
"""


def test_no_libzmq_in_a_broker_and_a_client_at_work(rundir):
    command = [sys.executable, "-c", AT_WORK, str(rundir / "nfp")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
