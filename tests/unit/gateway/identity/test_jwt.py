"""JSON Web Tokens: signatures, times, names, and what an attacker writes into a header."""

import base64
import hashlib
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from gateway.identity.jwt import TOKEN_CHARS, credential_of, is_jwt
from gateway.settings.schema import JwtSection
from tests.tables import for_each
from tests.unit.gateway.identity.authority import public_pem
from tests.unit.gateway.identity.issuer import (
    AUDIENCE,
    ISSUER,
    KEYS,
    claims,
    jwk,
    refusal,
    section,
    signed,
    verify,
)


@pytest.fixture
def pems(tmp_path):
    for name, key in KEYS.items():
        (tmp_path / f"{name}.pem").write_bytes(public_pem(key))
    return [tmp_path / f"{name}.pem" for name in KEYS]


# ---------------------------------------------------------------- signatures


@for_each("algorithm", KEYS)
def test_each_algorithm(pems, algorithm):
    (found,) = verify(section(*pems), signed(algorithm))
    assert (found.name, found.credential) == ("alice", "jwt:1")
    assert found.expires == pytest.approx(time.time() + 60, abs=30)


@for_each("algorithm", KEYS)
def test_each_algorithm_with_another_key(pems, algorithm):
    other = {
        "RS256": lambda: rsa.generate_private_key(65537, 2048),
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
    }[algorithm]()
    assert "InvalidSignature" in refusal(section(*pems), signed(algorithm, other))


def test_ed25519_is_eddsa_by_its_new_name(tmp_path):
    """RFC 9864: in the token, in the document, in the settings."""
    path = tmp_path / "keys.json"
    for said in ({}, {"alg": "EdDSA"}, {"alg": "Ed25519"}):
        path.write_text(json.dumps({"keys": [jwk(KEYS["EdDSA"], "EdDSA", "1", **said)]}))
        settings, headers = section(path), {"kid": "1"}
        texts = [signed(name, KEYS["EdDSA"], headers=headers) for name in ("EdDSA", "Ed25519")]
        assert [found.name for found in verify(settings, *texts)] == ["alice", "alice"], said
    for name in ("EdDSA", "Ed25519"):
        found = verify(section(path, algorithms=(name,)), *texts)
        assert [getattr(each, "name", each) for each in found] == ["alice", "alice"], name
    assert "algorithm 'EdDSA', expected ES256" in refusal(section(path, algorithms=("ES256",)), texts[0])
    refusal(settings, signed("Ed25519", ed25519.Ed25519PrivateKey.generate(), headers=headers))


def test_algorithms_that_are_off(pems):
    settings = section(*pems, algorithms=("ES256",))
    assert "algorithm 'EdDSA'" in refusal(settings, signed("EdDSA"))
    assert verify(settings, signed("ES256"))[0].name == "alice"


def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@for_each("name", ["none", "None", "NONE", "nOnE", "", None, 7, [], {}])
def test_no_signature(pems, name):
    refusal(section(*pems), f"{part({'alg': name, 'typ': 'JWT'})}.{part(claims())}.")
    refusal(section(*pems), f"{part({'typ': 'JWT'})}.{part(claims())}.")


@for_each("algorithm", ["HS256", "HS384", "HS512"])
def test_a_public_key_is_no_secret(pems, algorithm):
    """Algorithm confusion: a token 'signed' with the text of our public key."""
    for path in pems:
        for secret in (path.read_bytes(), path.read_bytes().strip(), path.read_bytes().decode().encode()):
            body = f"{part({'alg': algorithm, 'typ': 'JWT'})}.{part(claims())}"
            digest = getattr(hashlib, f"sha{algorithm[2:]}")
            mac = (
                base64.urlsafe_b64encode(hmac.new(secret, body.encode(), digest).digest())
                .rstrip(b"=")
                .decode()
            )
            assert "algorithm" in refusal(section(*pems), f"{body}.{mac}")


def test_an_algorithm_does_not_reach_keys_of_another(tmp_path):
    (tmp_path / "rsa.pem").write_bytes(public_pem(KEYS["RS256"]))
    assert "no key" in refusal(section(tmp_path / "rsa.pem"), signed("EdDSA"))
    assert "no key" in refusal(section(tmp_path / "rsa.pem"), signed("ES256"))
    for algorithm in ("PS256", "RS512"):
        assert "algorithm" in refusal(section(tmp_path / "rsa.pem"), signed(algorithm, KEYS["RS256"]))


def test_a_key_in_the_header_is_not_looked_at(pems):
    mine = ed25519.Ed25519PrivateKey.generate()
    for headers in (
        {"jwk": jwk(mine, "EdDSA")},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "http://127.0.0.1:1/", "kid": "../../../dev/null"},
    ):
        refusal(section(*pems), signed("EdDSA", mine, headers=headers))


