"""A tree of four brokers, a gateway in front of it, and a real Chromium that looks at it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.stage import Stage
from tests.live.brokers import BrokerProcess, tree
from tests.live.chromium import ARGUMENTS, find

ONE_RENDERER = ["--renderer-process-limit=1", "--disable-site-isolation-trials"]
"""One process for all pages, instead of a new one for each that is opened."""


@pytest.fixture(scope="session")
def chromium() -> str:
    found = find()
    if found is None:
        pytest.skip("chromium is not installed")
    return found


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[object]:
    """Of this folder: Playwright keeps an event loop in this thread while it runs, which others need for themselves."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS + ONE_RENDERER)
        yield running
        running.close()


@pytest.fixture(scope="session")
def four_brokers() -> Iterator[list[BrokerProcess]]:
    """A tree of four, by rank."""
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    try:
        with tree(folder, 4, "[broker]\nheartbeat_period_s = 0.5\n") as running:
            yield running.ranks
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def four(four_brokers: list[BrokerProcess]) -> str:
    """The URI of rank 0 of it."""
    return four_brokers[0].uri


@pytest.fixture(scope="package")
def stage(browser: object, four: str) -> Iterator[Stage]:
    """A gateway in front of the tree, and pages that look at it."""
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    running = Stage(browser, four, folder)
    try:
        yield running
    finally:
        running.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def look(stage: Stage) -> Iterator[Stage]:
    """The stage for one test: its pages are closed afterwards, and a fault in one of them fails the test."""
    yield stage
    stage.sweep()
