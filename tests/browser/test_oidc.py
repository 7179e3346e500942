"""Logging in at a real identity provider, npm's certified ``oidc-provider``, and what becomes of such a login."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin

import pytest

from tests.conftest import OPTIONAL
from tests.live.balancer import Steering, balancer
from tests.live.brokers import eventually
from tests.live.gateways import GatewayProcess, config_in
from tests.live.pair import place as place_of
from tests.live.ports import free_port
from tests.live.redis_server import redis_server

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
MODULES = ROOT / ".node" / "oidc" / "node_modules"
STAMP = ".node/oidc/.stamp"
PROVIDER = ROOT / "tests" / "interop" / "oidc" / "provider.mjs"
SECRET = "a secret of tests, of no use elsewhere"
PEOPLE = {
    "ada": {"groups": ["operators", "staff"]},
    "bob": {"groups": ["staff"]},
    "eve": {"groups": ["visitors"]},
}
SETTINGS = """workers = 2
[[listen]]
url = "{url}"
[[oidc]]
name = "corp"
title = "Example Corp"
issuer = "{issuer}"
client_id = "headgate"
client_secret_file = "{secret}"
url = "{url}"
scopes = ["groups"]
[[oidc.groups]]
group = "operators"
roles = ["admin"]
[[oidc.groups]]
group = "staff"
roles = ["user"]
[[oidc]]
name = "lab"
title = "Lab"
issuer = "{issuer}"
client_id = "headgate-public"
url = "{url}"
roles = ["user"]
"""
USERS = """
[access]
allow_admin = true
[[users]]
name = "grace"
userid = 1007
[[rules]]
roles = ["user"]
kinds = ["call"]
prefixes = ["attr.get", "broker.", "overlay.", "state-machine.get"]
"""


class Place(NamedTuple):
    """A gateway of two worker processes, its provider, and browsers."""

    url: str
    gateway: GatewayProcess
    provider: subprocess.Popen[bytes]
    browser: Any

    def page(self) -> Any:
        """A page of a browser of its own."""
        context = self.browser.new_context()
        context.set_default_timeout(15_000)
        page = context.new_page()
        page.goto(self.url)
        page.wait_for_selector("#login:not([hidden])")
        return page

    def came(self, name: str, way: str = "Example Corp") -> Any:
        """A page of somebody who logged in at the provider."""
        page = self.page()
        page.click(f"text=Log in with {way}")
        at_the_provider(page, name)
        page.wait_for_selector("body[data-link=open]")
        return page


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip(f"{OPTIONAL} there is no node")
    if not (MODULES / "oidc-provider").is_dir():
        pytest.skip(
            f"{OPTIONAL} oidc-provider is not installed: `make {STAMP}` does, with npm and its registry"
        )
    return found


@contextlib.contextmanager
def identity_provider(node: str, folder: Path, url: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The provider of a gateway that is reached at ``url``, and its issuer."""
    (folder / "corp.secret").write_text(SECRET)
    (folder / "corp.secret").chmod(0o600)
    redirects = [f"{url}/v1/login/oidc/{name}/callback" for name in ("corp", "lab")]
    given = json.dumps({"people": PEOPLE, "redirects": redirects, "secret": SECRET})
    with (folder / "provider.log").open("wb") as log, contextlib.ExitStack() as stack:
        provider = stack.enter_context(
            subprocess.Popen([node, PROVIDER, MODULES, given], stdout=subprocess.PIPE, stderr=log)
        )
        stack.callback(provider.kill)
        assert provider.stdout is not None
        issuer = provider.stdout.readline().decode().strip()
        assert issuer.startswith("http://localhost:"), (folder / "provider.log").read_text()
        yield provider, issuer