@for_each("headers", [{"crit": ["exp"]}, {"crit": []}, {"crit": ["b64"], "b64": False}])
def test_critical_extensions_are_refused(pems, headers):
    text = jwt.encode(claims(), KEYS["EdDSA"], "EdDSA")
    _head, body, _ = text.split(".")
    made = f"{part({'alg': 'EdDSA', **headers})}.{body}"
    signature = base64.urlsafe_b64encode(KEYS["EdDSA"].sign(made.encode())).rstrip(b"=").decode()
    refusal(section(*pems), f"{made}.{signature}")


# ---------------------------------------------------------------- claims


@for_each("name", ["exp", "iss", "aud", "sub"])
def test_required_claims(pems, name):
    assert f'missing the "{name}" claim' in refusal(section(*pems), signed(**{name: None}))


@for_each(
    ("more", "said"),
    [
        ({"exp": time.time() - 1}, " s ago"),
        ({"nbf": time.time() + 1e6}, "after now on"),
        ({"iat": time.time() + 1e6}, "after now on"),
        ({"iss": "https://evil.example"}, "InvalidIssuer"),
        ({"iss": [ISSUER]}, "InvalidIssuer"),
        ({"aud": "other"}, "InvalidAudience"),
        ({"aud": ["other"]}, "InvalidAudience"),
        ({"aud": []}, "MissingRequiredClaim"),
        ({"aud": 7}, "InvalidAudience"),
        ({"exp": "soon"}, ""),
        ({"exp": float("inf")}, ""),
        ({"exp": float("nan")}, ""),
        ({"exp": [1]}, ""),
        ({"exp": True}, ""),
        ({"sub": 7}, ""),
        ({"sub": ""}, "names no user"),
        ({"sub": "a\nb"}, "names no user"),
        ({"sub": "x" * 300}, "names no user"),
    ],
)
def test_claims_that_are_wrong(pems, more, said):
    assert said in refusal(section(*pems), signed(**more))


def test_an_audience_among_several(pems):
    (found,) = verify(section(*pems), signed(aud=["other", AUDIENCE]))
    assert found.name == "alice"


def test_leeway(pems):
    settings = section(*pems, leeway_s=30.0)
    late = time.time() - 5
    (found,) = verify(settings, signed(exp=late))
    assert found.expires == pytest.approx(late, abs=0.01)
    refusal(settings, signed(exp=time.time() - 40))


def test_the_user_may_be_another_claim(pems):
    settings = section(*pems, user_claim="email")
    (found,) = verify(settings, signed(email="alice@example.org"))
    assert found.name == "alice@example.org"
    assert "names no user" in refusal(settings, signed())
    # who is named by another claim needs no subject, nor one that is a text
    for sub in (None, 7):
        (found,) = verify(settings, signed(email="alice@example.org", sub=sub, jti=7))
        assert found.name == "alice@example.org"
    (found,) = verify(section(*pems, user_claim="who.name"), signed(sub=None, who={"name": "alice"}))
    assert found.name == "alice"


@for_each(
    ("said", "taken"),
    [
        ({}, True),
        (True, True),
        ("true", True),
        ("True", True),
        (False, False),
        ("false", False),
        (None, False),
        (1, False),
    ],
)
def test_an_address_that_was_not_verified_is_nobody(pems, said, taken):
    settings = section(*pems, user_claim="email")
    body = {"email": "a@b.c", **({} if said == {} else {"email_verified": said})}
    if taken:
        assert verify(settings, signed(**body))[0].name == "a@b.c"
    elif said is not None:  # which a token of these tests leaves out
        assert f"email_verified is {said!r}, expected true" in refusal(settings, signed(**body))


def test_a_token_without_jti_is_named_by_the_hash_of_what_is_signed():
    assert credential_of("a.b.c", {"jti": "x"}) == "jwt:x"
    named = {
        credential_of(text, {"jti": jti})
        for text in ("a.b.c", "a.b.other", "a.c.c")
        for jti in (None, 7, "", "x" * 999)
    }
    assert named == {f"jwt:sha256:{hashlib.sha256(text).hexdigest()}" for text in (b"a.b", b"a.c")}


@for_each(
    "text",
    [
        "",
        "..",
        "a.b.c",
        "e30.e30.e30",
        "\udcff.a.b",
        "é.a.b",
        "a" * (TOKEN_CHARS + 1),
        base64.urlsafe_b64encode(b"[" * 5000).decode().rstrip("=") + ".a.b",
        base64.urlsafe_b64encode(b'{"alg":' * 900).decode().rstrip("=") + ".a.b",
        base64.urlsafe_b64encode(b'{"alg":"EdDSA","kid":7}').decode().rstrip("=") + ".a.b",
        base64.urlsafe_b64encode(b"7").decode().rstrip("=") + ".a.b",
    ],
)
def test_junk(pems, text):
    refusal(section(*pems), text)


def test_without_keys_no_jwt_is_accepted():
    assert "jwt.keys is empty" in refusal(JwtSection(), signed())


def test_shapes():
    assert is_jwt("a.b.c")
    assert not is_jwt("hgt_1_a")
    assert not is_jwt("a.b")
    assert not is_jwt("a.b.c.d.e")  # encrypted
