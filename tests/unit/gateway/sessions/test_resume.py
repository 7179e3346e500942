"""A client that comes back: replayed exactly what it missed and may have now, then live; told whether that is all."""

import asyncio
from collections import Counter, defaultdict

from broker.wire import message as wire
from gateway.closes import INTERNAL
from gateway.events.run import Run
from gateway.sessions import resume as resuming
from gateway.sessions.deadlines import Deadlines
from gateway.sessions.resume import BEHIND_S, PORTION_BYTES, PORTION_MSGS, Replays, session_of, token_for
from tests.tables import for_each
from tests.unit.gateway.sessions.desk import KEY, Desk, Others, principal, rule, run, until
from tests.unit.routing.operations import bytecodes

ADA, BOB = principal("ada", 1001), principal("bob", 1002, credential="token:2")
NEWS = rule(["user"], ["news.", "gateway."], ["subscribe", "publish"])


async def publish(desk, *topics, private=False):
    """Published, and known to the history here."""
    async with desk.direct() as far:
        for topic in topics:
            last = await far.publish(topic, private=private)
    await until(lambda: desk.delivery.history.last >= last)
    return last


def place(desk):
    return desk.delivery.history.epoch, desk.delivery.history.last


def resume(web, former, epoch, sequence, *prefixes):
    web.session.control(
        {
            "type": "resume",
            "token": former.session.welcome()["resume"] if hasattr(former, "session") else former,
            "epoch": epoch,
            "sequence": sequence,
            "subscriptions": list(prefixes) or ["news."],
        }
    )


async def resumed(web):
    await until(lambda: web.told("resumed"))
    return web.told("resumed")[0]


def test_what_was_missed_comes_before_the_word_and_live_events_after():
    async def script(desk):
        old = desk.client()
        where = place(desk)
        old.leave()
        await publish(desk, "news.a", "job.x", "news.b")
        web = desk.client()
        resume(web, old, *where)
        said = await resumed(web)
        assert said == {
            "type": "resumed",
            "recovered": True,
            "epoch": where[0],
            "sequence": desk.delivery.history.last,
            "replayed": 2,
            "denied": [],
        }
        await publish(desk, "news.c")
        await until(lambda: len(web.topics) == 3)
        assert [one if isinstance(one, str) else one["type"] for one in in_order(web)] == [
            "news.a", "news.b", "resumed", "news.c",
        ]  # fmt: skip

    run(script, rules=[NEWS])


def in_order(web):
    return [one if isinstance(one, dict) else one.topic for one in web.log]


def test_zero_events_are_a_recovery_too():
    async def script(desk):
        old = desk.client()
        where = place(desk)
        old.leave()
        web = desk.client()
        resume(web, old, *where)
        assert (await resumed(web))["recovered"] is True
        assert web.told("resumed")[0]["replayed"] == 0
        await publish(desk, "news.a")
        await until(lambda: web.topics == ["news.a"])

    run(script, rules=[NEWS])


def test_two_reconnects_in_a_row_bring_each_event_once():
    async def script(desk):
        web = desk.client()
        await web.rpc("event.subscribe", {"topic": "news."})
        seen = []
        where = place(desk)
        for number in range(3):
            await publish(desk, f"news.{number}")
            following = desk.client()
            web.leave()
            resume(following, web, *where)
            assert (await resumed(following))["recovered"] is True
            seen += following.topics
            where = place(desk)
            web = following
        assert seen == ["news.0", "news.1", "news.2"]

    run(script, rules=[NEWS])


def test_a_half_open_former_connection_is_ended_and_changes_nothing():
    async def script(desk):
        old = desk.client()
        await old.rpc("event.subscribe", {"topic": "news."})
        where = place(desk)
        await publish(desk, "news.a")
        assert old.topics == ["news.a"]
        web = desk.client()
        resume(web, old, *where)
        assert (await resumed(web))["replayed"] == 1
        assert old.code == 4006
        await publish(desk, "news.b")
        await until(lambda: web.topics == ["news.a", "news.b"])
        assert old.topics == ["news.a"]

    run(script, rules=[NEWS])


def test_a_half_open_former_connection_at_another_worker_is_ended_and_nobody_elses():
    async def script(desk):
        other = Desk(desk.rundir, desk.sessions.settings)
        old, again = other.client(), other.client()

        async def workers(question):
            return [other.administration.answered(question)]

        desk.sessions.peers = Others(workers)
        web, bob = desk.client(), desk.client(BOB)
        resume(bob, token_for(KEY, BOB, again.session.id), *place(desk))  # of a session of another user
        resume(web, old, *place(desk))
        assert (await resumed(web))["recovered"]
        await until(lambda: old.code == 4006)
        assert again.code is None
        await other.close()

    run(script, rules=[NEWS])


