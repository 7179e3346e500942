"""Input models and classes of workers: what enters a task, what is told of the rest, what is announced."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pydantic
import pydantic.alias_generators
import pydantic.dataclasses
import pytest

from broker.errors import ConfigError
from broker.nfp.worker import InvalidInput, Worker, task
from broker.nfp.worker.tasks import make
from tests.tables import for_each
from tests.unit.nfp.peer.raw_broker import RawBroker
from tests.unit.nfp.worker.rig import final, post, result, working

pytestmark = pytest.mark.interpreter


class Port(msgspec.Struct):
    vlan: int


class Struct(msgspec.Struct):
    device: str
    count: int = 3
    ports: list[Port] = []


@dataclasses.dataclass
class Data:
    device: str
    count: int = 3


class Pydantic(pydantic.BaseModel):
    device: str
    count: int = pydantic.Field(3, ge=1)


MODELS = [Struct, Data, Pydantic]


def push(job, device, count=9):
    return device, count


@for_each("model", MODELS)
def test_fields_become_arguments_by_position_and_by_name(model):
    made = make(push, input=model)
    assert made.call("JOB", ["r1"], {}) == ("r1", 3)  # the model's default goes before the function's
    assert made.call("JOB", ["r1", 5], {}) == ("r1", 5)
    assert made.call("JOB", [], {"count": 7, "device": "r2"}) == ("r2", 7)


@for_each("model", MODELS)
@for_each(
    ("args", "kwargs", "field", "expected"),
    [
        ([], {}, "device", "required"),
        ([], {"device": 5}, "device", "str"),
        (["r1"], {"count": "many"}, "count", "int"),
        (["r1"], {"speed": 1}, "speed", "expected device, count"),
        (["r1"], {"device": "r2"}, "device", "expected once"),
        (["r1", 1, 2], {}, "3 positional", "at most 2"),
    ],
)
def test_an_error_names_the_field_and_what_was_expected(model, args, kwargs, field, expected):
    with pytest.raises(InvalidInput) as raised:
        make(push, input=model).call("JOB", args, kwargs)
    assert field in str(raised.value)
    assert expected in str(raised.value)


def test_what_a_model_says_of_values_counts():
    with pytest.raises(InvalidInput, match="count: Input should be greater than or equal to 1"):
        make(push, input=Pydantic).call("JOB", ["r1"], {"count": 0})

    def wire(device, ports):
        return [port.vlan for port in ports]

    assert make(wire, input=Struct).call("JOB", [], {"device": "r1", "ports": [{"vlan": 5}]}) == [5]
    with pytest.raises(InvalidInput, match=r"Expected `int`, got `str` - at `ports\[0\].vlan`"):
        make(wire, input=Struct).call("JOB", [], {"device": "r1", "ports": [{"vlan": "5"}]})


def test_a_function_that_takes_everything_gets_what_the_model_does_not_name():
    def rest(device, **more):
        return device, more

    assert make(rest, input=Data).call("JOB", ["r1"], {"x": 1, "count": 4}) == ("r1", {"x": 1, "count": 4})
    assert make(rest, input=Data).call("JOB", ["r1"], {}) == ("r1", {})


def test_fields_under_another_name_are_found_under_both():
    class Renamed(msgspec.Struct, rename="kebab"):
        dry_run: bool = False

    class Aliased(pydantic.BaseModel):
        dry_run: bool = pydantic.Field(False, alias="dry-run")

    def run(dry_run):
        return dry_run

    for model in (Renamed, Aliased):
        made = make(run, input=model)
        assert made.call("JOB", [], {"dry-run": True}) is True
        assert made.call("JOB", [], {"dry_run": True}) is True
        assert list(made.schema()["inputSchema"]["properties"]) == ["dry-run"]


class Renames(pydantic.BaseModel):
    name: str = pydantic.Field(validation_alias="hostName")
    port: int = pydantic.Field(22, alias="P", validation_alias=pydantic.AliasChoices("tcp", "portNumber"))
    first: int = pydantic.Field(0, validation_alias=pydantic.AliasPath("list", 0))


class Old(pydantic.BaseModel):
    name: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def take_the_old_name(cls, data):
        return {"name": data["hostName"], **data} if "hostName" in data else data


class Generated(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=pydantic.alias_generators.to_camel)
    host_name: str


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str


class Careless(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="ignore")
    name: str


class Names(pydantic.RootModel[list[str]]):
    pass


class Ports(pydantic.RootModel[dict[str, int]]):
    pass


@pydantic.dataclasses.dataclass
class Checked:
    count: int = pydantic.Field(ge=1, alias="Count")


class Tagged(msgspec.Struct, tag="t", tag_field="kind"):
    name: str


def everything(**more):
    return more


@for_each(
    ("model", "given", "entered"),
    [
        (Renames, {"hostName": "r1"}, {"name": "r1"}),
        (Renames, {"name": "r1", "tcp": "5"}, {"name": "r1", "port": 5}),
        (Renames, {"hostName": "r1", "portNumber": 5}, {"name": "r1", "port": 5}),
        (Renames, {"hostName": "r1", "list": [7]}, {"name": "r1", "first": 7}),
        (Renames, {"hostName": "r1", "first": 7, "x": 1}, {"name": "r1", "first": 7, "x": 1}),
        (Old, {"hostName": "r1"}, {"name": "r1"}),
        (Generated, {"hostName": "r1"}, {"host_name": "r1"}),
        (Open, {"name": "r1", "x": 1}, {"name": "r1", "x": 1}),
        (Ports, {"a": "1", "b": 2}, {"a": 1, "b": 2}),
        (Ports, {"root": {"a": 1}}, {"a": 1}),
        (Names, {"root": ["a"]}, {"root": ["a"]}),
        (Checked, {"Count": "2"}, {"count": 2}),
        (Tagged, {"kind": "t", "name": "r1"}, {"name": "r1"}),
    ],
)
def test_what_a_model_takes_enters_and_nothing_raw_beside_it(model, given, entered):
    assert make(everything, input=model).call("JOB", [], given) == entered


@for_each("model", [Renames, Old])
def test_a_function_of_the_fields_is_entered_with_other_names(model):
    assert make(lambda name: name, input=model).call("JOB", [], {"hostName": "r1"}) == "r1"
    assert make(lambda name: name, input=model).call("JOB", ["r1"], {}) == "r1"


def test_names_that_the_model_leaves_alone_do_not_reach_a_function_that_does_not_take_them():
    assert make(lambda name: name, input=Careless).call("JOB", [], {"name": "r1", "x": 1}) == "r1"
    assert make(lambda name: name, input=Open).call("JOB", [], {"name": "r1", "x": 1}) == "r1"
    with pytest.raises(InvalidInput, match="x: no such field, expected hostName, tcp, list"):
        make(lambda name: name, input=Renames).call("JOB", [], {"hostName": "r1", "x": 1})


def test_a_root_model_is_the_sole_argument():
    assert make(lambda names: names, input=Names).call("JOB", [["a", "b"]], {}) == ["a", "b"]
    assert make(lambda root: root, input=Names).call("JOB", [], {"root": ["a"]}) == ["a"]
    assert make(lambda ports: ports, input=Ports).call("JOB", [], {"a": 1}) == {"a": 1}
    with pytest.raises(InvalidInput, match="0: Input should be a valid string"):
        make(lambda names: names, input=Names).call("JOB", [[5]], {})


class Broken(pydantic.BaseModel):
    name: str
    count: int = 1

    @pydantic.field_validator("count")
    @classmethod
    def add(cls, count):
        return count + None


class BrokenStruct(msgspec.Struct):
    name: str

    def __post_init__(self):
        raise KeyError("no such name")


def test_a_validator_that_fails_in_a_way_of_its_own_is_a_refusal_too():
    with pytest.raises(InvalidInput, match="count: TypeError: unsupported"):
        make(everything, input=Broken).call("JOB", [], {"name": "r1", "count": 2})
    with pytest.raises(InvalidInput, match="KeyError: 'no such name'"):
        make(everything, input=BrokenStruct).call("JOB", [], {"name": "r1"})


@for_each("model", [Renames, Old, Generated, Open, Names, Ports, Checked, Tagged])
def test_what_is_announced_is_taken(model):
    schema = make(everything, input=model).schema()["inputSchema"]
    assert schema["type"] == "object"
    usual = {"string": "r1", "integer": 5, "array": ["r1"]}
    given = {
        name: about.get("enum", [usual.get(about.get("type"))])[0]
        for name, about in schema.get("properties", {}).items()
    }
    assert make(everything, input=model).call("JOB", [], given) is not None


class Unsayable(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    host: str = pydantic.Field(alias="hostName")
    then: Callable[[], None] = print
    thing: object = object()


class UnsayableStruct(msgspec.Struct, rename="camel"):
    host_name: str
    then: Callable[[], None] = print


@for_each(
    ("model", "names"),
    [(Unsayable, ["hostName", "then", "thing"]), (UnsayableStruct, ["hostName", "then"])],
)
def test_of_a_model_that_no_schema_can_say_the_names_are_announced(model, names):
    assert list(make(everything, input=model).schema()["inputSchema"]["properties"]) == names


@for_each("model", MODELS)
def test_the_model_is_announced(model):
    schema = make(push, input=model).schema()["inputSchema"]
    assert schema["required"] == ["device"]
    assert schema["properties"]["count"]["type"] == "integer"
    assert schema["properties"]["count"]["default"] == 3


def test_nested_models_are_announced_beside():
    schema = make(push, input=Struct).schema()["inputSchema"]
    assert schema["properties"]["ports"]["items"] == {"$ref": "#/$defs/Port"}
    assert schema["$defs"]["Port"]["required"] == ["vlan"]


@for_each("model", [int, dict, "Data", Data("r1")])
def test_what_is_no_model(model):
    with pytest.raises(ConfigError, match="expected a Struct, a dataclass or a pydantic model"):
        make(push, input=model)


class Lab(Worker):
    """A class of workers, as NorFab's users write them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__("dummy", **settings)
        self.pushed: list[str] = []

    @task(input=Data, idempotent=False)
    def push(self, job, device, count):
        """Push a configuration."""
        self.pushed.append(device)
        return [job.task, count]

    @task(name="async")
    async def apush(self, device="r1"):
        return device

    def helper(self):
        return "no task"


