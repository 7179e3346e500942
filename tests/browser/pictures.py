"""``python -m tests.browser.pictures [FOLDER]``: the pictures of the pages, made by ``headgate up --demo``.

The first is ``deploy/pictures/dashboard.png``. The others are for whoever changed the dashboard, to look at: dark,
narrow, a method that fails, a broker that is frozen, no broker. All of it takes two minutes, of an idle machine.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.live.chromium import ARGUMENTS, find

ROOT = Path(__file__).parents[2]
SIZE = "7"
WARM_S = 70.0
"""The lines of the charts begin at the left then."""
SETTLE_S = 12.0
WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 400, "height": 800}


def take(page: Page, path: Path) -> None:
    page.screenshot(path=path)
    print(path)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    words = [
        sys.executable,
        "-m",
        "broker.cli.main",
        "up",
        "--size",
        SIZE,
        "--demo",
        "--listen",
        "http://127.0.0.1:0",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as up, sync_playwright() as playwright:
        assert up.stdout is not None
        told = ""
        while "Ctrl-C" not in told:
            told += up.stdout.readline()
        browser = playwright.chromium.launch(executable_path=find(), args=ARGUMENTS)
        try:
            context = browser.new_context(viewport=WIDE)
            page = context.new_page()
            page.goto(re.search(r"http\S+once=\S+", told)[0])
            page.get_by_role("tab", name="Services").click()
            time.sleep(WARM_S)
            take(page, ROOT / "deploy/pictures/dashboard.png")
            page.emulate_media(color_scheme="dark")
            take(page, folder / "dark.png")
            page.emulate_media(color_scheme="light")
            page.set_viewport_size(NARROW)
            take(page, folder / "narrow.png")
            page.set_viewport_size(WIDE)
            environ = re.search(r"^  \. (\S+)$", told, re.MULTILINE)[1]
            for name, pattern in (
                ("failing", r"^  (headgate rpc .*shop.break.*)$"),
                ("frozen", r"^  (kill -STOP \d+)"),
            ):
                (command,) = re.findall(pattern, told, re.MULTILINE)
                own = f"PATH={os.path.dirname(sys.executable)}:$PATH"
                subprocess.run(["bash", "-c", f"{own}; . {environ}; {command}"], check=True)
                time.sleep(SETTLE_S)
                take(page, folder / f"{name}.png")
            up.send_signal(signal.SIGINT)
            up.wait()
            time.sleep(SETTLE_S)
            take(page, folder / "away.png")
        finally:
            up.send_signal(signal.SIGINT)
            browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.browser.pictures", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default="build/pictures", metavar="FOLDER")
    main(parser.parse_args().folder)
