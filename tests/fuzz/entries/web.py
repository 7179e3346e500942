"""What a gateway reads of browsers, proxies and identity providers."""

import asyncio
import ipaddress
import json
import tempfile
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.utils import CryptographyDeprecationWarning

from broker.errors import ConfigError, DecodeError, MessageTooLarge, ProtocolError
from broker.transport.codec import FluxCodec
from broker.transport.tls import client_context, server_context
from broker.transport.tls.layer import Session, TlsCodec
from broker.transport.websocket import address
from broker.wire.message import EVENT, REQUEST, Message, event, request, response
from broker.wire.payload import encode_reason
from gateway.codecs import binary, control, jsonview, new_codec, zws
from gateway.codecs.contract import Refused
from gateway.events.run import Run
from gateway.identity import certificates, keys, tokens
from gateway.identity.jwt import Verifier, is_jwt
from gateway.identity.keys import JwtKeys
from gateway.identity.origin import normal
from gateway.identity.proxies import Networks, forwarded_for, host_name, is_local_host
from gateway.identity.proxyheader import SIGNATURE, Header
from gateway.principal import Denied
from gateway.websocket.codec import ServerCodec
from gateway.websocket.reader import Reader
from tests.fuzz import mutate
from tests.fuzz.entries.packing import pack, unpack
from tests.live.certificates import tls_files
from tests.unit.gateway.identity import issuer
from tests.unit.gateway.identity.authority import Authority, common, public_pem
from tests.unit.gateway.websocket.house import masked
from tests.unit.transport.upgraded import Upgraded

MAX_BYTES = 2000
SHORT = 20
"""A text that short may stand in a refusal by chance."""
_MASK = b"\x01\x02\x03\x04"


# ---------------------------------------------------------------- WebSocket and what it carries


def websocket(data: bytes) -> bool:
    """A stream of a client's frames cut anywhere: the same messages, the same end, and bounded memory."""
    whole, cut = Reader(MAX_BYTES), Reader(MAX_BYTES)
    expected, found = whole.feed(data), []
    for piece in mutate.pieces(data, Random(zlib.crc32(data))):
        found += cut.feed(piece)
        assert cut.pending_bytes <= MAX_BYTES + 14 + len(piece)
    assert (found, cut.failure, cut.pending_bytes) == (expected, whole.failure, whole.pending_bytes)
    _websocket_server(data)
    return bool(expected)


def _websocket_server(data: bytes) -> None:
    """The same as messages: the same ones, pongs, and end."""
    turn: Any = SimpleNamespace(taken=0)
    whole, cut = (
        ServerCodec(new_codec(binary.NAME, MAX_BYTES), Reader(MAX_BYTES), b"", turn, None) for _ in range(2)
    )
    expected, found = whole.feed(data), []
    for piece in mutate.pieces(data, Random(zlib.crc32(data))):
        if cut.failure is None:
            found += cut.feed(piece)
    told = [[each.text if isinstance(each, Refused) else each for each in one] for one in (expected, found)]
    assert told[0] == told[1]
    ends = [(repr(each.failure), each.code, each.goodbye("")) for each in (whole, cut)]
    assert ends[0] == ends[1]


def websocket_seeds() -> list[bytes]:
    text = "grüße €".encode()
    return [
        masked(2, request("a.b", b"x\0").framed(), mask=_MASK),
        masked(1, text, mask=_MASK) + masked(9, b"hi", mask=_MASK) + masked(8, b"\x03\xe8bye", mask=_MASK),
        masked(1, text[:5], first=1, mask=_MASK) + masked(10, mask=_MASK) + masked(0, text[5:], mask=_MASK),
        masked(2, bytes(300), mask=_MASK) + masked(2, b"", mask=_MASK),
    ]


def websocket_dialer(data: bytes) -> bool:
    """What a gateway says, cut anywhere: the same messages, objects and end."""
    whole, cut = Upgraded(), Upgraded()
    expected, found = whole.take(data), []
    for piece in mutate.pieces(data, Random(zlib.crc32(data))):
        if cut.codec.failure is None:
            found += cut.take(piece)
    ends = [repr(each.codec.failure) for each in (whole, cut)]
    assert (found, ends[0]) == (expected, ends[1])
    return bool(expected)


