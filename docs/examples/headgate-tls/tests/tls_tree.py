"""For Headgate's own checks of trees, made with this transport::

HEADGATE_TEST_TREE=tls_tree PYTHONPATH=docs/examples/headgate-tls/tests pytest tests/unit/node/overlay
"""

import atexit
import shutil
import socket
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
from authority import Authority
from headgate_tls import TlsOptions

from broker.identity import PeerKey


@cache
def settings():
    """One certificate for all ranks."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return msgspec.convert(Authority(folder).options("node"), TlsOptions)


def place():
    """A loopback address with a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tls://127.0.0.1:{probe.getsockname()[1]}"


def configured(config):
    """``config`` of an overlay with the options of this transport."""
    more = {"settings": settings(), "keys": {"node": PeerKey()}, "tree": True}
    return replace(config, listen=replace(config.listen, **more), dial=replace(config.dial, **more))
