"""Ingress, commands of clients and workers: what is answered here, what is handed on, what is dropped."""

from types import SimpleNamespace

import msgspec

from broker.nfp import opening
from broker.nfp.access import Access
from broker.nfp.contract import Answer
from broker.nfp.frames import Packet, encode
from broker.nfp.management import Questions
from broker.nfp.names import MMI_BROKER, MMI_WORKER, SEED_CODES, SID, Command, Dialect, Sender
from broker.nfp.principal import Standing
from broker.nfp.server.ingress import FORGIVE_S, Ingress
from broker.nfp.server.names import NameOwners
from broker.nfp.server.router import EVERYBODY
from broker.settings.nfp import NfpSection, RuleEntry
from tests.live.nfp import keepalive, ready, request
from tests.tables import for_each
from tests.unit.nfp.server.scripted import RecordingDispatch, RecordingJournal, RecordingPeer

BOTH = (Dialect.SEED, Dialect.NORFAB)


class Unreadable(Exception):
    def __str__(self):
        raise ValueError("no text")


class Asked:
    """Stands for ``Questions``: it notes what is asked and answers with ``status``."""

    def __init__(self, status=200):
        self.status = status
        self.calls = []

    def ask(self, call, answer):
        self.calls.append(call)
        answer(Answer(self.status, msgspec.json.encode({"task": call.task})))


def breaks(error):
    def task(broker, call):
        raise error

    return task


class Setting:
    def __init__(self, access=None, questions=None, senders=EVERYBODY, greeted=True):
        self.dispatch = RecordingDispatch()
        self.questions = questions or Asked()
        access = access or Access()
        self.owners = NameOwners(
            RecordingJournal(), access, lambda name: False, lambda name: False, lambda *_: False, lambda: 1.0
        )
        broker = SimpleNamespace(
            dispatcher=self.dispatch,
            access=access,
            questions=self.questions,
            epoch="e1",
            name_owners=self.owners,
            expected={},
            recording=None,
            settings=NfpSection(keepalive_ms=1000, multiplier=3, invalid_max=2),
        )
        self.ingress = Ingress(broker)
        self.peer = RecordingPeer()
        self.peer.senders = senders
        self.peer.greeted = greeted

    def say(self, packet):
        self.peer.sent.clear()
        self.ingress.handle(self.peer, encode(packet), 1.0)
        return self.peer.sent


@for_each("dialect", BOTH)
def test_requests_go_to_the_dispatcher(dialect):
    on = Setting(greeted=False)
    for command in (Command.POST, Command.GET, Command.DELETE):
        assert on.say(request(command, "u", dialect=dialect)) == []
    assert on.dispatch.names == ["client_seen", *["client"] * 3]
    assert on.peer.dialect is dialect
    assert on.owners.key_of("c1") == "K"


def test_deployed_commands_go_there_too():
    on = Setting()
    on.say(request(Command.PUT, "u"))
    on.say(request(Command.MMI, "u", service=MMI_WORKER))
    assert on.dispatch.names == ["client", "relay_mmi"]


def test_deployed_clients_get_both_answers_of_management():
    on = Setting()
    body = b'{"task":"show_workers","args":[1],"kwargs":{"service":"all"}}'
    answers = on.say(request(Command.MMI, "u1", service=MMI_BROKER, target="all", body=body))
    assert [answer.command for answer in answers] == [Command.RESPONSE, Command.MMI]
    assert {(a.uuid, a.service, a.status, a.data) for a in answers} == {
        ("u1", MMI_BROKER, 200, b'{"task":"show_workers"}')
    }
    (call,) = on.questions.calls
    assert (call.task, call.args, call.kwargs) == ("show_workers", (1,), {"service": "all"})


@for_each("service", [MMI_BROKER, MMI_WORKER, SID])
@for_each(
    ("dialect", "command"),
    [
        (Dialect.NORFAB, Command.POST),
        *((dialect, each) for dialect in BOTH for each in (Command.GET, Command.DELETE)),
        (Dialect.NORFAB, Command.PUT),
    ],
)
def test_commands_of_jobs_do_nothing_at_services_that_take_none(dialect, command, service):
    """A client posts its job again, asks for its result, cancels it: none of it restarts a broker once more."""
    on = Setting()
    on.peer.principal = on.peer.principal._replace(standing=Standing.OWNER)
    answers = on.say(request(command, "u", service=service, body=b'{"task":"restart"}', dialect=dialect))
    assert {answer.status for answer in answers} == {400}
    assert answers[0].command is Command.RESPONSE  # what a client that waits for a job's result looks at
    expected = "POST" if dialect is Dialect.SEED else "MMI"
    error = f"{service} takes no jobs: it is asked by {expected}, not {command.name}"
    assert msgspec.json.decode(answers[0].body)["error"] == error
    assert on.questions.calls == on.dispatch.calls == []


