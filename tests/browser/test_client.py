"""client.js in a real browser against the real gateway: what its documentation promises."""

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gateway.identity.tokens import TokenFile, token_path
from tests.browser.stage import ALLOWED_PORT
from tests.live.brokers import eventually
from tests.live.ports import free_port

CONNECT = """({url, token, options}) => {
    window.flux = client.connect(url + '/v1/ws', {token, ...options});
    window.told = [];
    for (const name of ['open', 'reconnecting', 'resumed', 'gap', 'upstream', 'error', 'close']) {
        flux.on(name, (detail) => told.push([name, detail]));
    }
    return flux.ready;
}"""


in_both = pytest.mark.parametrize("page", ["flux.v1", "flux.v1.json"], indirect=True)
"""What depends on how messages are written."""


@pytest.fixture(params=["flux.v1", pytest.param("flux.v1.json", marks=pytest.mark.patient)])
def page(look, request):
    """A page with a connected client."""
    opened = look.client()
    connect(look, opened, subprotocol=request.param)
    return opened


def connect(look, page, user="ada", **options):
    given = {"url": look.url, "token": look.gateway.tokens[user], "options": options}
    return page.evaluate(CONNECT, given)


def test_the_welcome_says_who_and_how_much(look, page):
    welcome = page.evaluate("flux.welcome")
    assert (welcome["user"], welcome["userid"], welcome["roles"]) == ("ada", 1001, ["owner"])
    assert welcome["limits"]["message_bytes"] > 0
    assert welcome["server"].startswith("headgate/")


@in_both
def test_calls(look, page):
    assert page.evaluate("flux.rpc('attr.get', {name: 'size'})")["value"] == "4"
    ranks = page.evaluate(
        "Promise.all([0, 1, 2, 3].map(nodeid => flux.rpc('attr.get', {name: 'rank'}, {nodeid})))"
    )
    assert [answer["value"] for answer in ranks] == ["0", "1", "2", "3"]
    assert page.evaluate("flux.inFlight") == 0
    assert page.evaluate("flux.ping()") > 0


def until(page, expression):
    """Wait for ``expression``. Playwright's own way would evaluate it in the page, which the page's policy forbids."""
    eventually(lambda: bool(page.evaluate(expression)))


def caught(page, work):
    """What ``work`` throws."""
    return page.evaluate(
        f"""async () => {{
            try {{
                await {work};
                return null;
            }} catch (error) {{
                return [error instanceof client.FluxError, error.name, error.errno ?? null, error.text ?? null];
            }}
        }}"""
    )


@in_both
def test_errors_carry_number_and_text(look, page):
    is_flux, name, number, text = caught(page, "flux.rpc('attr.get', {name: 'no-such-attribute'})")
    assert (is_flux, name, number) == (True, "ENOENT", 2)
    assert text
    is_flux, name, number, text = caught(page, "flux.rpc('no-such-service.method')")
    assert (is_flux, name, number) == (True, "ENOSYS", 38)
    assert "no-such-service" in text
    assert caught(page, "flux.rpc('attr.get', {name: 'rank'}, {nodeid: 77})")[1] == "EHOSTUNREACH"
    assert caught(page, "flux.rpc('attr.get', 5)")[1] == "TypeError"


CUT = "'cut \\ud83d'"
UNSENDABLE = [
    f"flux.rpc('attr.get', {CUT})",
    f"flux.rpc('attr.get', {{name: {CUT}}})",
    "flux.rpc('attr.get', new Date())",
    "flux.rpc('attr.get', 'a\\0b')",
    "flux.rpc('attr\\0.get')",
    f"flux.rpc({CUT})",
    f"flux.publish('client.cut', {{text: {CUT}}})",
    f"flux.publish({CUT})",
    "flux.publish('a\\0b')",
    f"flux.subscribe({CUT})",
    "flux.subscribe('a\\0b')",
    "flux.register('a\\0b', {})",
    f"flux.register({CUT}, {{}})",
    f"(async () => {{ for await (const each of flux.stream('log.dmesg', {{text: {CUT}}})) void each; }})()",
    "(async () => { for await (const each of flux.stream('log\\0.dmesg')) void each; })()",
    "flux.rpc('odd.text')",
    "flux.rpc('odd.object')",
    "flux.rpc('odd.date')",
    "(async () => { for await (const each of flux.stream('odd.stream')) void each; })()",
]


