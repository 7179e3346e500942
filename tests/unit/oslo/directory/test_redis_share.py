"""Sharing by real Redis servers, which the tests start and end themselves."""

import contextlib
import shutil
import signal
import subprocess
import time

import pytest

from broker.errors import ConfigError
from broker.oslo.directory.peer import Announcer, Reader
from broker.oslo.directory.redis import (
    CHANNEL,
    PLACES,
    RedisHost,
    lease_key,
    open_hosts,
    opener,
    read_age,
    read_place,
    state_key,
)
from broker.oslo.directory.server import DirectoryServer
from broker.oslo.directory.state import Replica
from broker.oslo.node import NodeConfig
from broker.oslo.reactor import Reactor
from broker.oslo.records import to_json
from broker.secret import SecretUrl, read_file
from tests.live.ports import free_port
from tests.tables import for_each
from tests.unit.oslo.directory.clouds import config, rpc, set_records, state, turn_for, turn_until

redis = pytest.importorskip("redis", reason="optional: redis-py is not installed")
SERVER = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(SERVER is None, reason="optional: there is no redis-server here")
PASSWORD = "s3cret-of-redis"


class Server:
    """One redis-server on a loopback port."""

    def __init__(self, folder, *, sentinel_of=None, port=0) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.sentinel_of = sentinel_of
        folder.mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        shared = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        if self.sentinel_of is not None:
            file = self.folder / "sentinel.conf"
            file.write_text(
                f"sentinel monitor main 127.0.0.1 {self.sentinel_of.port} 1\n"
                f"sentinel auth-pass main {PASSWORD}\n"
            )
            words = [SERVER, str(file), "--sentinel", *shared]
        else:
            words = [SERVER, *shared, "--save", "", "--appendonly", "no", "--requirepass", PASSWORD]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends = time.monotonic() + 10
        while True:
            with contextlib.suppress(redis.RedisError), self.client() as client:
                client.ping()
                return
            assert time.monotonic() < ends, "redis-server did not start"
            time.sleep(0.02)

    def client(self):
        password = None if self.sentinel_of is not None else PASSWORD
        return redis.Redis("127.0.0.1", self.port, password=password)

    @property
    def url(self) -> str:
        if self.sentinel_of is not None:
            return f"sentinel://:{PASSWORD}@127.0.0.1:{self.port}/main"
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path / "redis")
    yield server
    server.stop()


def open_node(reactor, tmp_path, closing, name, urls, **more):
    settings = config(
        tmp_path, name, redis=tuple(map(SecretUrl, urls)), **{"lease_s": 1.0, "beat_s": 0.1, **more}
    )
    room = DirectoryServer(reactor, settings)
    room.open()
    closing.append(lambda: room.stop("the test is over"))
    announcer = Announcer(reactor, settings, "call", f"tcp://{name}:9501", "")
    closing.append(announcer)
    set_records(announcer, [rpc(f"of-{name}")])
    replica = Replica()
    closing.append(Reader(reactor, replica, ipc_dir=settings.ipc_dir))
    return room, announcer, replica


def share_with(reactor, server, replica, node, lease_s=1.0):
    settings = NodeConfig("", node=node, redis=(SecretUrl(server.url),), lease_s=lease_s, beat_s=0.1)
    (host,) = open_hosts(reactor, settings, replica)
    return host


def listeners(replica) -> list[str]:
    return [each.listener for each in replica.servers("nova", "compute")]


def test_two_nodes_share_by_one_redis(reactor, tmp_path, closing, server):
    _, one, seen_by_one = open_node(reactor, tmp_path, closing, "n1", [server.url])
    _, two, seen_by_two = open_node(reactor, tmp_path, closing, "n2", [server.url])
    turn_until(reactor, lambda: listeners(seen_by_one) == listeners(seen_by_two) == ["of-n1", "of-n2"])
    set_records(one, [rpc("of-n1"), rpc("more")])
    turn_until(reactor, lambda: listeners(seen_by_two) == ["more", "of-n1", "of-n2"])
    two.leave()
    turn_until(reactor, lambda: listeners(seen_by_one) == ["more", "of-n1"])
    with server.client() as client:
        assert {read_place(each) for each in client.smembers(PLACES)} == {("n1", "call")}
        assert read_age(client.get(lease_key(("n1", "call")))) == (one.state.incarnation, one.state.version)
        assert 0 < client.pttl(state_key(("n1", "call"))) <= 1000
        assert all(key.startswith(b"headgate:oslo:") for key in client.keys("*"))


