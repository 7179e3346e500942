"""Where a test sets up the logging of a process, which is that of all tests here."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def own_log(name: str = "headgate") -> Iterator[logging.Logger]:
    """The logger ``name``; it, and the root behind it, are afterwards what they were before."""
    log, root = logging.getLogger(name), logging.getLogger()
    was = (log.handlers, log.level, log.propagate, log.filters, root.handlers)
    try:
        yield log
    finally:
        log.handlers, level, log.propagate, log.filters, root.handlers = was
        log.setLevel(level)  # which levels are enabled is remembered: an assignment would not be noticed