def test_the_marked_methods_of_a_class_are_tasks_of_each_of_its_workers():
    one, two = Lab(name="w1"), Lab(name="w2")
    assert sorted(one.tasks) == ["async", "push"]
    assert (one.tasks["push"].idempotent, one.tasks["push"].description) == (False, "Push a configuration.")
    one.tasks["push"].call(type("Job", (), {"task": "push"}), ["r1"], {})
    assert (one.pushed, two.pushed) == (["r1"], [])


def test_a_bad_input_never_enters_the_task_and_is_a_failed_result():
    async def main():
        with RawBroker(opens=True) as broker:
            worker = Lab(name="w1", broker=broker.endpoint, files=False, store=False)
            async with working(worker, broker):
                post(broker, "u1", "async", device="r7")
                assert result(await final(broker))["result"] == "r7"
                worker._session.tasks["push"] = worker._session.tasks["push"]._replace(idempotent=True)
                post(broker, "u2", "push", device=5)
                bad = result(await final(broker))
                post(broker, "u3", "push", "r1")
                good = result(await final(broker))
            return bad, good, worker.pushed

    bad, good, pushed = asyncio.run(main())
    assert (bad["failed"], bad["status"], bad["task"]) == (True, "error", "w1:push")
    assert bad["errors"] == ["Expected `str`, got `int` - at `device`"]
    assert (good["result"], pushed) == (["push", 3], ["r1"])
