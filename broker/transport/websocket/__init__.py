"""``ws://`` and ``wss://``: a link to a gateway, for the same client API (subprotocol ``flux.v1``).

::

    address   where to, with which credential; what may cross a network in the clear
    dialing   connect, upgrade, authenticate, welcome; the link: a stream link with the codec, and the conversation
    codec     RFC 6455, by the sans-I/O protocol of the ``websockets`` library; refusals and ends as errors of ours
    control   what the gateway says beside Flux messages: expiry, gaps, the reason of the end

``Options.extra`` of a dialer, all optional:

- ``token``: a bearer token, or a function that returns a fresh one each time it is asked (then it is refreshed before
  it expires); None: no token. Default: ``$HEADGATE_TOKEN``, or the content of the file ``$HEADGATE_TOKEN_FILE``.
- ``ssl``: an ``ssl.SSLContext`` for ``wss://``; default: the system's authorities.
- ``headers``: mapping of further request headers. ``origin``: value of the ``Origin`` header.
- ``deflate``: True offers compression, which gateways agree on where ``gateway.deflate`` is on.
- ``overflow``: ``disconnect`` or ``drop``: what the gateway does when we read too slowly.
- ``resume``: mapping with ``token``, ``epoch``, ``sequence``, ``subscriptions``: go on where a lost link ended.

The ``websockets`` library is loaded by the first dial.
"""

from __future__ import annotations

from broker.errors import ConfigError
from broker.schemes import BUILT_IN
from broker.transport.link import Accept, Link, Listener, Options


class WebSocketTransport:
    """``ws://HOST:PORT/PATH`` and ``wss://HOST:PORT/PATH``; the path is ``/v1/ws`` when there is none."""

    capabilities = BUILT_IN["wss"].capabilities

    async def listen(self, uri: str, accept: Accept, options: Options) -> Listener:
        """Not here: the gateway is what listens for WebSockets.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{uri}: a broker does not listen for WebSockets; start `headgate gateway` in front of it"
        )

    async def dial(self, uri: str, options: Options) -> Link:
        """Connect to a gateway; returns after its welcome.

        Raises:
            ConfigError: bad address, no credential, or plaintext off loopback without ``insecure``.
            LinkRefused: the gateway said no; the text is its own.
            LinkBroken: nobody there, TLS failed, or no welcome within ``connect_timeout_s``.
        """
        from broker.transport.websocket.dialing import dial

        return await dial(uri, options)


transport = WebSocketTransport()
