"""Real containers: every test here is marked `containers` and `slow`, and skipped where podman is not to be had."""

import os
from pathlib import Path

import pytest

from tests.containers import images

HERE = f"{Path(__file__).parent}{os.sep}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.containers)
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def image() -> str:
    """The image of the target headgate, built from this tree."""
    if reason := images.why_not():
        pytest.skip(f"optional: no podman to test with: {reason}")
    images.base("python", "redis")
    images.build("headgate")
    return images.IMAGE
