"""Logins at several gateways that share a Redis server: begun at one, ended at another, none resurrected."""

import asyncio
import contextlib
import secrets
import time
from unittest.mock import AsyncMock

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ConnectionError as Gone

from broker.secret import SecretUrl
from gateway.fleet import kept, login_rows, member
from gateway.fleet.member import Fleet, gateway_of
from gateway.fleet.messages import Entered, Revoked, decode, encode
from gateway.fleet.peers import Peers
from gateway.identity import login
from gateway.identity.authenticate import Authenticator
from gateway.identity.oidc import Account
from gateway.identity.store import LATEST, Store
from gateway.principal import Denied
from gateway.settings.schema import AccessSection, GatewaySection, GatewaySettings, UserEntry
from tests.live.ports import free_port
from tests.live.redis_server import redis_server
from tests.tables import for_each
from tests.unit.gateway.identity.idp import HERE, Idp, log_in
from tests.unit.gateway.sessions.desk import until

FAR = HERE._replace(address="192.0.2.7", peer="192.0.2.7", local=False, loopback_listener=False)
ADA = UserEntry(name="ada", userid=1001, roles=("user",))


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as (_process, port):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture
async def idp(aiohttp_server):
    made = Idp(time.time)
    await made.serve(aiohttp_server)
    return made


class Member:
    """One process of a gateway."""

    def __init__(self, folder, name, url, *, oidc=(), fleet=True):
        access = AccessSection(login_links="owner")
        statedir = folder / name
        settings = GatewaySettings(
            gateway=GatewaySection(statedir=str(statedir)), users=(ADA,), access=access, oidc=oidc
        )
        self.store = Store(statedir)
        self.fleet, self.left = None, False
        if fleet:
            peers = Peers(gateway=gateway_of(self.store))
            clock = asyncio.get_running_loop().time
            self.fleet = Fleet(SecretUrl(url), f"t.{folder.name}", self.store, peers, clock)
            self.fleet.start()
        self.identity = Authenticator(settings, self.store, self.fleet and self.fleet.logins)
        self.logins, self.user_logins = self.identity.logins, self.identity.user_logins

    @property
    def joined(self):
        return not self.fleet.away

    async def enter(self, user="ada"):
        """A login of ``user``, which counts elsewhere when this returns."""
        logged_in = (
            await self.user_logins.by_provider("x", Account(user, {})) if user != "ada" else self._ada()
        )
        await self.identity.share(logged_in)
        return logged_in

    def _ada(self):
        cookie, made = self.logins.drafted("jwt:1", "ada", {})
        self.logins.begin(cookie, made)
        return login.LoggedIn(cookie, self.user_logins.now(made))

    async def who(self, cookie, client=FAR):
        """Whose cookie it is, as a request asks."""
        await self.identity._look_for(cookie)
        found = self.logins.principal(cookie, client)
        return None if found is None else found.name

    def ids(self):
        return [each.id for each in self.logins.of(None)]

    async def leave(self):
        if self.left:
            return
        self.left = True
        if self.fleet is not None:
            await self.fleet.close()
        self.identity.close()
        self.store.close()


@contextlib.asynccontextmanager
async def members(folder, url, *names, **more):
    """Gateways that have read what Redis keeps."""
    started = [Member(folder, name, url, **more) for name in names]
    try:
        await until(lambda: all(each.joined for each in started))
        yield started
    finally:
        for each in started:
            await each.leave()


