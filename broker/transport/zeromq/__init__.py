"""ZeroMQ on the event loop, over ``tcp://HOST:PORT`` and ``ipc://PATH``: ZMTP 3.1 (ZeroMQ RFC 37) with NULL and CURVE
(RFC 26), for the links of the tree and for NFP.

::

    frames      greeting, frames, commands and metadata as bytes
    boxes       what CURVE seals and opens with (libsodium)
    mechanisms  the handshakes of NULL and CURVE, either side
    connection  one connection, sans I/O: greeting, handshake, messages
    codec       a connection as the codec of a ``stream.StreamLink``: dialect, batches, records
    link        that link
    pipe        a connection and its socket, for who keeps what waits in an outbox of its own (NFP)
    listening   listeners: which peers may come
    dialing     keys, attempts

It speaks to libzmq and to itself. What it does not: other mechanisms, ZMTP before 3.0, and the pings of a dialer of its
own, but where NFP asks whether a peer is still there; it answers those of others.

``Options.extra`` of a listener: ``curve`` (CurveServer), ``batch`` (bool); ``Options.keys`` are Z85.
``Options.extra`` of a dialer: ``curve`` (CurveClient), ``identity`` (bytes, default 36 characters of a random uuid),
``batch`` (bool).

``batch`` (default False) says that batches are accepted and may be switched on by ``link.enable_batch()``.

``accept`` gets a link once its peer has proved in the handshake who it is. A peer's loss is known
at once from the kernel, and after 20 s (``dialing.Probing``) when the network says nothing. A peer that is frozen while
its kernel goes on is not lost for a link: the user of the link counts silence, as the tree does (``node.overlay``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.schemes import BUILT_IN

if TYPE_CHECKING:
    from broker.transport.link import Accept, Link, Listener, Options


class ZeromqTransport:
    """``tcp://HOST:PORT`` and ``ipc://PATH``; needs no state of its own."""

    capabilities = BUILT_IN["tcp"].capabilities

    async def listen(self, uri: str, accept: Accept, options: Options) -> Listener:
        """Listen at ``uri``; port 0 takes a free one. Peers see us as a ROUTER.

        Raises:
            ConfigError: bad address, in use, no permission, or plaintext off loopback.
        """
        from broker.transport.zeromq.listening import ZmtpListener

        return ZmtpListener(uri, accept, options)

    async def dial(self, uri: str, options: Options) -> Link:
        """Connect to ``uri``, as a DEALER; the name is resolved at each attempt.

        An absent peer is tried again, with full jitter, until ``connect_timeout_s`` (0: until cancelled).

        Raises:
            LinkRefused: the peer refused our key, is not the one we expect, or speaks no CURVE while we do.
            LinkBroken: nobody there in time.
            ConfigError: bad address, or plaintext off loopback.
        """
        from broker.transport.zeromq.dialing import dial

        return await dial(uri, options)


transport = ZeromqTransport()