def test_what_cannot_be_sent_fails_that_call_and_no_other(look, page):
    page.evaluate(
        f"""flux.register('odd', {{
            text: () => {CUT},
            object: () => ({{text: {CUT}}}),
            date: () => new Date(),
            async *stream() {{ yield {{}}; yield {{text: {CUT}}}; }},
            bad: () => {{ throw new client.FluxError(0, {CUT}); }},
            none: () => {{ throw null; }},
        }})"""
    )
    for work in UNSENDABLE:
        is_flux, name, *_ = caught(page, work)
        assert (is_flux, name) == (True, "EPROTO"), work
    assert caught(page, "flux.rpc('odd.bad')")[:2] == [True, "EIO"]
    assert caught(page, "flux.rpc('odd.none')")[:2] == [True, "EIO"]
    assert caught(page, "flux.rpc('')")[:2] == [True, "ENOSYS"]
    assert caught(page, "flux.rpc(undefined)")[1] == "TypeError"
    assert page.evaluate("flux.rpc('attr.get', {name: 'size'})")["value"] == "4"
    assert page.evaluate("told.filter(([name]) => name !== 'open').length") == 0
    assert page.evaluate("flux.inFlight") == 0


ASK = """async ([url, publish]) => {
    const ask = async (path, options) => {
        try {
            return (await fetch(url + path, {...options, credentials: 'include'})).status;
        } catch (error) {
            return error.name;
        }
    };
    const stream = new EventSource(`${url}/v1/events?prefix=cors.`, {withCredentials: true});
    const opened = await new Promise((done) => {
        stream.onopen = () => done(true);
        stream.onerror = () => done(false);
    });
    const heard = publish && new Promise((done) => { stream.onmessage = ({data}) => done(data); });
    const body = {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"n":1}'};
    const said = [opened, await ask('/v1/session'), await ask('/v1/events/cors.test', body)];
    said.push(said[2] === 200 && Boolean(await heard));
    stream.close();
    return said;
}"""


class OnePage(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *arguments):
        """Nobody reads it."""


@contextlib.contextmanager
def page_at(port):
    """A web server with one page."""
    with ThreadingHTTPServer(("127.0.0.1", port), OnePage) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.shutdown()
            serving.join()


def test_a_page_of_an_allowed_origin_uses_the_cookie_by_every_way_and_no_other_page_does(look):
    context = look.browser.new_context()
    page = context.new_page()
    page.goto(look.link())
    page.wait_for_url(f"{look.url}/")
    for port, said in (
        (ALLOWED_PORT, [True, 200, 200, True]),
        (free_port(), [False, "TypeError", "TypeError", False]),
    ):
        with page_at(port) as url:
            page.goto(url)
            assert page.evaluate(ASK, [look.url, port == ALLOWED_PORT]) == said
    context.close()


def test_a_token_that_cannot_be_sent_is_asked_for_again(look):
    """At the gateway it would be no message, which ends a client for good."""
    page = look.bench()
    given = {"url": look.url, "token": look.gateway.tokens["ada"]}
    said = page.evaluate(
        """async ({url, token}) => {
            const given = [7, {token}, 'cut \\ud83d', token];
            const failed = [];
            const reconnect = {minMs: 1, maxMs: 5};
            const flux = client.connect(url + '/v1/ws', {getToken: async () => given.shift(), reconnect});
            flux.on('error', (error) => failed.push(error.name));
            const { user } = await flux.ready;
            flux.close();
            return [user, failed];
        }""",
        given,
    )
    assert said == ["ada", ["TypeError", "TypeError", "EPROTO"]]
    assert caught(page, "(async () => client.connect('/v1/ws', {token: 7}))()")[1] == "TypeError"


def test_a_call_can_be_given_up(look, page):
    page.evaluate("flux.register('lazy', {wait: () => new Promise(() => {})})")
    assert caught(page, "flux.rpc('lazy.wait', null, {timeoutMs: 50})")[1:3] == ["ETIMEDOUT", 110]
    assert caught(page, "flux.rpc('lazy.wait', null, {signal: AbortSignal.abort()})")[1] == "AbortError"
    work = "(() => { const stop = new AbortController(); setTimeout(() => stop.abort(), 20);"
    work += " return flux.rpc('lazy.wait', null, {signal: stop.signal}); })()"
    assert caught(page, work)[1] == "AbortError"
    assert page.evaluate("flux.inFlight") == 0


