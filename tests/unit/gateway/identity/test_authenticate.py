"""The one door, through real connections: tokens and JWTs, refusals, and what many of them cost."""

import errno
import time

import pytest
from msgspec.structs import replace

from broker.errors import ConfigError
from broker.rates import USERS_MAX
from gateway import closes
from gateway.identity.authenticate import BURST, Attempts
from gateway.identity.login import LOGIN_COOKIE, UserLogins
from gateway.identity.oidc import Account
from gateway.principal import Denied
from gateway.settings.schema import GatewaySettings, OidcEntry, UserEntry
from tests.tables import for_each
from tests.unit.gateway.identity.authority import public_pem
from tests.unit.gateway.identity.doorway import BOB, add_token, ask, bearer, settings_in
from tests.unit.gateway.identity.issuer import KEYS, section, signed

# ---------------------------------------------------------------- tokens and JWTs


async def test_no_credential(open_door, state):
    door = await open_door(settings_in(state))
    for headers in (
        [],
        ["Authorization: Basic YTpi"],
        [f"Cookie: {LOGIN_COOKIE.name}=ended; x=y"],
        ["Cookie: ="],
    ):
        answer = await ask(door.port, *headers)
        assert (answer.status, answer.json().get("name")) == (200, None)


async def test_a_token(open_door, state):
    settings = settings_in(state)
    _file, made, text = add_token(settings)
    door = await open_door(settings)
    for scheme in ("Bearer", "bearer", "BEARER"):
        found = (await ask(door.port, f"Authorization: {scheme} {text}")).json()
        assert (found["name"], found["userid"], found["roles"]) == ("alice", 1001, ["user"])
        assert (found["kind"], found["credential"]) == ("token", f"token:{made.id}")
    principal = await door.identity.authenticate_token(text, address="192.0.2.7")
    assert principal.name == "alice"


