"""An identity provider for tests: its keys, the tokens it signs, and what becomes of them here."""

import asyncio
import contextlib
import json
import time

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from broker.secret import SecretPlace
from gateway import closes
from gateway.identity.jwt import Verifier
from gateway.identity.keys import JwtKeys
from gateway.principal import Denied
from gateway.settings.schema import JwtSection

ISSUER, AUDIENCE = "https://id.example.org", "headgate"
KEYS = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
ALGORITHMS = {
    "RS256": jwt.algorithms.RSAAlgorithm,
    "ES256": jwt.algorithms.ECAlgorithm,
    "EdDSA": jwt.algorithms.OKPAlgorithm,
}


def claims(**more):
    now = time.time()
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 60, "iat": now, "jti": "1"}
    return {name: value for name, value in {**said, **more}.items() if value is not None}


def signed(algorithm="EdDSA", key=None, headers=None, **more):
    """A token made by hand: a provider may say what a library would not."""
    body = json.dumps(claims(**more)).encode()
    return encoded(body, key or KEYS[algorithm], algorithm, headers)


def encoded(body, key, algorithm, headers):
    signing = jwt.PyJWS()
    with contextlib.suppress(ValueError):
        signing.register_algorithm("Ed25519", jwt.algorithms.OKPAlgorithm())
    return signing.encode(body, key, algorithm, headers=headers)


def jwk(key, algorithm, kid=None, **more):
    entry = ALGORITHMS[algorithm].to_jwk(key.public_key(), as_dict=True)
    return {**entry, **({"kid": kid} if kid else {}), **more}


def section(*keys, **more):
    said = {"issuer": ISSUER, "audience": AUDIENCE, "leeway_s": 0.0, **more}
    return JwtSection(keys=tuple(SecretPlace(str(key)) for key in keys), **said)


def verify(settings, *texts, clock=time.monotonic):
    """What comes of each token: a `Verified` or a `Denied`."""

    async def run():
        ring = JwtKeys(settings, clock=clock)
        await ring.start()
        verifier, found = Verifier(settings, ring), []
        for text in texts:
            try:
                found.append(await verifier.verify(text))
            except Denied as denied:
                found.append(denied)
        return found

    return asyncio.run(run())


def refusal(settings, text):
    (found,) = verify(settings, text)
    assert isinstance(found, Denied), found
    assert found.public == "credential refused"
    assert (found.status, found.close) == (401, closes.BAD_CREDENTIAL)
    assert text[-40:] not in str(found) or not text
    return str(found)