def test_holes_of_prefix_and_privacy_are_no_loss_and_rights_are_those_of_now():
    async def script(desk):
        old = desk.client(principal(roles=("owner",)))
        where = place(desk)
        old.leave()
        writer = desk.client(principal("bob", 1002, credential="token:2"))
        writer.say(wire.event("news.hers", flags=wire.PRIVATE))
        mine = desk.client()
        mine.say(wire.event("news.mine", flags=wire.PRIVATE))
        await desk.settled()
        await publish(desk, "job.x", "news.open")
        web = desk.client()
        resume(web, old, *where, "news.", "job.", "news.secret.")
        said = await resumed(web)
        assert (said["recovered"], said["denied"]) == (True, ["job.", "news.secret."])
        assert web.topics == ["news.mine", "news.open"]

    run(script, rules=[NEWS, rule(["user"], ["news.secret."], ["subscribe"], allow=False)])


def test_the_owner_gets_private_events_at_replay_and_loses_them_with_the_role():
    async def script(desk):
        old = desk.client(principal("ada", 1001, ("owner",)))
        where = place(desk)
        writer = desk.client(principal("bob", 1002, credential="token:2"))
        writer.say(wire.event("news.hers", flags=wire.PRIVATE))
        await desk.settled()
        again = desk.client(principal("ada", 1001, ("owner",)))
        resume(again, old, *where)
        await resumed(again)
        assert again.topics == ["news.hers"]
        demoted = desk.client(principal("ada", 1001, ("user",)))
        resume(demoted, again, *where)
        assert (await resumed(demoted))["recovered"] is True
        assert demoted.topics == []

    run(script, rules=[NEWS])


def test_another_epoch_is_not_recovered():
    async def script(desk):
        old = desk.client()
        _epoch, sequence = place(desk)
        web = desk.client()
        resume(web, old, "00000000-0000-0000-0000-000000000000", sequence)
        said = await resumed(web)
        assert (said["recovered"], said["epoch"]) == (False, desk.delivery.history.epoch)
        await publish(desk, "news.a")
        await until(lambda: web.topics == ["news.a"])

    run(script, rules=[NEWS])


def test_a_history_that_does_not_reach_back_is_not_recovered():
    async def script(desk):
        old = desk.client()
        where = place(desk)
        await publish(desk, "news.a", "news.b", "news.c")
        web = desk.client()
        resume(web, old, *where)
        assert (await resumed(web))["recovered"] is False
        assert web.topics == []
        middle = desk.client()
        resume(middle, old.session.welcome()["resume"], where[0], where[1] + 1)
        assert (await resumed(middle))["recovered"] is True
        assert middle.topics == ["news.b", "news.c"]

    run(script, rules=[NEWS], gateway={"history_msgs": 2})


def test_a_process_that_is_behind_waits_until_it_has_seen_what_the_client_has():
    """Another worker was faster: nothing at or below the client's number may come again."""

    async def script(desk):
        old = desk.client()
        epoch, sequence = place(desk)
        web = desk.client()
        resume(web, old, epoch, sequence + 2)
        await asyncio.sleep(0.01)
        assert not web.told("resumed")
        tag = web.send("event.subscribe", {"topic": "news.d"})
        await web.settled()
        assert not web.answers(tag)
        await publish(desk, "news.a", "news.b", "news.c")
        assert (await resumed(web))["recovered"] is True
        await publish(desk, "news.d")
        await until(lambda: web.topics[-1:] == ["news.d"])
        assert web.topics == ["news.c", "news.d"]
        assert (await web.answer(tag)).errnum == 0

    run(script, rules=[NEWS])


def test_a_process_that_stays_behind_says_so_in_time():
    async def script(desk):
        old = desk.client()
        epoch, sequence = place(desk)
        web = desk.client()
        resume(web, old, epoch, sequence + 5)
        now = desk.sessions.clock()
        desk.sessions.clock = lambda: now + BEHIND_S
        said = await resumed(web)
        assert (said["recovered"], said["sequence"]) == (False, sequence)

    run(script, rules=[NEWS])


