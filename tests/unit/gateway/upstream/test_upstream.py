"""Joining an upstream, losing it, finding it again: before a stand-in."""

import asyncio
import logging
import time

import pytest

from broker import awake
from broker.errors import ConfigError, LinkEnded, RpcError
from broker.wire import message as wire
from gateway.upstream import upstream as module
from gateway.upstream.upstream import Upstream
from tests.unit.gateway.upstream.recorder import Recorder, hop, session_request, until
from tests.unit.gateway.upstream.standin import StandIn, joined, run

# -- joining -------------------------------------------------------------------------------------


def test_a_join_tells_what_is_there_and_begins_the_history():
    async def script():
        standin = StandIn()
        standin.number = 41
        async with joined(standin) as (_, centre, upstream):
            assert (upstream.rank, upstream.size, upstream.version) == (0, 2, "1.2.3")
            assert (upstream.headgate, upstream.epoch, upstream.reason) == (True, "epoch-1", "")
            assert centre.told == [("joined", True, None), ("published", [42])]
            assert centre.topics() == ["gateway.online"]
            assert centre.events[0].flags & wire.PRIVATE
            assert centre.history.covers("epoch-1", 41)
            assert centre.reregistered == 1
            assert {upstream.name, "gateway"} <= set(standin.services)
            assert upstream.name.startswith("gateway-")
        assert upstream.handle is None
        assert centre.told[-1] == ("lost", "left")

    run(script)


def test_a_flux_core_is_told_apart():
    async def script():
        async with joined(StandIn(headgate=False)) as (_, _, upstream):
            assert (upstream.headgate, upstream.version) == (False, "0.88.0")

    run(script)


def test_another_gateway_has_the_name_already():
    async def script():
        standin = StandIn()
        standin.services["gateway"] = None
        async with joined(standin) as (_, _, upstream):
            assert upstream.joined

    run(script)


def test_methods_of_the_gateway_can_be_called_through_the_upstream():
    async def script():
        async with joined(service={"who": lambda request: {"me": 1}}) as (_, _, upstream):
            assert (await upstream.handle.rpc("gateway.who")).json() == {"me": 1}
            with pytest.raises(RpcError, match="Unknown service method"):
                await upstream.handle.rpc(f"{upstream.name}.who")

    run(script)


def test_a_guest_is_no_gateway():
    async def script():
        standin = StandIn()
        standin.rolemask = 6
        upstream = Upstream(standin.uri, rejoin_max_s=0.1)
        await standin.open()
        await upstream.start(Recorder())
        await until(lambda: "guest 7" in upstream.reason, "the refusal")
        assert not upstream.joined
        assert not upstream.send(session_request(hop("a"), "x.y"))
        standin.rolemask = 5  # the operator put it right: no restart is needed
        assert await upstream.wait_joined(10)
        await upstream.stop()
        await standin.close()

    run(script)


def test_an_upstream_that_comes_late_is_found():
    async def script():
        standin, centre = StandIn(), Recorder()
        upstream = Upstream(standin.uri, rejoin_max_s=0.1)
        await upstream.start(centre)
        assert not await upstream.wait_joined(0.05)
        assert upstream.reason
        assert centre.told == []
        await standin.open()
        assert await upstream.wait_joined(10)
        await upstream.stop()
        await upstream.stop()
        await standin.close()

    run(script)


def test_an_upstream_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "JOIN_S", 0.1)

    async def script():
        standin = StandIn()
        standin.silent = ("broker.ping",)
        await standin.open()
        upstream = Upstream(standin.uri, rejoin_max_s=0.1)
        await upstream.start(Recorder())
        await until(lambda: "no answer within 0.1 s" in upstream.reason, "giving up")
        standin.silent = ()
        assert await upstream.wait_joined(10)
        await upstream.stop()
        await standin.close()

    run(script)


def test_an_address_nobody_understands_is_an_error_of_the_operator():
    async def script():
        with pytest.raises(ConfigError, match="no transport"):
            await Upstream("carrier://pigeon").start(Recorder())

    run(script)


def test_rank_0_that_changes_during_the_join_is_asked_again():
    async def script():
        standin = StandIn()

        def restart_once(link, message, publish=standin.event_publish):
            publish(link, message)
            if standin.attrs["broker.uuid"] == "epoch-1":
                standin.new_root()

        standin.number = 500
        standin.event_publish = restart_once
        async with joined(standin) as (_, centre, upstream):
            assert upstream.epoch == centre.history.epoch == "epoch-2"
            assert centre.told == [("joined", True, None), ("published", [1])]

    run(script)


def test_an_odd_upstream_does_not_end_the_attempts(caplog):
    async def script():
        standin = StandIn()
        standin.attrs["rank"] = "no number"
        upstream = Upstream(standin.uri, rejoin_max_s=0.1)
        await standin.open()
        await upstream.start(Recorder())
        await until(lambda: "no number" in upstream.reason, "the failure")
        standin.attrs["rank"] = "0"
        assert await upstream.wait_joined(10)
        await upstream.stop()
        await standin.close()

    with caplog.at_level(logging.CRITICAL, "headgate"):
        run(script)


# -- losing it -----------------------------------------------------------------------------------


def test_a_lost_upstream_is_told_at_once_and_found_again():
    async def script():
        async with joined() as (standin, centre, upstream):
            centre.told.clear()
            first = upstream.handle
            first.link.abort(LinkEnded("the upstream was killed"))
            assert centre.told == [("lost", "the upstream was killed")]
            assert (upstream.joined, upstream.handle, upstream.epoch) == (False, None, "")
            assert not upstream.send(session_request(hop("a"), "x.y"))
            standin.event("missed")
            assert await upstream.wait_joined(10)
            assert upstream.handle is not first
            assert (upstream.joins, upstream.losses, centre.reregistered) == (2, 1, 2)
            await until(lambda: centre.kinds()[-1] == "published", "events")
            assert centre.told[1:] == [("joined", False, 1), ("published", [3])]

    run(script)


