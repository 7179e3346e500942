"""A gateway that can be killed and started again at the same place, and the pages that look at it."""

import contextlib
import itertools
import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.identity.login import add_link, link_url
from gateway.identity.store import Store
from tests.live.brokers import eventually
from tests.live.gateways import GatewayProcess, config_in
from tests.live.ports import free_port

ALLOWED_PORT = free_port()
"""Where another page of the same site is that may ask the gateway."""
USERS = f"""
[access]
allowed_origins = ["http://127.0.0.1:{ALLOWED_PORT}"]
allow_owner = true
login_links = "owner"
[[users]]
name = "ada"
userid = 1001
roles = ["owner"]
[[users]]
name = "bob"
userid = 1002
roles = ["user"]
[[rules]]
roles = ["user"]
kinds = ["call"]
prefixes = ["attr.get", "broker.", "overlay.", "state-machine.get"]
[[rules]]
roles = ["user"]
kinds = ["subscribe", "publish"]
prefixes = ["open."]
"""
"""An owner, and a user who sees the tree and the events below ``open.`` and nothing else."""

NOT_FAULTS = (
    "status of 401",  # who is not logged in is asked to
    "WebSocket connection to",  # a gateway that was killed
    "ERR_CONNECTION_REFUSED",
)
"""What Chromium writes to the console where the page is not to blame."""

CLIENT = "client"
"""The kind of the pages that ``Stage.client`` hands out."""
HURRY_S = 0.1


def hurry(page: Any, probe: Callable[[], object], expected: object = True) -> None:
    """Poll ``probe()`` until it returns ``expected``; meanwhile a second of the page's time passes every ``HURRY_S``:
    faster, and its calls would time out before a busy gateway has answered them.
    """
    ahead = [0.0]

    def look() -> object:
        if time.monotonic() >= ahead[0]:
            page.clock.fast_forward(1000)
            ahead[0] = time.monotonic() + HURRY_S
        return probe()

    eventually(look, expected)


def stop_clock(page: Any) -> None:
    """Let nothing but ``clock.run_for`` and ``clock.fast_forward`` advance the clock of a page that is ``hurried``."""
    page.clock.pause_at(
        page.evaluate("Date.now()") / 1000 + 3600
    )  # it can only be stopped at what is to come


def press(button: Any) -> None:
    """Press a button that asks before it acts, and again: at once, for it waits three seconds, and no longer."""
    said = button.evaluate(
        "(it) => { if (it.textContent !== 'Sure?') it.click(); const said = it.textContent; it.click(); return said; }"
    )
    assert said == "Sure?"


