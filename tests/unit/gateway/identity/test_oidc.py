"""Logging in at an identity provider: who comes in, and every way in which somebody else does not."""

import asyncio
import contextlib

import pytest
from aiohttp import web

from broker.errors import ConfigError, NotReady
from broker.identity import NOBODY
from gateway.identity import oidc, provider
from gateway.identity.fetching import ANSWER_BYTES
from gateway.identity.oidc import BEGUN_S
from gateway.identity.store import Store
from gateway.principal import Denied
from tests.tables import for_each
from tests.unit.gateway.identity.idp import HERE, URL, Idp, Wall, hang, log_in, providers_of


@pytest.fixture
def wall():
    return Wall()


@pytest.fixture
def store(tmp_path, wall):
    made = Store(tmp_path / "state", wall=wall)
    yield made
    made.close()


@pytest.fixture
async def idp(aiohttp_server, wall):
    made = Idp(wall)
    await made.serve(aiohttp_server)
    return made


@pytest.fixture
def corp(store, wall, idp):
    made = providers_of(store, wall, idp.entry())
    yield made
    made.close()


async def refused(work, status, *words):
    """What a person is told, and the log."""
    with pytest.raises(Denied) as found:
        await work
    assert found.value.status == status, found.value
    for word in words:
        assert word in f"{found.value.public} | {found.value}"
    return found.value


# ---------------------------------------------------------------- the way there and back


async def test_somebody_comes_in(corp, idp):
    account = await log_in(corp, idp)
    assert account.user == "corp:alice"
    assert account.claims == {"groups": ["ops"]}
    assert corp.person_of("oidc:corp", account.claims) == ({"roles": ["admin"]}, NOBODY)


async def test_somebody_comes_in_by_a_key_that_is_called_ed25519(corp, idp):
    idp.algorithm = "Ed25519"
    assert (await log_in(corp, idp)).user == "corp:alice"


async def test_the_address_asks_for_what_the_settings_say(corp, idp):
    url, _cookie = await corp.begin("corp", HERE)
    asked = idp.approve(url)
    (said,) = idp.codes.values()
    assert url.startswith(f"{idp.issuer}/authorize?")
    assert (said["client_id"], said["scope"]) == ("headgate", "openid profile")
    assert said["redirect_uri"] == f"{URL}/v1/login/oidc/corp/callback"
    assert asked["state"] == said["state"] != said["nonce"]


async def test_another_worker_may_finish(store, wall, idp, corp):
    other = providers_of(store, wall, idp.entry())
    url, cookie = await corp.begin("corp", HERE)
    assert (await other.finish("corp", idp.approve(url), cookie, HERE)).user == "corp:alice"
    other.close()


async def test_an_endpoint_with_a_query_keeps_it(corp, idp):
    idp.metadata["authorization_endpoint"] = f"{idp.issuer}/authorize?tenant=a"
    url, _cookie = await corp.begin("corp", HERE)
    assert url.startswith(f"{idp.issuer}/authorize?tenant=a&response_type=code&")


# ---------------------------------------------------------------- names and groups


@for_each(
    ("settings", "claims", "user"),
    [
        ({}, {"sub": "x"}, "corp:x"),
        ({"user_prefix": ""}, {"sub": "x"}, "x"),
        ({"user_claim": "email"}, {"email": "a@b.c", "email_verified": True}, "corp:a@b.c"),
        ({"user_claim": "email"}, {"email": "a@b.c", "email_verified": "true"}, "corp:a@b.c"),
        ({"user_claim": "a.b"}, {"a": {"b": "deep"}}, "corp:deep"),
    ],
)
async def test_names(store, wall, idp, settings, claims, user):
    idp.claims = claims
    assert (await log_in(providers_of(store, wall, idp.entry(**settings)), idp)).user == user


