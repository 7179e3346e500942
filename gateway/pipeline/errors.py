"""What ends a job of the pipeline; each text names the file, what was seen and what was expected."""

from __future__ import annotations

import errno

from broker.errors import HeadgateError


class PipelineError(HeadgateError):
    """A job cannot go on: damage in the journal, a warehouse in use, Java or PySpark missing."""

    errno = errno.EIO
    fault = "operator"


class Missing(PipelineError):
    """A program or package that the pipeline needs is not there; the text says how to get it."""

    errno = errno.ENOPKG


class Busy(PipelineError):
    """Another job writes into this warehouse, or something else feeds it."""

    errno = errno.EBUSY


class Lost(PipelineError):
    """Records that should be in the journal are not there any more, or cannot be read."""

    errno = errno.ENODATA


class Conflict(Busy):
    """Another job changed the same table meanwhile; done again from what is there now it may pass."""
