"""Trees over TLS, for the checks of trees:

HEADGATE_TEST_TREE=tests.unit.node.overlay.tls_tree pytest tests/unit/node/overlay
"""

import socket
from dataclasses import replace

from broker.identity import PeerKey
from tests.live.certificates import tls_files


def place():
    """A loopback address with a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tls://127.0.0.1:{probe.getsockname()[1]}"


def configured(config):
    """``config`` of an overlay, with one certificate for all ranks."""
    more = {"settings": tls_files().settings("node"), "keys": {"node": PeerKey()}, "tree": True}
    return replace(config, listen=replace(config.listen, **more), dial=replace(config.dial, **more))