def test_a_client_that_comes_back_before_the_upstream_does_waits_for_it():
    async def script(desk):
        old = desk.client()
        where = place(desk)
        await desk.node.stop()
        await until(lambda: not desk.upstream.joined)
        web = desk.client()
        resume(web, old, *where)
        await asyncio.sleep(0.01)
        assert not web.told("resumed")
        await desk.start_broker()
        assert (await resumed(web))["recovered"] is False
        await publish(desk, "news.a")
        await until(lambda: web.topics == ["news.a"])

    run(script, rules=[NEWS])


def test_more_prefixes_than_a_client_may_have_are_denied_and_cost_nothing():
    async def script(desk):
        old = desk.client()
        where = place(desk)
        web = desk.client()
        many = [f"news.{n}" for n in range(50_000)]
        resume(web, old, *where, *many)
        said = await resumed(web)
        assert (said["recovered"], len(web.session.subscriptions)) == (True, 256)
        assert said["denied"] == many[256:]

    run(script, rules=[NEWS])


async def publish_many(desk, count, topic="news.a"):
    """So many events, all of them known to the history here."""
    last = desk.delivery.history.last + count
    async with desk.direct() as far:
        for n in range(count - 1):
            far.publish_nowait(topic, str(n))
        await far.publish(topic)
    await until(lambda: desk.delivery.history.last == last)


def stuck_after_the_first_event(web):
    """The client reads one portion and then nothing, until its outbox is emptied."""

    class Stuck(type(web.near)):
        __slots__ = ()

        def send(self, message):
            super().send(message)
            self.outbox.queued_bytes = 1 << 20

    web.near.__class__ = Stuck
    return type(web.near).__mro__[1]


def test_a_long_replay_goes_as_fast_as_the_client_reads():
    async def script(desk):
        old = desk.client()
        where = place(desk)
        await publish_many(desk, 1501)
        web = desk.client()
        plain, asked = stuck_after_the_first_event(web), []

        class Counted(Replays):
            __slots__ = ()

            def add(self, resumption):
                asked.append(resumption)
                super().add(resumption)

        desk.delivery.replays.__class__ = Counted
        resume(web, old, *where)
        await until(lambda: len(asked) == 2)
        await asyncio.sleep(0.05)
        assert len(web.topics) == PORTION_MSGS - where[1] % PORTION_MSGS
        assert not web.told("resumed")
        web.near.outbox.queued_bytes = PORTION_BYTES + 1
        web.near.outbox.drained()
        assert len(asked) == 2, "it waits to be told"
        web.near.__class__ = plain
        web.near.outbox.queued_bytes = PORTION_BYTES
        web.near.outbox.drained()
        assert (await resumed(web))["recovered"] is True
        assert len(web.topics) == 1501
        numbers = [one.sequence for one in web.of(wire.EVENT)]
        assert numbers == sorted(set(numbers))

    run(script, rules=[NEWS])


def test_events_that_fall_out_of_the_history_during_the_replay_are_a_loss():
    async def script(desk):
        old = desk.client()
        where = place(desk)
        await publish_many(desk, 601)
        web = desk.client()
        stuck_after_the_first_event(web)
        resume(web, old, *where)
        await until(lambda: web.topics)
        assert len(web.topics) == PORTION_MSGS - where[1] % PORTION_MSGS
        await publish_many(desk, 601, "job.a")
        web.near.outbox.queued_bytes = 0
        web.near.outbox.drained()
        assert (await resumed(web))["recovered"] is False

    run(script, rules=[NEWS], gateway={"history_msgs": 650})


def test_who_comes_back_together_shares_what_is_made_of_the_events(monkeypatch):
    """Each had all of them encoded once more: fifty clients got less than was published meanwhile."""
    runs = []

    def noted(messages):
        runs.append(len(messages))
        return Run(messages)

    monkeypatch.setattr(resuming, "Run", noted)

    async def script(desk):
        old = desk.client()
        first = place(desk)
        await publish_many(desk, 40)
        second = place(desk)
        await publish_many(desk, 600)
        back = [desk.client() for _ in range(8)]
        for number, web in enumerate(back):
            resume(web, old, *(first, second)[number % 2])
        for web in back:
            assert (await resumed(web))["recovered"] is True
        assert [len(web.topics) for web in back] == [640, 600] * 4
        assert sum(runs) < 2 * 640

    run(script, rules=[NEWS])


class Turns:
    """What the turns of the loop hold: the number of each, and the events that were sent in it to whom."""

    def __init__(self):
        self.sent = []
        self.now = 0
        self.next()

    def next(self):
        self.now += 1
        asyncio.get_running_loop().call_soon(self.next)

    def watch(self, web, name):
        turns = self

        class Noted(list):
            def append(self, one):
                super().append(one)
                if not isinstance(one, dict):
                    turns.sent.append((turns.now, name))

        web.log = Noted()


