"""How long a connection may take for what, whoever speaks ZMTP."""

from __future__ import annotations

from typing import Final

UNCONFIRMED_MS: Final = 20_000
"""TCP_USER_TIMEOUT: a connection on which what was sent, or a probe, is not acknowledged for so long is lost; as in
deployed Flux. It cannot see a process that is frozen while its kernel goes on: each protocol counts silence for itself.
"""
KEEPALIVE_IDLE_S: Final = 5
"""After so long without a packet of the peer TCP asks whether it is there ..."""
KEEPALIVE_INTERVAL_S: Final = 5
"""... and so often while it does not answer ..."""
KEEPALIVE_COUNT: Final = 3
"""... until so many probes were in vain: a machine that is gone is known after 20 s, whether anything was sent or not.
"""
CONNECT_MS: Final = 3_000
"""A host that does not answer is dialled anew after so long: TCP itself would ask later and later, and a host that
comes up meanwhile would wait for it."""
HANDSHAKE_MS: Final = 10_000
"""A connection that did not finish its handshake by then is dropped."""