def test_a_stream_and_its_cancel(look, page):
    got = page.evaluate(
        """async () => {
            const head = '<48>1 2026-01-01T00:00:00.0Z 0 test 1 - - ';
            const line = (text) => flux.rpc('log.append', head + text, {nodeid: 0});
            const stream = flux.stream('log.dmesg', {follow: true, nobacklog: true}, {nodeid: 0});
            await line('first');
            const lines = [];
            for await (const each of stream) {
                lines.push(each.split(' - - ')[1]);
                if (lines.length === 1) await line('second');
                if (lines.length === 2) stream.cancel();
            }
            return [lines, stream.done, flux.inFlight];
        }"""
    )
    assert got == [["first", "second"], True, 0]


def test_leaving_the_loop_cancels_the_stream(look, page):
    got = page.evaluate(
        """async () => {
            const count = async () => (await flux.rpc('gateway.session')).in_flight;
            await flux.rpc('log.append', '<48>1 2026-01-01T00:00:00.0Z 0 test 1 - - there', {nodeid: 0});
            let text = '';
            for await (const each of flux.stream('log.dmesg', {follow: true}, {nodeid: 0})) {
                text = each;
                break;
            }
            for (let tries = 0; tries < 50 && flux.inFlight; tries += 1) {
                await new Promise((done) => setTimeout(done, 20));
            }
            return [text.length > 0, flux.inFlight, await count()];
        }"""
    )
    assert got == [True, 0, 0]


def test_a_stream_that_ends_and_one_that_fails(look, page):
    assert page.evaluate(
        """async () => {
            const lines = [];
            for await (const each of flux.stream('log.dmesg', {}, {nodeid: 0})) lines.push(each);
            return Array.isArray(lines);
        }"""
    )
    work = "(async () => { for await (const each of flux.stream('no-such.stream')) void each; })()"
    assert caught(page, work)[1] == "ENOSYS"


def test_events_in_order_and_only_while_subscribed(look, page):
    got = page.evaluate(
        """async () => {
            const seen = [];
            const keep = (event) => seen.push([event.topic, event.payload, event.sequence]);
            const subscription = await flux.subscribe('client.', keep);
            const numbers = [];
            for (let number = 0; number < 5; number += 1) numbers.push(await flux.publish('client.test', {number}));
            await flux.publish('other.test', {});
            await subscription.unsubscribe();
            await flux.publish('client.late', {});
            await flux.rpc('attr.get', {name: 'size'});
            return [seen.map(([topic]) => topic), seen.map(([, payload]) => payload.number),
                    seen.map(([, , sequence]) => sequence).join() === numbers.join()];
        }"""
    )
    assert got == [["client.test"] * 5, [0, 1, 2, 3, 4], True]


def test_events_as_a_loop_and_two_readers_of_one_prefix(look, page):
    got = page.evaluate(
        """async () => {
            const one = await flux.subscribe('loop.');
            const seen = [];
            const two = await flux.subscribe('loop.', (event) => seen.push(event.topic));
            const read = (async () => {
                const topics = [];
                for await (const event of one) {
                    topics.push(event.topic);
                    if (topics.length === 2) break;
                }
                return topics;
            })();
            await flux.publish('loop.a');
            await flux.publish('loop.b', 'a text');
            const topics = await read;
            await flux.publish('loop.c', new Uint8Array([1, 2, 255]));
            await two.unsubscribe();
            return [topics, seen, one.closed];
        }"""
    )
    assert got == [["loop.a", "loop.b"], ["loop.a", "loop.b", "loop.c"], True]


@in_both
def test_payloads_of_every_kind(look, page):
    got = page.evaluate(
        """async () => {
            const seen = [];
            await flux.subscribe('kinds.', ({payload}) => {
                if (payload instanceof Uint8Array) seen.push(['bytes', ...payload]);
                else seen.push([payload === null ? 'none' : typeof payload, payload]);
            });
            const bytes = new Uint8Array([1, 2, 255]);
            const buffer = new Uint8Array([0, 0]).buffer;
            for (const payload of [undefined, 'text', {a: [1, null, 'é'.repeat(300)]}, bytes, buffer]) {
                await flux.publish('kinds.test', payload);
            }
            await flux.rpc('attr.get', {name: 'size'});
            return seen;
        }"""
    )
    assert got == [
        ["none", None],
        ["string", "text"],
        ["object", {"a": [1, None, "é" * 300]}],
        ["bytes", 1, 2, 255],
        ["bytes", 0, 0],
    ]


def test_private_events_are_for_their_user(look, page):
    other = look.client()
    connect(look, other, "bob")
    other.evaluate("flux.subscribe('open.', (event) => told.push([event.topic, event.private]))")
    page.evaluate("flux.publish('open.secret', {}, {private: true})")
    page.evaluate("flux.publish('open.plain', {})")
    until(other, "told.some(([topic]) => topic === 'open.plain')")
    assert other.evaluate("told.filter(([name]) => name.startsWith('open.'))") == [["open.plain", False]]