@for_each(
    ("settings", "claims"),
    [
        ({"user_claim": "email"}, {"email": "a@b.c"}),
        ({"user_claim": "email"}, {"email": "a@b.c", "email_verified": "false"}),
        ({"user_claim": "email"}, {"email": "a@b.c", "email_verified": ["true"]}),
        ({"user_claim": "nick"}, {}),
        ({"user_claim": "nick"}, {"nick": 7}),
        ({"user_claim": "nick"}, {"nick": "a\nb"}),
        ({"user_claim": "nick"}, {"nick": "x" * 300}),
    ],
)
async def test_names_that_are_none(store, wall, idp, settings, claims):
    idp.claims = claims
    await refused(log_in(providers_of(store, wall, idp.entry(**settings)), idp), 401)


@for_each(
    ("groups", "roles"),
    [
        (["ops", "staff", "unknown"], ["admin", "user"]),
        ("staff", ["user"]),
        ([7, None, {}], []),
        ({"ops": True}, []),
        (None, []),
    ],
)
async def test_groups(corp, idp, groups, roles):
    idp.claims = {"groups": groups}
    account = await log_in(corp, idp)
    assert corp.person_of("oidc:corp", account.claims).claims["roles"] == roles


async def test_a_userid_counts_only_if_the_settings_say_so(store, wall, idp):
    for said, claim, userid, own in (
        (1234, None, None, NOBODY),
        (1234, "uid", 1234, None),
        ("1234", "uid", 1234, None),
        (1234.0, "uid", 1234, None),
        ("ops", "uid", "ops", None),  # the users refuse it
    ):
        idp.claims = {"uid": said}
        made = providers_of(store, wall, idp.entry(userid_claim=claim))
        found = made.person_of("oidc:corp", (await log_in(made, idp)).claims)
        assert (found.claims.get("userid"), found.own) == (userid, own)


async def test_claims_that_stand_in_userinfo_only(corp, idp):
    idp.claims, idp.userinfo = {"groups": None}, {"sub": "alice", "groups": ["staff"]}
    assert (await log_in(corp, idp)).claims == {"groups": ["staff"]}


@for_each(
    ("userinfo", "status"),
    [
        ({"email": "a@b.c", "email_verified": True}, None),
        ({"email_verified": True}, None),
        ({"email": "other@b.c", "email_verified": True}, 401),
        ({"email": None, "email_verified": True}, 401),
        ({"email": "a@b.c"}, 401),
    ],
)
async def test_that_an_address_was_verified_may_stand_in_userinfo_of_that_address(
    store, wall, idp, userinfo, status
):
    idp.claims, idp.userinfo = {"email": "a@b.c"}, {"sub": "alice", **userinfo}
    made = providers_of(store, wall, idp.entry(user_claim="email"))
    if status is None:
        assert (await log_in(made, idp)).user == "corp:a@b.c"
    else:
        await refused(log_in(made, idp), status, "was not verified")


@for_each(
    ("claims", "userinfo", "let_in"),
    [
        ({"email_verified": True}, {"email": "victim@b.c", "email_verified": False}, False),
        ({"email_verified": True}, {"email": "victim@b.c"}, False),
        ({"email_verified": False}, {"email": "a@b.c", "email_verified": True}, True),
        ({"email": "a@b.c", "email_verified": False}, {"email": "a@b.c", "email_verified": True}, False),
        ({}, {"email": "a@b.c", "email_verified": True}, True),
    ],
)
async def test_an_address_and_that_it_was_verified_are_said_together(
    store, wall, idp, claims, userinfo, let_in
):
    idp.claims, idp.userinfo = claims, {"sub": "alice", **userinfo}
    made = providers_of(store, wall, idp.entry(user_claim="email"))
    if let_in:
        assert (await log_in(made, idp)).user == f"corp:{userinfo['email']}"
    else:
        await refused(log_in(made, idp), 401, "was not verified")


async def test_userinfo_of_another_subject(corp, idp):
    idp.claims, idp.userinfo = {"groups": None}, {"sub": "mallory", "groups": ["ops"]}
    await refused(log_in(corp, idp), 401, "another subject")