def test_nothing_missed_is_told_as_nothing_missed():
    async def script():
        async with joined() as (_, centre, upstream):
            upstream.handle.link.abort(LinkEnded("cut"))
            assert await upstream.wait_joined(10)
            assert centre.told[-2:] == [("joined", False, 0), ("published", [2])]
            assert centre.history.covers("epoch-1", 0)

    run(script)


def test_another_instance_behind_the_same_address_is_a_new_epoch():
    async def script():
        async with joined() as (standin, centre, upstream):
            for _ in range(5):
                standin.event()
            standin.new_root()
            upstream.handle.link.abort(LinkEnded("cut"))
            assert await upstream.wait_joined(10)
            assert upstream.epoch == "epoch-2"
            assert centre.told[-2:] == [("joined", True, None), ("published", [1])]
            assert not centre.history.covers("epoch-1", 1)

    run(script)


def test_calls_of_our_own_end_with_the_link():
    async def script():
        async with joined() as (_, _, upstream):
            asyncio.get_running_loop().call_later(0.01, upstream.handle.link.abort, LinkEnded("cut"))
            with pytest.raises(LinkEnded):
                await upstream.handle.rpc("odd.hang")

    run(script)


def test_silence_is_looked_into(monkeypatch):
    monkeypatch.setattr(module, "SILENT_S", 0.05)

    class SpeaksAgain(StandIn):
        def accept(self, link):
            self.silent = ()  # to join takes a ping, too
            super().accept(link)

    async def script():
        async with joined(SpeaksAgain()) as (standin, centre, upstream):
            pings = standin.seen.count("broker.ping")
            await until(lambda: standin.seen.count("broker.ping") > pings + 1, "a sign of life")
            assert upstream.losses == 0
            monkeypatch.setattr(module, "PATIENCE_S", 0.1)  # not before: a busy machine may answer later
            standin.silent = ("broker.ping",)
            await until(lambda: upstream.losses == 1, "giving up")
            assert "no sign of life" in dict(entry for entry in centre.told if len(entry) == 2)["lost"]
            monkeypatch.undo()  # a busy machine may be late with an answer to each of its pings
            assert await upstream.wait_joined(10)

    run(script)


def test_a_gateway_that_was_stopped_asks_again(monkeypatch):
    monkeypatch.setattr(module, "SILENT_S", 0.05)
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(awake, "LATE_S", 0.05)

    async def script():
        async with joined() as (standin, _, upstream):
            standin.silent = ("broker.ping",)
            pings = standin.seen.count("broker.ping")
            await until(lambda: standin.seen.count("broker.ping") > pings, "a sign of life")
            time.sleep(0.4)  # noqa: ASYNC251 - nobody was here
            standin.silent = ()
            await until(lambda: standin.seen.count("broker.ping") > pings + 2, "asking again")
            assert upstream.losses == 0

    run(script)


def test_a_gateway_that_is_always_late_gives_a_silent_upstream_up_too(monkeypatch):
    monkeypatch.setattr(module, "SILENT_S", 0.05)
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    monkeypatch.setattr(module, "stall_s", lambda _due, _now: 0.6)

    async def script():
        async with joined() as (standin, _, upstream):
            standin.silent = ("broker.ping",)
            await until(lambda: upstream.losses == 1, "giving up")

    run(script)


def test_whatever_an_upstream_says_is_a_sign_of_life(monkeypatch):
    monkeypatch.setattr(module, "SILENT_S", 0.05)
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    monkeypatch.setattr(awake, "LATE_S", 0.03)

    async def script():
        async with joined() as (standin, _, upstream):
            standin.broker_ping = lambda link, message: standin.event()
            pings = standin.seen.count("broker.ping")
            await until(lambda: standin.seen.count("broker.ping") > pings + 3, "asking again")
            assert upstream.losses == 0

    run(script)


def test_a_slow_upstream_is_told_and_so_is_its_recovery():
    async def script():
        async with joined() as (_, centre, upstream):
            centre.told.clear()
            upstream.handle.link.choked(True)
            upstream.handle.link.choked(True)
            assert upstream.choked
            upstream.handle.link.choked(False)
            assert centre.told == [("choked", True), ("choked", False)]
            upstream.handle.link.choked(True)
            upstream.handle.link.abort(LinkEnded("cut"))
            assert centre.told[2:] == [("choked", True), ("choked", False), ("lost", "cut")]
            assert not upstream.choked

    run(script)


def test_an_upstream_that_was_slow_before_it_was_joined_leaves_nobody_paused():
    async def script():
        standin = StandIn()
        async with joined(standin) as (_, _, upstream):
            standin.silent = ("attr.get",)
            asked = standin.seen.count("attr.get")
            upstream.handle.link.abort(LinkEnded("cut"))
            await until(lambda: standin.seen.count("attr.get") > asked, "half a join")
            trunk = [*standin.links.values()][-1]._other
            trunk.choked(True)
            assert upstream.choked
            assert not upstream.joined
            standin.silent = ()
            trunk.abort(LinkEnded("cut again"))
            assert not upstream.choked
            assert await upstream.wait_joined(10)

    run(script)


def test_a_reason_is_logged_once(caplog):
    async def script():
        upstream = Upstream("inproc://nobody-here", rejoin_max_s=0.1)
        await upstream.start(Recorder())
        await asyncio.sleep(0.4)
        await upstream.stop()

    with caplog.at_level(logging.WARNING, "headgate"):
        run(script)
    assert len([record for record in caplog.records if "nobody-here" in record.getMessage()]) == 1
