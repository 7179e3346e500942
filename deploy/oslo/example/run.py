"""Two services on one node: starts a node proxy, two servers of ``stock``, and ``orders``; ends when all was delivered.

    python deploy/oslo/example/run.py

Everything is in a private folder and on free ports of this machine; nothing stays behind.
"""

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
WITHIN_S = 30.0
ENDS = ("reserved", "bolts left", "restocked", "a: recounted", "b: recounted", "order.placed")
"""One call with its answer, one cast, one fan-out at both servers, one notification."""


def main():
    for module in ("broker", "oslo_messaging"):
        if find_spec(module) is None:
            sys.exit(f"{module} is not installed: pip install '.[oslo]' in a clone of Headgate")
    lines = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="hg-") as folder, contextlib.ExitStack() as stack:
        environ = dict(os.environ, OSLO_TRANSPORT_URL=f"zmq://?rpc_zmq_ipc_dir={folder}/node")

        def start(*words):
            process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True)
            stack.callback(end, process)
            threading.Thread(
                target=lambda: [lines.put(line.rstrip()) for line in process.stdout], daemon=True
            ).start()

        proxy = [sys.executable, "-m", "broker.cli.main", "oslo", "proxy", "--ipc-dir", f"{folder}/node"]
        start(*proxy, "--host", "")
        wait(lines, ["Ctrl-C ends it"])
        for name in ("a", "b"):
            start(sys.executable, str(HERE / "stock.py"), name)
        wait(lines, ["a: ready", "b: ready"])
        start(sys.executable, str(HERE / "orders.py"))
        wait(lines, ENDS)
    print("a call, a cast, a fan-out and a notification were delivered")


def wait(lines, ends):
    """Print what comes until every one of ``ends`` was part of a line."""
    missing = set(ends)
    deadline = time.monotonic() + WITHIN_S
    while missing:
        try:
            line = lines.get(timeout=max(deadline - time.monotonic(), 0.01))
        except queue.Empty:
            sys.exit(f"not delivered within {WITHIN_S:.0f} s: {', '.join(sorted(missing))}")
        print(line, flush=True)
        missing = {each for each in missing if each not in line}


def end(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