# ---------------------------------------------------------------- somebody else's login


async def test_a_state_of_another_browser(corp, idp):
    mine, _my_cookie = await corp.begin("corp", HERE)
    _other, cookie = await corp.begin("corp", HERE)
    await refused(corp.finish("corp", idp.approve(mine), cookie, HERE), 400, "not begun in this browser")
    assert "/token" not in idp.asked


@for_each("cookie", [None, "", "x", "gAAAAA", "x" * 5000, "é"])
async def test_no_begun_login(corp, idp, cookie):
    url, _cookie = await corp.begin("corp", HERE)
    await refused(corp.finish("corp", idp.approve(url), cookie, HERE), 400, "not begun in this browser")


async def test_a_cookie_that_was_made_elsewhere(tmp_path, wall, idp, corp):
    elsewhere = Store(tmp_path / "elsewhere", wall=wall)
    url, cookie = await providers_of(elsewhere, wall, idp.entry()).begin("corp", HERE)
    elsewhere.close()
    await refused(corp.finish("corp", idp.approve(url), cookie, HERE), 400)


async def test_an_answer_counts_once(corp, idp):
    url, cookie = await corp.begin("corp", HERE)
    query = idp.approve(url)
    await corp.finish("corp", query, cookie, HERE)
    await refused(corp.finish("corp", query, cookie, HERE), 400, "used already")
    await refused(corp.finish("corp", {**query, "code": "another"}, cookie, HERE), 400, "used already")
    assert idp.asked.count("/token") == 1


async def test_a_code_of_another_login(corp, idp):
    """An attacker's code, put into the answer to a victim's login: PKCE and the nonce bind it to who began."""
    attacker, _cookie = await corp.begin("corp", HERE)
    victim, cookie = await corp.begin("corp", HERE)
    stolen = {**idp.approve(victim), "code": idp.approve(attacker)["code"]}
    await refused(corp.finish("corp", stolen, cookie, HERE), 400, "did not take the code")


async def test_a_login_that_took_too_long(corp, idp, wall):
    url, cookie = await corp.begin("corp", HERE)
    wall.on(BEGUN_S + 1)
    await refused(corp.finish("corp", idp.approve(url), cookie, HERE), 400, "took longer")


@for_each("state", ["", None, "x"])
async def test_no_state(corp, idp, state):
    url, cookie = await corp.begin("corp", HERE)
    await refused(corp.finish("corp", idp.approve(url, state=state), cookie, HERE), 400)


async def test_1000_logins_that_nobody_finishes_cost_nothing_and_crowd_nobody_out(corp, idp, store):
    url, cookie = await corp.begin("corp", HERE)
    before = store.reading("SELECT count(*) FROM spent")
    for _ in range(1000):
        await corp.begin("corp", HERE)
    assert store.reading("SELECT count(*) FROM spent") == before == [(0,)]
    assert idp.asked.count("/.well-known/openid-configuration") == 1
    assert (await corp.finish("corp", idp.approve(url), cookie, HERE)).user == "corp:alice"


async def test_what_came_back_is_bounded_and_forgotten(corp, idp, store, wall, monkeypatch):
    monkeypatch.setattr(oidc, "SPENT", 3)
    for _ in range(5):
        await log_in(corp, idp)
    assert store.reading("SELECT count(*) FROM spent") == [(3,)]
    wall.on(2 * BEGUN_S)
    await log_in(corp, idp)
    assert store.reading("SELECT count(*) FROM spent") == [(1,)]


# ---------------------------------------------------------------- two providers


async def test_an_answer_by_the_address_of_another_provider(store, wall, idp):
    made = providers_of(store, wall, idp.entry(), idp.entry("other"))
    url, cookie = await made.begin("corp", HERE)
    await refused(made.finish("other", idp.approve(url), cookie, HERE), 400, "begun at 'corp'")
    assert "/token" not in idp.asked


