"""The stories of events that outlive gateways, told with a product that is made wrong on purpose: each is found out."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.proof.mutants import QUIET, ROOT, Mutant, make

pytestmark = [pytest.mark.story, pytest.mark.slow, pytest.mark.timeout(180)]
STORY = "tests/story/test_events_outlive.py"
EXPOSED = (
    (
        "test_all_gateways_at_once",
        Mutant(
            "rank 0 forgets an event now and then",  # of which the gateway thinks that it cannot know
            "not recovered",
            "broker/wire/event_history.py",
            "        self._append(frame)\n",
            "        if message.sequence % 50:\n            self._append(frame)\n",
            QUIET,
        ),
    ),
    (
        "test_all_gateways_at_once",
        Mutant(
            "a gateway replays twice",
            "came twice",
            "gateway/sessions/resume.py",
            "            session.send_run(Run(mine))\n",
            "            session.send_run(Run(mine))\n            session.send_run(Run(mine))\n",
            QUIET,
        ),
    ),
    (
        "test_all_gateways_at_once",
        Mutant(
            "a replay shows what is private",
            "for its eyes",
            "gateway/sessions/resume.py",
            "            and may_see(self.session.principal, message)\n",
            "",
            QUIET,
        ),
    ),
    (
        "test_all_gateways_at_once",
        Mutant(
            "a replay shows what a rule denies",
            "for its eyes",
            "gateway/sessions/resume.py",
            "            and self.session.sees_topic(topic)\n",
            "",
            QUIET,
        ),
    ),
    (
        "test_without_what_rank_0_keeps_the_loss_is_told",
        Mutant(
            "a gateway claims to have recovered everything",
            "without a word",
            "gateway/sessions/resume.py",
            '                "recovered": recovered,',
            '                "recovered": True,',
            QUIET,
        ),
    ),
    (
        "test_rank_0_with_a_journal_goes_on_with_its_numbers",
        Mutant(
            "numbers are given twice",
            "without a word",
            "broker/node/event_numbers.py",
            '        self._write(LAST_AT, sequence.to_bytes(4, "little"))\n',
            '        self._write(LAST_AT, (sequence * 9 // 10).to_bytes(4, "little"))\n',
            QUIET,
        ),
    ),
)


@pytest.mark.parametrize(("story", "mutant"), EXPOSED, ids=[mutant.name for _, mutant in EXPOSED])
def test_it_is_found_out(tmp_path, story, mutant):
    make(mutant, tmp_path)
    shutil.copytree(
        ROOT / "tests", tmp_path / "tests", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"{STORY}::{story}"]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-2000:]
    assert mutant.rule in done.stdout, done.stdout[-4000:]
