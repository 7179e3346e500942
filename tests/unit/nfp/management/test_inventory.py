"""``sid.service.broker``: who is given whose inventory."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from broker.nfp.access import Access
from broker.nfp.contract import Answer
from broker.nfp.frames import Packet
from broker.nfp.inventory import Datastore
from broker.nfp.names import SID, Dialect
from broker.nfp.principal import Principal, Standing
from broker.settings.nfp import KeyEntry, RuleEntry
from tests.tables import for_each
from tests.unit.nfp.management import fakes

DATA = {"service": "nornir", "password": "word", "url": "http://u:p@h/"}
HIDDEN = {"service": "***", "password": "***", "url": "***"}
PINS = {"w1": "K1", "w1-NFPClient": "K2", "w2": "K3"}


class Asker:
    """Somebody who asks, and is answered by ``call``'s return value."""

    def __init__(self, name: str, principal: Principal, features: frozenset[str] = frozenset()) -> None:
        self.name = name
        self.identity = name.encode()
        self.principal = principal
        self.dialect = Dialect.NORFAB
        self.features = features
        self.alive = True

    def send(self, packet: Packet, after: int = 0) -> bool:
        raise AssertionError(f"{packet!r}: the service answers by returning")


def who(standing: Standing, key: str = "") -> Principal:
    return Principal(f"key:{key}", standing, key=key)


class Broker:
    """What of the broker the service sees."""

    def __init__(
        self, datastore: Datastore, access: Access, pins: dict[str, str], *, unlisted: bool = True
    ) -> None:
        self.datastore = datastore
        self.access = access
        self.name_owners = SimpleNamespace(key_of=lambda name: pins.get(name, ""))
        self.reader = fakes.FakeReader()
        self.settings = SimpleNamespace(inventory_unlisted=unlisted)


def read(tmp_path: Path) -> Datastore:
    path = tmp_path / "inventory.yaml"
    path.write_text(f"workers: {{w1: [{json.dumps(DATA)}]}}")
    datastore = Datastore(path, environ={})
    datastore.load()
    return datastore


def service(tmp_path: Path, *rules: RuleEntry) -> Broker:
    return Broker(read(tmp_path), Access(rules=rules), PINS)


def ask(broker: Broker, asker: Asker, task: str = "get_inventory", *args: Any, **kwargs: Any) -> Answer:
    status, said = fakes.ask(broker, SID, task, asker, "5eed", *args, **kwargs)
    return Answer(status, json.dumps(said).encode())


@for_each(
    ("name", "principal", "seen"),
    [
        ("w1-NFPClient", who(Standing.USER, "K2"), DATA),
        ("w1", who(Standing.USER, "K1"), DATA),
        ("any", who(Standing.USER, "K1"), DATA),
        ("w1-NFPClient", Principal("peer:w1-NFPClient"), DATA),
        ("admin", who(Standing.OWNER, "K9"), DATA),
        ("w1-NFPClient", who(Standing.GUEST, "K2"), HIDDEN),
    ],
)
def test_who_may(tmp_path: Path, name: str, principal: Principal, seen: dict) -> None:
    answer = ask(service(tmp_path), Asker(name, principal), name="w1")
    assert (answer.status, json.loads(answer.body)) == (200, seen)


@for_each(
    ("name", "principal"),
    [
        ("w2-NFPClient", who(Standing.USER, "K4")),
        ("w2", who(Standing.USER, "K3")),
        ("w1", who(Standing.USER, "K5")),
        ("w1", Principal("peer:w1")),
        ("w1-NFPClient-NFPClient", who(Standing.USER, "K6")),
        ("someone", who(Standing.GUEST, "K7")),
    ],
)
def test_who_may_not(tmp_path: Path, name: str, principal: Principal) -> None:
    answer = ask(service(tmp_path), Asker(name, principal), name="w1")
    assert answer.status == 400
    said = json.loads(answer.body)
    assert said["error"].startswith("not allowed: the inventory of 'w1'")
    assert b"word" not in answer.body


