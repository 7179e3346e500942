"""A peer that notes what it is sent, and a broker that is only told about."""

import msgspec

from broker.nfp.contract import Call, JobEvent
from broker.nfp.dispatch.views import ClientView, JobView, ResultView, ServiceView, SlotView, WorkerView
from broker.nfp.management import Accounting, EventBus, LogBuffer, Messaging
from broker.nfp.names import Dialect
from broker.nfp.outcome import END_STATES
from broker.nfp.principal import Principal, Standing
from broker.nfp.targets import ANY

OWNER = Principal("key:owner", Standing.OWNER)
ANNA = Principal("uid:1000", Standing.USER, 1000)
BERT = Principal("uid:1001", Standing.USER, 1001)
GUEST = Principal("key:guest", Standing.GUEST)


class FakePeer:
    def __init__(self, name="c1", principal=ANNA, dialect=Dialect.NORFAB, features=(), room=None):
        self.name = name
        self.identity = name.encode()
        self.principal = principal
        self.dialect = dialect
        self.features = frozenset(features)
        self.alive = True
        self.room = room
        self.sent = []

    def send(self, packet, after=0):
        if not self.alive or (self.room is not None and self.room <= 0):
            return False
        if self.room is not None:
            self.room -= 1
        self.sent.append(packet)
        return True

    def take(self):
        told = [(packet.sequence, msgspec.json.decode(packet.body)) for packet in self.sent]
        self.sent.clear()
        return told


def asked(service, task, peer, ident, kwargs):
    return Call(service.name, task, (), kwargs, ident, peer or FakePeer(), b"")


def reply(service, task, peer=None, ident="u1", /, **kwargs):
    answer = service.call(asked(service, task, peer, ident, kwargs))
    if callable(answer):
        answers = []
        answer(answers.append)
        (answer,) = answers
    return answer.status, msgspec.json.decode(answer.body)


def event(kind="progress", uuid="j1", *, service="dummy", holder=ANNA.holder, **more):
    return JobEvent(kind, uuid, service, more.pop("task", "ping"), holder, more.pop("userid", 1000), **more)


class FakeJournal:
    def __init__(self):
        self.position = 0
        self.broken = ""
        self.ops = []

    def put(self, op):
        self.ops.append(op)


def worker_view(name="w1", service="dummy", status="alive", **more):
    view = WorkerView(
        name=name, service=service, status=status, dialect=Dialect.NORFAB, key="K" * 40, holder="key:w",
        features=frozenset({"jobs"}), credits=1, busy=1, jobs=("j1",), waiting=0, holdtime_s=13.94, alive_s=3.7,
        keepalives_sent=1, keepalives_received=2, ended=dict.fromkeys(END_STATES, 1),
            resources=("r1", "r2"), tasks=("ping",),
    )  # fmt: skip
    return view._replace(**more)


def job_view(uuid="j1", holder=ANNA.holder, state="open", **more):
    view = JobView(
        uuid=uuid, service="dummy", task="ping", target=ANY, holder=holder, userid=1000, client="c1", state=state,
        age_s=1.0, remaining_s=599.0, asked=(), slots=(SlotView("", "w1", 2, "accepted", 0, 0),),
    )  # fmt: skip
    return view._replace(**more)


class FakeBroker:
    name = "headgate"
    epoch = "e1"
    endpoints = ("tcp://127.0.0.1:5555",)
    keepalive_s = 2.5
    multiplier = 6
    uptime_s = 3.2
    stopping = False
    store_state = "on"

    def __init__(self):
        self.security = {"curve": True, "unlisted": "user"}
        self.event_bus = EventBus("e1")
        self.accounting = Accounting(FakeJournal(), clock=lambda: 0.0)
        self.log = LogBuffer()
        self.all_workers = [worker_view(), worker_view("w2", "other", "lost")]
        self.all_jobs = [job_view()]
        self.found = {}
        self.done = []

    def workers(self):
        return self.all_workers

    def services(self):
        return [ServiceView("dummy", ("w1",), 1, 0, 4, 1)]

    def clients(self):
        return [
            ClientView("c1", ANNA.holder, Dialect.NORFAB, True, True, 1, 2, 0.5),
            ClientView("c2", BERT.holder, Dialect.SEED, False, False, 0, 1, -1.0),
        ]

    def jobs(self):
        return reversed(self.all_jobs)

    def job(self, uuid):
        return next((job for job in self.all_jobs if job.uuid == uuid), None)

    def results(self, uuid):
        return [ResultView("w1", 200, body) for body in self.found.get(uuid, ())]

    def messaging(self):
        return Messaging(142, 110, 0, 0, 0)

    def counters(self):
        return {"late": 1}

    def inventory(self, *, redacted):
        return {"workers": {"w1": {"password": "***" if redacted else "open sesame"}}}

    def look(self, then):
        self.done.append("look")
        then(None)

    def reload(self, then):
        self.done.append("reload")
        then({"workers": 1})

    def disconnect(self, names, reason):
        self.done.append(("disconnect", names))
        return list(names or ["w1", "w2"])

    def unpin(self, name):
        return name == "w1"

    def leave(self, *, restart, reason):
        self.done.append(("leave", restart))
