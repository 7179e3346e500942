"""For authors of transports: the checks that every transport passes, ours and yours.

::

    harness   how a transport is described; recorders, pairs of links
    traffic   checks of what passes a link: order, boundaries, pressure
    endings   checks of how links begin and end, and of who is at the other end

Describe yours by a ``Harness`` and run every function of ``CHECKS`` on it, with pytest::

    import asyncio, pytest
    from broker.testing import CHECKS, Harness
    from mine import transport

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(check):
        asyncio.run(check(Harness("mine", transport, "mine://127.0.0.1:0")))

A check raises AssertionError, or TimeoutError when something that must happen did not within ``PATIENCE_S``. It
leaves no link, listener or descriptor behind when it passes. The contract stands in ``broker/transport/link.py``, the
guide in ``broker/transport/README.md``. ``pytest.register_assert_rewrite("broker.testing")`` in a ``conftest.py`` makes
failures say what was compared.

A listener may learn of a link only from its first message (ZeroMQ does), so every pair of links made here begins with
one message from the dialer, which the checks do not see.
"""

from __future__ import annotations

from broker.testing import endings, traffic
from broker.testing.harness import PATIENCE_S, Accepting, Harness, Pair, Recorder, connected

__all__ = ["CHECKS", "PATIENCE_S", "Accepting", "Harness", "Pair", "Recorder", "connected"]

CHECKS = [
    check
    for part in (traffic, endings)
    for name, check in vars(part).items()
    if name.startswith("check_") and check is not endings.check_half_open_peer
]
"""Every check that needs only the transport; ``endings.check_half_open_peer`` needs ``Harness.stranger``, too."""
