"""``sid.service.broker``: who is given whose inventory."""

import json
from pathlib import Path
from typing import Any

from broker.nfp.access import Access, Key, Rule
from broker.nfp.contract import Answer, Call
from broker.nfp.frames import Packet
from broker.nfp.inventory import Datastore, InventoryService
from broker.nfp.names import INTERNAL, SID, Dialect
from broker.nfp.principal import Principal, Standing
from tests.tables import for_each

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


def service(tmp_path: Path, *rules: Rule) -> InventoryService:
    path = tmp_path / "inventory.yaml"
    path.write_text(f"workers: {{w1: [{json.dumps(DATA)}]}}")
    datastore = Datastore(path, environ={})
    datastore.load()
    return InventoryService(datastore, Access(rules=rules), lambda name: PINS.get(name, ""))


def ask(
    inventory: InventoryService, asker: Asker, task: str = "get_inventory", *args: Any, **kwargs: Any
) -> Answer:
    answer = inventory.call(Call(SID, task, args, kwargs, "5eed", asker, b""))
    if isinstance(answer, Answer):
        return answer
    answers: list[Answer] = []
    answer(answers.append)
    (said,) = answers
    return said


def test_name(tmp_path: Path) -> None:
    assert service(tmp_path).name in INTERNAL


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
    path = tmp_path / "inventory.yaml"
    path.write_text(f"workers: {{w1: [{json.dumps(DATA)}]}}")
    datastore = Datastore(path, environ={})
    datastore.load()
    keys = [
        Key("K1", "w1", services=("nornir",)),
        Key("K2", "w1-NFPClient"),
        Key("K7", "w7", services=("*",)),
        Key("K8", "c8"),
    ]
    access = Access(keys, offer_unlisted=False)
    inventory = InventoryService(datastore, access, lambda name: {"w1": "K1"}.get(name, ""))
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
def test_listed_keys_and_others(
    tmp_path: Path, unlisted: bool, worker: str, name: str, key: str, status: int
) -> None:
    """``worker`` is the key that w1 is pinned to; K1 and K2 are listed."""
    datastore = Datastore(None)
    access = Access([Key("K1", "lab 1", services=("*",)), Key("K2", "lab 2", services=("*",))])
    pinned = {"w1": worker}
    inventory = InventoryService(datastore, access, lambda name: pinned.get(name, ""), unlisted=unlisted)
    principal = access.principal_of(key, name)
    assert principal is not None
    assert ask(inventory, Asker(name, principal), name="w1").status == status


def test_a_rule_lets_others_see_what_is_no_secret(tmp_path: Path) -> None:
    rule = Rule(services=(SID,), tasks=("get_inventory", "get_inventory_of_others"))
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