@for_each("status", [200, 404])
def test_the_texts_clients_get_exactly_one(status):
    on = Setting(questions=Asked(status))
    answers = on.say(request(Command.POST, "u1", service=MMI_BROKER, dialect=Dialect.SEED))
    assert [(answer.command, answer.status in SEED_CODES) for answer in answers] == [(Command.RESPONSE, True)]
    assert answers[0].status_text


@for_each(
    ("raised", "error"),
    [
        (ValueError("it broke"), "ValueError: it broke"),
        (Unreadable(), "Unreadable: (Unreadable, whose text cannot be read: ValueError)"),
    ],
)
def test_a_service_of_the_broker_that_breaks_is_told(raised, error):
    on = Setting(questions=Questions(None, {MMI_BROKER: {"break": (Standing.GUEST, breaks(raised))}}))
    answers = on.say(request(Command.MMI, "u", service=MMI_BROKER, body=b'{"task":"break"}'))
    assert answers[0].status == 500
    assert msgspec.json.decode(answers[0].body)["error"] == error


def test_an_answer_that_takes_its_time_is_sent_when_it_is_there():
    on = Setting()
    waiting = []
    on.questions.ask = lambda call, answer: waiting.append(answer)
    for dialect, command, commands in (
        (Dialect.NORFAB, Command.MMI, [Command.RESPONSE, Command.MMI]),
        (Dialect.SEED, Command.POST, [Command.RESPONSE]),
    ):
        assert on.say(request(command, "u1", service=MMI_BROKER, dialect=dialect)) == []
        on.peer.dialect = Dialect.NORFAB
        waiting.pop()(Answer(200, b"[]"))
        assert [(a.command, a.uuid, a.dialect, a.data) for a in on.peer.sent] == [
            (command, "u1", dialect, b"[]") for command in commands
        ]


def test_what_is_not_there_is_answered():
    on = Setting(questions=Questions(None, {}))
    assert on.say(request(Command.MMI, "u", service=SID))[0].status == 400
    assert on.say(request(Command.MMI, "u", service="svc"))[0].status == 400
    assert on.dispatch.calls == []


def test_rules_hold_for_the_brokers_own_services():
    on = Setting()
    assert on.say(request(Command.MMI, "u", service=MMI_BROKER, body=b'{"task":"shutdown"}'))[0].status == 400
    on.peer.principal = on.peer.principal._replace(standing=Standing.GUEST)
    assert (
        on.say(request(Command.MMI, "u", service=MMI_BROKER, body=b'{"task":"show_broker"}'))[0].status == 400
    )
    assert on.ingress.denied == 2
    assert not on.questions.calls
    allowed = Setting(Access(rules=[RuleEntry(tasks=("shutdown",))]))
    assert (
        allowed.say(request(Command.MMI, "u", service=MMI_BROKER, body=b'{"task":"shutdown"}'))[0].status
        == 200
    )


@for_each(("command", "dialect"), [(Command.POST, Dialect.SEED), (Command.MMI, Dialect.NORFAB)])
@for_each(
    ("standing", "task", "passed"),
    [
        (Standing.GUEST, "show_workers", False),
        (Standing.GUEST, "shutdown", False),
        (Standing.USER, "show_workers", True),
        (Standing.USER, "shutdown", False),
        (Standing.USER, "restart", False),
        (Standing.USER, "disconnect", False),
        (Standing.OWNER, "shutdown", True),
    ],
)
def test_workers_are_managed_by_whom_the_rules_let(command, dialect, standing, task, passed):
    on = Setting()
    on.peer.principal = on.peer.principal._replace(standing=standing)
    body = b'{"task":"%s"}' % task.encode()
    answers = on.say(request(command, "u", service=MMI_WORKER, target="all", body=body, dialect=dialect))
    assert on.dispatch.names == (["relay_mmi"] if passed else [])
    both = [(Command.RESPONSE, 400), (Command.MMI, 400)]
    said = [] if passed else both if dialect is Dialect.NORFAB else both[:1]
    assert [(answer.command, answer.status) for answer in answers] == said
    assert on.ingress.denied == (not passed)


def test_a_rule_lets_users_end_workers():
    on = Setting(Access(rules=[RuleEntry(services=(MMI_WORKER,), tasks=("shutdown",))]))
    on.say(request(Command.MMI, "u", service=MMI_WORKER, body=b'{"task":"shutdown"}'))
    on.say(request(Command.MMI, "u", service=MMI_WORKER, body=b'{"task":"restart"}'))
    assert on.dispatch.names == ["relay_mmi"]


@for_each("standing", [Standing.GUEST, Standing.USER])
def test_logs_are_for_owners_unless_a_rule_spells_them(standing):
    logs = request(Command.MMI, "u", service=MMI_BROKER, body=b'{"task":"get_logs"}')
    for rules, status in (((), 400), ([RuleEntry()], 400), ([RuleEntry(tasks=("get_logs",))], 200)):
        on = Setting(Access(rules=rules))
        on.peer.principal = on.peer.principal._replace(standing=standing)
        assert on.say(logs)[0].status == status
        on.peer.principal = on.peer.principal._replace(standing=Standing.OWNER)
        assert on.say(logs)[0].status == 200