@for_each("iss", ["https://evil.example", "", None])
async def test_an_answer_of_another_issuer(corp, idp, iss):
    url, cookie = await corp.begin("corp", HERE)
    await refused(corp.finish("corp", idp.approve(url, iss=iss), cookie, HERE), 401, "issuer")
    assert "/token" not in idp.asked


async def test_a_provider_that_does_not_name_itself(corp, idp):
    idp.metadata["authorization_response_iss_parameter_supported"] = None
    url, cookie = await corp.begin("corp", HERE)
    assert (await corp.finish("corp", idp.approve(url, iss=None), cookie, HERE)).user == "corp:alice"


async def test_users_of_two_providers_are_two(store, wall, idp):
    made = providers_of(store, wall, idp.entry(), idp.entry("other"))
    assert [(await log_in(made, idp, name)).user for name in ("corp", "other")] == [
        "corp:alice",
        "other:alice",
    ]


# ---------------------------------------------------------------- ID tokens


@for_each(
    "claims",
    [
        {"aud": "another"},
        {"aud": ["headgate", "another"]},
        {"aud": ["headgate", "another"], "azp": "another"},
        {"azp": "another"},
        {"iss": "https://evil.example"},
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": 7},
        {"sub": None},
        {"exp": None},
    ],
    ids=str,
)
async def test_id_tokens_that_are_for_others(corp, idp, claims):
    idp.claims = claims
    await refused(log_in(corp, idp), 401, "what Example Corp said of you was not accepted")


async def test_several_audiences_and_we_asked(corp, idp):
    idp.claims = {"aud": ["headgate", "another"], "azp": "headgate"}
    assert (await log_in(corp, idp)).user == "corp:alice"


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
async def test_clocks_that_differ_are_told_of(corp, idp, wall, off):
    idp.wall = lambda: wall() + off
    told = await refused(log_in(corp, idp), 401)
    assert told.public == "the clocks of Example Corp and of this gateway differ by 3600 seconds"


@pytest.mark.parametrize("off", [-4.0, 4.0])
async def test_a_little_difference_is_forgiven(corp, idp, wall, off):
    idp.wall, idp.claims = (lambda: wall() + off), {"exp": wall()}
    assert (await log_in(corp, idp)).user == "corp:alice"


async def test_a_signature_of_another_key(corp, idp):
    url, cookie = await corp.begin("corp", HERE)
    kid = idp.kid
    idp.rotate()
    idp.kid = kid
    await refused(corp.finish("corp", idp.approve(url), cookie, HERE), 401, "InvalidSignature")


async def test_keys_that_were_rotated_are_read_at_once_and_not_again_and_again(corp, idp, wall):
    await log_in(corp, idp)
    idp.rotate()
    wall.on(60)
    await log_in(corp, idp)
    assert idp.asked.count("/keys") == 2
    idp.kid = "unknown"
    for _ in range(3):
        with pytest.raises(Denied):
            await log_in(corp, idp)
    assert idp.asked.count("/keys") == 2


# ---------------------------------------------------------------- a provider that is away, slow, or says nonsense


async def test_a_provider_that_is_away(corp, idp, wall, monkeypatch):
    monkeypatch.setattr("gateway.identity.fetching.FETCH_S", 0.05)
    answer, gate = hang()
    idp.answers["/.well-known/openid-configuration"] = answer
    told = await refused(
        corp.begin("corp", HERE), 503, "Example Corp does not answer now. Try again in a moment"
    )
    assert "TimeoutError" in str(told)
    await asyncio.gather(*(refused(corp.begin("corp", HERE), 503) for _ in range(20)))
    assert len(idp.asked) <= 1
    gate.set()
    idp.answers.clear()
    monkeypatch.undo()
    wall.on(provider.RETRY_S)
    await log_in(corp, idp)