def test_a_node_that_dies_is_gone_after_its_lease(reactor, tmp_path, closing, server):
    open_node(reactor, tmp_path, closing, "n1", [server.url])
    replica = Replica()
    share = share_with(reactor, server, replica, "n2", lease_s=1.0)
    closing.append(share)
    dying = share_with(reactor, server, Replica(), "n3", lease_s=0.5)
    dying.announce(state("n3", records=[rpc("of-n3")]))
    turn_until(reactor, lambda: listeners(replica) == ["of-n1", "of-n3"])
    dying.close()

    def gone():
        replica.tick(reactor.now())
        return listeners(replica) == ["of-n1"]

    turn_until(reactor, gone)
    with server.client() as client:
        assert {read_place(each) for each in client.smembers(PLACES)} == {("n1", "call")}


@pytest.mark.patient
def test_known_hosts_work_without_redis_and_after_its_restart_everything_is_written_again(
    reactor, tmp_path, closing, server
):
    room, one, _ = open_node(reactor, tmp_path, closing, "n1", [server.url])
    _, _two, replica = open_node(reactor, tmp_path, closing, "n2", [server.url])
    turn_until(
        reactor, lambda: listeners(replica) == ["of-n1", "of-n2"] and room.status()["redis"][0]["alive"]
    )
    server.stop()
    turn_until(reactor, lambda: not room.status()["redis"][0]["alive"])
    set_records(one, [rpc("of-n1"), rpc("later")])
    turn_for(reactor, 2.5)  # more than two leases
    assert listeners(replica) == ["of-n1", "of-n2"]
    seen = []
    replica.on_change.append(lambda: seen.append(listeners(replica)))
    server.start()
    turn_until(reactor, lambda: listeners(replica) == ["later", "of-n1", "of-n2"])
    turn_for(reactor, 2.5)
    assert listeners(replica) == ["later", "of-n1", "of-n2"]
    assert all("of-n1" in each for each in seen)
    assert room.status()["redis"][0]["connects"] >= 2


class Pauses(list):
    """In the place of the event that ends a host's thread: how long it would have waited, before it ends."""

    def is_set(self):
        return len(self) == 64

    wait = list.append


