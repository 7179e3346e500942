"""From an address to a link that a gateway has welcomed."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from broker.errors import LinkBroken, LinkError
from broker.identity import PeerInfo
from broker.transport.websocket.address import Target, check_secrecy, fresh, parse, token_of
from broker.transport.websocket.control import Conversation
from broker.transport.websocket.link import JOIN_BYTES, ClientLink

if TYPE_CHECKING:
    from broker.transport.link import Options

SUBPROTOCOL: Final = "flux.v1"
DEFLATE: Final = ClientPerMessageDeflateFactory(
    server_no_context_takeover=True, client_no_context_takeover=True
)
NEXT_ADDRESS_S: Final = 0.25
"""Where a name has several addresses, the next one is tried beside one that has not answered for so long."""
TLS_GOODBYE_S: Final = 1.0
"""How long the end of a TLS connection waits for the other side's."""

_quiet = logging.getLogger("headgate.websocket")
_quiet.setLevel(logging.WARNING)  # at debug level the library writes headers, and the token, to the log


async def dial(uri: str, options: Options) -> ClientLink:
    """Connect, upgrade, authenticate; see ``WebSocketTransport.dial``."""
    target = parse(uri, options.extra.get("overflow"))
    check_secrecy(target, options.insecure)
    link = _prepare(target, options)
    try:
        async with asyncio.timeout(options.connect_timeout_s or None):
            await _connect(link, target, options.extra.get("ssl"))
            await link.talk.welcomed
    except TimeoutError as error:
        text = f"{target.shown}: no welcome within {options.connect_timeout_s:g} s"
        raise _given_up(link, LinkBroken(text, errno.ETIMEDOUT)) from error
    except ssl.SSLError as error:
        raise _given_up(link, LinkBroken(f"{target.shown}: TLS: {error}", errno.EPROTO)) from error
    except OSError as error:
        raise _given_up(link, _unreachable(target, error)) from error
    except BaseException:
        _given_up(link, LinkBroken("given up"))
        raise
    link.pause()  # nothing is read before ``start``
    link.watch(link.talk.ping_s)
    return link


def _prepare(target: Target, options: Options) -> ClientLink:
    """A link that is not connected yet, its request written."""
    extra = options.extra
    token = token_of(extra)
    peer = PeerInfo(target.uri.partition("?")[0])
    protocol = ClientProtocol(
        parse_uri(target.uri),
        origin=Origin(extra["origin"]) if extra.get("origin") else None,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        extensions=[DEFLATE] if extra.get("deflate") else None,
        max_size=options.max_bytes(peer) + JOIN_BYTES,
        logger=_quiet,
    )
    protocol.send_request(_request(protocol, fresh(token), extra.get("headers") or {}))
    link = ClientLink(peer, options, protocol)
    link.talk = Conversation(peer.address, link.say, token, extra.get("resume"))
    return link


def _request(protocol: ClientProtocol, token: str | None, headers: dict[str, str]) -> Any:
    request = protocol.connect()
    for name, value in headers.items():
        request.headers[name] = value
    if token is not None:
        request.headers["Authorization"] = f"Bearer {token}"
    return request


async def _connect(link: ClientLink, target: Target, context: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    if not target.secure:
        await loop.create_connection(
            lambda: link, target.host, target.port, happy_eyeballs_delay=NEXT_ADDRESS_S
        )
        return
    await loop.create_connection(
        lambda: link,
        target.host,
        target.port,
        ssl=context or ssl.create_default_context(),
        ssl_shutdown_timeout=TLS_GOODBYE_S,
        happy_eyeballs_delay=NEXT_ADDRESS_S,
    )


def _unreachable(target: Target, error: OSError) -> LinkBroken:
    number = errno.EHOSTUNREACH if isinstance(error, socket.gaierror) else error.errno
    text = f"cannot connect to {target.shown}: {error.strerror or error}"
    return LinkBroken(
        text, number or errno.ECONNREFUSED
    )  # several addresses, one failure each: no number of its own


def _given_up(link: ClientLink, error: LinkError) -> LinkError:
    """End what there is of ``link``; its own word about the end counts for more than ours."""
    welcomed = link.talk.welcomed
    link.abort(error)
    if welcomed.done() and not welcomed.cancelled():
        own = welcomed.exception()
        if isinstance(own, LinkError):
            return own
    return error
