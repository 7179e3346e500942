"""``/openapi.json`` is true: requests made from it get the answers it names, and it names every route there is."""

import asyncio
import logging

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS
from schemathesis.checks import load_all_checks as _load

from gateway.web.routes import ROUTES, document
from tests.tables import for_each

_load()
CONFORMS = [
    CHECKS.get_one(name)
    for name in ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
]
"""503 and 504 are honest answers of a gateway, so server errors are no failures here unless they are not documented."""
DOCUMENTED = [route for route in ROUTES if not route.wire]
FUZZED = [route for route in DOCUMENTED if (route.method, route.path) != ("GET", "/v1/events")]


def names(route):
    return f"{route.method} {route.path}"


@pytest.fixture(autouse=True)
def quiet():
    """Refused credentials are logged by the dozen."""
    logging.getLogger("gateway").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("gateway").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("user", "examples"),
    [
        ("ada", 1),
        (None, 1),
        pytest.param("ada", 20, marks=pytest.mark.patient),
        pytest.param(None, 10, marks=pytest.mark.patient),
    ],
)
@for_each("route", FUZZED, ids=names)
async def test_answers_are_those_of_the_document(site, schema, route, user, examples):
    headers = site.live.bearer(user) if user else {}
    await asyncio.to_thread(fuzz, schema, site.url, route, headers, examples)


@pytest.fixture(scope="module")
def schema():
    """The document as schemathesis reads it; that it is served is asked below."""
    return schemathesis.openapi.from_dict(document(ROUTES))


def fuzz(schema, url, route, headers, examples):
    operation = schema[route.path][route.method]

    @given(case=operation.as_strategy())
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case):
        case.cookies = {}
        response = case.call(base_url=url, headers=headers, timeout=10)
        case.validate_response(response, checks=CONFORMS)
        if not headers and not route.public:
            assert response.status_code in (401, 429)  # 429: too many that were refused

    ask()


@for_each("route", DOCUMENTED, ids=names)
async def test_other_methods_are_refused_by_name(site, route):
    path = route.path.replace("{topic}", "lab.who")
    known = {each.method for each in ROUTES if each.path == route.path}
    for method in {"DELETE", "PATCH", "PUT"} - known:
        answer = await site.request(method, path)
        assert answer.status == 405
        assert known <= set(answer.headers["Allow"].split(","))


async def test_it_is_served_as_it_is_made(site):
    answer = await site.get("/openapi.json", None)
    assert await answer.json() == document(ROUTES)


async def test_every_route_of_the_application_stands_in_it(open_site):
    site = await open_site("[gateway]\ndashboard = false\n")
    routed = {(route.method, route.resource.canonical) for route in site.client.app.router.routes()}
    described = {
        (method.upper(), path)
        for path, operations in document(ROUTES)["paths"].items()
        for method in operations
    }
    assert routed - {(route.method, route.path) for route in ROUTES if route.wire} == described


def test_operations_have_names_of_their_own():
    operations = [each for path in document(ROUTES)["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert all(each["summary"] for each in operations)


def test_public_operations_say_so():
    for path, operations in document(ROUTES)["paths"].items():
        for method, operation in operations.items():
            route = next(each for each in ROUTES if (each.path, each.method.lower()) == (path, method))
            assert (operation.get("security") == []) is route.public
            assert route.public or 401 in route.answers