def test_a_page_can_serve(look, page):
    page.evaluate(
        """flux.register('sums', {
            add: ({payload}) => ({sum: payload.a + payload.b}),
            who: ({userid, rolemask}) => ({userid, owner: Boolean(rolemask & 1)}),
            fail: () => { throw new client.FluxError(client.ERRNO.EINVAL, 'no such sum'); },
            async *count({payload}) { for (let number = 0; number < payload.to; number += 1) yield {number}; },
        })"""
    )
    assert look.rpc("sums.add", {"a": 2, "b": 3}) == {"sum": 5}
    assert page.evaluate("flux.rpc('sums.who')") == {"userid": 1001, "owner": True}
    assert caught(page, "flux.rpc('sums.fail')")[1:] == ["EINVAL", 22, "no such sum"]
    assert caught(page, "flux.rpc('sums.nothing')")[1] == "ENOSYS"
    assert page.evaluate(
        """async () => {
            const seen = [];
            for await (const {number} of flux.stream('sums.count', {to: 4})) seen.push(number);
            return seen;
        }"""
    ) == [0, 1, 2, 3]
    assert caught(page, "flux.register('sums', {})")[1] == "EEXIST"


def test_a_role_is_missing(look):
    page = look.client()
    connect(look, page, "bob")
    is_flux, name, number, text = caught(page, "flux.rpc('log.clear')")
    assert (is_flux, name, number) == (True, "EPERM", 1)
    assert "owner" in text
    assert caught(page, "flux.subscribe('')")[1] == "EPERM"
    assert caught(page, "flux.register('anything', {})")[1] == "EPERM"
    assert page.evaluate("flux.subscribe('open.').then(({prefix}) => prefix)") == "open."


@pytest.mark.patient
def test_a_token_of_the_page_counts_more_than_the_cookie_of_its_browser(look):
    page = look.dashboard()
    page.evaluate("async url => { window.client = await import(url) }", f"{look.url}/client.js")
    assert connect(look, page, "bob")["user"] == "bob"
    assert page.evaluate("client.connect('/v1/ws').ready.then(({user}) => user)") == "owner"


def test_a_wrong_token_is_final(look):
    page = look.client()
    page.evaluate(
        """(url) => {
            window.told = [];
            window.flux = client.connect(url + '/v1/ws', {token: 'hgt_wrong'});
            flux.on('close', (detail) => told.push(detail));
            flux.on('reconnecting', () => told.push('again'));
        }""",
        look.url,
    )
    until(page, "told.length")
    (detail,) = page.evaluate("told")
    assert (detail["code"], detail["name"], detail["reconnect"]) == (4500, "bad-credential", False)
    assert page.evaluate("flux.state") == "closed"
    assert caught(page, "flux.rpc('attr.get')")[1] == "ESHUTDOWN"
    assert caught(page, "flux.ready")[1] == "ESHUTDOWN"


PAUSE = {"minMs": 1500, "maxMs": 1500}


def test_a_reconnect_resumes_and_recovers_what_was_missed(look, page):
    """Calls that were open fail, subscriptions and services are there again, missed events come in order."""
    page.evaluate("flux.close()")
    connect(look, page, reconnect=PAUSE)
    page.evaluate(
        """async () => {
            window.seen = [];
            window.sub = await flux.subscribe('resume.', ({payload}) => seen.push(payload.number));
            await flux.register('back', {again: () => ({here: true})});
            await flux.publish('resume.test', {number: 1});
            window.open = flux.rpc('attr.get', {name: 'size'});
            await open;
            window.lost = (async () => {
                try {
                    for await (const each of flux.stream('log.dmesg', {follow: true}, {nodeid: 0})) void each;
                } catch (error) {
                    return error.name;
                }
                return 'ended';
            })();
        }"""
    )
    session = page.evaluate("window.random = Math.random, Math.random = () => 1, flux.welcome.session")
    look.rpc("gateway.end", {"session": session})
    until(page, "told.some(([name]) => name === 'reconnecting')")
    _, detail = page.evaluate("Math.random = random, told.find(([name]) => name === 'reconnecting')")
    assert (detail["code"], detail["name"], detail["attempt"]) == (4006, "ended", 1)
    assert detail["delayMs"] == 1500
    assert page.evaluate("lost") == "ECONNRESET"
    for number in (2, 3, 4):
        look.publish("resume.test", {"number": number})
        look.publish("unseen.test", {})
    waited = page.evaluate_handle(
        "flux.rpc('attr.get', {name: 'rank'}, {nodeid: 2})"
    )  # waits for the connection
    until(page, "told.some(([name]) => name === 'resumed')")
    resumed = page.evaluate("told.find(([name]) => name === 'resumed')[1]")
    assert (resumed["recovered"], resumed["replayed"], resumed["denied"]) == (True, 3, [])
    look.publish("resume.test", {"number": 5})
    until(page, "seen.length === 5")
    assert page.evaluate("seen") == [1, 2, 3, 4, 5]
    assert waited.evaluate("answer => answer.value") == "2"
    assert page.evaluate("flux.welcome.session") != session
    until(page, "flux.rpc('back.again').then(({here}) => here, () => false)")
    page.evaluate("sub.unsubscribe()")