@for_each(("lease_s", "longest_s"), [(5.0, 2.0), (1.0, 0.5)])
def test_all_are_back_before_what_the_first_one_does_not_find_is_forgotten(lease_s, longest_s):
    node = NodeConfig("", node="n", lease_s=lease_s)
    pauses = Pauses()
    RedisHost("redis:0", "h:1", lambda: 1 // 0, node, Reactor(), Replica(), pauses)._run()
    assert longest_s / 2 < max(pauses) <= longest_s


class Immediate:
    """In the place of a reactor: what it is asked for is done at once, at the time that a test says."""

    time = 0.0

    def now(self):
        return self.time

    def call_threadsafe(self, call, *args):
        call(*args)

    def say(self, *_line):
        pass


class Looked:
    """What a host has when it is looked at: states, and the places that ``PLACES`` names."""

    def __init__(self, *states):
        self.places = {to_json(each.place) for each in states}
        self._values = {state_key(each.place): to_json(each) for each in states}
        self._values |= {lease_key(each.place): b"%d %d" % each.age for each in states}

    def info(self, _section):
        return {"run_id": "1"}

    def smembers(self, _key):
        return self.places

    def mget(self, keys):
        return [self._values.get(key) for key in keys]


def test_a_place_that_one_look_does_not_find_is_there_until_the_next_look():
    """Whoever is still there adds itself again with its next beat, of which the channel says nothing."""
    reactor, replica, client = Immediate(), Replica(), Looked(state("n1", records=[rpc("l1")]))
    node = NodeConfig("", node="n", lease_s=5.0)
    host = RedisHost("redis:0", "h:1", lambda: client, node, reactor, replica, None)
    host._begin(client)
    reactor.time = 2.5
    places, client.places = client.places, set()
    host._scan(client)
    client.places = places
    reactor.time = 5.3  # the next look is half a lease later, and a round
    replica.tick(reactor.time)
    assert listeners(replica) == ["l1"]
    host._scan(client)
    reactor.time = 20.0
    replica.tick(reactor.time)
    assert listeners(replica) == ["l1"]
    client.places = set()
    host._scan(client)
    replica.tick(25.0)
    assert listeners(replica) == []


def test_a_redis_that_forgot_everything_is_filled_again(reactor, tmp_path, closing, server):
    _, _, replica = open_node(reactor, tmp_path, closing, "n1", [server.url])
    open_node(reactor, tmp_path, closing, "n2", [server.url])
    turn_until(reactor, lambda: listeners(replica) == ["of-n1", "of-n2"])
    with server.client() as client:
        client.flushall()

        def filled():
            return client.get(lease_key(("n2", "call"))) and len(client.smembers(PLACES)) == 2

        turn_until(reactor, filled)
    turn_until(reactor, lambda: listeners(replica) == ["of-n1", "of-n2"])


def test_several_hosts_are_all_written_and_any_one_is_enough(reactor, tmp_path, closing, server):
    other = Server(tmp_path / "second")
    closing.append(other.stop)
    urls = [server.url, other.url]
    _, one, _ = open_node(reactor, tmp_path, closing, "n1", urls)
    room, _, replica = open_node(reactor, tmp_path, closing, "n2", urls)
    turn_until(reactor, lambda: listeners(replica) == ["of-n1", "of-n2"])
    for each in (server, other):
        with each.client() as client:
            turn_until(reactor, lambda c=client: len(c.smembers(PLACES)) == 2)
    server.stop()
    set_records(one, [rpc("of-n1"), rpc("later")])
    turn_until(reactor, lambda: listeners(replica) == ["later", "of-n1", "of-n2"])
    one.leave()
    turn_until(reactor, lambda: not room.status()["redis"][0]["alive"])
    turn_until(reactor, lambda: listeners(replica) == ["of-n2"])


def test_by_sentinel(reactor, tmp_path, closing, server):
    sentinel = Server(tmp_path / "sentinel", sentinel_of=server)
    closing.append(sentinel.stop)
    room, _, replica = open_node(reactor, tmp_path, closing, "n1", [sentinel.url])
    open_node(reactor, tmp_path, closing, "n2", [server.url])
    turn_until(reactor, lambda: listeners(replica) == ["of-n1", "of-n2"])
    assert room.status()["redis"][0]["host"] == f"127.0.0.1:{sentinel.port}/main"


@pytest.mark.patient
def test_a_frozen_redis_stops_nobody(reactor, tmp_path, closing, server):
    room, _, replica = open_node(reactor, tmp_path, closing, "n1", [server.url])
    turn_until(reactor, lambda: room.status()["redis"][0]["alive"])
    server.process.send_signal(signal.SIGSTOP)
    try:
        begin = time.monotonic()
        late = Announcer(reactor, config(tmp_path, "n1"), "cast", "tcp://n1:9504", "")
        closing.append(late)
        turn_until(reactor, lambda: replica.state("n1", "cast"))
        turns = reactor.turns
        turn_for(reactor, 0.5)
        assert reactor.turns - turns >= 5
        turn_until(reactor, lambda: not room.status()["redis"][0]["alive"])
        assert time.monotonic() - begin < 15
    finally:
        server.process.send_signal(signal.SIGCONT)
    turn_until(reactor, lambda: room.status()["redis"][0]["alive"])


def test_nonsense_in_redis_is_counted_told_once_and_harmless(reactor, tmp_path, closing, server, said):
    room, _, replica = open_node(reactor, tmp_path, closing, "n1", [server.url])
    turn_until(reactor, lambda: room.status()["redis"][0]["alive"])
    with server.client() as client:
        client.sadd(PLACES, b"nonsense", b'["n2","call"]', b'["n3","call"]', b'["n4","call"]')
        client.set(lease_key(("n2", "call")), b"9" * 5000 + b" 1")
        for node in ("n3", "n4"):
            client.set(lease_key((node, "call")), b"1 1")
        client.set(state_key(("n3", "call")), b"{")
        client.set(
            state_key(("n4", "call")),
            b'{"node":"n5","pipeline":"call","incarnation":1,"version":1,"endpoint":""}',
        )
        for nonsense in (b"nonsense", b'["\xff",""]', b'["' + b"n" * 5000 + b'","call"]'):
            client.publish(CHANNEL, nonsense)
        turn_until(reactor, lambda: room.status()["redis"][0]["malformed"] >= 8)
    odd = sorted(line for line in said if "a state was left out" in line)
    assert ["'n3', 'call'" in odd[0], "'n4', 'call'" in odd[1], len(odd)] == [True, True, 2]
    assert room.status()["redis"][0]["losses"] == 0
    open_node(reactor, tmp_path, closing, "n6", [server.url])
    turn_until(reactor, lambda: listeners(replica) == ["of-n1", "of-n6"])


def test_a_password_is_never_told(reactor, tmp_path, closing, server, said, caplog):
    room, _, _ = open_node(
        reactor, tmp_path, closing, "n1", [server.url, f"redis://:wrong-{PASSWORD}@127.0.0.1:{server.port}/0"]
    )
    turn_until(reactor, lambda: room.status()["redis"][0]["alive"])
    turn_until(reactor, lambda: any("what it told stays" in line for line in said))
    server.stop()
    turn_until(reactor, lambda: not room.status()["redis"][0]["alive"])
    assert PASSWORD not in f"{said}{caplog.text}"
    assert PASSWORD not in str(room.status())


@for_each(
    "url",
    [
        f"http://:{PASSWORD}@host",
        f"redis://:{PASSWORD}@host:port",
        f"redis://:a/{PASSWORD}@host:1",
        f"sentinel://u:{PASSWORD}/b@host/main",
        f"sentinel://:{PASSWORD}@host:1",
        f"sentinel://:{PASSWORD}@host/main",
        f"sentinel://:{PASSWORD}@host:1/main/x",
    ],
)
def test_other_urls_are_refused_without_their_password(url):
    with pytest.raises(ConfigError) as caught:
        opener(SecretUrl(url), "redis URL 1")
    assert PASSWORD not in str(caught.value)
    assert str(caught.value).startswith("redis URL 1")


@for_each("url", ["redis://host:1/2", "sentinel://a:1/main"])
def test_a_password_in_a_file_counts_where_the_url_has_none(url, tmp_path):
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    made = opener(SecretUrl(url), "x", read_file(str(file)))[1]()
    assert made.connection_pool.connection_kwargs["password"] == PASSWORD
    both = opener(SecretUrl(url.replace("://", "://:its-own@")), "x", PASSWORD)[1]()
    assert both.connection_pool.connection_kwargs["password"] == "its-own"


def test_labels_have_no_password():
    assert opener(SecretUrl(f"redis://user:{PASSWORD}@host:1/2"), "x")[0] == "host:1"
    assert opener(SecretUrl(f"sentinel://user:{PASSWORD}@a:1,b:2/main/3"), "x")[0] == "a:1,b:2/main"
    assert opener(SecretUrl("unix:///run/redis.sock"), "x")[0] == "/run/redis.sock"


def share_of(reactor, server, closing, node):
    replica = Replica()
    share = share_with(reactor, server, replica, node, lease_s=1.0)
    closing.append(share)
    return share, replica


def test_a_reader_that_falls_behind_reads_what_is_there_later(reactor, closing, server):
    share, replica = share_of(reactor, server, closing, "n1")
    writer, _ = share_of(reactor, server, closing, "n2")
    ends = time.monotonic() + 20
    count = 0
    while share.counts["heard"] < 5:  # the reactor is not turned: nothing is taken
        assert time.monotonic() < ends
        count += 1
        writer.announce(state("n2", version=count, records=[rpc(f"l{count}")]))
        time.sleep(0.01)
    assert share.counts["read"] <= 2
    turn_until(reactor, lambda: listeners(replica) == [f"l{count}"] and replica.synced)


def test_changes_that_follow_soon_are_written_and_read_together(reactor, closing, server):
    share, replica = share_of(reactor, server, closing, "n1")
    writer, _ = share_of(reactor, server, closing, "n2")
    writer.announce(state("n2", records=[rpc("l0")]))
    turn_until(reactor, lambda: listeners(replica) == ["l0"])
    before, read = writer.counts["writes"], share.counts["read"]
    for version in range(2, 102):
        writer.announce(
            state("n2", version=version, records=[rpc(f"l{number}") for number in range(version)])
        )
    turn_until(reactor, lambda: len(listeners(replica)) == 101)
    assert writer.counts["writes"] <= before + 2
    assert share.counts["read"] <= read + 3


def test_only_the_place_is_said_on_the_channel(reactor, closing, server):
    writer, _ = share_of(reactor, server, closing, "n2")
    with server.client() as client, client.pubsub() as channel:
        channel.subscribe(CHANNEL)
        channel.get_message(timeout=5)
        writer.announce(state("n2", records=[rpc("l0")]))
        turn_until(reactor, lambda: client.get(state_key(("n2", "call"))))
        writer.withdraw(("n2", "call"))
        said = [channel.get_message(timeout=5)["data"] for _ in range(2)]
    assert said == [b'["n2","call"]'] * 2