@for_each(
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
async def test_bad_tokens(open_door, state, headers, caplog):
    caplog.clear()
    door = await open_door(settings_in(state))
    answer = await ask(door.port, *headers)
    assert answer.status == 401
    assert answer.json() == {"error": "credential refused", "close": closes.BAD_CREDENTIAL}
    assert "refused 127.0.0.1" in caplog.text


async def test_a_good_token_beside_a_bad_one_is_refused(open_door, state):
    settings = settings_in(state)
    text = add_token(settings)[2]
    door = await open_door(settings)
    assert (await ask(door.port, bearer(text), bearer("x"))).status == 401


async def test_the_log_has_the_reason_and_not_the_secret(open_door, state, caplog):
    settings = settings_in(state)
    _file, made, text = add_token(settings, "nobody")
    _file, old, expired = add_token(settings, expires=1.0)
    secret = text.split("_", 2)[2]
    door = await open_door(settings)
    assert (await ask(door.port, bearer(text))).json()["close"] == closes.NO_ROLE
    await ask(door.port, bearer(text[:-4]))
    await ask(door.port, bearer(expired))
    assert "user 'nobody' is not in [[users]]" in caplog.text
    assert made.id in caplog.text
    assert f"token {old.id} of 'alice' expired" in caplog.text
    for each in (secret, secret[:-4], expired.split("_", 2)[2]):
        assert each not in caplog.text


async def test_a_jwt(open_door, state, tmp_path):
    (tmp_path / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    settings = settings_in(state, jwt=section(tmp_path / "key.pem"))
    door = await open_door(settings)
    found = (await ask(door.port, bearer(signed()))).json()
    assert (found["name"], found["kind"], found["credential"]) == ("alice", "jwt", "jwt:1")
    assert (await ask(door.port, bearer(signed(sub="mallory")))).status == 403
    assert (await ask(door.port, bearer(signed(exp=1)))).status == 401
    # claims of roles are nobody's business unless they are trusted
    answer = await ask(door.port, bearer(signed(userid=0, roles=["owner"])))
    assert answer.json()["roles"] == ["user"]


async def test_trusted_claims_are_for_users_without_a_name_here(open_door, state, tmp_path):
    (tmp_path / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    settings = settings_in(state, jwt=section(tmp_path / "key.pem", trust_claims=True))
    door = await open_door(settings)
    found = (await ask(door.port, bearer(signed(sub="carol", userid=7, roles=["user", "owner"])))).json()
    assert (found["name"], found["userid"], found["roles"]) == ("carol", 7, ["user"])
    found = (await ask(door.port, bearer(signed(userid=7, roles=["user"])))).json()
    assert (found["name"], found["userid"]) == ("alice", 1001)
    assert (await ask(door.port, bearer(signed(sub="carol")))).status == 403
    assert (await ask(door.port, bearer(signed(sub="carol", userid=7, roles=["owner"])))).status == 403


async def test_a_userid_of_claims_is_one_persons(open_door, state, tmp_path):
    (tmp_path / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    door = await open_door(settings_in(state, jwt=section(tmp_path / "key.pem", trust_claims=True)))

    async def status(name, userid, **claims):
        said = bearer(signed(sub=name, userid=userid, roles=["user"], **claims))
        return (await ask(door.port, said)).status

    door.store.revoke("jwt:lost", time.time() + 60)
    assert await status("mallory", 7001, jti="lost") == 401, "who may not come in takes none"
    assert [await status(name, 7001) for name in ("carol", "dave", "carol")] == [200, 403, 200]
    assert await status("dave", 7002) == 200
    assert [await status("dave", 7001), await status("erin", 7002)] == [403, 403], "the own one stays"
    carol = Account("corp:carol", {"userid": 7001})
    provider = OidcEntry(
        name="corp",
        issuer="https://id",
        client_id="x",
        url="https://gate",
        userid_claim="uid",
        roles=("user",),
    )
    logins = UserLogins(
        GatewaySettings(oidc=(provider,)),
        door.store,
        time.monotonic,
        users=lambda: door.identity.users,
        ended=lambda *_: False,
    )
    assert (await logins.by_provider("corp", carol)).principal.userid not in (7001, 7002)

    class Away:
        async def take_userid(self, _userid, _who):
            return None

    door.identity.user_logins.elsewhere = Away()
    assert [await status("carol", 7001), await status("erin", 7003)] == [200, 503]


@for_each("change", ["revoked", "no user any more"])
async def test_what_changed_while_other_gateways_were_asked_for_a_userid_counts(
    open_door, state, tmp_path, change
):
    """A session that refreshes its token is judged by nobody else: what the check let in stays until it ends."""
    (tmp_path / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    settings = settings_in(state, jwt=section(tmp_path / "key.pem", trust_claims=True))
    door = await open_door(settings)

    class Meanwhile:
        async def take_userid(self, _userid, _who):
            if change == "revoked":
                door.store.revoke("jwt:1", time.time() + 60)
            else:  # the settings name somebody else of this userid now
                door.identity.set_users(replace(settings, users=(replace(BOB, userid=7),)))
            return True

    door.identity.user_logins.elsewhere = Meanwhile()
    with pytest.raises(Denied):
        await door.identity.authenticate_token(signed(sub="carol", userid=7, roles=["user"]), address="x")


async def test_a_userid_that_is_shared_is_told(open_door, state, caplog):
    twins = tuple(UserEntry(name=name, userid=7) for name in ("ann", "bob"))
    door = await open_door(settings_in(state, users=twins))
    assert caplog.text.count("userid 7 is shared by 'ann', 'bob'") == 1
    door.identity.set_users(settings_in(state))
    door.identity.set_users(settings_in(state, users=twins))
    assert caplog.text.count("userid 7 is shared by 'ann', 'bob'") == 2


async def test_keys_are_read_again_on_reload(open_door, state, tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(public_pem(KEYS["ES256"]))
    door = await open_door(settings_in(state, jwt=section(path)))
    assert (await ask(door.port, bearer(signed()))).status == 401
    path.write_bytes(public_pem(KEYS["EdDSA"]))
    assert await door.identity.reload() == []
    assert (await ask(door.port, bearer(signed()))).status == 200
    path.write_bytes(b"junk")
    (problem,) = await door.identity.reload()
    assert str(path) in problem
    assert (await ask(door.port, bearer(signed()))).status == 200


# ---------------------------------------------------------------- many failures


async def test_failures_are_slowed_down_and_lock_nobody_out(open_door, state, caplog):
    settings = settings_in(state)
    text = add_token(settings)[2]
    door = await open_door(settings)
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
    while attempts.fail("192.0.2.7", 1000.0)[0]:
        pass
    for n in range(USERS_MAX * 2):
        attempts.fail(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 1000.0)
    assert attempts.fail("192.0.2.7", 1000.0)[0]  # forgotten, for it failed longest ago
    assert attempts.silenced > USERS_MAX  # many addresses do not fill the log
    for odd in ("", "unknown", "x" * 10_000):
        assert attempts.fail(odd, 1000.0)[0]


async def test_a_user_without_the_right_to_its_role_is_told_at_the_start(open_door, state):
    root = UserEntry(name="root", userid=0, roles=("owner",))
    with pytest.raises(ConfigError, match="allow_owner"):
        await open_door(settings_in(state, users=(BOB, root)))
