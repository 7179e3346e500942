"""Settings read again: all or nothing, and who has to leave."""

import asyncio
import logging
import os
import threading
from dataclasses import replace

import pytest

from broker.errors import ConfigError, LinkClosed, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.ingress.admission import admit
from broker.node.assembly import Node
from broker.node.reload import Reload
from broker.transport import curve
from broker.transport.link import Options
from broker.transport.registry import dial
from broker.wire.message import RESPONSE
from broker.wire.payload import decode_json, encode_json
from tests.unit.node.desk import Far, ask, run, until
from tests.unit.node.keyed import Site

KEY, OTHER = curve.generate(), curve.generate()


@pytest.fixture(autouse=True)
def _level_as_it_was():
    log = logging.getLogger("headgate")
    level = log.level
    log.setLevel("INFO")
    yield
    log.setLevel(level)


class Place:
    """A tree of one with a local socket and an ipc listener for clients with keys."""

    def __init__(self, rundir, tree):
        self.site = Site(rundir, 1)
        self.site.sections["tree"] = tree
        self.site.listen = f'[[listen]]\nuri = "ipc://{rundir}/clients"\n'
        self.site.write()
        self.local, self.door = f"local://{rundir}/local-0", f"ipc://{rundir}/clients"
        self.node = None
        self.far: list[Far] = []

    async def __aenter__(self):
        self.node = Node(self.site.read(0))
        self.reload = Reload(self.node, lambda: self.site.read(0))
        await self.node.start()
        return self

    async def __aexit__(self, *_exc):
        for far in self.far:
            far.link.abort(LinkClosed("test over"))
        await self.node.stop()

    async def again(self):
        self.site.write()
        await self.reload.now()

    async def client(self, certificate, server=None):
        server = server or self.site.shown[0]
        options = Options(
            extra={"curve": curve.CurveClient(certificate, server.public_key)}, connect_timeout_s=3.0
        )
        far = Far(await dial(self.door, options))
        self.far.append(far)
        await said(far, "broker.ping")
        return far


async def said(far, topic, payload=None):
    far.inbox.clear()
    far.say(ask(topic, payload=encode_json(payload or {})))
    await until(lambda: far.of(RESPONSE))
    answer = far.of(RESPONSE)[0]
    assert not answer.errnum
    return decode_json(answer.payload) if answer.payload else None


def play(rundir, script, tree=""):
    async def main():
        async with Place(rundir, tree) as place:
            await script(place)

    run(main())


def test_clients_come_and_go_with_their_entries(rundir, caplog):
    async def script(place):
        with pytest.raises(LinkRefused):
            await place.client(KEY)
        place.site.clients = {each.public_key: "userid = 77\n" for each in (KEY, OTHER)}
        await place.again()
        gone, stays = await place.client(KEY), await place.client(OTHER)
        local = Far(await dial(place.local, Options()))
        del place.site.clients[KEY.public_key]
        await place.again()
        await until(lambda: gone.ended is not None)
        for far in (stays, local):
            await said(far, "broker.ping")
        with pytest.raises(LinkRefused):
            await place.client(KEY)
        assert "reloaded: 2 of [[clients]]" in caplog.text
        assert "its key has been taken out of [[clients]]" in caplog.text
        assert "reloaded: 1 of [[clients]]; 1 link ended" in caplog.text
        assert (place.reload.done, place.reload.refused) == (2, 0)

    play(rundir, script)


def test_a_client_whose_roles_change_has_to_come_again(rundir):
    async def script(place):
        place.site.clients = {KEY.public_key: "userid = 77\n"}
        await place.again()
        far = await place.client(KEY)
        place.site.clients = {KEY.public_key: 'userid = 77\nroles = ["owner"]\n'}
        await place.again()
        await until(lambda: far.ended is not None)
        await place.client(KEY)
        (port,) = [each for each in place.node.broker.router.ports if each.link is not None]
        assert port.cred.rolemask == 1

    play(rundir, script)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("[tree]\nsize = 1\n", "broker.toml:"),
        ("not toml", "not TOML"),
        ('[[listen]]\nuri = "ipc:///tmp/elsewhere"\n', "listen: cannot change while the broker runs"),
        ('[access]\nadmin_users = ["no-such-name-here"]\n', "no-such-name-here"),
    ],
)
def test_what_is_wrong_changes_nothing_and_is_one_line(rundir, caplog, spoil, words):
    async def script(place):
        place.site.clients = {KEY.public_key: "userid = 77\n"}
        await place.again()
        before = place.node.settings
        del place.site.clients[KEY.public_key]
        place.site.write()
        place.site.file.write_text(place.site.file.read_text() + spoil)
        caplog.clear()
        place.reload.request()
        await until(lambda: place.reload.refused)
        await until(lambda: caplog.records)
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert record.message.startswith("reload refused, nothing has changed: ")
        assert words in record.message
        assert "\n" not in record.message
        assert place.node.settings is before
        await place.client(KEY)

    play(rundir, script)