def test_what_was_published_before_the_subscription_is_not_replayed(look):
    """The page knows the position at which its subscription began, even when no event came since."""
    page = look.client()
    connect(look, page, reconnect={"minMs": 300, "maxMs": 300})
    look.publish("early.test", {"number": 0})
    page.evaluate(
        "async () => { window.seen = []; await flux.subscribe('early.', (event) => seen.push(event.payload.number)); }"
    )
    look.rpc("gateway.end", {"session": page.evaluate("flux.welcome.session")})
    until(page, "told.some(([name]) => name === 'resumed')")
    look.publish("early.test", {"number": 1})
    until(page, "seen.length")
    assert page.evaluate("seen") == [1]


def test_no_reconnect_when_it_is_not_wanted(look):
    page = look.client()
    connect(look, page, reconnect=False)
    look.rpc("gateway.end", {"session": page.evaluate("flux.welcome.session")})
    until(page, "told.some(([name]) => name === 'close')")
    assert page.evaluate("told.map(([name]) => name)") == ["open", "close"]
    assert page.evaluate("flux.state") == "closed"


def test_a_fresh_token_is_asked_for_before_each_connection(look):
    page = look.client()
    page.evaluate(
        """async ({url, token}) => {
            window.asked = 0;
            const getToken = async () => { asked += 1; return token; };
            window.flux = client.connect(url + '/v1/ws', {getToken, reconnect: {minMs: 50}});
            await flux.ready;
        }""",
        {"url": look.url, "token": look.gateway.tokens["ada"]},
    )
    look.rpc("gateway.end", {"session": page.evaluate("flux.welcome.session")})
    until(page, "asked === 2 && flux.state === 'open'")


@pytest.mark.patient
def test_a_token_is_refreshed_before_it_ends(look):
    """The session outlives its first token, and no connection is lost for it."""
    tokens = TokenFile(token_path(look.gateway.settings))
    now = time.time()
    first, second = (tokens.add("ada", now=now, expires=now + seconds)[1] for seconds in (6, 3600))
    page = look.client()
    page.evaluate(
        """async ({url, given}) => {
            window.told = [];
            window.flux = client.connect(url + '/v1/ws', {getToken: async () => given.shift()});
            for (const name of ['open', 'refreshed', 'reconnecting']) flux.on(name, () => told.push(name));
            await flux.ready;
        }""",
        {"url": look.url, "given": [first, second]},
    )
    before = page.evaluate("flux.welcome.expires")
    assert now < before <= now + 7
    until(page, "told.includes('refreshed')")
    assert page.evaluate("flux.welcome.expires") > now + 3000
    page.wait_for_timeout(max(0.0, before + 0.5 - time.time()) * 1000)
    assert page.evaluate("flux.rpc('attr.get', {name: 'size'})")["value"] == "4"
    assert page.evaluate("told") == ["open", "refreshed"]


def test_what_is_too_large_is_refused_here(look):
    page = look.client()
    connect(look, page)
    assert (
        caught(page, "flux.rpc('attr.get', {name: 'x'.repeat(flux.welcome.limits.message_bytes)})")[1]
        == "EMSGSIZE"
    )
    assert page.evaluate("flux.rpc('attr.get', {name: 'size'})")["value"] == "4"


def test_closing_ends_calls_and_loops(look, page):
    got = page.evaluate(
        """async () => {
            await flux.register('idle', {wait: () => new Promise(() => {})});
            const call = flux.rpc('idle.wait').catch((error) => error.name);
            const loop = (async () => {
                for await (const event of await flux.subscribe('closing.')) void event;
                return 'over';
            })();
            await flux.rpc('attr.get', {name: 'size'});
            flux.close();
            return [await call, await loop, flux.state];
        }"""
    )
    assert got == ["ESHUTDOWN", "over", "closed"]
