"""Several gateways that share a Redis server: one limit of a user, one list of sessions, one word on revocations."""

import asyncio
import contextlib
import socket
import time

import pytest
from redis import Redis
from redis.asyncio import from_url

from broker.errors import ConfigError
from broker.secret import SecretUrl
from gateway.closes import BUSY
from gateway.fleet.kept import Kept
from gateway.fleet.member import Fleet, _ended, gateway_of
from gateway.fleet.messages import Bye, Counts, encode
from gateway.fleet.peers import BEAT_S, LEASE_S, SILENT_BEATS, Lost, Peers
from gateway.identity.store import Store
from gateway.principal import Denied
from tests.live.ports import free_port
from tests.live.redis_server import redis_server
from tests.tables import for_each
from tests.unit.gateway.sessions.desk import until


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as (_process, port):
        yield f"redis://127.0.0.1:{port}/0"


class Member:
    """One process of a gateway."""

    def __init__(self, folder, name, url, answer, gateway=None):
        self.store = Store(folder / (gateway or name))
        self.peers = Peers(gateway=gateway_of(self.store), answer=lambda question: self.answer(question))
        self.answer = answer
        clock = asyncio.get_running_loop().time
        self.fleet = Fleet(SecretUrl(url), f"t.{folder.name}", self.store, self.peers, clock)
        self.fleet.start()
        self.left = False

    async def leave(self, *, word=True):
        self.fleet.away |= not word
        await self.fleet.close()
        self.store.close()
        self.left = True


@contextlib.asynccontextmanager
async def members(folder, url, *names, gateway=None):
    started = [
        Member(folder, name, url, lambda question, name=name: question + name.encode(), gateway)
        for name in names
    ]
    try:
        yield started
    finally:
        for each in started:
            if not each.left:
                await each.leave()


@contextlib.asynccontextmanager
async def alone(folder, clock=time.monotonic):
    """A fleet that speaks with nobody."""
    with contextlib.closing(Store(folder / "alone")) as store:
        fleet = Fleet(SecretUrl("redis://127.0.0.1:1/0"), "t", store, Peers(gateway="here"), clock)
        yield fleet
        await fleet.close()