def test_several_faults_are_one_line_still(rundir, caplog):
    async def script(place):
        place.site.file.write_text('[broker]\nrank = "x"\n[tree]\nsize = 0\n')
        place.reload.request()
        await until(lambda: caplog.records and "refused" in caplog.records[-1].message)
        assert ":2: broker.rank" in caplog.records[-1].message
        assert ":4: tree.size" in caplog.records[-1].message

    play(rundir, script)


def test_curve_is_not_switched_off_on_the_way(rundir):
    async def script(place):
        text = place.site.file.read_text().replace('curve_cert = "rank-{rank}.cert"\n', "")
        place.site.file.write_text(text)
        with pytest.raises(ConfigError, match="CURVE is not switched on or off"):
            await place.reload.now()

    play(rundir, script)


def test_a_new_certificate_is_for_who_comes(rundir, caplog):
    async def script(place):
        place.site.clients = {KEY.public_key: "userid = 77\n"}
        await place.again()
        former, here = place.site.shown[0], await place.client(KEY)
        new = place.site.announce(0)[0]
        place.site.show(0, new)
        await place.again()
        place.site.settle()
        await place.again()
        await said(here, "broker.ping")
        await place.client(KEY, server=new)
        with pytest.raises(LinkError):
            await place.client(KEY, server=former)
        assert f"our certificate (public key {new.public_key})" in caplog.text
        assert "keys of rank 0" in caplog.text
        assert here.ended is None

    play(rundir, script)


def test_a_listener_that_cannot_take_it_is_told_of(rundir, caplog, monkeypatch):
    async def script(place):
        place.site.show(0, place.site.announce(0)[0])
        (listener,) = [each for each in place.node.listeners._open if each.address.startswith("ipc")]
        monkeypatch.setattr(type(listener), "renew", refuse)
        await place.again()
        assert "no way; its former certificate is shown there until the broker is restarted" in caplog.text

    def refuse(self, extra):
        raise ConfigError("no way")

    play(rundir, script)


def test_log_level_limits_and_the_shown_configuration(rundir):
    async def script(place):
        far = Far(await dial(place.local, Options()))
        place.site.sections["broker"] += 'log_level = "debug"\n'
        place.site.sections["limits"] = (
            "pending_per_link = 7\nbatch_msgs = 5\nguest_message_bytes = 4096\nstall_s = 9.0\n"
        )
        await place.again()
        await until(lambda: logging.getLogger("headgate").level == logging.DEBUG)
        assert (await said(far, "attr.get", {"name": "log-stderr-level"}))["value"] == "7"
        shown = await said(far, "config.get")
        assert shown["headgate"]["limits"]["pending_per_link"] == 7
        broker = place.node.broker
        assert (broker.router.pending_max, broker.backlog.batch_msgs) == (7, 5)
        assert place.node.settings.limits.stall_s == 9.0
        guest = PeerInfo("x", uid=4_000_000)
        assert {client_admission.max_bytes(guest) for client_admission in place.node.client_admissions} == {
            4096
        }

    play(rundir, script)


def test_guests_leave_when_they_are_not_allowed_any_more(rundir, caplog):
    """Their sockets would need another uid: what is judged is who the link says they are."""

    async def script(place):
        place.site.sections["access"] = "allow_guest_user = true\n"
        await place.again()
        guest, owner = Far(await dial(place.local, Options())), Far(await dial(place.local, Options()))
        await said(guest, "broker.ping")
        await said(owner, "broker.ping")
        ports = [each for each in place.node.broker.router.ports if each.link is not None]
        ports[0].link.peer = ports[0].link.peer._replace(uid=os.getuid() + 1)
        assert not admit(ports[0].link.peer, place.node.access).errnum
        place.site.sections["access"] = "private_mode = true\n"
        await place.again()
        assert ports[0].link.ended is not None
        assert ports[1].link.ended is None
        assert "guests are not allowed" in caplog.text

    play(rundir, script)


