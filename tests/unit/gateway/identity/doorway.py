"""A tiny gateway for tests: one real listener whose handler says who came in."""

import asyncio
import contextlib
import json
import os
import socket
import ssl

from aiohttp import web

from gateway.identity.authenticate import Authenticator
from gateway.identity.login import LOGIN_COOKIE, set_cookie
from gateway.identity.proxies import Networks
from gateway.identity.store import Store
from gateway.identity.tokens import TokenFile
from gateway.principal import Denied
from gateway.settings.schema import (
    AccessSection,
    GatewaySection,
    GatewaySettings,
    JwtSection,
    LimitsSection,
    ListenEntry,
    UserEntry,
)
from gateway.tls import TlsContext
from gateway.web.admission import Admission
from gateway.web.listener import Acceptor

ALICE = UserEntry(name="alice", userid=1001, certificates=("CN=alice",))
BOB = UserEntry(name="bob", userid=1002)
LISTEN = ListenEntry(url="http://127.0.0.1:0")
OWNER = AccessSection(login_links="owner")


def settings_in(
    statedir, *, access=None, jwt=None, users=(ALICE, BOB), listen=LISTEN, workers=1, limits=None
):
    return GatewaySettings(
        gateway=GatewaySection(statedir=str(statedir), workers=workers),
        listen=(listen,),
        users=tuple(users),
        access=access or AccessSection(),
        jwt=jwt or JwtSection(),
        limits=limits or LimitsSection(),
    )


class Doorway:
    """What a test may touch of it."""

    def __init__(self, settings, store):
        self.settings = settings
        self.store = store
        self.identity = Authenticator(settings, store)
        self.port = 0
        self.denied = []

    async def handle(self, request):
        try:
            if request.path == "/v1/login":
                logged_in = self.identity.login(request, (await request.json())["once"])
                response = web.json_response({"name": logged_in.principal.name})
                client = self.identity.listeners.client(request)
                set_cookie(response, logged_in, client, now=self.store.wall())
                return response
            if request.path == "/v1/logout":
                response = web.json_response({})
                LOGIN_COOKIE.clear(response, self.identity.listeners.client(request))
                return response
            found = await self.identity.authenticate_request(request)
        except Denied as denied:
            self.denied.append(str(denied))
            return web.json_response({"error": denied.public, "close": denied.close}, status=denied.status)
        client = self.identity.listeners.client(request)
        said = {
            "address": client.address,
            "peer": client.peer,
            "scheme": client.scheme,
            "local": client.local,
        }
        said["remote"] = request.remote
        if found is not None:
            said.update(name=found.name, userid=found.userid, roles=found.role_names, kind=found.kind)
            said.update(credential=found.credential, nobody=found.nobody)
        return web.json_response(said)


@contextlib.asynccontextmanager
async def open_door(settings, *, host="127.0.0.1", family=socket.AF_INET, **more):
    """The listener of `settings`, bound to a free port; ``more`` is for the `Acceptor`."""
    with contextlib.closing(Store(settings.gateway.statedir)) as store:
        async with _listening(settings, Doorway(settings, store), host, family, more) as doorway:
            yield doorway


@contextlib.asynccontextmanager
async def _listening(settings, doorway, host, family, more):
    entry = settings.listen[0]
    await doorway.identity.start()
    server = web.Server(doorway.handle)
    sock = socket.socket(family)
    sock.bind((host, 0))
    doorway.port = sock.getsockname()[1]
    doorway.identity.listeners.opened(entry, sock.getsockname())
    doorway.tls = TlsContext(entry) if entry.url.startswith("https") else None
    doorway.admission = Admission(settings.limits)
    doorway.acceptor = listening = Acceptor(
        sock,
        lambda _slot, _deadline: server(),
        doorway.admission,
        proxies=Networks(entry.trusted_proxies),
        header=entry.proxy_protocol,
        tls=doorway.tls,
        **more,
    )
    try:
        yield doorway
    finally:
        listening.close()
        await server.shutdown(1)
        await listening.wait_closed()
        doorway.identity.close()


class Answer:
    """A raw HTTP answer."""

    def __init__(self, text):
        head, _, self.body = text.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = [tuple(line.split(": ", 1)) for line in lines[1:]]

    def json(self):
        import json

        return json.loads(self.body)

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


async def ask(
    port, *headers, method="GET", path="/who", body=b"", host=None, tls=None, first=b"", connect="127.0.0.1"
):
    """One request on a connection of its own, bytes as given: headers that a client library would not send, too.

    `first` goes out in the clear before anything else, TLS included.
    """
    reader, writer = await asyncio.open_connection(connect, port)
    try:
        if first:
            writer.write(first)
            await writer.drain()
        if tls is not None:
            await writer.start_tls(tls, server_hostname="localhost", ssl_handshake_timeout=5)
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {host or f'127.0.0.1:{port}'}",
            "Connection: close",
            *headers,
        ]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        writer.write("\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body)
        await writer.drain()
        async with asyncio.timeout(10):
            return Answer(await reader.read())
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError, asyncio.TimeoutError):
            await writer.wait_closed()


def client_tls(authority_file, certificate=None):
    """A client's context that trusts one authority; with a certificate of its own when one is given."""
    context = ssl.create_default_context(cafile=str(authority_file))
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def bearer(text):
    return f"Authorization: Bearer {text}"


def add_token(settings, user="alice", **more):
    file = TokenFile(os.path.join(settings.gateway.statedir, "tokens.json"))
    return file, *file.add(user, now=0.0, **more)


async def log_in(door, *headers, **options):
    secret = options.pop("secret", None) or door.identity.logins.make_link()
    body = json.dumps({"once": secret}).encode()
    return await ask(door.port, *headers, method="POST", path="/v1/login", body=body, **options)
