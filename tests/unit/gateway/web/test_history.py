"""``/v1/history/...`` over HTTP: who may ask, what is asked, and what is said where there is nothing."""

import json

import pytest

from tests.live import warehouse as wh
from tests.tables import for_each

NAMES = (
    "summary",
    "traffic",
    "latency",
    "tree",
    "talkers",
    "errors",
    "denied",
    "order",
    "slow",
    "jobs",
    "notifications",
)
ALL = f"since={wh.FIRST}&until={wh.LAST}"


def settings(house, *lines):
    return "\n".join(["[history]", f'warehouse = "{house}"', *lines, ""])


@pytest.fixture
async def telling(open_site, rich):
    return await open_site(settings(rich))


async def seen(answer):
    async with answer as response:
        return response.status, await response.json()


@for_each(("user", "status"), [("ada", 200), ("eve", 200), ("bob", 403), (None, 401)])
async def test_who_may_ask(telling, user, status):
    for name in NAMES:
        found, said = await seen(telling.get(f"/v1/history/{name}?{ALL}", user))
        assert found == status
        if status == 403:
            assert said["text"] == "reading the history needs the role owner or admin"


async def test_roles_are_a_setting(open_site, rich):
    site = await open_site(settings(rich, 'roles = ["user"]'))
    assert (await seen(site.get("/v1/history/slow", "bob")))[0] == 200
    assert (await seen(site.get("/v1/history/slow", "ada")))[0] == 403
    _, said = await seen(site.get("/v1/history", "ada"))
    assert said == {"allowed": False, "roles": ["user"], "max_days": 31.0}


async def test_everybody_is_told_whether_it_is_for_them(open_site, rich):
    site = await open_site(settings(rich))
    _, said = await seen(site.get("/v1/history", "ada"))
    assert said == {
        "allowed": True, "roles": ["owner", "admin"], "max_days": 31.0, "there": True, "text": ""
    }  # fmt: skip
    status, said = await seen(site.get("/v1/history", "bob"))
    assert (status, said["allowed"], "there" in said) == (200, False, False)


@pytest.mark.parametrize("extra", ["", '[history]\nwarehouse = "/nonexistent/warehouse"\n'])
async def test_a_gateway_without_history_starts_and_says_so(open_site, extra):
    site = await open_site(extra)
    _, said = await seen(site.get("/v1/history"))
    assert (said["allowed"], said["there"]) == (True, False)
    for name in NAMES:
        status, problem = await seen(site.get(f"/v1/history/{name}"))
        assert (status, problem["text"]) == (404, said["text"])


async def test_filters_and_parameters_arrive(open_site, rich):
    site = await open_site(settings(rich))
    _, said = await seen(site.get(f"/v1/history/traffic?{ALL}&by=topic&service=store&rank=1"))
    assert {each["name"] for each in said["series"]} == set(wh.SERVICES["store"])
    assert (said["service"], said["rank"], said["by"]) == ("store", 1, "topic")
    _, said = await seen(site.get(f"/v1/history/denied?{ALL}&limit=2"))
    assert len(said["newest"]) == 2
    answer = await site.get(f"/v1/history/order?{ALL}")
    assert answer.headers["Cache-Control"] == "no-store"
    assert json.loads(await answer.read())["findings"][0]["origin"] == "client-4"


@for_each(
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
async def test_parameters_that_make_no_sense(telling, query, text):
    status, problem = await seen(telling.get(f"/v1/history/slow?{query}"))
    assert status == 400
    assert text in problem["text"]
    status, _ = await seen(telling.get(f"/v1/history/traffic?{ALL}&by=weather"))
    assert status == 400


async def test_a_damaged_file_is_named_not_fatal(open_site, rich, tmp_path):
    wh.write(tmp_path, "slow", wh.slow())
    (tmp_path / "slow" / "dt=2026-03-02" / "broken.parquet").write_bytes(b"PAR1 no table PAR1")
    wh.register(tmp_path, "slow")
    site = await open_site(settings(tmp_path))
    status, said = await seen(site.get(f"/v1/history/slow?{ALL}"))
    assert (status, said["damaged"]) == (200, ["slow/dt=2026-03-02/broken.parquet"])
    assert said["total"] == sum(row["events"] for row in wh.slow())