def websocket_dialer_seeds() -> list[bytes]:
    framed = event("news", b"payload").framed()
    seeds = []
    for close in (False, True):
        server = Upgraded().server
        server.send_text(b'{"type":"gap","lost":3}')
        server.send_binary(framed * 2)
        server.send_ping(b"?")
        server.send_binary(framed[:9], fin=False)
        server.send_continuation(framed[9:], fin=True)
        if close:
            server.send_close(4002, "slow")
        seeds.append(b"".join(server.data_to_send()))
    return seeds


def tls(data: bytes) -> bool:
    """A stranger's bytes at a listener; the first byte odd: behind the handshake of somebody else."""
    server = Session(server_context(tls_files().settings("node")))
    if not data or data[0] % 2 == 0:
        server.feed(data[1:])
        assert server.failure is None or not server.is_open
        return server.failure is None and server.owed
    client = Session(client_context(tls_files().settings("ada")), "localhost")
    while not (server.is_open and client.is_open):
        server.feed(client.take_owed())
        client.feed(server.take_owed())
    codec = TlsCodec(server, FluxCodec(MAX_BYTES))
    assert codec.feed(data[1:]) == []
    return False


def tls_seeds() -> list[bytes]:
    hello = Session(client_context(tls_files().settings("ada")), "localhost").take_owed()
    return [b"\0" + hello, b"\1" + hello, b"\1\x17\x03\x03\0\x20" + bytes(32)]


def flux_v1(data: bytes) -> bool:
    """A binary message of `flux.v1`; the first byte even: a text message."""
    return _written_back(binary.NAME, data[1:], bool(data) and data[0] % 2 == 0)


def json_view(data: bytes) -> bool:
    """A text message of `flux.v1.json`."""
    return _written_back(jsonview.NAME, data, True)


def _written_back(name: str, data: bytes, text: bool) -> bool:
    """What is read is written so that it is read again, alone and in a run of events."""
    codec = new_codec(name, MAX_BYTES)
    try:
        found = codec.decode(data, text)
    except (DecodeError, MessageTooLarge):
        return False
    for one in found:
        if isinstance(one, Message):
            again = _read_back(name, codec.encode(one))
            assert [new_codec(name).encode(each) for each in again] == [codec.encode(one)]
        elif isinstance(one, Refused):
            assert (one.message.type, bool(one.message.matchtag), bool(one.text)) == (REQUEST, True, True)
            _read_back(name, codec.encode(response(one.message, encode_reason(one.text), errnum=71)))
        elif one["type"] not in ("auth", "refresh", "resume", "ping"):
            raise AssertionError(f"a control object of type {one['type']!r} came through")
    events = [one for one in found if isinstance(one, Message) and one.type == EVENT]
    if events:
        assert len(_read_back(name, codec.encode_run(Run(events)))) == len(events)
    return True


def _read_back(name: str, frames: bytes) -> list[Message]:
    """The messages of frames that a server wrote."""
    out: list[Message] = []
    at = 0
    while at < len(frames):
        opcode, size, at = frames[at] & 15, frames[at + 1], at + 2
        if size > 125:
            width = 2 if size == 126 else 8
            size, at = int.from_bytes(frames[at : at + width], "big"), at + width
        out += new_codec(name, 1 << 24).decode(frames[at : at + size], opcode == 1)
        at += size
    return out


def flux_v1_seeds() -> list[bytes]:
    some = [
        request("a.b", b"x\0", matchtag=3),
        event("job.state", b"\xff\0", flags=0x20),
        response(request("a")),
    ]
    return [b"\1" + one.framed() for one in some] + [
        b"\1" + b"".join(one.framed() for one in some),
        b"\0" + _CONTROLS[0],
    ]


