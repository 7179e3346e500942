"""What ``broker/nfp/MIGRATING.md`` tells people who come from NorFab works as written; the rest: ``tests/interop``."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from broker.nfp.inventory.mappings import merged
from tests.live.migrating import BLOCKS, PAGE, PROJECT, ROOT, WITH_NORFAB, WITHOUT_NORFAB, Lab, block
from tests.live.ports import free_endpoint

pytestmark = [pytest.mark.story, pytest.mark.timeout(180)]


def test_every_block_is_run_here_or_with_norfab() -> None:
    run = [block(*each) for each in (*WITHOUT_NORFAB, *WITH_NORFAB)]
    assert sorted(run) == sorted(text for _, text in BLOCKS)


def test_the_project_is_what_the_page_shows() -> None:
    names = re.findall(r"^  (\S+)", block("", "norfab_greeter.py     class"), re.MULTILINE)
    for name in names:
        assert name == "__norfab__/" or (PROJECT / name).exists()
    for kind, first in (("yaml", "# inventory.yaml\n"), ("python", "# norfab_greeter.py\n")):
        file = PROJECT / first.strip("# \n")
        assert block(kind, first).removeprefix(first) == file.read_text()


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE.read_text())
    assert links
    for link in links:
        assert link.startswith("https://") or (PAGE.parent / link).exists()
    for path in re.findall(r"`(deploy/[\w./]+)`", PAGE.read_text()):
        assert (ROOT / path).exists()


@pytest.fixture
def lab(rundir: Path) -> Iterator[Lab]:
    """The project with workers of ours, as the page makes it, and what it starts."""
    made = Lab(rundir, free_endpoint())
    (made.folder / "greeter.py").write_text(block("python", "# greeter.py"))
    (made.folder / "workers" / "common.yaml").write_text(block("yaml", "# workers/common.yaml"))
    inventory = made.folder / "inventory.yaml"
    more = yaml.safe_load(block("yaml", "# inventory.yaml, in addition"))
    inventory.write_text(json.dumps(merged(yaml.safe_load(inventory.read_text()), more)))
    with made.running(block("sh", "headgate nfp up\n"), r"up after .*: broker, greeter-1, greeter-2\n"):
        yield made


FOUND = "greeter-1 ['hello ada'] False\ngreeter-2 ['hei ada'] False\n"


@pytest.mark.patient
def test_workers_scripts_and_verbs(lab: Lab) -> None:
    assert lab.run(block("sh", "python -m broker.nfp.norfab client.py")) == FOUND
    (lab.folder / "new.py").write_text(block("python", "BlockingClient"))
    assert lab.run("python new.py") == FOUND
    assert len(lab.run(block("sh", "headgate nfp keys broker")).strip()) == 40
    said = lab.run(block("sh", "headgate nfp run greeter"))
    assert said.count("hello ada") >= 2
    for word in ("hello ada, from a template", "letter.j2", "greeter-2", "job_list", "NFPBroker"):
        assert word in said, said
    assert (lab.folder / "letter.j2").read_text() == (lab.folder / "shared" / "letter.j2").read_text()
