"""A whole node from settings: what it opens, refuses, holds to, and how it goes; keys and accounts."""

import asyncio
import contextlib
import errno
import os
import signal

import pytest

from broker import endings, settings
from broker.errors import ConfigError, LinkBroken, LinkRefused, NotReady
from broker.exposition import REQUESTS_MAX
from broker.identity import Credentials, PeerInfo
from broker.node import assembly, bootstrap
from broker.node.assembly import Node
from broker.node.client_admission import group_ids, user_ids
from broker.node.curve_keys import client_keys, credentials, peer_keys
from broker.node.link_options import connections_of, listener_options, reserve_of
from broker.node.rundir import make_rundir
from broker.transport.link import Options
from broker.transport.unix import transport as unix
from broker.wire.message import RESPONSE
from broker.wire.payload import decode_json
from tests.live.own_log import own_log
from tests.tables import for_each
from tests.unit.node.desk import Far, ask, run, until

KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    """The process under test sets up logging for itself."""
    with own_log():
        yield


def node_of(rundir, more=""):
    text = f'[broker]\nrundir = "{rundir}/r"\nlocal_uri = "local://{rundir}/s"\n{more}'
    return settings.loads(text).at_rank(0)


async def dial(uri):
    return Far(await unix.dial(uri, Options()))


def test_how_long_somebody_may_be_silent_is_set_while_it_runs(rundir):
    async def script():
        node = Node(node_of(rundir))
        for name, good in {
            "tbon.torpid_min": ("100ms", "2s", "1m"),
            "tbon.torpid_max": ("0", "1.5m"),
        }.items():
            assert [node.context.apply_attribute(name, value) for value in good] == [0] * len(good)
            assert [node.context.apply_attribute(name, value) for value in ("soon", "-1s", "", "99d")] == [
                errno.EINVAL
            ] * 4
        assert node.context.apply_attribute("tbon.torpid_min", "0") == errno.EINVAL
        config = node.overlay._config
        assert (config.torpid_min_s, config.torpid_max_s) == (60.0, 90.0)

    run(script())


def test_a_node_serves_and_leaves_nothing_behind(rundir):
    async def script():
        node = Node(node_of(rundir, f'metrics_listen = "unix://{rundir}/m"\n'))
        await node.start()
        assert node.lifecycle.state == "run"
        far = await dial(f"local://{rundir}/s")
        far.say(ask("broker.ping", payload=b"{}\0"))
        await until(lambda: far.of(RESPONSE))
        assert decode_json(far.of(RESPONSE)[0].payload)["rank"] == 0
        reader, writer = await asyncio.open_unix_connection(rundir / "m")
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        text = (await reader.read()).decode()
        assert 'headgate_links{kind="client"} 1\n' in text
        writer.close()
        await node.stop()
        await until(lambda: far.ended is not None)
        assert node.lifecycle.state == "goodbye"
        assert not (rundir / "s").exists()
        await node.stop()

    run(script())


def test_scrapers_that_say_nothing_take_neither_the_descriptors_nor_the_port(rundir):
    async def script():
        node = Node(node_of(rundir, f'metrics_listen = "unix://{rundir}/m"\n'))
        await node.start()
        silent = [await asyncio.open_unix_connection(rundir / "m") for _ in range(REQUESTS_MAX + 3)]
        for reader, _writer in silent[:3]:
            assert await reader.read() == b"", "the oldest end for those that come"
        for reader, writer in (silent[-1], silent[4], await asyncio.open_unix_connection(rundir / "m")):
            writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        await node.stop()
        for reader, writer in silent:
            assert await reader.read() == b"", "it leaves with the broker"
            writer.close()

    run(script())


def test_what_guests_leave_to_the_owner_follows_from_the_limit(caplog):
    limits = settings.Settings.defaults().limits
    assert reserve_of(limits, 1024) == (896, 32)
    assert reserve_of(limits, 1 << 20) == ((1 << 20) - 4096, 1024)
    assert connections_of(limits, 1024) == 256
    assert not caplog.records
    named = settings.loads("[limits]\nreserved_descriptors = 600\nconnections_per_user = 7\n").limits
    assert reserve_of(named, 2048) == (1448, 150)
    assert connections_of(named, 1024) == 7
    assert reserve_of(named, 1000) == (500, 125), "half of them at most"
    assert "reserved_descriptors = 600: half of the 1000" in caplog.text