async def test_a_provider_that_nobody_serves(store, wall, idp):
    made = providers_of(store, wall, idp.entry(issuer="http://127.0.0.1:1"))
    await refused(made.begin("corp", HERE), 503, "does not answer")


async def test_metadata_stay_while_a_provider_is_away(corp, idp, wall):
    await log_in(corp, idp)

    async def broken(_request):
        return web.Response(status=500)

    idp.answers["/.well-known/openid-configuration"] = broken
    wall.on(provider.FRESH_S)
    await log_in(corp, idp)


@pytest.mark.parametrize("path", ["/token", "/userinfo"])
async def test_an_answer_that_does_not_come(corp, idp, path, monkeypatch):
    idp.claims, idp.userinfo = {"groups": None}, {"sub": "alice"}
    url, cookie = await corp.begin("corp", HERE)
    monkeypatch.setattr("gateway.identity.fetching.FETCH_S", 0.5)
    idp.answers[path], gate = hang()
    await refused(corp.finish("corp", idp.approve(url), cookie, HERE), 503, "does not answer")
    gate.set()


async def test_answers_under_way_are_bounded(corp, idp, monkeypatch):
    monkeypatch.setattr(oidc, "EXCHANGES", 1)
    begun = [await corp.begin("corp", HERE) for _ in range(2)]
    idp.answers["/token"], gate = hang()
    first = asyncio.get_running_loop().create_task(
        refused(corp.finish("corp", idp.approve(begun[0][0]), begun[0][1], HERE), 401), name="first"
    )
    while "/token" not in idp.asked:
        await asyncio.sleep(0)
    await refused(corp.finish("corp", idp.approve(begun[1][0]), begun[1][1], HERE), 503)
    gate.set()
    await first
    idp.answers.clear()
    url, cookie = begun[1]  # it was not spent by that
    assert (await corp.finish("corp", idp.approve(url), cookie, HERE)).user == "corp:alice"


async def test_one_address_does_not_take_the_place_of_all(corp, idp, monkeypatch):
    monkeypatch.setattr(oidc, "EXCHANGES", 3)
    monkeypatch.setattr(oidc, "EXCHANGES_EACH", 2)
    idp.answers["/token"], gate = hang()
    where = [
        HERE._replace(address=each) for each in ("2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.7")
    ]
    begun = [await corp.begin("corp", each) for each in where]
    loop = asyncio.get_running_loop()

    def ended(number, *expected):
        (url, cookie), client = begun[number], where[number]
        return loop.create_task(refused(corp.finish("corp", idp.approve(url), cookie, client), *expected))

    first = [ended(number, 401) for number in (0, 1)]
    while idp.asked.count("/token") < 2:
        await asyncio.sleep(0)
    told = await ended(2, 429, "2001:db8::/64")
    assert told.public == "many logins come from your address at this moment: try again in a few seconds"
    other = ended(3, 401)
    while idp.asked.count("/token") < 3:
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*first, other)
    assert not corp._checked.counts


def saying(**answer):
    async def handle(_request):
        return web.Response(**answer)

    return handle