@for_each(
    ("name", "key", "status"),
    [
        ("w1-NFPClient", "K2", 200),  # listed as that client
        ("w1", "K1", 200),  # listed as a worker
        ("w1-NFPClient", "K7", 200),  # another worker: it could come as w1, too
        ("w1-NFPClient", "K8", 400),  # a client's key, named otherwise
        ("w1-NFPClient", "K9", 400),  # not listed
    ],
)
def test_a_free_name_makes_nobody_a_worker(tmp_path: Path, name: str, key: str, status: int) -> None:
    """Where only listed keys may be workers, others read no inventory by taking a worker's name."""
    keys = [
        KeyEntry(key="K1", name="w1", services=("nornir",)),
        KeyEntry(key="K2", name="w1-NFPClient"),
        KeyEntry(key="K7", name="w7", services=("*",)),
        KeyEntry(key="K8", name="c8"),
    ]
    access = Access(keys, offer_unlisted=False)
    inventory = Broker(read(tmp_path), access, {"w1": "K1"})
    principal = access.principal_of(key, name)
    assert principal is not None
    assert ask(inventory, Asker(name, principal), name="w1").status == status


@for_each(
    ("unlisted", "worker", "name", "key", "status"),
    [
        (True, "K5", "w1-NFPClient", "K6", 200),  # nobody is listed: the name is trusted
        (True, "K1", "w1-NFPClient", "K6", 400),  # the worker is listed, its client is not
        (True, "K1", "w1-NFPClient", "K2", 200),
        (False, "K5", "w1-NFPClient", "K6", 400),
        (False, "K5", "w1", "K5", 400),
        (False, "K1", "w1", "K1", 200),
        (False, "K1", "w1-NFPClient", "K2", 200),
    ],
)
def test_listed_keys_and_others(unlisted: bool, worker: str, name: str, key: str, status: int) -> None:
    """``worker`` is the key that w1 is pinned to; K1 and K2 are listed."""
    access = Access(
        [KeyEntry(key="K1", name="lab 1", services=("*",)), KeyEntry(key="K2", name="lab 2", services=("*",))]
    )
    inventory = Broker(Datastore(None), access, {"w1": worker}, unlisted=unlisted)
    principal = access.principal_of(key, name)
    assert principal is not None
    assert ask(inventory, Asker(name, principal), name="w1").status == status


def test_a_rule_lets_others_see_what_is_no_secret(tmp_path: Path) -> None:
    rule = RuleEntry(services=(SID,), tasks=("get_inventory", "get_inventory_of_others"))
    inventory = service(tmp_path, rule)
    user = json.loads(ask(inventory, Asker("cli", who(Standing.USER, "K8")), name="w1").body)
    assert user == {"service": "nornir", "password": "***", "url": "http://***@h/"}
    guest = json.loads(ask(inventory, Asker("cli", who(Standing.GUEST, "K8")), name="w1").body)
    assert guest == HIDDEN


def test_nobody_we_know_is_given_null(tmp_path: Path) -> None:
    """A deployed worker that gets no answer waits half a minute and starts with a bogus inventory."""
    answer = ask(service(tmp_path), Asker("new-NFPClient", Principal("peer:new-NFPClient")), name="new")
    assert answer == Answer(200, b"null")


@for_each(("args", "kwargs"), [((), {}), (("w1",), {}), ((), {"name": None}), ((), {"name": ""})])
def test_whose_when_not_said(tmp_path: Path, args: tuple, kwargs: dict) -> None:
    asker = Asker("w1-NFPClient", who(Standing.USER, "K2"))
    answer = ask(service(tmp_path), asker, "get_inventory", *args, **kwargs)
    assert json.loads(answer.body) == DATA


@for_each("name", [7, ["w1"], "w" * 256, "a\nb"])
def test_no_name(tmp_path: Path, name: object) -> None:
    answer = ask(service(tmp_path), Asker("w1", who(Standing.OWNER)), name=name)
    assert answer.status == 400
    assert "expected a text" in json.loads(answer.body)["error"]


def test_another_task(tmp_path: Path) -> None:
    inventory = service(tmp_path)
    deployed = ask(inventory, Asker("c", who(Standing.USER)), "bogus")
    assert deployed == Answer(200, b"\"Unsupported task 'bogus'\"")
    ours = ask(inventory, Asker("c", who(Standing.USER), frozenset({"push"})), "bogus")
    assert ours.status == 400
    assert "expected one of get_inventory" in json.loads(ours.body)["error"]