def test_one_portion_is_sent_in_a_turn_of_the_loop_and_users_take_turns():
    """However many clients come back at once, everybody else is served between two portions."""

    async def script(desk):
        old = {who.name: desk.client(who) for who in (ADA, BOB)}
        where = place(desk)
        await publish_many(desk, 1000)
        back = [("ada", desk.client(ADA)) for _ in range(8)] + [("bob", desk.client(BOB))]
        turns = Turns()
        for name, web in back:
            turns.watch(web, name)
            resume(web, old[name], *where)
        for _, web in back:
            assert (await resumed(web))["replayed"] == 1000
        assert max(Counter(now for now, _ in turns.sent).values()) <= PORTION_MSGS
        assert all(len(set(names)) == 1 for names in by_turn(turns.sent))
        last = max(index for index, (_, name) in enumerate(turns.sent) if name == "bob")
        assert last < 2 * 1000 + PORTION_MSGS, "eight of ada's do not go before the one of bob"

    run(script, rules=[NEWS])


def by_turn(sent):
    found = defaultdict(list)
    for now, name in sent:
        found[now].append(name)
    return found.values()


def test_a_replay_asks_each_prefix_length_and_not_each_prefix():
    async def script(desk):
        costs = []
        for count in (1, 250):
            old = desk.client()
            where = place(desk)
            await publish_many(desk, 2 * PORTION_MSGS)
            web = desk.client()
            resume(web, old, *where, *(f"news.{n:04}" for n in range(count)))
            costs.append(bytecodes(web.session.resumption.turn))
            assert (await resumed(web))["recovered"] is True
        assert costs[1] <= 1.1 * costs[0]

    run(script, rules=[NEWS])


def test_replays_are_charged_to_their_user():
    """At once the whole history for each connection; then a user waits, and another one does not."""

    async def script(desk):
        now = desk.sessions.clock()
        desk.sessions.clock = lambda: now
        old = {who.name: desk.client(who) for who in (ADA, BOB)}
        where = place(desk)
        await publish_many(desk, 200)
        for _ in range(3):
            web = desk.client(ADA)
            resume(web, old["ada"], *where)
            await resumed(web)
            web.leave()
        late = desk.client(ADA)
        resume(late, old["ada"], *where)
        other = desk.client(BOB)
        resume(other, old["bob"], *where)
        assert (await resumed(other))["replayed"] == 200
        await until(lambda: len(late.topics) == 3 * 256 - 600)
        assert not late.told("resumed")
        assert desk.delivery.replays.wait_s(ADA) > 0 == desk.delivery.replays.wait_s(BOB)
        now += 1000
        assert (await resumed(late))["replayed"] == 200

    run(
        script,
        rules=[NEWS],
        limits={"replay_msgs_per_s": 6400, "connections_per_user": 3},
        gateway={"history_msgs": 256},
    )


def test_a_client_that_goes_while_it_waits_for_its_turn_takes_none():
    async def script(desk):
        old = desk.client()
        where = place(desk)
        await publish_many(desk, 300)
        for _ in range(20):
            web = desk.client()
            resume(web, old, *where)
            web.session.close(4006, "enough")
        assert desk.delivery.replays._rows == {}

    run(script, rules=[NEWS])


def waiting(desk, old, count, ahead):
    """So many clients that wait for an event that has not come yet, each with a subscription behind that."""
    epoch, sequence = place(desk)
    for n in range(count):
        web = desk.client(principal(f"late-{n}"))
        resume(web, web, epoch, sequence + ahead)
        web.send("event.subscribe", {"topic": "news.d"})


@for_each("work", ["end of a resumption", "events"])
def test_what_others_wait_for_costs_nobody_else(work):
    async def script(desk):
        costs, now = [], desk.sessions.clock()
        desk.sessions.clock = lambda: now
        for count in (1, 50):
            old = desk.client()
            waiting(desk, old, count, 1000)
            await desk.settled()
            if work == "events":
                await publish(desk, "job.a")
                events = desk.delivery.history.since(place(desk)[1] - 1, 1)
                costs.append(bytecodes(lambda events=events: desk.delivery.published(events)))
            else:
                web = desk.client()
                costs.append(bytecodes(lambda web=web, old=old: resume(web, old, *place(desk))))
                assert web.told("resumed")
        assert len([one for row in desk.delivery.deadlines.resumptions.values() for one in row]) == 51
        assert costs[1] <= 1.1 * costs[0]

    run(script, rules=[NEWS])


