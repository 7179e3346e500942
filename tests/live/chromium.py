"""The Chromium of the system, put there by `deploy/test-setup.sh`: without a window it takes two thirds of the time."""

import shutil

PROGRAMS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find() -> str | None:
    """Return the path of the first of `PROGRAMS` that is there."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)
