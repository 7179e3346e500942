"""Requests about the sender's own link: what it subscribes to, which services it provides.

The broker a client is attached to answers them, whatever nodeid says, and says no even to those who want no answer.
Deployed brokers answer them with flag STREAMING clear, so that a call that wants a stream ends; so do we.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from broker.errors import ProtocolError, RpcError
from broker.services.context import Sender
from broker.services.service import LATER, Done, Request, failure_of
from broker.wire.message import STREAMING

CLIENT: Final = 0
"""``Sender.kind`` of clients."""


def attached(request: Request) -> Sender:
    """The client that sent ``request``, attached to this broker.

    Raises:
        RpcError: EPERM; the request came from elsewhere, where its sender has to ask.
    """
    sender = request.context.sender_of(request.message)
    if sender is None or sender.kind != CLIENT:
        raise RpcError(errno.EPERM, "only a client attached to this broker may ask for this")
    return sender


def settle(request: Request, change: Callable[[Sender], int], *, confirm: bool) -> Done:
    """Make a change to the sender's link and answer with its errno.

    Args:
        request: who asks.
        change: makes the change; returns an errno or raises what a handler may raise.
        confirm: success is answered even when the request wants no response, as refusals always are.
    """
    message = request.message
    message.set_flags(message.flags & ~STREAMING)  # which its answer repeats
    try:
        errnum, text = change(attached(request)), ""
    except UnicodeEncodeError:  # half a surrogate pair in the JSON
        errnum, text = errno.EPROTO, ""
    except (ProtocolError, RpcError) as error:
        errnum, text = failure_of(error)
    request.fail(errnum, text, always=confirm or errnum != 0)
    return LATER