def test_the_directory_opens_to_guests_and_closes_as_at_a_start(rundir, caplog):
    """One that the broker made; where another one made it, the reload says what a start says."""
    modes = []

    async def script(place):
        run = place.node.settings.broker.rundir
        for made in (True, False):
            place.node.made_rundir = made
            for allowed in ("true", "false"):
                place.site.sections["access"] = f"allow_guest_user = {allowed}\n"
                await place.again()
                modes.append(os.stat(run).st_mode & 0o777)

    (rundir / "run").mkdir(mode=0o700)
    play(rundir, script)
    assert modes[:2] == [0o711, 0o700]
    assert modes[2:] == [0o700, 0o700]
    assert caplog.text.count("others cannot enter") == 1


def test_a_guest_who_becomes_admin_has_to_come_again(rundir):
    async def script(place):
        place.site.sections["access"] = "allow_guest_user = true\n"
        await place.again()
        await said(Far(await dial(place.local, Options())), "broker.ping")
        (port,) = [each for each in place.node.broker.router.ports if each.link is not None]
        uid = os.getuid() + 1
        port.link.peer = port.link.peer._replace(uid=uid)
        port.policy = admit(port.link.peer, place.node.access).policy
        place.site.sections["access"] = f"allow_guest_user = true\nadmin_users = [{uid}]\n"
        await place.again()
        assert str(port.link.ended) == "its roles have changed"

    play(rundir, script)


def test_what_counts_is_what_a_guest_was_let_in_as(rundir):
    """Groups change in the user database, and [access] stays as it is."""

    async def script(place):
        place.site.sections["access"] = "allow_guest_user = true\n"
        await place.again()
        await said(Far(await dial(place.local, Options())), "broker.ping")
        (port,) = [each for each in place.node.broker.router.ports if each.link is not None]
        peer = port.link.peer = port.link.peer._replace(uid=os.getuid() + 1)
        admins = replace(place.node.access, admin_uids=[peer.uid])
        port.policy = admit(peer, place.node.access).policy
        await place.again()
        assert port.link.ended is None
        port.policy = admit(peer, admins).policy
        await place.again()
        assert str(port.link.ended) == "its roles have changed"

    play(rundir, script)


def test_a_leaving_broker_reads_nothing_again(rundir):
    async def script(place):
        before = place.node.settings
        place.site.show(0, place.site.announce(0)[0])
        place.node.lifecycle.enter("cleanup")
        with pytest.raises(ConfigError, match="is leaving"):
            await place.again()
        assert place.node.settings is before

    play(rundir, script)


def test_nothing_new_is_said_to_be_nothing(rundir, caplog):
    async def script(place):
        await place.again()
        assert "reloaded: nothing has changed" in caplog.text

    play(rundir, script)


def test_signals_while_it_reads_make_it_read_once_more(rundir):
    async def script(place):
        begun, go = threading.Event(), threading.Event()

        def slow():
            begun.set()
            assert go.wait(10)
            return place.site.read(0)

        place.reload._reread = slow
        place.reload.request()
        await until(begun.is_set)
        for _ in range(5):
            place.reload.request()
        go.set()
        await until(lambda: place.reload.done == 2)
        await asyncio.sleep(0.05)
        assert place.reload.done == 2
        place.reload.request()
        await until(lambda: place.reload.done == 3)

    play(rundir, script)


def test_a_failure_of_ours_does_not_end_the_broker(rundir, caplog):
    async def script(place):
        def fail():
            raise RuntimeError("boom")

        place.reload._reread = fail
        place.reload.request()
        await until(lambda: "reload failed" in caplog.text)
        await said(Far(await dial(place.local, Options())), "broker.ping")

    play(rundir, script)


def test_settings_read_before_the_doors_are_open_wait_for_them(rundir):
    async def script():
        place = Place(rundir, "")
        place.node = Node(place.site.read(0))
        place.reload = Reload(place.node, lambda: place.site.read(0))
        place.reload.request()
        await asyncio.sleep(0.05)
        assert place.reload.done == 0
        await place.node.start()
        await until(lambda: place.reload.done == 1)
        await place.node.stop()

    run(script())
