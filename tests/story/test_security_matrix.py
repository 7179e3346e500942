"""Every service, role and topic of the mask table over every way in; and what a denied request leaves behind: nothing.

The table is ``tests/live/roles.py``. What the product has is read from the product: a method without a row fails here.
"""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.client.bridge import OTHERWISE
from broker.nfp.service import FluxService
from broker.oslo.service import FluxBridge, FluxBridgeConfig
from broker.services.absent import Rexec
from broker.services.dispatch import BuiltIn
from broker.wire.message import STREAMING, request
from gateway.administration import service as gateway_service
from tests.live.doors import Door
from tests.live.roles import (
    BUILT_IN,
    COMMON,
    GATEWAY,
    OF_THE_LINK,
    WINGS,
    Row,
    built_in_rows,
    gateway_rows,
    wing_rows,
)
from tests.live.speaker import Speaker, provide
from tests.live.stage import ADMIN, BY_GATEWAY, OWNER, ROLES, USER, WAYS, Stage, tried, userid_of
from tests.tables import for_each
from tests.unit.services.desk import Desk

pytestmark = pytest.mark.story


# ---------------------------------------------------------------- the table and the product


def with_owner(masks: dict[str, int]) -> dict[str, int]:
    return {word: int(allow | OWNER) for word, allow in masks.items()}


def test_every_method_of_the_product_stands_in_the_table():
    desk = Desk()
    found = {
        each.name: {word: method.allow for word, method in each.methods().items()} for each in desk.services
    }
    assert found == {name: with_owner(words) for name, words in BUILT_IN.items()}
    common = BuiltIn(desk.service(Rexec), desk.context, 1).common()
    assert {word: method.allow for word, method in common.items()} == with_owner(COMMON)
    everybody = USER | ADMIN | OWNER
    nobody = SimpleNamespace()
    nfp = FluxService(SimpleNamespace(event_bus=SimpleNamespace(epoch="")), "").table()
    oslo = FluxBridge(FluxBridgeConfig(client=nobody), "").table()
    for wing, methods in (("nfp", nfp), ("oslo", oslo)):
        assert methods[OTHERWISE][1] == everybody
        named = {word: int(allow) & ~OWNER for word, (_, allow) in methods.items() if word != OTHERWISE}
        assert named == WINGS[wing]
    web = {word: mask & ~OWNER for word, (_, mask) in gateway_service.METHODS.items()}
    assert web == GATEWAY


def test_the_running_broker_has_the_services_of_the_table(stage):
    with stage.door("unix", "owner") as door:
        mods = json.loads(door.one("module.list").text)["mods"]
    assert {name for mod in mods for name in mod["services"]} == set(BUILT_IN)


# ---------------------------------------------------------------- every topic


def expected(row: Row, door: Door) -> bool:
    """Whether the call is allowed by this way in."""
    return row.allows(door.roles) or (door.name in BY_GATEWAY and row.topic in OF_THE_LINK)


def unheard(row: Row, door: Door) -> bool:
    """Whether nothing comes back: a gateway asks for no answer to what RFC 6 gives none."""
    if door.name in BY_GATEWAY:
        return row.topic.endswith((".disconnect", ".cancel"))
    return row.silent and expected(row, door)


@for_each("way, role", lambda: tried(ROLES))
def test_every_topic_as_every_role(stage, way, role):
    """Without a payload, so that whoever may call gets no further than the check of the payload."""
    rows = built_in_rows() + wing_rows()
    if way in BY_GATEWAY:
        rows += gateway_rows()
    rows.sort(key=lambda row: row.silent)
    with stage.door(way, role) as door:
        quiet = [unheard(row, door) for row in rows]
        asked = [(row.topic, None, not silent) for row, silent in zip(rows, quiet, strict=True)]
        first = next(at for at, row in enumerate(rows) if row.silent)
        answers = door.ask(asked[:first]) + door.ask(asked[first:])
    wrong = []
    for row, answer, silent in zip(rows, answers, quiet, strict=True):
        if silent:
            right = answer is None
        elif row.topic.startswith("gateway."):
            right = (answer.errnum == 1 and " needs the role " in answer.text) is not expected(row, door)
        else:
            right = answer.denied is not expected(row, door)
        if not right:
            wrong.append((row.topic, "allowed" if expected(row, door) else "denied", answer))
    assert wrong == []
    assert len(answers) > 130


# ---------------------------------------------------------------- what a denied request leaves behind


LINE = "<3>1 2026-01-01T00:00:00.000000Z 0 forged 1 - - %s"


