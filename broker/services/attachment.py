"""Subscriptions and registrations that a client asks for on its own link; ``event`` and ``service`` share it.

The broker a client is attached to answers them, whatever nodeid says. What deployed connectors answer themselves
they answer even where no response is wanted; so do we, but for links that asked for their text (RFC 3: responses to
such a request are suppressed). Deployed brokers answer them with flag STREAMING clear, so that a call that wants a
stream ends; so do we.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Container

from broker.errors import ProtocolError, RpcError
from broker.services.context import CLIENT, Context, Sender
from broker.services.dispatch import failure_of
from broker.serving.request import LATER, Later, Request
from broker.wire.message import STREAMING
from broker.wire.payload import encode_reason


def attached(context: Context, request: Request) -> Sender:
    """The client that sent ``request``, attached to this broker.

    Raises:
        RpcError: EPERM; the request came from elsewhere, where its sender has to ask.
    """
    sender = context.sender_of(request.message)
    if sender is None or sender.kind != CLIENT:
        raise RpcError(errno.EPERM, "only a client attached to this broker may ask for this")
    return sender


def change_link(
    context: Context,
    request: Request,
    change: Callable[[Sender], int],
    always_answered: Container[int] | None = None,
) -> Later:
    """Make a change to the sender's link and answer with its errno.

    Args:
        context: the broker.
        request: who asks.
        change: makes the change; returns an errno or raises what a handler may raise.
        always_answered: errnos that are answered even when the request wants no response; None is all of them,
            success (0) included.
    """
    message = request.message
    message.set_flags(message.flags & ~STREAMING)  # which its answer repeats
    try:
        errnum, text = change(attached(context, request)), ""
    except UnicodeEncodeError:  # half a surrogate pair in the JSON
        errnum, text = errno.EPROTO, ""
    except (ProtocolError, RpcError) as error:
        errnum, text = failure_of(error)
    sender = context.sender_of(message)
    as_deployed = sender is not None and sender.kind == CLIENT and not sender.strict
    always = as_deployed and (always_answered is None or errnum in always_answered)
    context.respond(message, encode_reason(text), errnum, always)
    return LATER
