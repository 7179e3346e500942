"""The one door, through real connections: tokens and JWTs, refusals, and what many of them cost."""

import asyncio
import errno

import pytest

from broker.errors import ConfigError
from gateway import closes
from gateway.identity.attempts import ADDRESSES, BURST, Attempts
from gateway.identity.login import COOKIE
from gateway.principal import Denied
from gateway.settings.schema import UserEntry
from tests.unit.gateway.identity.authority import public_pem
from tests.unit.gateway.identity.doorway import BOB, add_token, ask, bearer, open_door, settings_in
from tests.unit.gateway.identity.issuer import KEYS, section, signed

# ---------------------------------------------------------------- tokens and JWTs


def test_no_credential(state):
    async def run():
        async with open_door(settings_in(state)) as door:
            for headers in (
                [],
                ["Authorization: Basic YTpi"],
                [f"Cookie: {COOKIE}=ended; x=y"],
                ["Cookie: ="],
            ):
                answer = await ask(door.port, *headers)
                assert (answer.status, answer.json().get("name")) == (200, None)

    asyncio.run(run())


def test_a_token(state):
    settings = settings_in(state)
    _file, made, text = add_token(settings)

    async def run():
        async with open_door(settings) as door:
            for scheme in ("Bearer", "bearer", "BEARER"):
                found = (await ask(door.port, f"Authorization: {scheme} {text}")).json()
                assert (found["name"], found["userid"], found["roles"]) == ("alice", 1001, ["user"])
                assert (found["kind"], found["credential"]) == ("token", f"token:{made.id}")
            principal = await door.identity.authenticate_token(text, address="192.0.2.7")
            assert principal.name == "alice"

    asyncio.run(run())


@pytest.mark.parametrize(
    "headers",
    [
        [bearer("hgt_000000000000_wrong")],
        [bearer("x")],
        [bearer("a.b.c")],
        ["Authorization: Bearer"],
        ["Authorization: Bearer "],
        [bearer("x"), bearer("y")],
        [bearer("\udcff\udcfe")],
    ],
)
def test_bad_tokens(state, headers, caplog):
    async def run():
        async with open_door(settings_in(state)) as door:
            answer = await ask(door.port, *headers)
            assert answer.status == 401
            assert answer.json() == {"error": "credential refused", "close": closes.BAD_CREDENTIAL}

    asyncio.run(run())
    assert "refused 127.0.0.1" in caplog.text


def test_a_good_token_beside_a_bad_one_is_refused(state):
    settings = settings_in(state)
    text = add_token(settings)[2]

    async def run():
        async with open_door(settings) as door:
            assert (await ask(door.port, bearer(text), bearer("x"))).status == 401

    asyncio.run(run())


def test_the_log_has_the_reason_and_not_the_secret(state, caplog):
    settings = settings_in(state)
    _file, made, text = add_token(settings, "nobody")
    _file, old, expired = add_token(settings, expires=1.0)
    secret = text.split("_", 2)[2]

    async def run():
        async with open_door(settings) as door:
            assert (await ask(door.port, bearer(text))).json()["close"] == closes.NO_ROLE
            await ask(door.port, bearer(text[:-4]))
            await ask(door.port, bearer(expired))

    asyncio.run(run())
    assert "user 'nobody' is not in [[users]]" in caplog.text
    assert made.id in caplog.text
    assert f"token {old.id} of 'alice' expired" in caplog.text
    for each in (secret, secret[:-4], expired.split("_", 2)[2]):
        assert each not in caplog.text