_CONTROLS = (
    b'{"type":"auth","token":"hgt_0123456789ab_secret"}',
    b'{"type":"refresh","token":"e30.e30.c2ln"}',
    b'{"type":"resume","token":"5f0c21aa.c1","epoch":"8f4c","sequence":42,"subscriptions":["job.",""]}',
    b'{"type":"ping"}',
)
_VIEWS = (
    b'{"type":"request","topic":"attr.get","matchtag":1,"nodeid":0,"flags":["streaming"],"payload":{"name":"size"}}',
    b'[{"type":"event","topic":"job.note","flags":["private"],"text":"only"},{"type":"event","topic":"a","data":"/wA="}]',
    b'{"type":"response","topic":"a.b","matchtag":4,"errnum":38,"userid":0,"rolemask":1,"error":"no","routes":["3132"]}',
    b'{"type":"request","topic_data":"/w==","userid":4294967295,"rolemask":4}',
    b'{"type":"control","kind":1,"status":2}',
)


def json_view_seeds() -> list[bytes]:
    return [*_VIEWS, *_CONTROLS]


def control_objects(data: bytes) -> bool:
    """A control object by itself."""
    try:
        found = control.decode(data)
    except DecodeError:
        return False
    assert control.decode(json.dumps(found).encode()) == found
    return True


def control_objects_seeds() -> list[bytes]:
    return list(_CONTROLS)


def zws_both(data: bytes) -> bool:
    """WebSocket messages of `ZWS2.0` and `ZWS2.0/NULL`, one after the other."""
    read = [_zws(name, unpack(data)) for name in (zws.NAME, zws.NULL_NAME)]
    return any(read)


def _zws(name: str, said: list[bytes]) -> bool:
    codec = new_codec(name, MAX_BYTES)
    read = 0
    for one in said:
        try:
            found = codec.decode(one, False)
        except (DecodeError, MessageTooLarge):
            break
        for each in found:
            if isinstance(each, Message):
                codec.encode(each)
        read += len(found)
    return read > 0


def zws_seeds() -> list[bytes]:
    parts = list(map(bytes, request("attr.get", b'{"name":"rank"}\0', matchtag=1).parts()))
    framed = [b"\1" + part for part in parts[:-1]] + [b"\0" + parts[-1]]
    ready = b"\2\5READY\x0bSocket-Type\0\0\0\6DEALER\x08Identity\0\0\0\0"
    return [
        pack([b"\0", *framed]),
        pack([b"\0id", b"\0\1job.", b"\0\0job.", *framed]),
        pack([ready, *framed, b"\2\4PING\0\x0actx"]),
    ]


# ---------------------------------------------------------------- credentials


def credentials(data: bytes) -> bool:
    """A bearer token or JWT: known, or refused in words that do not repeat it."""
    text = data.decode("utf-8", "surrogateescape")
    known = _tokens()
    try:
        if tokens.token_id(text) is not None or not is_jwt(text):
            known.check(text, 1.0)
        else:
            asyncio.run(_verifier().verify(text))
    except Denied as denied:
        refusal = str(denied)
    else:
        return True
    assert len(text) < SHORT or text not in refusal
    return False


@cache
def _tokens() -> tokens.TokenFile:
    folder = tempfile.TemporaryDirectory(prefix="hg-fuzz-")
    file = tokens.TokenFile(Path(folder.name) / "tokens.json")
    _kept.append(folder)
    _texts.append(file.add("ada", now=0.0)[1])
    return file


_kept: list[tempfile.TemporaryDirectory[str]] = []
_texts: list[str] = []


@cache
def _verifier() -> Verifier:
    folder = tempfile.TemporaryDirectory(prefix="hg-fuzz-")
    _kept.append(folder)
    paths = []
    for name, key in issuer.KEYS.items():
        paths.append(Path(folder.name) / f"{name}.pem")
        paths[-1].write_bytes(public_pem(key))
    settings = issuer.section(*paths)
    ring = JwtKeys(settings)
    asyncio.run(ring.start())
    return Verifier(settings, ring)


