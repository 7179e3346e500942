"""A peer that notes what it is sent, and a broker that is only told about."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import msgspec

from broker.nfp.access import Access
from broker.nfp.contract import Call, JobEvent
from broker.nfp.jobs.config import Counts
from broker.nfp.jobs.views import (
    ClientView,
    JobView,
    PartView,
    ServiceView,
    WorkerView,
)
from broker.nfp.management import SERVICES, EventBus, Questions
from broker.nfp.names import Dialect
from broker.nfp.outcome import END_STATES
from broker.nfp.principal import Principal, Standing
from broker.nfp.self_report import LogBuffer, ProcessStats
from broker.nfp.server.names import NameOwners
from broker.nfp.targets import ANY
from broker.settings.nfp import NfpSection
from tests.unit.nfp.found import Found

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

    def has_spare_room(self):
        return self.alive and self.room != 0

    def take(self):
        told = [(packet.sequence, msgspec.json.decode(packet.body)) for packet in self.sent]
        self.sent.clear()
        return told


def ask(broker, service, task, peer=None, ident="u1", /, *args, **kwargs):
    """What ``broker`` answers: its status, and what the body says."""

    async def story():
        answered = asyncio.get_running_loop().create_future()
        call = Call(service, task, args, kwargs, ident, peer or FakePeer())
        Questions(broker, SERVICES).ask(call, answered.set_result)
        return await answered

    answer = asyncio.run(story())
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
        age_s=1.0, remaining_s=599.0, asked=(), parts=(PartView("", "w1", 2, "accepted", 0, 0),),
    )  # fmt: skip
    return view._replace(**more)


class FakeDispatcher:
    """See ``jobs.Dispatcher``: what it shows is set by hand."""

    def __init__(self):
        self.counts = Counts()
        self.all_workers = [worker_view(), worker_view("w2", "other", "lost")]
        self.all_jobs = [job_view()]
        self.disconnected = []

    def workers(self, now):
        return self.all_workers

    def services(self):
        return [ServiceView("dummy", ("w1",), 1, 0, 4, 1)]

    def clients(self, now):
        return [
            ClientView("c1", ANNA.holder, Dialect.NORFAB, True, True, 1, 2, 0.5),
            ClientView("c2", BERT.holder, Dialect.SEED, False, False, 0, 1, -1.0),
        ]

    slices = 1

    def search(self, which, may_see, limit, now, tell):
        self.searched = Found(self.all_jobs, which, may_see, limit, tell, self.slices)
        return self.searched

    def find(self, uuid, now):
        return next((job for job in self.all_jobs if job.uuid == uuid), None)

    def disconnect_workers(self, names, reason, now):
        self.disconnected.append(names)
        return list(names or ["w1", "w2"])


class FakeReader:
    def __init__(self):
        self.done = []

    async def look(self):
        self.done.append("look")

    async def reload(self):
        self.done.append("reload")
        return {"workers": 1}


class FakeDatastore:
    def whole(self, *, redacted):
        return {"workers": {"w1": {"password": "***" if redacted else "open sesame"}}}


class FakeBroker:
    """See ``server.broker.NfpBroker``."""

    name = "headgate"
    epoch = "e1"
    endpoints = ("tcp://127.0.0.1:5555",)
    uptime_s = 3.2
    stopping = False
    server_key = "K" * 40
    dropped = called_back = 0

    def __init__(self):
        self.settings = NfpSection(store=True, keepalive_ms=2500, multiplier=6)
        self.access = Access()
        self.clock = SimpleNamespace(now=lambda: 0.0)
        self.event_bus = EventBus("e1")
        self.log = LogBuffer()
        self.process = ProcessStats()
        self.searches = asyncio.Semaphore(4)
        self.dispatcher = FakeDispatcher()
        self.datastore = FakeDatastore()
        self.reader = FakeReader()
        self.name_owners = NameOwners(
            FakeJournal(), self.access, lambda _: False, lambda _: False, lambda *_: True
        )
        self.name_owners.pin("w1", "K" * 40)
        self.store = SimpleNamespace(broken="", lost=0)
        self.ingress = SimpleNamespace(invalid=Counter(), cut=0, failures=0, denied=1)
        self.routers = [SimpleNamespace(sent=142, received=110, failed=0, denied=0, cut_dead=0)]
        self.left = []

    def peers(self):
        return []

    def leave(self, *, restart, reason):
        self.left.append(restart)
