"""Trees over ZeroMQ with CURVE, for the checks of trees:

HEADGATE_TEST_TREE=tests.unit.node.overlay.curve_tree pytest tests/unit/node/overlay
"""

from tests.unit.node.overlay.trees import shared_certificate as configured
from tests.unit.node.overlay.trees import tcp_place as place

__all__ = ["configured", "place"]