@for_each("dialect", BOTH)
@for_each("body", [b"", b"\xff\x00", b"[]", b'{"features":[]}', b'{"features":["push","delete","x"]}'])
def test_open_of_a_client(dialect, body):
    on = Setting()
    (answer,) = on.say(Packet(Sender.CLIENT, Command.OPEN, dialect=dialect, body=body))
    assert (answer.command, answer.dialect) == (Command.OPEN, dialect)
    said = opening.broker_of(opening.read_object(answer.body))
    assert (said.broker, said.keepalive_ms, said.multiplier, said.epoch) == ("headgate", 1000, 3, "e1")
    pushed = b"push" in body or (dialect is Dialect.SEED and b"features" not in body)
    assert on.peer.features == said.features == ({"push"} if pushed else set())
    assert on.dispatch.names == ["client_seen"]


def test_open_of_a_worker():
    on = Setting()
    body = b'{"features":["push","recorded","jobs"],"credits":3}'
    (answer,) = on.say(Packet(Sender.WORKER, Command.OPEN, body=body))
    assert opening.broker_of(opening.read_object(answer.body)).features == {"recorded", "jobs"}
    ((_, _, offer),) = on.dispatch.calls
    assert offer.credits == 3


def test_workers_commands():
    on = Setting()
    on.say(ready())
    on.say(keepalive())
    assert on.dispatch.names == ["worker"] * 2


def test_a_failure_is_answered_and_costs_nobody_else():
    on = Setting()
    on.dispatch.failure = KeyError("bug")
    answers = on.say(request(Command.POST, "u"))
    assert answers[0].status == 500
    assert on.say(ready()) == []
    assert on.ingress.failures == 2
    assert on.peer.cuts == []


def test_a_peer_that_cannot_be_told_of_a_failure_costs_nobody_else_either(caplog):
    on = Setting()
    on.dispatch.failure = KeyError("bug")

    def send(packet, after=0):
        raise ValueError("this one, too")

    on.peer.send = send
    on.say(request(Command.POST, "u"))
    assert "could not be told so" in caplog.text


@for_each(
    ("frames", "kind"),
    [
        ([b""], "short"),
        ([b"", b"NFPX01", b"0x01", b"svc"], "header"),
        ([b"", b"NFPB01", b"0x02", b"svc"], "role"),
        ([b"", b"NFPW01", b"0x01"], "arity"),
        ([b"", b"NFPC01", b"0x04", b"svc", b"any", b"u", b"1", b"2", b"3", b"4"], "arity"),
    ],
)
def test_invalid_messages_are_dropped_and_counted(frames, kind):
    on = Setting(greeted=False)
    on.ingress.handle(on.peer, frames, 1.0)
    assert on.ingress.invalid == {kind: 1}
    assert (on.peer.sent, on.dispatch.calls, on.peer.greeted) == ([], [], False)
    for _ in range(2):
        on.ingress.handle(on.peer, frames, 1.0)
    assert len(on.peer.cuts) == 1


def test_each_of_two_sockets_has_its_own_commands():
    for_clients, for_workers = Setting(senders={Sender.CLIENT}), Setting(senders={Sender.WORKER})
    for_clients.say(ready())
    for_workers.say(request(Command.POST, "u"))
    for on in (for_clients, for_workers):
        assert on.ingress.invalid == {"role": 1}
        assert on.dispatch.calls == []
    for_clients.say(request(Command.POST, "u"))
    for_workers.say(ready())
    assert for_clients.dispatch.names == ["client"]
    assert for_workers.dispatch.names == ["worker"]


def test_a_flood_of_invalid_messages_is_cut():
    on = Setting()
    for number in range(1, 4):
        on.ingress.drop(on.peer, "header", "saw nonsense", 1.0)
        assert (on.ingress.invalid.total(), on.ingress.cut) == (number, int(number == 3))
    assert on.peer.cuts == ["more than 2 invalid messages, the last one: saw nonsense"]


def test_a_rare_flaw_is_forgiven():
    on = Setting()
    for turn in range(1, 1000):
        on.ingress.drop(on.peer, "uuid", "saw nonsense", FORGIVE_S * turn)
    assert on.peer.cuts == []


def test_connections_do_not_share_their_account():
    on, other = Setting(), RecordingPeer()
    for peer in (on.peer, on.peer, other, other):
        on.ingress.drop(peer, "short", "saw nonsense", 0.0)
    assert on.ingress.cut == 0
    on.ingress.drop(on.peer, "short", "saw nonsense", 0.0)
    assert (bool(on.peer.cuts), other.cuts) == (True, [])