async def test_a_login_counts_at_the_other_gateway_at_once(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        cookie, principal = await one.enter()
        assert await other.who(cookie) == "ada"
        assert other.logins.open(principal.credential)
        assert one.ids() == other.ids()


async def test_it_is_written_down_where_nobody_asked_for_it(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        cookie, _ = await one.enter()
        await until(lambda: len(other.ids()) == 1)
        other.fleet.away = True
        assert await other.who(cookie) == "ada"


async def test_whoever_comes_later_is_told_of_all(redis, tmp_path):
    async with members(tmp_path, redis, "a") as (one,):
        cookies = [(await one.enter()).cookie for _ in range(3)]
        async with members(tmp_path, redis, "b") as (other,):
            assert sorted(other.ids()) == sorted(one.ids())
            assert [await other.who(each) for each in cookies] == ["ada"] * 3


async def test_it_ends_everywhere_wherever_it_is_ended(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        cookie, principal = await one.enter()
        assert await other.who(cookie) == "ada"
        other.logins.end(cookie)
        assert await other.who(cookie) is None
        await until(lambda: one.identity.poll() and one.identity.revoked(principal))
        assert await one.who(cookie) is None
        assert not Redis.from_url(redis).keys(f"t.{tmp_path.name}.login.*")


async def test_all_of_a_user_end_everywhere(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        made = [await each.enter() for each in (one, one, other)]
        await until(lambda: len(one.ids()) == len(other.ids()) == 3)
        other.logins.end_all(other.logins.of(made[0].principal))
        await until(lambda: one.ids() == other.ids() == [])


async def test_who_was_away_brings_nothing_back_to_life(redis, tmp_path):
    """Neither its own copy counts again, nor is it taken from it; who ended it may be gone meanwhile."""
    async with members(tmp_path, redis, "a", "b", "c") as (one, other, third):
        cookie, _ = await one.enter()
        await until(lambda: len(other.ids()) == len(third.ids()) == 1)
        await one.leave()
        other.logins.end(cookie)
        await until(lambda: third.ids() == [])
    async with members(tmp_path, redis, "a", "d") as (one, new):
        assert one.ids() == new.ids() == []
        assert await one.who(cookie) is None
        assert await new.who(cookie) is None


async def test_while_redis_is_away_each_has_its_own_and_then_all_have_all(tmp_path):
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    one, other = Member(tmp_path, "a", url), Member(tmp_path, "b", url)
    both = (one, other)
    try:
        with redis_server(tmp_path, port) as (process, _):
            await until(lambda: all(each.joined for each in both))
            early, ended = await one.enter(), await one.enter()
            await until(lambda: len(other.ids()) == 2)
            process.kill()
            await until(lambda: not any(each.joined for each in both))
        late = await one.enter()
        one.logins.end(ended.cookie)
        assert (
            await one.who(late.cookie)
            == await one.who(early.cookie)
            == await other.who(early.cookie)
            == "ada"
        )
        assert await other.who(late.cookie) is None
        with redis_server(tmp_path, port):  # it has lost all
            await until(lambda: sorted(one.ids()) == sorted(other.ids()) and len(other.ids()) == 2)
            assert await other.who(late.cookie) == "ada"
            assert await other.who(ended.cookie) is None
            held = {key.decode() for key in Redis.from_url(url).keys(f"t.{tmp_path.name}.login.*")}
            assert held == {f"t.{tmp_path.name}.login.{name}" for name in one.ids()}
    finally:
        for each in both:
            await each.leave()


async def test_what_could_not_be_kept_at_once_is_kept_later(redis, tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.fleet.kept.ANSWER_S", 0.01)
    async with members(tmp_path, redis, "a", "b") as (one, other):
        add, slow = one.fleet._kept.add_logins, asyncio.Event()

        async def late(rows):
            if not slow.is_set():
                slow.set()
                await asyncio.sleep(10)
            return await add(rows)

        await until(lambda: not one.fleet.logins._behind)
        one.fleet._kept.add_logins = late
        cookie, _ = await one.enter()
        await until(lambda: len(other.ids()) == 1)
        assert await other.who(cookie) == "ada"


async def test_only_hashes_leave_and_nothing_that_counts_on_one_machine_only(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        told = []
        heard = other.fleet._heard
        other.fleet._heard = lambda said: (told.append(repr(said)), heard(said))
        cookie, _ = await one.enter()
        owner = one.logins.redeem(one.logins.make_link("owner"), HERE)
        await one.identity.share(owner)
        await until(lambda: any("Entered" in each for each in told))
        assert await other.who(owner.cookie, HERE) is None
        client, held = Redis.from_url(redis), []
        for key in client.keys(f"t.{tmp_path.name}.login.*"):
            held.append(client.get(key))
        assert len(held) == 1
        assert cookie.encode() not in b"".join(held)
        assert not any(cookie in each for each in told)
        assert login.hash_of(cookie) in held[0]


async def test_a_link_opens_one_door_and_that_once(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        secret = one.logins.make_link("user")
        with pytest.raises(Denied):
            other.logins.redeem(secret, FAR)
        logged_in = one.logins.redeem(secret, FAR)
        await one.identity.share(logged_in)
        assert await other.who(logged_in.cookie) == "guest"
        for each in (one, other):
            with pytest.raises(Denied):
                each.logins.redeem(secret, FAR)


async def test_the_oldest_end_everywhere_for_new_ones(redis, tmp_path, monkeypatch):
    monkeypatch.setattr(login, "LOGINS_OF_USER", 2)
    async with members(tmp_path, redis, "a", "b") as (one, other):
        first, *_ = [await one.enter() for _ in range(3)]
        await until(lambda: sorted(other.ids()) == sorted(one.ids()) and len(one.ids()) == 2)
        assert await other.who(first.cookie) is None
        assert first.principal.credential in one.store.revocations()


async def test_what_no_login_is_keeps_back_no_other(redis, tmp_path, caplog):
    client = Redis.from_url(redis)
    for number, odd in enumerate((b"", b"\xc1", b"\x90", b"\x80")):
        client.set(f"t.{tmp_path.name}.login.{number}", odd)
    async with members(tmp_path, redis, "a") as (one,):
        cookie, _ = await one.enter()
        async with members(tmp_path, redis, "b") as (other,):
            assert await other.who(cookie) == "ada"
    assert "a login of another gateway was left out" in caplog.text


@pytest.fixture
def alone(tmp_path):
    with contextlib.closing(Store(tmp_path / "alone", login_s=30 * 86400.0)) as store:
        yield store


@for_each(
    "odd",
    [
        {7: float("inf")},
        {7: 1e308},
        {7: float("nan")},
        {7: "soon"},
        {6: float("nan")},
        {6: -1.0},
        {2: "oidc:\n"},
        {3: "x" * 2000},
        {3: "a\nb"},
        {4: {"groups": 7}},
        {4: {"groups": [7]}},
        {4: {"roles": "owner"}},
        {4: {"userid": -1}},
        {4: {"own": 2**32}},
        {4: []},
        {5: "owner"},
        {0: b"short"},
        {1: "../x"},
        {7: 60 * 86400.0},
    ],
)
def test_a_row_of_another_gateway_is_bounded_in_every_field(odd, caplog, alone):
    """Whoever writes there once must not keep the others from hearing of revocations for good."""
    now = time.time()
    good = [
        secrets.token_bytes(32),
        secrets.token_hex(8),
        "oidc:x",
        "u",
        {"groups": ["a"]},
        "",
        now,
        now + 1000,
    ]
    row = list(good)
    for at, value in odd.items():
        row[at] = now + value if value == 60 * 86400.0 else value
    caplog.clear()
    login_rows.take(alone, [msgspec.msgpack.encode(row), msgspec.msgpack.encode(good)])
    assert [*login_rows.rows(alone)] == [good[1]]
    alone.revoke(f"login:{good[1]}", now + 1000)
    assert "a login of another gateway was left out" in caplog.text


async def test_what_was_kept_of_an_odd_row_is_passed_over(redis, tmp_path):
    """It was taken by the last release, and ended the link to Redis again and again, by every gateway."""
    async with members(tmp_path, redis, "a", "b") as (one, other):
        with one.store.writing() as base:
            row = (
                secrets.token_bytes(32),
                "0" * 16,
                "oidc:x",
                "u",
                b"{}",
                "",
                False,
                time.time(),
                float("inf"),
            )
            base.execute(
                "INSERT INTO logins (hash, id, source, user, claims, role, loopback, made, expires) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row,
            )  # fmt: skip
        one.fleet.logins._behind = True
        cookie, _ = await one.enter()
        assert await other.who(cookie) == "ada"
        one.store.revoke("jwt:1", time.time() + 1000)
        await until(lambda: "jwt:1" in other.store.revocations())
        assert "0" * 16 not in (*one.ids(), *other.ids())


async def test_odd_revocations_are_left_out_or_bounded(redis, tmp_path, caplog):
    client, name = Redis.from_url(redis), f"t.{tmp_path.name}"
    client.zadd(
        f"{name}.revoked", {"jwt:good": time.time() + 1000, "jwt:long": float("inf"), "x" * 2000: 1e300}
    )
    async with members(tmp_path, redis, "a", "b") as (one, other):
        said = {"jwt:nan": float("nan"), "jwt:told": 1e300}
        client.publish(f"{name}.all", encode(Revoked("zz", said)))
        await until(lambda: all("jwt:told" in each.store.revocations() for each in (one, other)))
        assert {*one.store.revocations()} == {"jwt:good", "jwt:long", "jwt:told"}
        assert max(one.store.revocations().values()) == LATEST
    assert "revocations were left out" in caplog.text


async def test_rows_that_are_over_or_ended_are_not_taken(tmp_path):
    one, other = Member(tmp_path, "a", "", fleet=False), Member(tmp_path, "b", "", fleet=False)
    for until_s in (1, 1000):
        one.logins.begin(*one.logins.drafted("jwt:1", "ada", {}, until=one.store.wall() + until_s))
    rows = login_rows.rows(one.store)
    assert len(rows) == 2
    other.store.revoke_all({f"login:{name}": one.store.wall() + 1000 for name in list(rows)[:1]})
    other.store.wall = lambda: one.store.wall() + 2
    login_rows.take(other.store, [row for row, _ in rows.values()])
    assert set(other.ids()) <= set(list(rows)[1:])
    for each in (one, other):
        await each.leave()


async def test_what_is_restored_is_forgotten_in_redis(redis, tmp_path):
    async with members(tmp_path, redis, "a") as (one,):
        one.store.revoke("token:1", one.store.wall() + 1000)
        client, key = Redis.from_url(redis), f"t.{tmp_path.name}.revoked"
        await until(lambda: client.zrange(key, 0, -1) == [b"token:1"])
        one.store.restore("token:1")
        await until(lambda: client.zrange(key, 0, -1) == [])


async def test_who_logs_in_again_and_again_has_to_wait(redis, tmp_path, monkeypatch):
    monkeypatch.setattr(login, "BURST", 2)
    async with members(tmp_path, redis, "a") as (one,):
        for _ in range(2):
            one.user_logins._enter("jwt:1", "ada", {}, None)
        with pytest.raises(Denied, match="began more than 2 logins") as found:
            one.user_logins._enter("jwt:1", "ada", {}, None)
        assert found.value.status == 429


async def test_alone_nothing_is_remembered_of_what_has_ended(tmp_path):
    one = Member(tmp_path, "a", "", fleet=False)
    logged_in = await one.enter()
    one.logins.end(logged_in.cookie)
    assert one.store.revocations() == {}
    await one.leave()


# ---------------------------------------------------------------- at a provider


async def test_a_login_is_begun_at_one_and_ended_at_another_once(redis, tmp_path, idp):
    async with members(tmp_path, redis, "a", "b", oidc=(idp.entry(),)) as (one, other):
        begun, ending = one.user_logins.providers, other.user_logins.providers
        url, cookie = await begun.begin("corp", HERE)
        query = idp.approve(url)
        assert (await ending.finish("corp", query, cookie, HERE)).user == "corp:alice"
        for each in (begun, ending):
            with pytest.raises(Denied, match="used already"):
                await each.finish("corp", query, cookie, HERE)


async def test_of_two_that_use_an_answer_at_a_time_one_is_let_in(redis, tmp_path, idp):
    async with members(tmp_path, redis, "a", "b", oidc=(idp.entry(),)) as both:
        url, cookie = await both[0].user_logins.providers.begin("corp", HERE)
        query = idp.approve(url)
        work = (each.user_logins.providers.finish("corp", query, cookie, HERE) for each in both)
        came = await asyncio.gather(*work, return_exceptions=True)
        assert sum(not isinstance(each, Denied) for each in came) == 1


async def test_without_redis_a_login_is_ended_where_it_was_begun(tmp_path, idp):
    """One that was begun with the key of all counts nowhere then: nobody could know whether it was used."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    more = {"oidc": (idp.entry(),)}
    one, other = Member(tmp_path, "a", url, **more), Member(tmp_path, "b", url, **more)
    ways = one.user_logins.providers, other.user_logins.providers
    try:
        with redis_server(tmp_path, port) as (process, _):
            await until(lambda: one.joined and other.joined)
            early, sealed = await ways[0].begin("corp", HERE)
            process.kill()
            await until(lambda: not one.joined and not other.joined)
        for each in ways:
            with pytest.raises(Denied, match="not begun here"):
                await each.finish("corp", idp.approve(early), sealed, HERE)
        place, cookie = await ways[0].begin("corp", HERE)
        query = idp.approve(place)
        with redis_server(tmp_path, port):
            await until(lambda: one.joined and other.joined)
            with pytest.raises(Denied, match="not begun here"):
                await ways[1].finish("corp", query, cookie, HERE)
            assert (await ways[0].finish("corp", query, cookie, HERE)).user == "corp:alice"
            with pytest.raises(Denied, match="not begun here"):  # Redis has lost its key, and what was used
                await ways[1].finish("corp", idp.approve(early), sealed, HERE)
            assert (await log_in(ways[1], idp)).user == "corp:alice"
    finally:
        for each in (one, other):
            await each.leave()


async def test_an_answer_that_redis_does_not_know_of_is_refused(redis, tmp_path, idp, monkeypatch):
    monkeypatch.setattr("gateway.fleet.kept.ANSWER_S", 0.05)
    async with members(tmp_path, redis, "a", oidc=(idp.entry(),)) as (one,):
        url, cookie = await one.user_logins.providers.begin("corp", HERE)
        monkeypatch.setattr(one.fleet._kept, "spend", lambda *_: asyncio.sleep(10))
        with pytest.raises(Denied, match="used already"):
            await one.user_logins.providers.finish("corp", idp.approve(url), cookie, HERE)


async def test_answers_that_were_used_are_bounded(redis, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "SPENT", 3)
    async with members(tmp_path, redis, "a") as (one,):
        end = one.store.wall() + 100
        assert [await one.fleet.logins.spend(bytes([n]), end + n) for n in (*range(5), 4)] == [True] * 5 + [
            False
        ]
        assert Redis.from_url(redis).zcard(f"t.{tmp_path.name}.spent") == 3
        assert await one.fleet.logins.spend(b"old", one.store.wall() - 1)


def spoilt(process, kind, how):
    """The next message of this kind meets ``how`` instead of Redis; returns a list that is empty until then."""
    publish, met = process.fleet._redis.publish, []

    async def spoil_once(channel, data):
        if not met and isinstance(decode(data), kind):
            met.append(data)
            return how()
        return await publish(channel, data)

    process.fleet._redis.publish = spoil_once
    return met


def breaks():
    raise Gone("cut")


async def test_what_is_revoked_is_told_again_where_the_connection_breaks_meanwhile(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        await until(lambda: one.fleet.others and other.fleet.others)
        revoke, broken = one.fleet._kept.revoke, []

        async def breaks_once(*what):
            if not broken:
                broken.append(what)
                breaks()
            await revoke(*what)

        one.fleet._kept.revoke = breaks_once
        one.store.revoke("token:1", one.store.wall() + 1000)
        await until(lambda: broken)
        await until(lambda: "token:1" in other.store.revocations())


async def test_a_login_is_told_before_it_is_kept(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        await until(lambda: one.fleet.others and other.fleet.others)
        broken = spoilt(one, Entered, breaks)
        await one.enter()
        await until(lambda: broken)
        await until(lambda: one.ids() == other.ids())


async def test_a_login_ends_where_nobody_has_asked_for_it_before(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        one.fleet.logins._tell = AsyncMock()  # neither at once nor by what catches up beside it
        cookie, _ = await one.enter()
        assert other.ids() == []
        headers = {"Origin": "http://localhost", "Host": "localhost"}
        await other.identity.logout(make_mocked_request("POST", "/", headers=headers), cookie)
        assert await other.who(cookie) is None
        await until(lambda: one.ids() == [])


async def test_odd_things_in_redis_end_nothing(redis, tmp_path):
    now, name = time.time(), f"t.{tmp_path.name}"
    row = [
        secrets.token_bytes(32),
        secrets.token_hex(8),
        "oidc:x",
        "u",
        {"x": msgspec.msgpack.Ext(5, b"x")},
        "",
        now,
    ]
    client = Redis.from_url(redis)
    async with members(tmp_path, redis, "a") as (one,):
        client.zadd(f"{name}.revoked", {b"\xff\xfe": now + 1000})
        client.publish(f"{name}.all", encode(Entered("zz", [msgspec.msgpack.encode([*row, now + 1000])])))
        async with members(tmp_path, redis, "b") as (other,):
            cookie, _ = await other.enter()
            assert await one.who(cookie) == "ada"


@for_each(
    ("part", "spoil", "said"),
    [
        ("key", lambda client, key: client.rpush(key, "x"), "saw a list, expected a string"),
        ("key", lambda client, key: client.set(key, "short"), "saw 5 bytes, expected 32"),
        ("revoked", lambda client, key: client.set(key, "x"), "saw a string, expected a zset"),
        ("spent", lambda client, key: client.hset(key, "a", "x"), "saw a hash, expected a zset"),
        ("userids", lambda client, key: client.set(key, "x"), "saw a string, expected a hash"),
    ],
)
async def test_a_key_of_redis_that_is_another_thing_is_deleted_once(
    redis, tmp_path, caplog, part, spoil, said
):
    key, store = f"t.{tmp_path.name}.{part}", Store(tmp_path)
    caplog.clear()
    with Redis.from_url(redis) as client:
        client.flushall()
        spoil(client, key)
    client = AsyncRedis.from_url(redis)
    there = kept.Kept(client, f"t.{tmp_path.name}", store)
    for _ in range(2):
        await there.take_up()
    assert len(there.key) == 32
    await there.revoke({"jwt:1": store.wall() + 1000}, b"")
    assert await there.take_up() == {"jwt:1"}
    assert await there.spend(b"answer", store.wall() + 1000)
    assert await there.take_userid(7, "ada")
    assert [each.getMessage() for each in caplog.records] == [f"redis: {key} was deleted: {said}"]
    await client.aclose()
    store.close()


async def test_a_redis_that_was_emptied_is_filled_again(redis, tmp_path, monkeypatch):
    monkeypatch.setattr(member, "BEAT_S", 0.1)
    async with members(tmp_path, redis, "a", "b") as (one, other):
        cookie, _ = await one.enter()
        await until(lambda: other.ids())
        key = one.fleet.logins.key
        Redis.from_url(redis).flushall()
        await until(lambda: None not in (one.fleet.logins.key, other.fleet.logins.key))
        await until(lambda: key != one.fleet.logins.key == other.fleet.logins.key)
        async with members(tmp_path, redis, "c") as (new,):
            await until(lambda: new.ids())
            assert await new.who(cookie) == "ada"


async def test_logins_of_many_users_are_counted_in_one_look(redis, tmp_path, monkeypatch):
    looks, trim = [], login.trim
    monkeypatch.setattr(login, "trim", lambda base, user: looks.append(user) or trim(base, user))
    async with members(tmp_path, redis, "a") as (one,):
        now = one.store.wall()
        each = [["oidc:x", f"u{n}", {}, "", now, now + 1000] for n in range(100)]
        told = [msgspec.msgpack.encode([secrets.token_bytes(32), secrets.token_hex(8), *row]) for row in each]
        login_rows.take(one.store, told)
        assert len(one.ids()) == 100
        assert looks == [""]


@contextlib.contextmanager
def unwritable(store, monkeypatch):
    """The store cannot be written in the block."""

    def full(**_):
        raise Denied("disk full", public="", status=503, close=0)

    with monkeypatch.context() as patched:
        patched.setattr(store, "writing", full)
        yield


async def test_what_is_heard_while_it_cannot_be_written_is_bounded_and_none_of_it_is_forgotten(
    redis, tmp_path, monkeypatch
):
    monkeypatch.setattr(member, "HELD_BYTES", 1000)
    async with members(tmp_path, redis, "a", "b") as (one, other):
        await until(lambda: one.fleet.others and other.fleet.others)
        end = one.store.wall() + 1000
        with unwritable(other.store, monkeypatch):
            for number in range(4):
                one.store.revoke_all({f"tls:{number}{letter}": end for letter in "abc"})
                await one.enter()
                await until(lambda: one.fleet._seen == one.store.changes())
            await until(lambda: other.fleet._inbox.missed)
            assert 0 < other.fleet._inbox.held_bytes <= 1000
            assert len(other.fleet._told) <= len(other.fleet._inbox._revoked)  # the rest is read again
            assert other.joined  # limits of users are still those of all
        await until(lambda: other.store.revocations() == one.store.revocations())
        await until(lambda: other.ids() == one.ids())
        assert not other.fleet._inbox.held_bytes


@contextlib.contextmanager
def counted_writes(store, monkeypatch):
    """How many revocations each transaction of the block wrote."""
    writes, writing = [], store.writing

    @contextlib.contextmanager
    def counted(**how):
        before = len(store.revocations())
        with writing(**how) as base:
            yield base
        writes.append(len(store.revocations()) - before)

    with monkeypatch.context() as patched:
        patched.setattr(store, "writing", counted)
        yield writes


async def test_what_redis_has_is_taken_up_in_portions_and_what_is_known_not_again(
    redis, tmp_path, monkeypatch
):
    monkeypatch.setattr(kept, "AT_ONCE", 10)
    client, name = AsyncRedis.from_url(redis), f"t.{tmp_path.name}"
    store = Store(tmp_path)
    there = {f"jwt:{number}": store.wall() + 1000 for number in range(25)}
    await client.zadd(f"{name}.revoked", there)
    with counted_writes(store, monkeypatch) as writes:
        assert await kept.Kept(client, name, store).take_up() == set(there)
        assert writes == [10, 10, 5]
        assert await kept.Kept(client, name, store).take_up() == set(there)
        assert writes == [10, 10, 5]
    await client.aclose()
    store.close()


async def test_what_was_heard_is_written_in_portions_and_stays_until_then(tmp_path, monkeypatch):
    monkeypatch.setattr(member, "AT_ONCE", 10)
    store = Store(tmp_path)
    heard, end = member.Inbox(store), store.wall() + 1000
    assert heard.add(Revoked("there", {f"jwt:{number}": end for number in range(25)}))
    size = heard.held_bytes
    with counted_writes(store, monkeypatch) as writes:
        writing = asyncio.get_running_loop().create_task(heard.write(), name="write")
        await asyncio.sleep(0)
        assert writes == [10]
        assert heard.held_bytes < size
        assert heard.add(Revoked("there", {"jwt:24": end, "jwt:late": end}))  # heard meanwhile
        with unwritable(store, monkeypatch), pytest.raises(Denied):
            await writing
        assert len(heard._revoked) == 16
        await heard.write()
        assert writes == [10, 10, 6]
    assert len(store.revocations()) == 26
    assert not heard.held_bytes
    store.close()


async def test_many_that_are_heard_at_once_are_written_down_and_not_asked_for_again(
    redis, tmp_path, monkeypatch
):
    monkeypatch.setattr(member, "HELD_BYTES", 2000)
    async with members(tmp_path, redis, "a") as (one,):
        end = one.store.wall() + 1000
        for start in range(0, 100, 10):
            one.fleet._heard(Revoked("there", {f"jwt:{number}": end for number in range(start, start + 10)}))
            assert one.fleet._inbox.held_bytes < 2000 + 10 * 300
        assert not one.fleet._inbox.missed
        await until(lambda: len(one.store.revocations()) == 100)


async def test_logins_that_have_ended_are_not_read_again_at_each_change(redis, tmp_path):
    """A fleet has 64 and one more every ten seconds for each user, for as long as the longest login lasts."""
    async with members(tmp_path, redis, "a", "b") as both:
        one, _ = both
        made = [await one.enter() for _ in range(20)]
        one.logins.end_all(one.logins.of(None))
        await until(lambda: all(len(each.store.revocations()) == len(made) for each in both))
        await until(lambda: all(each.fleet._seen == each.store.changes() for each in both))
        rows = []

        def counted(reading):
            def read(query, *values):
                found = reading(query, *values)
                rows.extend(found if "FROM revocations" in query else ())
                return found

            return read

        for each in both:
            each.identity.poll()
            each.store.reading = counted(each.store.reading)
        one.store.revoke("tls:x", one.store.wall() + 1000)
        await until(lambda: all(each.fleet._seen == each.store.changes() for each in both))
        await until(lambda: all("tls:x" in each.fleet._known for each in both))
        assert all(each.identity.poll() for each in both)
        assert {credential for credential, *_ in rows} == {"tls:x"}
        await until(lambda: not any(each.fleet._told for each in both))


async def test_what_has_ended_is_remembered_for_as_long_as_it_would_have_lasted(redis, tmp_path):
    client, key = Redis.from_url(redis), f"t.{tmp_path.name}.revoked"
    async with members(tmp_path, redis, "a") as (one,):
        now = one.store.wall()
        one.store.wall = lambda: now
        cookie, made = one.logins.drafted("oidc:x", "u", {}, until=now + 10)
        one.logins.begin(cookie, made)
        one.logins.end_all([made])
        await until(lambda: client.zrange(key, 0, -1) == [made.credential.encode()])
        now += 11
        cookie, fresh = one.logins.drafted("oidc:x", "u", {}, until=now + 10)
        one.logins.begin(cookie, fresh)
        assert one.store.reading("SELECT credential FROM revocations") == []
        one.logins.end_all([fresh])
        await until(lambda: client.zrange(key, 0, -1) == [fresh.credential.encode()])