def test_a_jwt(state, tmp_path):
    (tmp_path / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    settings = settings_in(state, jwt=section(tmp_path / "key.pem"))

    async def run():
        async with open_door(settings) as door:
            found = (await ask(door.port, bearer(signed()))).json()
            assert (found["name"], found["kind"], found["credential"]) == ("alice", "jwt", "jwt:1")
            assert (await ask(door.port, bearer(signed(sub="mallory")))).status == 403
            assert (await ask(door.port, bearer(signed(exp=1)))).status == 401
            # claims of roles are nobody's business unless they are trusted
            answer = await ask(door.port, bearer(signed(userid=0, roles=["owner"])))
            assert answer.json()["roles"] == ["user"]

    asyncio.run(run())


def test_trusted_claims_are_for_users_without_a_name_here(state, tmp_path):
    (tmp_path / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    settings = settings_in(state, jwt=section(tmp_path / "key.pem", trust_claims=True))

    async def run():
        async with open_door(settings) as door:
            found = (
                await ask(door.port, bearer(signed(sub="carol", userid=7, roles=["user", "owner"])))
            ).json()
            assert (found["name"], found["userid"], found["roles"]) == ("carol", 7, ["user"])
            found = (await ask(door.port, bearer(signed(userid=7, roles=["user"])))).json()
            assert (found["name"], found["userid"]) == ("alice", 1001)
            assert (await ask(door.port, bearer(signed(sub="carol")))).status == 403
            assert (
                await ask(door.port, bearer(signed(sub="carol", userid=7, roles=["owner"])))
            ).status == 403

    asyncio.run(run())


def test_keys_are_read_again_on_reload(state, tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(public_pem(KEYS["ES256"]))

    async def run():
        async with open_door(settings_in(state, jwt=section(path))) as door:
            assert (await ask(door.port, bearer(signed()))).status == 401
            path.write_bytes(public_pem(KEYS["EdDSA"]))
            assert await door.identity.reload() == []
            assert (await ask(door.port, bearer(signed()))).status == 200
            path.write_bytes(b"junk")
            (problem,) = await door.identity.reload()
            assert str(path) in problem
            assert (await ask(door.port, bearer(signed()))).status == 200

    asyncio.run(run())


# ---------------------------------------------------------------- many failures


def test_failures_are_slowed_down_and_lock_nobody_out(state, caplog):
    settings = settings_in(state)
    text = add_token(settings)[2]

    async def run():
        async with open_door(settings) as door:
            statuses = [(await ask(door.port, bearer(f"wrong{n}"))).status for n in range(BURST + 5)]
            assert statuses[:BURST] == [401] * BURST
            assert 429 in statuses[BURST:]
            assert (await ask(door.port, bearer(text))).status == 200  # same address, good credential
            with pytest.raises(Denied) as denied:
                for _ in range(3):
                    await door.identity.authenticate_token("x", address="127.0.0.1")
            assert denied.value.close == closes.BAD_CREDENTIAL  # it was checked: coming again is of no use
            assert denied.value.errno == (errno.EAGAIN if denied.value.status == 429 else errno.EPERM)
            assert door.identity.attempts.failed >= BURST + 6

    asyncio.run(run())
    assert caplog.text.count("refused 127.0.0.1") < BURST + 6


def test_attempts_are_counted_by_address_in_a_bounded_table():
    attempts = Attempts()
    for _ in range(BURST):
        assert attempts.fail("192.0.2.7", 0.0)[0]
    assert not attempts.fail("192.0.2.7", 0.0)[0]
    assert attempts.fail("192.0.2.8", 0.0)[0]
    for n in range(BURST):
        assert attempts.fail(f"2001:db8::{n}", 0.0)[0]
    assert not attempts.fail("2001:db8::ffff", 0.0)[0]  # the same /64
    assert attempts.fail("2001:db8:0:1::", 0.0)[0]
    assert attempts.fail("192.0.2.7", 1000.0)[0]  # forgiven
    for n in range(ADDRESSES * 2):
        attempts.fail(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 1000.0)
    assert len(attempts._buckets) == ADDRESSES
    assert attempts.silenced > ADDRESSES  # many addresses do not fill the log
    for odd in ("", "unknown", "x" * 10_000):
        assert attempts.fail(odd, 1000.0)[0]


def test_a_user_without_the_right_to_its_role_is_told_at_the_start(state):
    with pytest.raises(ConfigError, match="allow_owner"):
        asyncio.run(
            _open(settings_in(state, users=(BOB, UserEntry(name="root", userid=0, roles=("owner",)))))
        )


async def _open(settings):
    async with open_door(settings):
        pass