def test_a_journal_is_begun_before_the_doors_open_and_hears_who_is_turned_away(rundir, caplog):
    told = []

    class PaperCapture:
        def begin(self, _loop):
            assert not (rundir / "s").exists()
            told.append("begin")

        def end(self):
            told.append("end")

        def sweep(self):
            pass

        def refused(self, peer, errnum, reason):
            told.append((peer.uid, errnum, reason))

    async def script():
        node = Node(node_of(rundir, "[events]\nhistory_bytes = 0\n"))
        node.capture = PaperCapture()
        await node.start()
        guest = node.owner + 7
        node.client_admission.admit(PeerInfo("x", uid=guest))
        entry = settings.ListenEntry(uri=f"local://{rundir}/t")
        options = listener_options(entry, node.options, node.curve_keys, node._refused)
        options.refused(PeerInfo("x", uid=8), 1, "no")
        node.overlay._admit(PeerInfo("x", uid=node.owner + 9))
        await node.stop()
        assert told == [
            "begin",
            (guest, 1, f"uid {guest} is a guest and guests are not allowed"),
            (8, 1, "no"),
            (node.owner + 9, 1, "not a broker of this tree"),
            "end",
        ]
        assert [line for line in caplog.messages if "refused x" in line] == [
            f"refused x (pid None): uid {guest} is a guest and guests are not allowed",
            "refused x: not a broker of this tree",
        ], "one line for each"

    run(script())


def test_every_door_closes_when_the_broker_leaves(rundir):
    """Found here: only the first listener refused newcomers while children were waited for."""

    async def script():
        node = Node(node_of(rundir, f'[[listen]]\nuri = "local://{rundir}/t"\n'))
        await node.start()
        waiting = asyncio.Event()

        async def children_gone(_timeout_s):
            for name in "st":
                with pytest.raises(LinkRefused):
                    await unix.dial(f"local://{rundir}/{name}", Options())
            waiting.set()
            return True

        node.overlay.children_gone = children_gone
        await node.stop()
        assert waiting.is_set()

    run(script())


def test_the_sweep_rations_open_calls(rundir, monkeypatch):
    async def script():
        monkeypatch.setattr(assembly, "SWEEP_S", 0.01)
        node = Node(node_of(rundir, "[limits]\npending_per_link = 10\npending_total = 12\n"))
        await node.start()
        provider, greedy = await dial(f"local://{rundir}/s"), await dial(f"local://{rundir}/s")
        provider.say(ask("service.add", 1, b'{"service":"echo"}\0'))
        await until(lambda: provider.of(RESPONSE))
        greedy.say(*(ask("echo.x", tag) for tag in range(1, 9)))
        provider.say(*(ask("echo.x", tag) for tag in range(1, 9)))
        await until(lambda: all(port.pending_max <= 6 for port in node.broker.router.ports))
        greedy.say(ask("echo.x", 9))
        await until(lambda: greedy.of(RESPONSE))
        assert greedy.of(RESPONSE)[0].errnum == errno.EAGAIN
        for far in (provider, greedy):
            far.link.close()
        await until(lambda: node.broker.router.own.pending_max == 12)
        await node.stop()

    run(script())


def test_a_directory_for_sockets(rundir):
    make_rundir(f"{rundir}/a/b")
    assert os.stat(rundir / "a" / "b").st_mode & 0o777 == 0o700
    make_rundir(f"{rundir}/a/b", guests=True)
    assert os.stat(rundir / "a" / "b").st_mode & 0o777 == 0o700  # one that is there keeps its mode
    make_rundir(f"{rundir}/guests", guests=True)
    assert os.stat(rundir / "guests").st_mode & 0o777 == 0o711
    (rundir / "file").write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(ConfigError, match=r"broker\.rundir"):
            make_rundir(f"{rundir}/{path}")


def test_a_directory_that_others_may_change(rundir):
    (rundir / "there").mkdir(mode=0o700)
    (rundir / "link").symlink_to(rundir / "there")
    with pytest.raises(ConfigError, match=r"broker\.rundir .*symbolic link"):
        make_rundir(f"{rundir}/link")
    for mode in (0o707, 0o1777, 0o770):
        (rundir / "there").chmod(mode)
        with pytest.raises(ConfigError, match=rf"broker\.rundir .*saw mode {mode:04o}"):
            make_rundir(f"{rundir}/there")


def test_a_directory_of_somebody_else(rundir):
    if os.getuid() != 0:
        pytest.skip("optional: only root can give a directory away")
    os.chown(rundir, 12345, 12345)
    with pytest.raises(ConfigError, match="uid 12345"):
        make_rundir(str(rundir))


