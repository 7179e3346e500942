"""Trees over ZMTP with CURVE on the event loop, for the checks of trees:

HEADGATE_TEST_TREE=tests.unit.node.overlay.loop_tree pytest tests/unit/node/overlay
"""

from dataclasses import replace

from tests.unit.node.overlay.trees import shared_certificate, tcp_place

place = tcp_place


def configured(config):
    """``config`` with one certificate for all, and the engine."""
    made = shared_certificate(config)
    listen, dial = made.listen, made.dial
    return replace(
        made,
        listen=replace(listen, extra={**listen.extra, "engine": "loop"}),
        dial=replace(dial, extra={**dial.extra, "engine": "loop"}),
    )
