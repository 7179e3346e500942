"""The public keys for JWTs: files, documents, a provider that rotates them or fails."""

import asyncio
import contextlib
import json

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from broker.errors import ConfigError
from gateway.identity.fetching import ANSWER_BYTES
from gateway.identity.jwt import Verifier
from gateway.identity.keys import UNKNOWN_KID_S, JwtKeys, parse_document, parse_pem, read_file
from gateway.principal import Denied
from tests.tables import for_each
from tests.unit.gateway.identity.authority import Authority, common, pem, public_pem
from tests.unit.gateway.identity.issuer import ALGORITHMS, KEYS, jwk, section, signed, verify

# ---------------------------------------------------------------- keys


def test_pem_files(tmp_path):
    _text, certificate = Authority().leaf(common("signer"))
    from cryptography.hazmat.primitives.serialization import Encoding

    both = public_pem(KEYS["EdDSA"]) + b"comment\n" + certificate.public_bytes(Encoding.PEM)
    assert [key.algorithm for key in parse_pem(both)] == ["EdDSA", "ES256"]


@for_each(
    "text",
    [
        b"",
        b"junk",
        pem(KEYS["EdDSA"]),
        public_pem(rsa.generate_private_key(65537, 1024)),
        public_pem(ec.generate_private_key(ec.SECP384R1())),
        public_pem(ed448.Ed448PrivateKey.generate()),
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
    ],
)
def test_pem_that_cannot_be_used(text, tmp_path):
    with pytest.raises(ValueError):
        parse_pem(text)
    (tmp_path / "bad.pem").write_bytes(text)

    with pytest.raises(ConfigError, match=r"bad\.pem"):
        asyncio.run(JwtKeys(section(tmp_path / "bad.pem")).start())


def test_a_missing_key_file_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.pem"):
        asyncio.run(JwtKeys(section(tmp_path / "no.pem")).start())


def test_documents_hold_what_can_be_used_and_the_rest_is_left_out():
    good = [jwk(key, algorithm, kid=algorithm) for algorithm, key in KEYS.items()]
    others = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "oct", "alg": "HS256"},
        jwk(KEYS["RS256"], "RS256", kid="enc", use="enc"),
        jwk(KEYS["RS256"], "RS256", kid="signs", key_ops=["sign"]),
        jwk(KEYS["RS256"], "RS256", kid="ps", alg="PS256"),
        jwk(KEYS["RS256"], "RS256", kid="hs", alg="HS256"),
        jwk(rsa.generate_private_key(65537, 1024), "RS256", kid="short"),
        jwk(ec.generate_private_key(ec.SECP384R1()), "ES256", kid="p384"),
        ALGORITHMS["EdDSA"].to_jwk(KEYS["EdDSA"], as_dict=True),  # a private key
        {"kty": "RSA", "n": "!", "e": "AQAB"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": ["RSA"]},
        {},
        7,
        None,
    ]
    good.append(jwk(KEYS["EdDSA"], "EdDSA", kid="new", alg="Ed25519"))  # RFC 9864
    left_out = []
    found = parse_document(json.dumps({"keys": [*others, *good]}).encode(), left_out.append)
    assert [(key.kid, key.algorithm) for key in found] == [
        *((algorithm, algorithm) for algorithm in KEYS),
        ("new", "EdDSA"),
    ]
    assert len(left_out) == len(others)
    for told, why in zip(
        left_out,
        [
            "'oct': key type 'oct'",
            "'enc': use 'enc'",
            "'signs': key_ops",
            "'ps': alg 'PS256', expected RS256 for",
            "'hs': alg 'HS256'",
            "'short': an RSA key of 1024 bits",
            "'p384': ",
            "key 7: a private key",
            "key 8: ",
            "key 9: ",
            "key 10: key type",
            "key 11: key type 'None'",
            "key 12: it is no object",
            "key 13: it is no object",
        ],
        strict=True,
    ):
        assert why in told


