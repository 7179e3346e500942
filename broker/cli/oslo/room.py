"""A process of ``children``: a node's proxy, or its bridge. Not for people: it has no options.

Its input is an ``Order``; it says that it can be used to who started it, as to a service manager. At SIGHUP it reads
its input again from the beginning.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Mapping

import msgspec

from broker import interpreter, loglines, supervision
from broker.cli import address
from broker.cli.exits import CONFIG, FAILED, OK, TEMPFAIL, code_of
from broker.cli.oslo import plan
from broker.cli.oslo.children import ENDPOINTS, Order
from broker.errors import ConfigError, HeadgateError, print_error
from broker.secret import convert_secret
from broker.tasks import run_to_end


def log_to_stderr(level: str, who: str = "oslo") -> None:
    """Our own lines to stderr, in the form of ``loglines.formatter``."""
    loglines.send_to_stderr(logging.getLogger("headgate"), who, level)


def _say(endpoints: Mapping[str, str]) -> None:
    """Tell the parent that it can be used, and where its rooms listen."""
    supervision.notify(f"{ENDPOINTS}={msgspec.json.encode(endpoints).decode()}", "READY=1")


def run(order: Order) -> int:
    """Do what ``order`` says until told to leave; returns the exit code."""
    if order.bridge:
        from broker.cli.oslo.bridge import serve

        config, options = plan.bridge_config(order.section), address.link_options(order.bridge)
        return run_to_end(serve(config, order.bridge, lambda: _say({}), options))
    from broker.cli.oslo.proxy import run_here

    return run_here(order.section, _say, order.journal, lambda: _given().section)


def _given() -> Order:
    """The order as it is in our input now.

    Raises:
        ConfigError: it is just being written; another signal follows.
    """
    try:
        return msgspec.json.decode(interpreter.ordered(), type=Order, dec_hook=convert_secret)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"the order of this process cannot be read: {error}") from error


def main() -> int:
    """Entry point of the process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is somebody to read the order again
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # who started us may have blocked some
    order = _given()
    log_to_stderr(order.log_level, f"oslo {order.name}")
    try:
        return run(order)
    except (HeadgateError, TimeoutError) as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            print_error(f"headgate oslo {order.name}: {line}")
        code = code_of(error)
        return code if code in (OK, TEMPFAIL, CONFIG) else FAILED


if __name__ == "__main__":
    sys.exit(main())
