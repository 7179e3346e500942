"""An identity provider of this process, whose faults a test may choose: OpenID Connect, as far as a client sees it."""

import asyncio
import base64
import hashlib
import json
import secrets
from urllib.parse import parse_qs, urlsplit

from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ed25519

from gateway.identity.oidc import Providers
from gateway.identity.proxies import Client
from gateway.settings.schema import OidcEntry, OidcGroup
from tests.unit.gateway.identity.issuer import encoded, jwk

HERE = Client("127.0.0.1", "127.0.0.1", "http", local=True, loopback_listener=True)
URL = "http://127.0.0.1:8280"


class Idp:
    """The provider; what it says is in attributes, for tests to change.

    Attributes:
        metadata, claims, userinfo: put over what it would say; a value of None takes away.
        answers: path -> a handler that takes its place.
        asked: paths that were asked for.
    """

    def __init__(self, wall):
        self.wall = wall
        self.issuer = ""
        self.metadata, self.claims, self.userinfo = {}, {}, None
        self.answers, self.asked, self.codes = {}, [], {}
        self.secret = None
        self.algorithm = "EdDSA"
        self.rotate()

    def rotate(self):
        self.key, self.kid = ed25519.Ed25519PrivateKey.generate(), secrets.token_hex(4)

    async def serve(self, aiohttp_server):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.issuer = str((await aiohttp_server(app)).make_url("/")).rstrip("/")

    async def _answer(self, request):
        self.asked.append(request.path)
        if request.path in self.answers:
            return await self.answers[request.path](request)
        if request.path == "/.well-known/openid-configuration":
            return web.json_response(self._metadata())
        if request.path == "/keys":
            return web.json_response({"keys": [jwk(self.key, "EdDSA", self.kid, alg=self.algorithm)]})
        if request.path == "/userinfo":
            return web.json_response(self.userinfo)
        return await self._token(request)

    def _metadata(self):
        said = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            **({"userinfo_endpoint": f"{self.issuer}/userinfo"} if self.userinfo is not None else {}),
            **self.metadata,
        }
        return {name: value for name, value in said.items() if value is not None}

    def approve(self, url, **more):
        """Somebody logs in at the address a browser was sent to; returns the answer's query."""
        asked = {name: value for name, (value,) in parse_qs(urlsplit(url).query).items()}
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        said = {"code": code, "state": asked["state"], "iss": self.issuer, **more}
        return {name: value for name, value in said.items() if value is not None}

    async def _token(self, request):
        form = await request.post()
        asked = self.codes.pop(form["code"], None)
        if self.secret is not None:
            pair = base64.b64encode(f"headgate:{self.secret}".encode()).decode()
            if request.headers.get("Authorization") != f"Basic {pair}":
                return web.json_response({"error": "invalid_client"}, status=401)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        proof = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or (proof, form["redirect_uri"]) != (asked["code_challenge"], asked["redirect_uri"]):
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"id_token": self.id_token(asked["nonce"]), "access_token": "at"})

    def id_token(self, nonce):
        now = self.wall()
        said = {"iss": self.issuer, "aud": "headgate", "sub": "alice", "iat": now, "exp": now + 60}
        said = {**said, "nonce": nonce, "groups": ["ops"], **self.claims}
        body = json.dumps({name: value for name, value in said.items() if value is not None})
        return encoded(body.encode(), self.key, self.algorithm, {"kid": self.kid})

    def entry(self, name="corp", **more):
        groups = (OidcGroup(group="ops", roles=("admin",)), OidcGroup(group="staff", roles=("user",)))
        said = {"title": "Example Corp", "client_id": "headgate", "url": URL, "groups": groups, **more}
        return OidcEntry(name=name, issuer=said.pop("issuer", self.issuer), **said)


class Wall:
    """A wall clock, and one that never goes back, which a test may set."""

    def __init__(self):
        self.now = 1_800_000_000.0
        self.clock = 100.0

    def __call__(self):
        return self.now

    def on(self, seconds):
        self.now += seconds
        self.clock += seconds


async def log_in(providers, idp, name="corp", **more):
    """Begin, approve, come back: who that is."""
    url, cookie = await providers.begin(name, HERE)
    return await providers.finish(name, idp.approve(url, **more), cookie, HERE)


def providers_of(store, wall, *entries):
    return Providers(entries, store, lambda: wall.clock)


def hang():
    """An answer that never comes, and what lets it go."""
    gate = asyncio.Event()

    async def answer(request):
        await gate.wait()
        return web.Response()

    return answer, gate
