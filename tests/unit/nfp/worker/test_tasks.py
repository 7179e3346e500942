"""Functions as tasks: how they take their job, and how they are described."""

import functools

import pytest

from broker.errors import ConfigError
from broker.nfp.worker import Worker
from broker.nfp.worker.tasks import make
from tests.tables import for_each

pytestmark = pytest.mark.interpreter


def worker():
    return Worker("s", name="w")


def test_functions_are_offered_with_and_without_brackets():
    ours = worker()

    @ours.task
    def one():
        """Do one thing."""

    @ours.task(name="zwei", idempotent=False, description="two")
    async def two(job):
        pass

    assert sorted(ours.tasks) == ["one", "zwei"]
    first, second = ours.tasks.values()
    assert (first.description, first.idempotent, first.asynchronous, first.job) == (
        "Do one thing.",
        True,
        False,
        "",
    )
    assert (second.description, second.idempotent, second.asynchronous, second.job) == (
        "two",
        False,
        True,
        "first",
    )
    assert one() is None  # the function itself stays what it was
    with pytest.raises(ConfigError, match="there twice"):
        ours.task(one)


class Tools:
    def method(self, job, n):
        return ("method", job, n)

    def __call__(self, n):
        return ("call", n)

    async def coroutine(self, n):
        return n


def test_methods_callables_and_partials_are_tasks_too():
    tools = Tools()
    made = make(tools.method)
    assert made.call("JOB", [1], {}) == ("method", "JOB", 1)
    made = make(tools, name="called")
    assert made.call("JOB", [], {"n": 2}) == ("call", 2)
    assert make(tools.coroutine).asynchronous
    made = make(functools.partial(tools.method, n=3), name="p")
    assert made.call("JOB", [], {}) == ("method", "JOB", 3)

    def last(n, *, job):
        return (n, job)

    made = make(last)
    assert made.call("JOB", [4], {}) == (4, "JOB")


@for_each("name", ["", "a\nb", "x" * 256])
def test_names_that_no_frame_or_person_wants(name):
    function = functools.partial(print)
    with pytest.raises(ConfigError, match="task"):
        make(function, name=name)


def test_what_is_no_function():
    with pytest.raises(ConfigError, match="a function"):
        make(5, name="five")


def test_schemas_say_what_annotations_say():
    class Odd:
        pass

    def task(job, a: int, b: list[str], c: "str | None" = None, d: Odd = None, *rest, e=Odd, **more):
        pass

    schema = make(task).schema()["inputSchema"]
    assert schema["required"] == ["a", "b"]
    properties = schema["properties"]
    assert list(properties) == ["a", "b", "c", "d", "e"]
    assert properties["a"] == {"title": "a", "type": "integer"}
    assert properties["b"]["items"] == {"type": "string"}
    assert properties["c"]["default"] is None
    assert properties["e"] == {"title": "e"}


@for_each("service", ["", "x" * 256, "mmi.service.broker", "mmi.service.worker"])
def test_services_that_no_worker_may_offer(service):
    with pytest.raises(ConfigError, match="service"):
        Worker(service)