@for_each(
    ("answer", "status"),
    [
        ({"body": b" " * (ANSWER_BYTES + 1)}, 503),
        ({"body": b"<html>"}, 401),
        ({"body": b"[]"}, 401),
        ({"body": b"{}"}, 401),
        ({"body": b'{"id_token": 7}'}, 401),
        ({"body": b'{"id_token": "a.b.c"}'}, 401),
        ({"body": b'{"error": "unauthorized_client"}', "status": 400}, 502),
        ({"body": b"{}", "status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}, 502),
        ({"status": 503}, 503),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_the_token_endpoint_may_say(corp, idp, answer, status):
    idp.answers["/token"] = saying(**answer)
    await refused(log_in(corp, idp), status)


@for_each(
    "said",
    [
        {"issuer": "https://evil.example"},
        {"issuer": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "http://evil.example/authorize"},
        {"authorization_endpoint": "https://a b/"},
        {"authorization_endpoint": None},
        {"token_endpoint": "http://evil.example/token"},
        {"token_endpoint": "file:///etc/passwd"},
        {"jwks_uri": "http://evil.example/keys"},
        {"jwks_uri": 7},
        {"userinfo_endpoint": "ftp://a/"},
        {"code_challenge_methods_supported": ["plain"]},
    ],
    ids=str,
)
async def test_metadata_that_must_not_be_followed(store, wall, idp, said):
    idp.metadata = said
    with contextlib.closing(
        providers_of(store, wall, idp.entry())
    ) as made:  # one that failed is not asked again
        await refused(made.begin("corp", HERE), 503)


async def test_metadata_that_are_too_large(corp, idp):
    idp.answers["/.well-known/openid-configuration"] = saying(body=b" " * (ANSWER_BYTES + 1))
    await refused(corp.begin("corp", HERE), 503, "more than")


@for_each(
    ("error", "status", "words"),
    [
        ("access_denied", 403, "did not let you in"),
        ("server_error", 503, "does not answer"),
        ("invalid_scope", 400, "did not carry out the login"),
        ("<script>", 400, "did not carry out the login"),
    ],
)
async def test_what_a_provider_answers_instead_of_a_code(corp, idp, error, status, words):
    url, cookie = await corp.begin("corp", HERE)
    query = idp.approve(url, code=None, error=error, error_description="call 555-EVIL")
    told = await refused(corp.finish("corp", query, cookie, HERE), status)
    assert words in told.public
    assert "EVIL" not in told.public
    assert "<" not in told.public


# ---------------------------------------------------------------- our own secret, our own address


async def test_a_confidential_client(tmp_path, store, wall, idp):
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    made = providers_of(store, wall, idp.entry(client_secret_file=str(file)))
    made.start()
    idp.secret = "s3cret"
    await log_in(made, idp)
    idp.secret = "rotated"
    await refused(log_in(made, idp), 502, "does not know this gateway", "client_secret_file")
    file.write_text("rotated")
    await log_in(made, idp)


async def test_a_secret_in_the_form(tmp_path, store, wall, idp):
    file = tmp_path / "secret"
    file.write_text("s3cret")
    file.chmod(0o600)
    idp.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    seen = []

    async def token(request):
        seen.append((await request.post()).get("client_secret"))
        return web.json_response({"error": "invalid_grant"}, status=400)

    idp.answers["/token"] = token
    await refused(log_in(providers_of(store, wall, idp.entry(client_secret_file=str(file))), idp), 400)
    assert seen == ["s3cret"]


def test_a_secret_that_others_may_read(tmp_path, store, wall):
    file = tmp_path / "secret"
    file.write_text("s3cret")
    file.chmod(0o644)
    idp = Idp(wall)
    made = providers_of(store, wall, idp.entry(issuer="https://id.example", client_secret_file=str(file)))
    with pytest.raises(ConfigError, match="0644 shows the secret to others"):
        made.start()
    file.chmod(0o600)
    file.write_text("\n")
    with pytest.raises(ConfigError, match=f"oidc.client_secret_file: {file}: empty, expected the secret"):
        made.start()
    file.unlink()
    with pytest.raises(NotReady, match=r"oidc\.client_secret_file: .*No such file"):  # it may yet be mounted
        made.start()


async def test_a_gateway_that_is_reached_by_another_scheme(store, wall, idp):
    made = providers_of(store, wall, idp.entry(url="https://gate.example.org"))
    told = await refused(made.begin("corp", HERE), 400, "trusted_proxies")
    assert told.public == "this gateway is to be reached at https://gate.example.org"


async def test_no_such_provider(corp, store, wall):
    await refused(corp.begin("other", HERE), 404)
    await refused(corp.finish("other", {}, None, HERE), 404)
    await refused(providers_of(store, wall).begin("corp", HERE), 404)
