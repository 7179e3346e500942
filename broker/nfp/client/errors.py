"""What the client library raises, below HeadgateError.

::

    HeadgateError
        JobError              a job ended without all its results; ``uuid``, ``results`` so far
            JobFailed         the broker or a worker answered with an error      (EREMOTEIO; ``status``)
            JobCancelled      it was cancelled; a task's calls raise it, too     (ECANCELED)
            JobTimeout        its deadline passed, also a TimeoutError           (ETIMEDOUT)
            TaskFailed        ``check=True`` and a task says that it failed      (EREMOTEIO; ``failed``)
        RequestFailed         management, inventory, events: answered with an error (EREMOTEIO; ``status``)
        FetchFailed           a file is not there, or did not arrive whole       (ENOENT or EIO)

An unreachable broker is a LinkError: LinkRefused when keys do not fit, else LinkBroken.
"""

from __future__ import annotations

import errno as _errno
from collections.abc import Mapping
from typing import Any

from broker.errors import HeadgateError
from broker.nfp.outcome import last_line


class JobError(HeadgateError):
    """A job did not end well; ``results`` are what its workers had brought until then, {worker: result}."""

    fault = "peer"

    def __init__(self, text: str, uuid: str = "", results: Mapping[str, Any] | None = None) -> None:
        self.uuid = uuid
        self.results: dict[str, Any] = dict(results or {})
        super().__init__(text)


class JobFailed(JobError):
    """The broker or a worker answered with an error; ``status`` is its code, the text its "error"."""

    errno = _errno.EREMOTEIO

    def __init__(
        self, text: str, status: int = 0, uuid: str = "", results: Mapping[str, Any] | None = None
    ) -> None:
        self.status = status
        super().__init__(text, uuid, results)


class JobCancelled(JobError):
    """The job was cancelled, by us or by an owner. In a task: also, its client cancelled the question it was asked."""

    errno = _errno.ECANCELED
    fault = "caller"


class JobTimeout(JobError, TimeoutError):
    """The deadline of the job passed before every worker had answered."""

    errno = _errno.ETIMEDOUT
    fault = "outside"


class TaskFailed(JobError):
    """Tasks of the job failed; ``failed`` maps their workers to the errors they gave."""

    errno = _errno.EREMOTEIO

    def __init__(self, failed: Mapping[str, Any], uuid: str, results: Mapping[str, Any]) -> None:
        self.failed = dict(failed)
        worker, errors = next(iter(self.failed.items()))
        why = last_line(errors) or "no error text"
        more = f" (and {len(self.failed) - 1} more)" if len(self.failed) > 1 else ""
        super().__init__(f"{worker}: {why}{more}", uuid, results)


class RequestFailed(HeadgateError):
    """A service of the broker itself answered with an error."""

    errno = _errno.EREMOTEIO
    fault = "caller"

    def __init__(self, text: str, status: int) -> None:
        self.status = status
        super().__init__(text)


class FetchFailed(HeadgateError):
    """A file could not be fetched; errno says why: ENOENT, nobody has it, else EIO."""

    errno = _errno.EIO
    fault = "peer"