def test_whoever_waits_for_a_number_that_never_comes_is_found_by_time():
    async def script(desk):
        old, now = desk.client(), desk.sessions.clock()
        desk.sessions.clock = lambda: now
        epoch, sequence = place(desk)
        web = desk.client()
        resume(web, old, epoch, sequence + 1)
        await web.settled()

        class Unheard(Deadlines):  # as when the event with the number is lost on its way
            __slots__ = ()

            def arrived(self, messages):
                """Nobody is told."""

        desk.delivery.deadlines.__class__ = Unheard
        await publish(desk, "news.a", "news.b")
        assert (await resumed(web))["recovered"] is True

    run(script, rules=[NEWS])


def test_a_token_that_names_no_connection_of_this_user_replaces_none_and_the_rest_holds():
    async def script(desk):
        where = place(desk)
        await publish(desk, "news.a")
        olds = [desk.client(who) for who in (principal("ada", 1002), principal("eve", 1001))]
        for token in (*olds, "nonsense", ""):
            web = desk.client()
            resume(web, token, *where, "news.")
            said = await resumed(web)
            assert (said["recovered"], said["replayed"]) == (True, 1)
        assert not any(old.session.ended for old in olds)

    run(script, rules=[NEWS])


def test_a_resume_comes_first_and_once():
    async def script(desk):
        subscribed = desk.client()
        await subscribed.rpc("event.subscribe", {"topic": "news."})
        resume(subscribed, subscribed, *place(desk))
        assert subscribed.code == 4503
        twice = desk.client()
        for _ in range(2):
            resume(twice, twice, *place(desk), "gateway.")
        assert twice.code == 4503

    run(script, rules=[NEWS])


def test_a_client_that_goes_while_it_waits_leaves_nothing_behind():
    async def script(desk):
        old = desk.client()
        epoch, sequence = place(desk)
        web = desk.client()
        resume(web, old, epoch, sequence + 1)
        web.send("event.subscribe", {"topic": "news."})
        await web.settled()
        web.leave()
        await until(lambda: web.session.ended)
        assert not desk.delivery.deadlines.resumptions
        await publish(desk, "news.a")
        assert web.topics == []
        assert desk.delivery.fanout.prefixes() == {}

    run(script, rules=[NEWS])


@for_each("name", ["ada", "ünï\udc80"])
def test_tokens_are_bound_to_name_and_userid(name):
    who = principal(name)
    token = token_for(KEY, who, "00c0ffee")
    assert session_of(KEY, who, token) == "00c0ffee"
    assert session_of(b"x" * 32, who, token) is None
    assert session_of(KEY, principal(name, 1002), token) is None
    assert session_of(KEY, principal("eve"), token) is None
    assert session_of(KEY, who, token.replace("00c0ffee", "00c0ffef")) is None
    assert session_of(KEY, who, "") is None


def test_runs_are_what_links_with_runs_get():
    async def script(desk):
        old = desk.client()
        where = place(desk)
        await publish(desk, "news.a", "news.b")
        web = desk.client()
        got = []

        class Taking(type(web.near)):
            __slots__ = ()

            def send_run(self, run):
                got.append(run)

        web.near.__class__ = Taking
        web.session.send_run = web.near.send_run
        resume(web, old, *where)
        await resumed(web)
        assert [type(run) for run in got] == [Run]
        assert [one.topic for one in got[0].messages] == ["news.a", "news.b"]

    run(script, rules=[NEWS])


def test_a_fault_with_one_client_that_comes_back_leaves_no_other_waiting(caplog):
    def broken():
        raise RuntimeError("a fault of ours")

    async def script(desk):
        old = desk.client()
        epoch, sequence = place(desk)
        webs = [desk.client() for _ in range(3)]
        for web in webs:
            resume(web, old, epoch, sequence + 1)
        for resumption in list(desk.delivery.deadlines.resumptions[sequence + 1])[:1]:
            resumption.advance = broken
            bad = resumption.session
        await publish(desk, "news.a")  # what all three wait for
        others = [web for web in webs if web.session is not bad]
        assert [(await resumed(web))["recovered"] for web in others] == [True, True]
        assert [web.code for web in webs if web.session is bad] == [INTERNAL]

    run(script, rules=[NEWS], faults=1)
    assert "a fault of ours" in caplog.text