async def test_a_user_has_one_limit_over_all_of_them(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        await until(lambda: one.fleet.others == other.fleet.others == 1)
        assert all(one.peers.acquire("ada", 3) for _ in range(2))
        await until(lambda: other.peers.elsewhere("ada") == 2)
        assert other.peers.acquire("ada", 3)
        assert not other.peers.acquire("ada", 3)
        assert other.peers.acquire("bob", 3)
        one.peers.release("ada")
        await until(lambda: other.peers.acquire("ada", 3))
        await one.leave()
        await until(lambda: (other.fleet.others, other.peers.elsewhere("ada")) == (0, 0))


async def test_who_comes_later_is_told_everything(redis, tmp_path):
    async with members(tmp_path, redis, "a") as (one,):
        await until(lambda: not one.fleet.away)
        for number in range(5000):
            assert one.peers.acquire(f"user{number}", 1)
        one.store.revoke("token:1", one.store.wall() + 1000)
        async with members(tmp_path, redis, "b") as (other,):
            await until(lambda: other.peers.elsewhere("user4999") == other.peers.elsewhere("user0") == 1)
            await until(lambda: "token:1" in other.store.revocations())


async def test_users_beyond_one_message_are_counted_all_the_time(redis, tmp_path):
    """Between two parts those of the later ones had no connection: every beat for a moment."""
    async with members(tmp_path, redis, "a") as (one,):
        fleet = one.fleet

        def told(users, **more):
            fleet._heard(Counts("there", "p", users, **more))
            return [one.peers.elsewhere(user) for user in ("early", "late", "gone")]

        assert told({"early": 1}, full=True, more=True) == [0, 0, 0]
        assert told({"late": 2, "gone": 1}) == [1, 2, 1]
        assert told({"late": 3}) == [1, 3, 1]
        assert told({"early": 1}, full=True, more=True) == [1, 3, 1]
        assert told({"late": 4}, more=True) == [1, 3, 1]
        assert told({"other": 1}) == [1, 4, 0]
        assert "gone" not in fleet._peers._others.counts


async def test_a_revocation_is_told_once_however_many_there_are(redis, tmp_path, monkeypatch):
    """Each gateway told it again, to all: their number squared. So it was for each newcomer with all of them."""
    tellers, revoke = [], Kept.revoke

    def told(kept, *what):
        tellers.append(kept)
        return revoke(kept, *what)

    monkeypatch.setattr(Kept, "revoke", told)
    async with members(tmp_path, redis, *"abcdef") as everybody:
        await until(lambda: all(each.fleet.others == 5 for each in everybody))
        everybody[0].store.revoke("jwt:x", everybody[0].store.wall() + 1000)
        await until(lambda: all("jwt:x" in each.store.revocations() for each in everybody))
        await until(lambda: all(each.fleet._seen == each.store.changes() for each in everybody))
        assert tellers == [everybody[0].fleet._kept]
        async with members(tmp_path, redis, "g") as (late,):
            await until(lambda: late.fleet.others == 6)
            await until(lambda: late.fleet._seen == late.store.changes())
            assert "jwt:x" in late.store.revocations()
            assert len(tellers) == 1


async def test_what_was_told_is_kept(redis, tmp_path):
    """Else one that is killed in between leaves a newcomer without it, or all have to say it again to each newcomer."""
    async with members(tmp_path, redis, "a") as (one,):
        await until(lambda: not one.fleet.away)
        async with from_url(redis) as client, client.pubsub(ignore_subscribe_messages=True) as heard:
            await heard.subscribe(f"{one.fleet._channel}.all")
            one.store.revoke("jwt:x", one.store.wall() + 1000)
            async with asyncio.timeout(10):
                while not ((got := await heard.get_message(timeout=1)) and b"jwt:x" in got["data"]):
                    pass
            with Redis.from_url(redis) as now:  # which lets nothing of ours go on meanwhile
                assert now.zscore(f"{one.fleet._channel}.revoked", "jwt:x")


async def test_gateways_are_known_by_name(redis, tmp_path):
    async with (
        members(tmp_path, redis, "a", "b") as (one, other),
        members(tmp_path, redis, "b2", gateway="b") as (_,),
    ):
        await until(lambda: one.fleet.others == 2)
        assert one.peers.processes == {one.peers.label: 1, other.peers.label: 2}


async def test_what_one_of_them_refuses_all_refuse(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b", "c") as (one, *others):
        await until(lambda: one.fleet.others == 2)
        end = one.store.wall() + 1000
        one.store.revoke("jwt:x", end)
        await until(lambda: all(each.store.revocations() == {"jwt:x": end} for each in others))


async def test_all_answer_what_one_asks_and_its_own_gateway_does_not(redis, tmp_path):
    async with (
        members(tmp_path, redis, "a", "b") as (one, _),
        members(tmp_path, redis, "worker", gateway="a") as (sibling,),
    ):
        await until(lambda: one.fleet.others == sibling.fleet.others == 1)
        assert [*(await one.peers.ask(b"who ")).values()] == [b"who b"]
        assert [*(await sibling.peers.ask(b"")).values()] == [b"b"]


async def test_one_that_is_stopped_is_told_of(redis, tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.fleet.peers.ASK_S", 0.2)
    async with members(tmp_path, redis, "a", "b") as (one, other):
        await until(lambda: one.fleet.others == 1)
        await other.leave(word=False)
        assert [*(await one.peers.ask(b"?")).values()] == [b""]


async def test_one_that_was_stopped_listens_before_it_takes_others_for_gone(redis, tmp_path, monkeypatch):
    late_s = 0.0
    async with members(tmp_path, redis, "a", "b") as (one, other):
        clock = one.fleet._clock
        one.fleet._clock = lambda: clock() + late_s
        await until(lambda: one.fleet.others == other.fleet.others == 1)
        dropped, said = [], []
        monkeypatch.setattr(one.peers, "drop", dropped.append)
        monkeypatch.setattr(one.fleet, "_say_counts", lambda: said.append(1))
        late_s = 60.0
        await until(lambda: said)
        await until(lambda: not one.fleet._waiting)
        assert dropped == []
        for _ in range(5):
            one.peers.beat(one.fleet)
        assert set(dropped) == {other.peers.name}


@for_each("late_s", [(60.0, 0.0), (60.0, 60.0), (0.75, 0.75)])
async def test_one_that_was_stopped_listens_before_it_gives_redis_up(late_s, tmp_path):
    class Silence:
        now, listened = 0.0, 0

        async def get_message(self, timeout):
            self.now += timeout + late_s[self.listened > 0]
            self.listened += 1
            assert self.listened < 99

    silence = Silence()
    async with alone(tmp_path, lambda: silence.now) as fleet:
        with pytest.raises(Lost):
            await fleet._hear(silence)
        assert silence.listened == 2 + LEASE_S // BEAT_S


async def test_what_is_heard_is_a_sign_of_life_of_redis(tmp_path):
    class OneWord:
        now, listened = 0.0, 0

        async def get_message(self, timeout):
            self.now += timeout
            self.listened += 1
            assert self.listened < 99
            return {"data": encode(Bye("x"))} if self.listened == 3 else None

    word = OneWord()
    async with alone(tmp_path, lambda: word.now) as fleet:
        with pytest.raises(Lost):
            await fleet._hear(word)
        assert word.listened == 3 + 1 + LEASE_S // BEAT_S


def test_one_that_is_heard_is_there_for_another_lease():
    peers, carrier = Peers(), object()
    for _ in range(3):
        peers.hear(Counts("there", "p", {}), carrier)
        for _ in range(SILENT_BEATS):
            peers.beat(carrier)
            assert peers.names() == ["p"]
    peers.beat(carrier)
    assert peers.names() == []


@pytest.mark.parametrize("ends", [lambda fleet: fleet._peers.drop("p"), lambda fleet: fleet._forget()])
async def test_whose_answer_cannot_come_any_more_is_not_waited_for(tmp_path, monkeypatch, ends):
    monkeypatch.setattr("gateway.fleet.peers.ASK_S", 1000)
    async with alone(tmp_path) as fleet:
        fleet._heard(Counts("there", "p", {}))
        asking = asyncio.get_running_loop().create_task(fleet._peers.ask(b"?"), name="asking")
        await asyncio.sleep(0)
        ends(fleet)
        done, _ = await asyncio.wait([asking], timeout=10)
        asking.cancel()
        assert [each.result() for each in done] == [{"p": b""}]


@pytest.mark.patient
async def test_without_redis_each_has_a_limit_of_its_own_until_it_is_back(tmp_path, caplog):
    port = free_port()
    async with members(tmp_path, f"redis://127.0.0.1:{port}/0", "a", "b") as (one, other):
        with redis_server(tmp_path, port) as (process, _):
            await until(lambda: one.fleet.others == other.fleet.others == 1)
            assert one.peers.acquire("ada", 1)
            await until(lambda: other.peers.elsewhere("ada"))
            assert not other.peers.acquire("ada", 1)
            process.kill()
            await until(lambda: one.fleet.away and other.fleet.away)
        assert other.peers.acquire("ada", 1)
        assert await one.peers.ask(b"?") == {}
        await until(lambda: not other.fleet._changed)  # what nobody can be told of is not kept
        one.store.revoke("token:9", one.store.wall() + 1000)
        with redis_server(tmp_path, port):
            await until(lambda: one.fleet.others == other.fleet.others == 1)
            await until(lambda: "token:9" in other.store.revocations())
            await until(lambda: one.peers.elsewhere("ada") == other.peers.elsewhere("ada") == 1)
            assert not other.peers.acquire("ada", 2)
    assert "limits of users are this gateway's own meanwhile" in caplog.text


async def test_odd_messages_cost_nothing(redis, tmp_path, caplog):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        await until(lambda: one.fleet.others == 1)
        speaker = from_url(redis)
        for odd in (b"", b"\xc1", b"{}", b"\x81\xa4type\xa6counts"):
            await speaker.publish(f"{one.fleet._channel}.all", odd)
        await speaker.aclose()
        assert other.peers.acquire("ada", 1)
        await until(lambda: one.peers.elsewhere("ada") == 1)
    assert caplog.text.count("an odd message was left out") >= 4


async def test_an_answer_that_fails_ends_nothing(redis, tmp_path, monkeypatch):
    """Another version may ask for what is not there: this gateway then spoke with nobody any more."""
    monkeypatch.setattr("gateway.fleet.peers.ASK_S", 0.2)
    async with members(tmp_path, redis, "a", "b") as (one, other):
        await until(lambda: one.fleet.others == 1)
        other.answer = {}.__getitem__
        assert [*(await one.peers.ask(b"?")).values()] == [b""]
        assert other.peers.acquire("ada", 1)
        await until(lambda: one.peers.elsewhere("ada") == 1)


async def test_what_cannot_be_written_now_is_written_later(redis, tmp_path):
    async with members(tmp_path, redis, "a", "b") as (one, other):
        await until(lambda: one.fleet.others == 1)
        asked, revoke_all = [], other.store.revoke_all

        def full(credentials):
            asked.append(credentials)
            if len(asked) < 3:
                raise Denied("full", public="full", status=503, close=BUSY)
            revoke_all(credentials)

        other.store.revoke_all = full
        end = one.store.wall() + 1000
        one.store.revoke_all({f"jwt:{number}": end for number in range(100)})
        await until(lambda: len(other.store.revocations()) == 100)
        assert other.fleet.others == 1


async def test_who_leaves_is_not_waited_for_and_full_links_are_told_as_silence(redis, tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.fleet.peers.ASK_S", 1000)
    async with members(tmp_path, redis, "a", "b") as (one, other):
        await until(lambda: one.fleet.others == 1)
        monkeypatch.setattr(one.fleet, "say", lambda _question: None)
        async with asyncio.timeout(20):
            answers, _ = await asyncio.gather(one.peers.ask(b"?"), other.leave())
        assert [*answers.values()] == [b""]
        monkeypatch.undo()
        monkeypatch.setattr("gateway.fleet.peers.ASK_S", 1000)
    async with members(tmp_path, redis, "c", "d") as (one, _):
        await until(lambda: one.fleet.others == 1)
        monkeypatch.setattr("gateway.fleet.member.WAITING_MAX", 0)
        assert [*(await one.peers.ask(b"?")).values()] == [b""]
        monkeypatch.undo()


async def test_a_server_that_says_nothing_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.fleet.member.LEASE_S", 0.05)
    came = []

    async def mute(reader, writer):
        came.append(writer)
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        async with members(tmp_path, url, "a") as (one,):
            await until(lambda: len(came) > 1, 3)
            assert one.fleet.away


async def test_a_connection_that_does_not_close_keeps_nobody_away(tmp_path, monkeypatch):
    """redis-py gives up on one (TLS to a host that is gone) after two seconds."""
    from redis.asyncio import ConnectionPool
    from redis.exceptions import TimeoutError as Late

    async def late(_pool, inuse_connections=True):
        raise Late("closing")

    with redis_server(tmp_path) as (process, port):
        async with members(tmp_path, f"redis://127.0.0.1:{port}/0", "a") as (one,):
            await until(lambda: not one.fleet.away)
            monkeypatch.setattr(ConnectionPool, "disconnect", late)
            process.kill()
            await until(lambda: one.fleet.away)
            await asyncio.sleep(0)
            assert not one.fleet._running.done()
            monkeypatch.undo()


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1/0?odd=1"])
async def test_a_url_that_is_none(tmp_path, url):
    clock = asyncio.get_running_loop().time
    with (
        contextlib.closing(Store(tmp_path)) as store,
        pytest.raises(ConfigError, match=r"gateway\.redis: "),
    ):
        Fleet(SecretUrl(url), "t", store, Peers(), clock)


async def test_the_password_of_the_server_may_stand_in_a_file(tmp_path):
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    file.chmod(0o600)
    with redis_server(tmp_path) as (_process, port), socket.create_connection(("127.0.0.1", port), 1) as sock:
        sock.sendall(b"CONFIG SET requirepass hunter2\r\n")
        assert sock.recv(5) == b"+OK\r\n"
        with contextlib.closing(Store(tmp_path)) as store:
            clock = asyncio.get_running_loop().time
            url = SecretUrl(f"redis://127.0.0.1:{port}/0")
            fleet = Fleet(url, "t", store, Peers(), clock, password_file=str(file))
            fleet.start()
            try:
                await until(lambda: not fleet.away)
            finally:
                await fleet.close()


async def test_who_is_cancelled_again_while_its_tasks_end_still_ends_them():
    """Else they speak on after all connections were closed, with one that nobody closes."""

    async def swallows():
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(100)

    loop = asyncio.get_running_loop()
    task = loop.create_task(swallows(), name="swallows")
    await asyncio.sleep(0)
    ending = loop.create_task(_ended([task]), name="ending")
    for _ in range(2):
        await asyncio.sleep(0)
        ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert task.done()
