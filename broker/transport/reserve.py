"""Descriptors that no guest and no stranger gets: the last ones are for the owner, the tree and the broker itself."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import NamedTuple


class DescriptorReserve(NamedTuple):
    """Which descriptors are kept, and how many of them those may have who have not said yet who they are.

    A new descriptor gets the lowest number that is free: one with a high number is one of the last.
    """

    first: int = 1 << 31
    strangers: int = 0

    def has(self, fd: int) -> bool:
        """Whether ``fd`` is one of those that are kept."""
        return fd >= self.first


class SpareDescriptor:
    """One descriptor that is open for nothing, to be closed when another is needed and none is left."""

    def __init__(self) -> None:
        self._fd = -1
        self.renew()

    def lend(self) -> bool:
        """Free it; False when it is lent already."""
        if self._fd < 0:
            return False
        os.close(self._fd)
        self._fd = -1
        return True

    def renew(self) -> None:
        """Have it back, if there is one."""
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def exhausted(error: OSError) -> bool:
    """Whether ``error`` says that no descriptor is left, to this process or to the system."""
    return error.errno in (errno.EMFILE, errno.ENFILE)
