"""``/asyncapi.json`` is true: what a live gateway says is described there, and what it describes is taken.

Its own schema is asked in ``tests/interop/test_asyncapi_schema.py``.
"""

import json
from typing import Any

import jsonschema
import pytest

from gateway.web import asyncapi
from gateway.web.routes import messages
from tests.tables import for_each
from tests.unit.gateway.test_protocol_examples import live_objects, of_kind
from tests.unit.gateway.web.site import Site, Stream, begin

DOCUMENT = json.loads(json.dumps(messages()))
SESSION, EVENTS = (DOCUMENT["channels"][name] for name in ("session", "events"))


def at(ref: str) -> Any:
    """What a reference in the document leads to."""
    found: Any = DOCUMENT
    for word in ref.removeprefix("#/").split("/"):
        found = found[word]
    return found


def check(channel: dict[str, Any], obj: dict[str, Any], headers: dict[str, str] | None = None) -> None:
    """``obj`` is what the message of its type in ``channel`` says, and has every field that is named there."""
    message = at(channel["messages"][obj["type"]]["$ref"])
    schema = at(message["payload"]["$ref"])
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema.validate(obj, whole)
    assert set(obj) <= set(schema["properties"])
    if headers is not None:
        jsonschema.validate(headers, message["headers"])


def refs(obj: Any) -> set[str]:
    if isinstance(obj, list):
        return set().union(*map(refs, obj))
    if not isinstance(obj, dict):
        return set()
    own = {obj["$ref"]} if "$ref" in obj else set()
    return own.union(*(refs(value) for value in obj.values()))


def test_every_reference_leads_somewhere_and_every_schema_is_one():
    assert all(at(ref) for ref in refs(DOCUMENT))
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_it_is_served_and_has_the_prefix_of_the_gateway(site):
    assert await (await site.get("/asyncapi.json", None)).json() == DOCUMENT
    assert messages("/gate")["channels"]["session"]["address"] == "/gate/v1/ws"


@for_each("block", lambda: [*of_kind("json client"), *of_kind("json server")])
def test_the_examples_of_the_page_are_described(block):
    said = json.loads(block.text)
    for obj in said if isinstance(said, list) else [said]:
        check(SESSION, obj)


async def test_a_session_says_and_is_told_what_is_described(site: Site):
    told: dict[str, dict[str, Any]] = {}
    async with site.client.ws_connect("/v1/ws?auth=message", protocols=("flux.v1.json",)) as ws:

        async def say(obj: dict[str, Any], until: str) -> None:
            check(SESSION, obj)
            await ws.send_json(obj)
            await hear(until)

        async def hear(until: str) -> None:
            while until not in told:
                said = await ws.receive_json()
                for each in said if isinstance(said, list) else [said]:
                    check(SESSION, each)
                    told[each["type"]] = each

        await say({"type": "auth", "token": site.live.tokens["bob"]}, "welcome")
        await say({"type": "event", "topic": "secret.plan", "payload": {}}, "denied")
        subscribe = {"topic": "event.subscribe", "matchtag": 1, "payload": {"topic": "a."}}
        await say({"type": "request", **subscribe}, "response")
        await say({"type": "event", "topic": "a.b", "text": "hello"}, "event")
        register = {
            "topic": "service.add",
            "matchtag": 2,
            "payload": {"service": f"{told['welcome']['userid']}-x"},
        }
        del told["response"]
        await say({"type": "request", **register}, "response")
        asking = begin(site.handle.rpc(f"{told['welcome']['userid']}-x.read", {"n": 1}))
        await hear("request")
        answer = {key: told["request"][key] for key in ("topic", "matchtag", "routes")}
        check(SESSION, {"type": "response", **answer, "payload": {"n": 2}})
        await ws.send_json({"type": "response", **answer, "payload": {"n": 2}})
        assert (await asking).json() == {"n": 2}
        await ws.send_json({"type": "event", "topic": "a.b", "misspelt": 1})
        await hear("error")
    for obj in (await live_objects(site)).values():  # behind the rest: it takes the upstream away
        check(SESSION, obj)


@pytest.mark.parametrize("come", ["anew", "back"])
async def test_a_stream_is_told_what_is_described(site: Site, come: str):
    headers = {} if come == "anew" else {"Last-Event-ID": "another:1"}
    assert set(EVENTS["messages"]) == set(asyncapi.TO_STREAMS)
    async with site.get("/v1/events?prefix=a.", headers=headers) as answer:
        stream, seen = Stream(answer), []
        await site.handle.publish("a.b", {"n": 1})
        while "event" not in seen:
            said = await stream.next()
            check(EVENTS, said.data, {"event": said.event, "id": said.id})
            seen.append(said.data["type"])
        assert seen[0] == ("welcome" if come == "anew" else "resumed")
        site.gateway.delivery.upstream_joined(False, 0)
        check(EVENTS, (await stream.next("upstream")).data)


def test_the_queries_are_those_of_the_routes():
    asked = SESSION["bindings"]["ws"]["query"]["properties"]
    assert set(asked) == {"auth", "overflow"}
    streamed = DOCUMENT["operations"]["stream"]["bindings"]["http"]["query"]["properties"]
    assert set(streamed) == {"prefix", "overflow"}