class Stage:
    """One gateway process and the pages of one test."""

    def __init__(self, browser: Any, upstream: str, folder: Path, extra: str = "") -> None:
        self.browser = browser
        self.folder = folder
        self.upstream = upstream
        self.faults: list[str] = []
        self._login: list[Any] = []
        self._used: list[tuple[Any, Any]] = []
        self._idle: dict[Any, list[Any]] = {}
        self.gateway = GatewayProcess(config_in(folder, upstream, extra, users=USERS))
        self.gateway.wait_ready()
        self.url = self.gateway.urls[0].rstrip("/")
        # from now on at this place, so that it can come back to it
        config_in(folder, upstream, f'{extra}[[listen]]\nurl = "{self.url}"\n', users=USERS)

    # -- the gateway -----------------------------------------------------------------------------

    def kill_gateway(self) -> None:
        self.gateway.kill()

    def start_gateway(self) -> None:
        """Again, with the same state and address."""
        self.gateway = GatewayProcess(self.folder / "gateway.toml")
        self.gateway.wait_ready()

    def link(self) -> str:
        """A one-time login link for the owner, as ``headgate login link`` makes them."""
        with contextlib.closing(Store(self.gateway.settings.gateway.statedir)) as store:
            return link_url(self.url, add_link(store, "owner", seconds=60.0, loopback_only=True))

    def ask(self, path: str, payload: object = None, user: str = "ada") -> Any:
        """``POST path`` as ``user``; the answer's JSON."""
        body = json.dumps(payload if payload is not None else {}).encode()
        headers = {**self.gateway.bearer(user), "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"null")

    def rpc(self, topic: str, payload: object = None) -> Any:
        """One call, by the way of HTTP."""
        return self.ask(f"/v1/rpc/{topic}", payload)

    def publish(self, topic: str, payload: object = None) -> int:
        """One event; returns its number."""
        return int(self.ask(f"/v1/events/{topic}", payload)["sequence"])

    # -- pages -----------------------------------------------------------------------------------

    def page(
        self,
        width: int = 1440,
        height: int = 900,
        *,
        color_scheme: str = "light",
        reduced_motion: str = "no-preference",
        hurried: bool = False,
        **context: Any,
    ) -> Any:
        """An empty page of a browser without cookies; faults in it are kept for ``sweep``.

        It may be one that an earlier test has left: a second visit takes a quarter of the time of a first one. One
        that is ``hurried`` is new and has a clock that ``hurry`` advances.
        """
        kind = None if hurried else tuple(sorted(context.items()))
        idle = self._idle.setdefault(kind, [])
        page = idle.pop() if idle else self._new_page(context)
        if hurried:
            page.clock.install()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion)
        self._used.append((kind, page))
        return page

    def _new_page(self, context: dict[str, Any]) -> Any:
        opened = self.browser.new_context(**context)
        opened.set_default_timeout(15_000)
        page = opened.new_page()
        page.on("pageerror", lambda error: self.faults.append(f"{error}\n{error.stack}"))
        page.on("console", self._said)
        return page

    def _said(self, message: Any) -> None:
        if message.type == "error" and not any(known in message.text for known in NOT_FAULTS):
            self.faults.append(message.text)

    def dashboard(self, tab: str = "events", **context: Any) -> Any:
        """The dashboard of the owner, with the tree drawn. The pages share one login."""
        page = self.page(**context)
        page.context.add_cookies(self._login)
        page.goto(self.url if self._login else self.link())
        page.wait_for_selector(".node >> nth=3")
        if not self._login:
            self._login = page.context.cookies()
        page.click(f"#tab-{tab}")
        return page

    def guest(self, user: str = "bob", **context: Any) -> Any:
        """The dashboard of somebody who entered a token."""
        page = self.page(**context)
        page.goto(self.url)
        page.fill("#token", self.gateway.tokens[user])
        page.click("#login button[type=submit]")
        page.wait_for_selector("body[data-link=open]")
        return page

    def bench(self, **context: Any) -> Any:
        """A page of the gateway that does nothing by itself, with the client module as ``window.client``."""
        page = self.page(**context)
        page.goto(f"{self.url}/login")
        page.evaluate("async url => { window.client = await import(url) }", f"{self.url}/client.js")
        return page

    def client(self) -> Any:
        """A bench for tests that leave nothing there but ``window.flux``: not loaded again for each of them."""
        idle = self._idle.setdefault(CLIENT, [])
        page = idle.pop() if idle else self.bench()
        self._used = [(kind, each) for kind, each in self._used if each is not page] + [(CLIENT, page)]
        return page

    def sweep(self) -> None:
        """Leave the pages empty and without memory; a fault in one of them is a failure."""
        used, self._used = self._used, []
        for kind, page in used:
            if kind == CLIENT:
                page.evaluate("() => { window.flux?.close(); delete window.flux; }")
                self._idle[kind].append(page)
                continue
            if page.url.startswith("http"):
                page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
            page.goto("about:blank")
            page.context.clear_cookies()
            if kind is None:
                page.context.close()
            else:
                self._idle[kind].append(page)
        faults, self.faults = self.faults, []
        assert not faults, faults

    def close(self) -> None:
        for _kind, page in self._used:
            page.context.close()
        for page in itertools.chain.from_iterable(self._idle.values()):
            page.context.close()
        self.gateway.kill()
