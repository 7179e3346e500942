"""A node proxy as a process: ``python -m tests.bench.oslo_node JSON``, the JSON fields of ``NodeConfig``.

It prints ``{"ready": PID}`` when it listens, and leaves when its stdin ends or on a signal.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading

import msgspec

from broker.oslo.node import NodeConfig
from broker.oslo.proxy.process import NodeProxy


def main(text: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    proxy = NodeProxy(msgspec.json.decode(text, type=NodeConfig))

    def watch() -> None:
        sys.stdin.read()
        proxy.stop()

    threading.Thread(target=watch, daemon=True).start()
    proxy.run(ready=lambda: print(json.dumps({"ready": os.getpid()}), flush=True))


if __name__ == "__main__":
    main(sys.argv[1])
