"""What ends what: removed tokens, revocations, files that go bad while the gateway runs."""

import asyncio

import pytest

from broker.errors import ConfigError
from gateway import closes
from gateway.identity import authenticate as room
from gateway.identity.login import LOGIN_COOKIE
from gateway.identity.store import Store
from gateway.principal import Denied, unavailable
from tests.unit.gateway.identity.authority import public_pem
from tests.unit.gateway.identity.doorway import OWNER, add_token, ask, bearer, log_in, settings_in
from tests.unit.gateway.identity.issuer import KEYS, section, signed


async def changed_within(door, call):
    """Whether `Authenticator.run` reports a change that `call` makes."""
    told = asyncio.Event()
    task = asyncio.get_running_loop().create_task(door.identity.run(told.set), name="identity")
    try:
        await asyncio.sleep(0)
        call()
        async with asyncio.timeout(20):
            await told.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(room, "POLL_S", 0.01)


@pytest.mark.usefixtures("quick")
async def test_a_removed_token_ends_its_sessions(open_door, state):
    settings = settings_in(state)
    file, made, text = add_token(settings)
    other = add_token(settings)[2]
    door = await open_door(settings)
    principal = await door.identity.authenticate_token(text, address="x")
    stays = await door.identity.authenticate_token(other, address="x")
    assert not door.identity.revoked(principal)
    await changed_within(door, lambda: file.remove(lambda each: each.id == made.id))
    assert door.identity.revoked(principal)
    assert not door.identity.revoked(stays)


@pytest.mark.usefixtures("quick")
async def test_a_revocation_of_another_worker_ends_sessions_and_is_refused(open_door, state, tmp_path):
    (tmp_path / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    settings = settings_in(state, jwt=section(tmp_path / "key.pem"), workers=2)
    door = await open_door(settings)
    text = signed()
    principal = await door.identity.authenticate_token(text, address="x")
    another = Store(state)
    await changed_within(door, lambda: another.revoke(principal.credential, principal.expires))
    another.close()
    assert door.identity.revoked(principal)
    with pytest.raises(Denied, match="was revoked"):
        await door.identity.authenticate_token(text, address="x")
    fresh = await door.identity.authenticate_token(signed(jti="2"), address="x")
    assert not door.identity.revoked(fresh)


@pytest.mark.usefixtures("quick")
async def test_a_change_that_a_newcomer_noticed_first_is_told_all_the_same(open_door, state):
    settings = settings_in(state)
    text = add_token(settings)[2]
    door = await open_door(settings)
    door.identity.poll()
    door.store.revoke("jwt:x", 1e12)
    await door.identity.authenticate_token(text, address="x")
    assert door.identity.poll()
    assert not door.identity.poll()


@pytest.mark.usefixtures("quick")
async def test_a_change_that_could_not_be_acted_on_is_told_again(open_door, state, caplog):
    door = await open_door(settings_in(state))
    times = []

    def changed():
        times.append(1)
        if len(times) == 1:
            raise RuntimeError("a fault of ours")
        done.set()

    done = asyncio.Event()
    task = asyncio.get_running_loop().create_task(door.identity.run(changed), name="identity")
    door.store.revoke("jwt:x", 1e12)
    async with asyncio.timeout(20):
        await done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "a fault of ours" in caplog.text


async def test_a_bad_database_lets_nobody_in(open_door, state):
    settings = settings_in(state, access=OWNER)
    text = add_token(settings)[2]
    door = await open_door(settings)
    with door.store.writing() as base:
        base.execute("ALTER TABLE revocations RENAME TO gone")
        base.execute("ALTER TABLE change RENAME TO gone_too")
    for headers in ([bearer(text)], [f"Cookie: {LOGIN_COOKIE.name}=x", bearer(text)]):
        answer = await ask(door.port, *headers)
        assert (answer.status, answer.json()["close"]) == (503, closes.BUSY)


@pytest.mark.usefixtures("quick")
async def test_a_token_file_that_goes_bad_is_told_once(open_door, state, caplog):
    settings = settings_in(state)
    file, _made, text = add_token(settings)
    door = await open_door(settings)
    task = asyncio.get_running_loop().create_task(door.identity.run(lambda: None), name="identity")
    file.path.write_text("{")
    assert (await ask(door.port, bearer(text))).status == 200
    for _ in range(2000):
        if "not a token file" in caplog.text:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert len(await door.identity.reload()) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.text.count("not a token file") == 1


async def test_every_kind_can_be_revoked(open_door, state, tmp_path):
    (tmp_path / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    settings = settings_in(state, jwt=section(tmp_path / "key.pem"), access=OWNER)
    text = add_token(settings)[2]
    door = await open_door(settings)
    answer = await log_in(door, f"Origin: http://127.0.0.1:{door.port}")
    assert answer.status == 200
    value = answer.header("Set-Cookie").split("; ")[0].partition("=")[2]
    for credential in (text, signed()):
        principal = await door.identity.authenticate_token(credential, address="x")
        door.identity.revoke(principal)
        door.identity.poll()
        assert door.identity.revoked(principal)
        with pytest.raises(Denied):
            await door.identity.authenticate_token(credential, address="x")
    found = (await ask(door.port, f"Cookie: {LOGIN_COOKIE.name}={value}")).json()
    from gateway.identity.users import link_principal

    principal = link_principal("owner", credential=found["credential"], expires=0.0)
    assert not door.identity.revoked(principal)
    door.identity.revoke(principal)
    assert door.identity.revoked(principal)
    assert "name" not in (await ask(door.port, f"Cookie: {LOGIN_COOKIE.name}={value}")).json()


@pytest.mark.usefixtures("quick")
async def test_a_store_that_cannot_be_read_ends_no_rounds(open_door, state, caplog, monkeypatch):
    def locked():
        raise unavailable("database is locked")

    settings = settings_in(state, workers=2)
    door = await open_door(settings)
    told = asyncio.Event()
    task = asyncio.get_running_loop().create_task(door.identity.run(told.set), name="identity")
    holder = Store(state)
    with monkeypatch.context() as patched:
        patched.setattr(door.identity._store, "changes", locked)
        for _ in range(2000):
            if "locked" in caplog.text:
                break
            await asyncio.sleep(0.01)
        assert "database is locked; again in" in caplog.text
    holder.revoke("jwt:x", 1e12)
    async with asyncio.timeout(20):
        await told.wait()
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    holder.close()


async def test_a_bad_token_file_at_the_start(open_door, state):
    settings = settings_in(state)
    state.mkdir(mode=0o700)
    (state / "tokens.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokens\.json"):
        await open_door(settings)


async def test_what_was_revoked_by_mistake_counts_again(open_door, state):
    settings = settings_in(state)
    _file, made, text = add_token(settings)
    door = await open_door(settings)
    principal = await door.identity.authenticate_token(text, address="x")
    door.identity.revoke(principal)
    assert (await ask(door.port, bearer(text))).status == 401
    operator = Store(state)
    assert operator.restore(f"token:{made.id}")
    operator.close()
    assert (await ask(door.port, bearer(text))).status == 200
    assert not door.identity.revoked(principal)
