"""A listener with CURVE keys, and raw ZeroMQ sockets as its peers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import zmq

from broker.errors import LinkClosed
from broker.identity import ClientKey, Credentials, PeerKey, Role
from broker.testing.harness import PATIENCE_S, Accepting
from broker.transport import curve, zeromq
from broker.transport.link import Options

SERVER, PEER, CLIENT = curve.generate(), curve.generate(), curve.generate()
GUEST = Credentials(1000, Role.USER)
UUID = b"0f8fad5b-d9cb-469f-a165-70867728950e"


def listening(keys=None, **extra) -> Options:
    known = {PEER.public_key: PeerKey(3), CLIENT.public_key: ClientKey(GUEST)} if keys is None else keys
    return Options(extra={"curve": curve.CurveServer(SERVER)} | extra, keys=known)


def dialling(certificate=PEER, server=SERVER, **extra) -> Options:
    return Options(
        extra={"curve": curve.CurveClient(certificate, server.public_key)} | extra,
        connect_timeout_s=PATIENCE_S,
    )


@contextlib.asynccontextmanager
async def listener(options: Options, uri: str = "tcp://127.0.0.1:0") -> AsyncIterator[tuple[str, Accepting]]:
    accepting = Accepting()
    made = await zeromq.transport.listen(uri, accepting, options)
    try:
        yield made.contact_address, accepting
    finally:
        for link, _recorder in accepting.links:
            link.abort(LinkClosed("test over"))
        await made.stop()


@contextlib.contextmanager
def raw(kind: int, context: zmq.Context, certificate=PEER, identity: bytes = UUID):
    sock = context.socket(kind)
    sock.set(zmq.LINGER, 0)
    sock.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
    if kind == zmq.DEALER:
        sock.set(zmq.ROUTING_ID, identity)
        sock.set(zmq.CURVE_SERVERKEY, SERVER.public_key.encode())
    else:
        sock.set(zmq.CURVE_SERVER, 1)
        certificate = SERVER
    sock.set(zmq.CURVE_PUBLICKEY, certificate.public_key.encode())
    sock.set(zmq.CURVE_SECRETKEY, certificate.secret_key.encode())
    try:
        yield sock
    finally:
        sock.close()


async def came(accepting: Accepting, number: int) -> bool:
    """Whether the link ``number`` comes soon."""
    try:
        async with asyncio.timeout(0.5):
            await accepting.link(number)
    except TimeoutError:
        return False
    return True


async def reply_to(sock: zmq.Socket) -> list[bytes]:
    return await asyncio.to_thread(sock.recv_multipart)