async def test_a_key_that_is_left_out_is_told_once(caplog):
    async with provider() as made:
        made.keys = [jwk(KEYS["EdDSA"], "EdDSA", "1"), {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"}]
        ring = JwtKeys(section(made.address))
        await ring.start()
        await ring.refresh()
        made.keys.append({"kty": "AKP", "kid": "pq", "alg": "ML-DSA-44"})
        await ring.refresh()
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert told == [
        "keys of JWTs: key 'secret': key type 'oct' is left out",
        "keys of JWTs: key 'pq': key type 'AKP' is left out",
    ]


@for_each(
    "text",
    [b"", b"{", b"{}", b"[]", b'{"keys":{}}', b'{"keys":[]}', b'{"keys":[7]}', b"[" * 100_000, b"\xff"],
)
def test_what_is_no_document(text):
    with pytest.raises(ValueError):
        parse_document(text)


def test_a_key_of_an_object_that_stands_twice_is_none_of_ours():
    """Readers differ in which of the two they take: what one of them checked, another would use."""
    good = json.dumps(jwk(KEYS["EdDSA"], "EdDSA", "1"))
    assert parse_document(f'{{"keys":[{good}]}}'.encode())
    with pytest.raises(ValueError, match="each key once"):
        parse_document(f'{{"keys":[],"keys":[{good}]}}'.encode())


def test_documents_in_files(tmp_path):
    path = tmp_path / "a b.json"
    path.write_text(json.dumps({"keys": [jwk(KEYS["EdDSA"], "EdDSA", "1")]}))
    assert read_file(str(path)) == read_file(path.as_uri())
    (found,) = verify(section(path.as_uri()), signed(headers={"kid": "1"}))
    assert found.name == "alice"
    path.write_bytes(b"x" * (ANSWER_BYTES + 1))
    with pytest.raises(ValueError, match="more than"):
        read_file(str(path))


@for_each("address", ["http://id.example.org/keys", "ftp://id.example.org/keys", "http://127.0.0.1.x/"])
def test_addresses_that_are_refused(address):
    with pytest.raises(ConfigError, match=r"jwt\.keys"):
        JwtKeys(section(address))


# ---------------------------------------------------------------- a provider that rotates its keys


class Provider:
    """A web server with a JWKS document."""

    def __init__(self):
        self.asked = 0
        self.keys = []
        self.answer = None
        self.address = ""

    async def handle(self, request):
        self.asked += 1
        if self.answer is not None:
            return await self.answer(request)
        return web.json_response({"keys": self.keys})


@contextlib.asynccontextmanager
async def provider():
    made = Provider()
    server = web.Server(made.handle)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    made.address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/keys"
    try:
        yield made
    finally:
        listening.close()
        await server.shutdown(0.1)
        await listening.wait_closed()


async def outcome(verifier, text):
    try:
        return (await verifier.verify(text)).name
    except Denied as denied:
        return denied


async def test_keys_rotate():
    old, new = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
    now = [0.0]
    async with provider() as made:
        made.keys = [jwk(old, "EdDSA", "old")]
        settings = section(made.address)
        ring = JwtKeys(settings, clock=lambda: now[0])
        verifier = Verifier(settings, ring)
        await ring.start()
        by_old = signed(key=old, headers={"kid": "old"})
        by_new = signed(key=new, headers={"kid": "new"})
        assert await outcome(verifier, by_old) == "alice"
        made.keys = [jwk(old, "EdDSA", "old"), jwk(new, "EdDSA", "new")]
        now[0] += UNKNOWN_KID_S - 1
        assert isinstance(await outcome(verifier, by_new), Denied)  # asked a moment ago
        assert made.asked == 1
        now[0] += 1
        assert await asyncio.gather(*(outcome(verifier, by_new) for _ in range(20))) == ["alice"] * 20
        assert made.asked == 2  # once for all of them
        assert await outcome(verifier, by_old) == "alice"
        made.keys = [jwk(new, "EdDSA", "new")]
        await ring.refresh()
        assert await outcome(verifier, by_new) == "alice"
        assert isinstance(await outcome(verifier, by_old), Denied)
        # the name of a key does not make it another one
        assert isinstance(await outcome(verifier, signed(key=old, headers={"kid": "new"})), Denied)
        # without a name all are tried
        assert await outcome(verifier, signed(key=new)) == "alice"


async def test_a_client_that_leaves_does_not_keep_a_fresh_key_from_others():
    now = [0.0]
    async with provider() as made:
        made.keys = [jwk(KEYS["EdDSA"], "EdDSA", "old")]
        ring = JwtKeys(section(made.address), clock=lambda: now[0])
        await ring.start()
        verifier, token = Verifier(section(made.address), ring), signed(headers={"kid": "new"})
        made.keys = [jwk(KEYS["EdDSA"], "EdDSA", "new")]
        now[0] += UNKNOWN_KID_S
        leaving = asyncio.get_running_loop().create_task(outcome(verifier, token), name="leaving")
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert await outcome(verifier, token) == "alice"
        assert made.asked == 2
        ring.close()


def test_invented_key_names_do_not_make_us_ask_all_day():
    now = [0.0]

    async def run():
        async with provider() as made:
            made.keys = [jwk(KEYS["EdDSA"], "EdDSA", "1")]
            settings = section(made.address)
            ring = JwtKeys(settings, clock=lambda: now[0])
            await ring.start()
            verifier = Verifier(settings, ring)
            for n in range(50):
                now[0] += 1
                await outcome(verifier, signed(headers={"kid": f"invented {n}"}))
            return made.asked

    assert asyncio.run(run()) == 1 + 50 // UNKNOWN_KID_S


async def _status(request):
    return web.json_response({"keys": []}, status=500)


async def _redirect(request):
    raise web.HTTPFound("/elsewhere")


async def _junk(request):
    return web.Response(text="<html>")


async def _empty(request):
    return web.json_response({"keys": []})


async def _huge(request):
    return web.Response(body=b" " * (ANSWER_BYTES + 1))


async def _endless(request):
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for _ in range(64):
            await response.write(b" " * 65536)
    return response


async def _cut(request):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"keys":')
    request.transport.abort()
    return response


@for_each("answer", [_status, _redirect, _junk, _empty, _huge, _endless, _cut])
async def test_a_provider_that_fails_leaves_the_keys_that_were_read(answer):
    async with provider() as made:
        made.keys = [jwk(KEYS["EdDSA"], "EdDSA", "1")]
        settings = section(made.address)
        ring = JwtKeys(settings)
        await ring.start()
        made.answer = answer
        problems = await ring.refresh()
        assert [problem.address for problem in problems] == [made.address]
        assert await outcome(Verifier(settings, ring), signed(headers={"kid": "1"})) == "alice"


async def test_a_provider_that_is_not_there_yet():
    async with provider() as made:
        settings = section(made.address)
    ring = JwtKeys(settings)  # its port is closed now
    await ring.start()
    assert isinstance(await outcome(Verifier(settings, ring), signed()), Denied)
