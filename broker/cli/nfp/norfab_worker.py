"""Runs in an interpreter that has deployed NorFab, and none of ours: one worker of an inventory, until SIGINT.

::

    PYTHON norfab_worker.py INVENTORY NAME ENDPOINT BROKER_KEY

The worker is NorFab's own, started as its own start does it, in this process. An empty key is plaintext.
"""

import importlib
import os
import signal
import socket
import sys
import threading
from typing import Any

CONFIG = 78
"""sysexits.h EX_CONFIG: a supervisor need not try again."""


def main(path: str, name: str, endpoint: str, key: str) -> int:
    """Run the worker; returns an exit code."""
    try:
        api = importlib.import_module("norfab.core.nfapi")
    except ImportError as error:
        return _refused(f"{sys.executable} has no NorFab: {error}")
    norfab = api.NorFab(inventory=path, run_broker=False, run_workers=[name])
    inventory = norfab.inventory
    inventory.broker.update(endpoint=endpoint, zmq_auth=bool(key), shared_key=key)
    other = _key_of_another(inventory.base_dir, key)
    if other:
        return _refused(f"{other} is the key of another broker, and NorFab prefers it: remove it")
    try:
        service = inventory[name]["service"]
    except KeyError as error:
        return _refused(f"the inventory has no {error} for {name}")
    plugin = norfab.worker_plugins.get(service)
    if plugin is None:
        return _refused(f"NorFab has no worker for the service {service}")
    leaving, begun = threading.Event(), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: leaving.set())
    threading.Thread(target=_tell_when, args=[begun], daemon=True).start()
    api.start_worker_process(plugin, inventory, endpoint, name, leaving, None, begun)
    return 0


def _key_of_another(base_dir: str, key: str) -> str:
    """The file of a broker's key that NorFab would use in place of ``key``."""
    path = os.path.join(base_dir, "__norfab__", "files", "broker", "public_keys", "broker.key")
    if not key or not os.path.exists(path):
        return ""
    with open(path) as file:
        return "" if key in file.read() else path


def _tell_when(begun: Any) -> None:
    """Tell who started this process that it is ready (sd_notify(3))."""
    begun.wait()
    place = os.environ.get("NOTIFY_SOCKET")
    if place:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"READY=1", place)


def _refused(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return CONFIG


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