def close() -> None:
    """Remove the files of tokens and keys."""
    _tokens.cache_clear()
    _verifier.cache_clear()
    _texts.clear()
    while _kept:
        _kept.pop().cleanup()


def credentials_seeds() -> list[bytes]:
    _tokens()
    jwts = [issuer.signed(name, exp=4e9) for name in issuer.KEYS]
    odd = [issuer.signed(headers={"kid": "x"}, exp=4e9), issuer.signed(exp="soon"), issuer.signed(sub=None)]
    return [each.encode() for each in (_texts[0], "hgt_0123456789ab_secret", *jwts, *odd)]


def key_documents(data: bytes) -> bool:
    """Keys of an identity provider: PEM or a JWKS document. Whatever is taken is bound to one algorithm."""
    found = []
    for read in (keys.parse_pem, keys.parse_document):
        with suppress(ValueError):
            found += read(data)
    assert {key.algorithm for key in found} <= {"RS256", "ES256", "EdDSA"}
    return bool(found)


def key_documents_seeds() -> list[bytes]:
    document = {"keys": [issuer.jwk(key, name, kid=name) for name, key in issuer.KEYS.items()]}
    return [json.dumps(document).encode(), *(public_pem(key) for key in issuer.KEYS.values())]


def certificate(data: bytes) -> bool:
    """A client's certificate (DER)."""
    with warnings.catch_warnings(action="ignore", category=CryptographyDeprecationWarning):
        try:
            shown = certificates.read.__wrapped__(data)
        except ValueError:
            return False
    assert all(shown.names)
    return True


def certificate_seeds() -> list[bytes]:
    made = Authority()
    leaf = made.leaf(common("ada"))[1]
    return [each.public_bytes(serialization.Encoding.DER) for each in (made.certificate, leaf)]


# ---------------------------------------------------------------- addresses


def proxy_header(data: bytes) -> bool:
    """The header of a load balancer: it never asks for more than it may, and any pieces mean the same."""
    whole = _header(data, lambda need: need)
    assert whole == _header(data, lambda need: 1)
    return whole is not None


def _header(data: bytes, step: Callable[[int], int]) -> tuple[object, int] | None:
    header, at = Header(), 0
    try:
        while not header.done and at < len(data):
            size = min(step(header.need), len(data) - at)
            header.feed(data[at : at + size])
            at += size
            assert 0 <= header.need <= 4096
    except ProtocolError:
        return None
    return (header.source, at) if header.done else None


def proxy_header_seeds() -> list[bytes]:
    tcp4 = b"\x21\x11\x00\x0c" + bytes(range(12))
    return [
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r\n",
        b"PROXY TCP6 ::1 ::2 1 2\r\n",
        b"PROXY UNKNOWN\r\n",
        SIGNATURE + tcp4,
        SIGNATURE + b"\x20\x00\x00\x00",
        SIGNATURE + b"\x21\x21\x00\x28" + bytes(36) + b"\x04\x00\x01x",
    ]


def origins(data: bytes) -> bool:
    """An `Origin`, a `Host`, an `X-Forwarded-For` and a WebSocket address: never a fault, and never two meanings."""
    text = data.decode("latin-1")
    forwarded_for([text], Networks(["10.0.0.0/8"]))
    with suppress(ConfigError):
        target = address.parse(text)
        assert address.parse(target.uri).uri == target.uri
    assert not is_local_host(text) or _stays_here(host_name(text))
    found = normal(text)
    assert found is None or normal(found) == found
    return found is not None


def _stays_here(name: str) -> bool:
    """Whether no name server of somebody else can answer for ``name``."""
    with suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost" or name.endswith(".localhost")


def origins_seeds() -> list[bytes]:
    return [
        b"https://dash.example.org", b"http://localhost:8280", b"http://[::1]:8280", b"null", b"localhost:8280",
        b"127.0.0.1", b"192.0.2.7, 10.0.0.2", b"ws://127.0.0.1:8280/v1/ws?overflow=drop", b"wss://[::1]/v1/ws",
        b"[::1%lo]:1",
    ]  # fmt: skip
