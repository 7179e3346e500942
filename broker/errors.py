"""Every error Headgate raises, in one tree.

::

    HeadgateError
        ConfigError           operator: a setting is wrong                      (EINVAL)
            NotReady          outside: what it names may be there later         (its errno)
        ProtocolError         peer: what it sent breaks the specification       (EPROTO)
            DecodeError       peer: bytes that are no message; ends its link
            MessageTooLarge   peer: announced more than its cap; ends its link  (EMSGSIZE)
            Untranslatable    caller: a dialect cannot carry this message       (EOPNOTSUPP)
        LinkError             a link cannot be used
            LinkClosed        we closed it                                      (ESHUTDOWN)
            LinkEnded         the peer ended it                                 (ECONNRESET)
            LinkBroken        an outside cause broke it                         (EPIPE)
            LinkRefused       the peer refused us at connect                    (its errno)
        RpcError              the far service answered with an error            (its errnum)
        Overrun               a consumer in this process reads too slowly       (ENOBUFS)
        Missed                what came meanwhile could not be had again        (ESTALE)

Each class carries ``errno`` (POSIX number) and ``fault`` (``"operator"``, ``"peer"``, ``"caller"``,
``"outside"``): who has to change something so that it does not happen again.
"""

from __future__ import annotations

import errno as _errno
import os
import sys

from broker.safe_text import visible


class HeadgateError(Exception):
    """Root of the tree; ``errno`` is a POSIX error number, ``fault`` names who caused it."""

    errno: int = _errno.EIO
    fault: str = "outside"

    def __init__(self, text: str = "", errno: int | None = None) -> None:
        if errno is not None:
            self.errno = errno
        super().__init__(text or os.strerror(self.errno))


class ConfigError(HeadgateError):
    """A setting is unknown, of the wrong type or contradicts another; the text names file and line."""

    errno = _errno.EINVAL
    fault = "operator"


class NotReady(ConfigError):
    """What a setting names cannot be used now, and that may pass by itself: an address, a name, a disk, a file.

    ``obstacles`` decides what is of this kind.
    """

    fault = "outside"


class ProtocolError(HeadgateError):
    """The peer sent something the specification does not allow."""

    errno = _errno.EPROTO
    fault = "peer"


class DecodeError(ProtocolError):
    """Bytes that are not a message (RFC 3, "Common Message Format"); only the sender's link ends."""


class MessageTooLarge(ProtocolError):
    """A frame announced more bytes than its sender may send; raised before anything is allocated."""

    errno = _errno.EMSGSIZE


class Untranslatable(ProtocolError):
    """The target dialect has no way to carry this message; the text says which field and why."""

    errno = _errno.EOPNOTSUPP
    fault = "caller"


class LinkError(HeadgateError):
    """A link ended in one of exactly four ways, one subclass each; ``final``: another would end the same way."""

    final: bool = False


class LinkClosed(LinkError):
    """This side closed the link."""

    errno = _errno.ESHUTDOWN
    fault = "caller"


class LinkEnded(LinkError):
    """The peer closed the link."""

    errno = _errno.ECONNRESET
    fault = "peer"


class LinkBroken(LinkError):
    """The operating system or the network broke the link."""

    errno = _errno.EPIPE


class LinkRefused(LinkError):
    """The peer refused the connection; ``errno`` is what it said (1 = EPERM)."""

    errno = _errno.ECONNREFUSED
    fault = "peer"


class RpcError(HeadgateError):
    """A request was answered with a nonzero errnum (RFC 6); the text is the service's, if it sent one."""

    fault = "caller"

    def __init__(self, errnum: int, text: str = "", topic: str = "") -> None:
        self.topic = topic
        super().__init__(text or os.strerror(errnum), errnum)


class Overrun(HeadgateError):
    """A stream or subscription of this process was read too slowly; ``lost`` messages did not fit its buffer."""

    errno = _errno.ENOBUFS
    fault = "caller"

    def __init__(self, text: str = "", lost: int = 0) -> None:
        self.lost = lost
        super().__init__(text)


class Missed(HeadgateError):
    """Events may be missing here: the link was lost, or the far end lost them; have anew what was made of events."""

    errno = _errno.ESTALE


def print_error(text: str) -> None:
    """Write text to standard error, in one piece: several processes share it, and it may be unbuffered."""
    if sys.stderr is not None:  # closed by whoever started us
        sys.stderr.write(f"{visible(text)}\n")
