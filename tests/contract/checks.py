"""What every transport must do: one set of checks, run against each.

For authors of a transport. Describe yours by a ``Harness`` and run every function of ``CHECKS`` on it::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_mine(check):
        asyncio.run(check(Harness("mine", transport, "mine://somewhere/%d")))

A check raises AssertionError, or TimeoutError when something that must happen did not within ``PATIENCE_S``. It
leaves no link, listener or descriptor behind when it passes. The contract stands in ``broker/transport/link.py``.

A listener may learn of a link only from its first message (ZeroMQ does), so every pair of links made here begins with
one message from the dialer, which the checks do not see.
"""

from __future__ import annotations

from tests.contract import endings, traffic

CHECKS = [
    check
    for part in (traffic, endings)
    for name, check in vars(part).items()
    if name.startswith("check_") and check is not endings.check_half_open_peer
]
"""Every check that needs nothing but the transport; ``check_half_open_peer`` needs ``Harness.stranger`` besides."""