@pytest.fixture(scope="module")
def place(browser: Any, four: str, node: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, url = tmp_path_factory.mktemp("oidc"), f"http://127.0.0.1:{free_port()}"
    with identity_provider(node, folder, url) as (provider, issuer), contextlib.ExitStack() as stack:
        extra = SETTINGS.format(url=url, issuer=issuer, secret=folder / "corp.secret")
        gateway = GatewayProcess(config_in(folder, four, extra, users=USERS))
        stack.callback(gateway.kill)
        gateway.wait_ready()
        yield Place(url, gateway, provider, browser)


def at_the_provider(page: Any, name: str, before_consent: Callable[[], None] = lambda: None) -> None:
    """Log in on the provider's own pages, and consent."""
    page.fill("input[name=login]", name)
    page.fill("input[name=password]", "any")
    page.click("button[type=submit]")
    consent = page.locator("button[type=submit]:has-text('Continue')")
    consent.wait_for()
    before_consent()
    consent.click()


def who(page: Any) -> dict[str, Any]:
    return page.evaluate("async () => (await fetch('v1/session')).json()")


def test_who_logs_in_at_the_provider_has_the_roles_of_its_groups(place):
    for name, roles in (("ada", ["user", "admin"]), ("bob", ["user"])):
        page = place.came(name)
        assert page.url.partition("#")[0] == f"{place.url}/"
        assert page.text_content("#who") == f"corp:{name} · {', '.join(roles)}"
        page.wait_for_selector(".node >> nth=3")
        said = who(page)
        assert (said["kind"], said["login"], said["roles"]) == ("cookie", "oidc:corp", roles)
        cookies = {each["name"]: each for each in page.context.cookies(place.url)}
        assert cookies["headgate"]["sameSite"] == "Strict"
        assert cookies["headgate"]["httpOnly"]
        assert "headgate-begun" not in cookies
        page.context.close()


def test_it_survives_a_reload_and_ends_when_one_logs_out(place):
    page = place.came("ada")
    page.reload()
    page.wait_for_selector("body[data-link=open]")
    assert page.text_content("#who").startswith("corp:ada")
    page.click("#logout")
    page.wait_for_selector("#login:not([hidden])")
    page.reload()
    page.wait_for_selector("#login:not([hidden])")
    page.click("text=Log in with Example Corp")  # who is logged in at the provider still comes back at once
    page.wait_for_selector("body[data-link=open]")
    page.context.close()


def test_a_public_client_and_a_second_provider(place):
    page = place.came("eve", "Lab")
    assert page.text_content("#who") == "lab:eve · user"
    page.context.close()


def test_who_is_in_no_group_is_told_so_and_can_go_on(place):
    page = place.page()
    page.click("text=Log in with Example Corp")
    at_the_provider(page, "eve")
    page.wait_for_selector("text=Logging in with Example Corp did not work: this user has no role here.")
    page.click("text=Other ways to log in")
    page.wait_for_selector("#login:not([hidden])")
    assert page.url.partition("#")[0] == f"{place.url}/"
    page.context.close()


def test_leaving_the_provider_is_no_fault(place):
    page = place.page()
    page.click("text=Log in with Example Corp")
    page.wait_for_selector("input[name=login]")
    page.click("text=[ Cancel ]")
    page.wait_for_selector("text=Example Corp did not let you in, or you left")
    page.click("text=Try again")
    page.wait_for_selector("input[name=login]")
    page.context.close()


def test_an_answer_that_is_opened_again_is_told_of(place):
    page = place.page()
    answers = []
    page.on("request", lambda request: answers.append(request.url) if "/callback?" in request.url else None)
    page.click("text=Log in with Example Corp")
    at_the_provider(page, "bob")
    page.wait_for_selector("body[data-link=open]")
    page.goto(answers[0])
    page.wait_for_selector("text=was not begun in this browser")
    other = place.page()
    other.goto(answers[0])
    other.wait_for_selector("text=was not begun in this browser")
    assert other.context.cookies(place.url) == []
    for each in (page, other):
        each.context.close()


def test_logging_out_everywhere_ends_every_browser_and_nobody_elses(place):
    """Of two worker processes: which of them has which page is the kernel's choice."""
    pages = [place.came("ada") for _ in range(3)]
    other = place.came("bob")
    pages[0].click("#who")
    dialog = pages[0].locator("#account-dialog")
    dialog.locator("tr:has-text('this browser')").wait_for()
    assert dialog.locator("tbody tr").count() >= 3
    assert "corp:ada (userid 3650425891)" in dialog.text_content()
    assert dialog.locator("tr:has-text('corp:bob')").count() == 0
    button = dialog.get_by_label("Log out everywhere")
    button.click()
    button.click()
    for page in pages:
        page.wait_for_selector("body[data-link=login]")
        page.reload()
        page.wait_for_selector("#login:not([hidden])")
    assert other.get_attribute("body", "data-link") == "open"
    for page in (*pages, other):
        page.context.close()


def test_one_login_is_ended_from_another_browser(place):
    first, second = place.came("ada"), place.came("ada")
    second.click("#who")
    second.locator("#account-dialog tr:has-text('this browser')").wait_for()
    end = second.locator("#account-dialog tbody button").first
    end.click()
    end.click()
    first.wait_for_selector("body[data-link=login]")
    assert second.get_attribute("body", "data-link") == "open"
    for page in (first, second):
        page.context.close()


def test_a_token_survives_a_reload_and_ends_when_it_is_removed(place):
    page = place.page()
    page.fill("#token", place.gateway.tokens["grace"])
    page.click("#login button[type=submit]")
    page.wait_for_selector("body[data-link=open]")
    page.reload()
    page.wait_for_selector("body[data-link=open]")
    assert page.text_content("#who") == "grace · user"
    headgate = [ROOT / ".venv/bin/python", "-m", "broker.cli.main", "token", "remove", "grace"]
    config = place.gateway.log.with_name("gateway.toml")
    subprocess.run([*headgate, "--config", config], check=True, capture_output=True)
    page.wait_for_selector("body[data-link=login]")
    page.context.close()


def test_without_keeping_it_a_token_is_gone_with_the_page(place):
    page = place.page()
    page.fill("#token", "hgt_wrong")
    page.uncheck("#keep")
    page.click("#login button[type=submit]")
    page.wait_for_selector("#login .wrong:not(:empty)")
    assert page.context.cookies(place.url) == []
    page.context.close()


def test_a_login_is_begun_at_one_gateway_ended_at_another_and_counts_at_both(browser, four, node, rundir):
    url = f"http://127.0.0.1:{free_port()}"
    with redis_server(rundir) as (_, port), identity_provider(node, rundir, url) as (_, issuer):
        text = SETTINGS.format(url=url, issuer=issuer, secret=rundir / "corp.secret")
        extra = text.replace(f'url = "{url}"', 'url = "http://127.0.0.1:0"', 1)
        with contextlib.ExitStack() as stack:
            both = []
            for name in "ab":
                (rundir / name).mkdir()
                config = config_in(
                    rundir / name, four, f'redis = "redis://127.0.0.1:{port}/0"\n{extra}', users=USERS
                )
                both.append(GatewayProcess(config))
                stack.callback(both[-1].kill)
            for each in both:
                each.wait_ready()
            first, second = map(place_of, both)
            steering = Steering(first)
            stack.enter_context(balancer(steering, port=int(url.rpartition(":")[2])))
            page = Place(url, both[0], None, browser).page()
            page.click("text=Log in with Example Corp")
            at_the_provider(page, "ada", before_consent=lambda: steering.to(second))
            page.wait_for_selector("body[data-link=open]")
            steering.to(first)
            page.reload()
            page.wait_for_selector("body[data-link=open]")
            assert page.text_content("#who") == "corp:ada · user, admin"
            assert who(page)["login"] == "oidc:corp"
            page.click("#logout")
            page.wait_for_selector("#login:not([hidden])")
            steering.to(second)
            page.reload()
            page.wait_for_selector("#login:not([hidden])")
            page.context.close()


def test_a_provider_that_dies_is_named_and_logins_go_on(place):
    page, late, answers = place.came("bob"), place.page(), []

    def die(route: Any) -> None:
        """Follow the provider's redirects up to the gateway, and end it before anybody goes there."""
        answer = route.fetch(max_redirects=0)
        while not answer.headers["location"].startswith(place.url):
            target = urljoin(answer.url, answer.headers["location"])
            answer = late.context.request.get(target, max_redirects=0)
        answers.append(answer.headers["location"])
        place.provider.kill()
        place.provider.wait()
        route.fulfill(status=204)

    late.click("text=Log in with Example Corp")
    at_the_provider(late, "ada", before_consent=lambda: late.route("**/interaction/**", die))
    eventually(lambda: len(answers), 1)
    late.goto(answers[0])
    late.wait_for_selector("text=Example Corp does not answer now. Try again in a moment.")
    late.click("text=Other ways to log in")
    late.wait_for_selector("#login:not([hidden])")
    page.reload()
    page.wait_for_selector("body[data-link=open]")
    assert page.text_content("#who") == "corp:bob · user"
    for each in (page, late):
        each.context.close()
