"""How many descriptors this process may open, and whose they are."""

from __future__ import annotations

import logging
import resource
from typing import TYPE_CHECKING, Final

from broker.transport.reserve import DescriptorReserve

if TYPE_CHECKING:
    from broker.settings.limits import LimitsSection

log = logging.getLogger("headgate")

UNLIMITED: Final = 1 << 20
"""What counts as the limit where there is none, or a larger one: the kernel's own default (fs.nr_open)."""
KEPT_SHARE: Final = 8
"""An eighth of the descriptors is kept ..."""
KEPT_MAX: Final = 4096
"""... at most so many."""
STRANGERS_SHARE: Final = 4
"""Of those, a quarter may be in use by connections that have not said yet who they are."""
USER_SHARE: Final = 4
"""One user who is not the owner may have a quarter of all."""


def allowed() -> int:
    """Descriptors that this process may open."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)


def reserve_of(limits: LimitsSection, descriptors: int) -> DescriptorReserve:
    """What is kept of so many ``descriptors``; half of them at most, whatever the settings say."""
    kept = limits.reserved_descriptors
    if kept is None:
        kept = min(descriptors // KEPT_SHARE, KEPT_MAX)
    elif kept > descriptors // 2:
        log.warning(
            "limits.reserved_descriptors = %d: half of the %d that this process may open are kept",
            kept,
            descriptors,
        )
        kept = descriptors // 2
    return DescriptorReserve(descriptors - kept, kept // STRANGERS_SHARE)


def connections_of(limits: LimitsSection, descriptors: int) -> int:
    """Connections that one user who is not the owner may have."""
    return limits.connections_per_user or max(1, descriptors // USER_SHARE)