def test_accounts():
    assert user_ids(("root", 77)) == {0, 77}
    assert group_ids((5,)) == {5}
    for look_up in (user_ids, group_ids):
        with pytest.raises(NotReady, match="no-such-name-here"):  # sssd, LDAP may come up later
            look_up(("no-such-name-here",))


def test_keys_of_clients():
    text = f'[tree]\ncurve_cert = "x"\n[[clients]]\npublic_key = "{KEY}"\nuserid = 77\nroles = ["user", "admin"]\n'
    known = settings.loads(text)
    assert credentials(known.clients[0]) == Credentials(77, 10)
    assert list(client_keys(known)) == [KEY]
    assert peer_keys(known) == {}


# -- the process ------------------------------------------------------------------------------------


def test_a_signal_ends_the_process_with_success(rundir):
    def ready(node):
        os.kill(os.getpid(), signal.SIGTERM)

    assert bootstrap.run(node_of(rundir), ready=ready) == endings.OK
    assert not (rundir / "s").exists()


def test_what_runs_beside_comes_after_the_broker_and_leaves_before_it(rundir):
    seen = []

    @contextlib.asynccontextmanager
    async def beside(node):
        seen.append(("enter", (rundir / "s").exists()))
        yield
        await asyncio.sleep(0)
        seen.append(("leave", node.lifecycle.state))

    def ready(node):
        seen.append("ready")
        os.kill(os.getpid(), signal.SIGTERM)

    assert bootstrap.run(node_of(rundir), ready=ready, beside=beside) == endings.OK
    assert seen == [("enter", True), "ready", ("leave", "run")]


@for_each("signals", [1, 2])
def test_the_first_signal_to_one_that_leaves_with_its_tree_cuts_nothing_short(signals, rundir):
    """A signal may come with the news that rank 0 leaves: a machine that shuts down, a launcher that was killed."""
    left = []

    @contextlib.asynccontextmanager
    async def beside(_node):
        yield
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
        left.append("in order")

    def ready(node):
        node.context.leave("the instance is shutting down")

    assert bootstrap.run(node_of(rundir), ready=ready, beside=beside) == endings.OK
    assert left == ["in order"][: 2 - signals]


def test_a_broker_that_nohup_has_started_outlives_its_terminal(rundir):
    seen = []

    def ready(node):
        def later():
            seen.append(node.lifecycle.state)
            os.kill(os.getpid(), signal.SIGTERM)

        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().call_later(0.1, later)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert bootstrap.run(node_of(rundir), ready=ready) == endings.OK
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == ["run"]


def test_what_cannot_run_beside_ends_the_broker(rundir, capsys):
    @contextlib.asynccontextmanager
    async def beside(_node):
        raise ConfigError("the port is taken")
        yield

    ready = []
    assert bootstrap.run(node_of(rundir), ready=ready.append, beside=beside) == endings.CONFIG
    assert ready == []
    assert "headgate: the port is taken\n" in capsys.readouterr().err
    assert not (rundir / "s").exists()


def test_what_ran_beside_and_fails_to_leave_does_not_keep_the_broker(rundir):
    @contextlib.asynccontextmanager
    async def beside(_node):
        yield
        raise ValueError("cannot leave")

    def ready(_node):
        os.kill(os.getpid(), signal.SIGTERM)

    assert bootstrap.run(node_of(rundir), ready=ready, beside=beside) == endings.OK
    assert not (rundir / "s").exists()


def test_a_socket_that_cannot_be_made_is_one_line(rundir, capsys):
    (rundir / "s").mkdir()
    assert bootstrap.run(node_of(rundir)) == endings.CONFIG
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("headgate: ")] == [
        f"headgate: cannot listen at local://{rundir}/s: a file that is no socket is there"
    ]


def test_a_loss_that_the_settings_say_is_fatal_is_a_failure(rundir):
    code = bootstrap.run(node_of(rundir), ready=lambda node: node.must_exit("lost connection to parent"))
    assert code == endings.FAILED


def test_an_error_of_ours_is_a_failure(rundir, monkeypatch, capsys):
    async def start(_node):
        raise LinkBroken("the parent is not there")

    monkeypatch.setattr(Node, "start", start)
    assert bootstrap.run(node_of(rundir)) == endings.FAILED
    assert "headgate: rank 0: the parent is not there" in capsys.readouterr().err


def test_guests_before_a_closed_directory_are_a_warning(tmp_path, caplog):
    tmp_path.chmod(0o700)
    make_rundir(str(tmp_path), guests=True)
    assert "others cannot enter" in caplog.text
    caplog.clear()
    tmp_path.chmod(0o711)
    make_rundir(str(tmp_path), guests=True)
    assert caplog.text == ""
