"""``/v1/history/...`` over HTTP: who may ask, what is asked, and what is said where there is nothing."""

import json

import pytest

from tests.live import warehouse as wh
from tests.live.gateways import run
from tests.unit.gateway.web.site import site

NAMES = ("summary", "traffic", "latency", "talkers", "denied", "order", "slow", "jobs", "notifications")
ALL = f"since={wh.FIRST}&until={wh.LAST}"


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    return wh.rich(tmp_path_factory.mktemp("house"))


def settings(house, *lines):
    return "\n".join(["[history]", f'warehouse = "{house}"', *lines, ""])


async def seen(answer):
    async with answer as response:
        return response.status, await response.json()


@pytest.mark.parametrize(("user", "status"), [("ada", 200), ("eve", 200), ("bob", 403), (None, 401)])
def test_who_may_ask(house, user, status):
    async def body(folder):
        async with site(folder, settings(house)) as it:
            for name in NAMES:
                found, said = await seen(it.get(f"/v1/history/{name}?{ALL}", user))
                assert found == status
                if status == 403:
                    assert said["text"] == "reading the history needs the role owner or admin"

    run(body)


def test_roles_are_a_setting(house):
    async def body(folder):
        async with site(folder, settings(house, 'roles = ["user"]')) as it:
            assert (await seen(it.get("/v1/history/slow", "bob")))[0] == 200
            assert (await seen(it.get("/v1/history/slow", "ada")))[0] == 403
            _, said = await seen(it.get("/v1/history", "ada"))
            assert said == {"allowed": False, "roles": ["user"], "max_days": 31.0}

    run(body)


def test_everybody_is_told_whether_it_is_for_them(house):
    async def body(folder):
        async with site(folder, settings(house)) as it:
            _, said = await seen(it.get("/v1/history", "ada"))
            assert said == {
                "allowed": True, "roles": ["owner", "admin"], "max_days": 31.0, "there": True, "text": ""
            }  # fmt: skip
            status, said = await seen(it.get("/v1/history", "bob"))
            assert (status, said["allowed"], "there" in said) == (200, False, False)

    run(body)


@pytest.mark.parametrize("extra", ["", '[history]\nwarehouse = "/nonexistent/warehouse"\n'])
def test_a_gateway_without_history_starts_and_says_so(extra):
    async def body(folder):
        async with site(folder, extra) as it:
            _, said = await seen(it.get("/v1/history"))
            assert (said["allowed"], said["there"]) == (True, False)
            for name in NAMES:
                status, problem = await seen(it.get(f"/v1/history/{name}"))
                assert (status, problem["text"]) == (404, said["text"])

    run(body)


def test_filters_and_parameters_arrive(house):
    async def body(folder):
        async with site(folder, settings(house)) as it:
            _, said = await seen(it.get(f"/v1/history/traffic?{ALL}&by=topic&service=store&rank=1"))
            assert {each["name"] for each in said["series"]} == set(wh.SERVICES["store"])
            assert (said["service"], said["rank"], said["by"]) == ("store", 1, "topic")
            _, said = await seen(it.get(f"/v1/history/denied?{ALL}&limit=2"))
            assert len(said["newest"]) == 2
            async with it.get(f"/v1/history/order?{ALL}") as answer:
                assert answer.headers["Cache-Control"] == "no-store"
                assert json.loads(await answer.read())["findings"][0]["origin"] == "client-4"

    run(body)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("since=soon", "since: saw 'soon', expected seconds since 1970"),
        ("since=nan", "since: saw 'nan'"),
        ("since=5&until=5", "expected 0 <= since < until"),
        (f"since=0&until={wh.LAST}", "expected at most history.max_days, 31 days"),
        ("rank=-1", "rank: saw '-1', expected a whole number from 0 to"),
        ("limit=501", "limit: saw '501', expected a whole number from 1 to 500"),
    ],
)
def test_parameters_that_make_no_sense(house, query, text):
    async def body(folder):
        async with site(folder, settings(house)) as it:
            status, problem = await seen(it.get(f"/v1/history/slow?{query}"))
            assert status == 400
            assert text in problem["text"]
            status, _ = await seen(it.get(f"/v1/history/traffic?{ALL}&by=weather"))
            assert status == 400

    run(body)


def test_a_damaged_file_is_named_not_fatal(house, tmp_path):
    wh.write(tmp_path, "slow", wh.slow())
    (tmp_path / "slow" / "dt=2026-03-02" / "broken.parquet").write_bytes(b"PAR1 no table PAR1")

    async def body(folder):
        async with site(folder, settings(tmp_path)) as it:
            status, said = await seen(it.get(f"/v1/history/slow?{ALL}"))
            assert (status, said["damaged"]) == (200, ["slow/dt=2026-03-02/broken.parquet"])
            assert said["total"] == sum(row["events"] for row in wh.slow())

    run(body)