def harmful(mark: str) -> list[tuple[str, bytes]]:
    """Requests of owners that would change something, with payloads that are right."""

    def body(value: object) -> bytes:
        return json.dumps(value).encode() + b"\0"

    return [
        ("attr.set", body({"name": f"test.{mark}", "value": "x"})),
        ("attr.set", body({"name": "log-stderr-level", "value": "7"})),
        ("groups.join", body({"name": mark})),
        ("groups.update", body({"update": {mark: [{"ranks": "1", "set": True}]}})),
        ("groups.leave", body({"name": "broker.online"})),
        ("log.append", (LINE % mark).encode()),
        ("log.clear", body({})),
        ("overlay.disconnect-subtree", body({"rank": 1})),
        ("broker.getenv", body({"names": ["PATH"]})),
        ("broker.stats-clear", None),
        ("journal.stop", body({"reason": mark})),
        ("journal.denied", body({"topic": mark, "errno": 1, "userid": 0, "rolemask": 1})),
        ("connector-local.stats-get", None),
        ("state-machine.monitor", body({"final": 5})),
        ("module.remove", body({"name": "attr"})),
        ("module.trace", body({"names": [], "typemask": 15, "topic_glob": "*"})),
        ("overlay.trace", body({"nodeid": -1, "typemask": 15, "topic_glob": "*", "clients": True})),
        ("broker.debug", body({"op": "set", "flags": 1})),
        ("config.load", body({"access": {"allow-guest-user": True}})),
        ("rexec.exec", body({"cmd": {"cmdline": ["touch", f"/tmp/{mark}"]}, "flags": 0})),
        ("broker.drain", body({"rank": 0})),
        ("shutdown.start", body({"loglevel": 6})),
        ("gateway.reload", None),
        ("gateway.drain", body({"reason": mark})),
    ]


@for_each("way, role", lambda: tried(["user", "admin"]))
def test_a_denied_request_changes_nothing(stage, way, role):
    mark = f"mark-{way.replace('.', '-')}-{role}"
    with stage.door("unix", "owner") as owner, stage.door(way, role) as guest:
        owner.one("log.append", (LINE % f"kept-{mark}").encode())
        before = world(owner)
        answers = guest.ask([(topic, payload, True) for topic, payload in harmful(mark)])
        assert [answer.errnum for answer in answers] == [1] * len(answers), answers
        assert not any("PATH" in answer.text or "/bin" in answer.text for answer in answers)
        assert world(owner) == before
        assert mark not in owner.one("attr.list").text
        assert json.loads(owner.one("groups.get", f'{{"name":"{mark}"}}'.encode() + b"\0").text) == {
            "members": ""
        }
        log = dmesg(stage)
        assert f"kept-{mark}" in log
        assert f" forged 1 - - {mark}" not in log
        assert not Path(f"/tmp/{mark}").exists()
        # and what is the guest's own right goes on
        assert guest.one("attr.get", b'{"name":"size"}\0').errnum == 0


def world(owner: Door) -> list[object]:
    """What the harmful requests would change."""
    asked = [
        ("attr.get", b'{"name":"log-stderr-level"}\0'), ("groups.get", b'{"name":"broker.online"}\0'),
        ("overlay.health", None), ("config.get", None), ("module.list", None), ("state-machine.get", None),
    ]  # fmt: skip
    said = [json.loads(answer.text) for answer in owner.ask([(*one, True) for one in asked])]
    return [without_times(one) for one in said]


def without_times(value):
    """The value without what grows by itself."""
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in ("duration", "idle")}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def dmesg(stage: Stage) -> str:
    lines: list[str] = []
    with Speaker(stage.tree.ranks[0].uri) as owner:
        owner.tell(request("log.dmesg", b'{"follow":false}\0', matchtag=1, flags=STREAMING))
        while (seen := owner.next()).errnum == 0:
            lines.append((seen.payload or b"").decode())
    return "\n".join(lines)


# ---------------------------------------------------------------- services and events by role


def test_names_that_roles_may_register(stage):
    """RFC 12: a guest's service begins with its userid and a dash; an admin is a guest there."""
    with contextlib.ExitStack() as stack:
        for way, role in tried(["user", "admin"], WAYS[:-1]):  # a service cannot live on HTTP
            door = stack.enter_context(stage.door(way, role))
            userid = userid_of(way, role)
            wanted = {"calc": 1, "attr": 1, f"{userid}": 1, f"{userid + 1}-calc": 1, "0-calc": 1}
            for name, errnum in wanted.items():
                answer = door.one("service.add", json.dumps({"service": name}).encode() + b"\0")
                assert answer.errnum == errnum, (way, role, name, answer)
            own = json.dumps({"service": f"{userid}-{way.replace('.', '-')}-{role}"}).encode() + b"\0"
            assert door.one("service.add", own).errnum == 0, (way, role)
        owner = stack.enter_context(Speaker(stage.tree.ranks[0].uri))
        provide(owner, "calc")
