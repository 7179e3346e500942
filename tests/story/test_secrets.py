"""What settings hold in secret others on the machine do not read: in arguments, environment, logs, what is shown."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.live.verbs import headgate
from tests.tables import for_each

pytestmark = pytest.mark.story

MARK = "s3cretMARK"
JOURNAL = ("journal.writer", "journal.shipping")
BROKER = f"""
[broker]
rundir = "RUN"
[journal]
enabled = true
directory = "RUN/journal"
ship_to = "s3://KEY:{MARK}@bucket/j?endpoint_override=127.0.0.1:1&scheme=http&session_token={MARK}"
[oslo]
ipc_dir = "RUN/oslo"
host = ""
redis = ["redis://:{MARK}@127.0.0.1:1/0?password={MARK}"]
[nfp]
base_dir = "RUN/nfp"
endpoint = "ipc://RUN/nfp.sock"
"""
GATEWAY = f"""
[gateway]
statedir = "RUN/state"
redis = "redis://u:{MARK}@127.0.0.1:1/0?x={MARK}"
workers = 2
[[listen]]
url = "unix://RUN/web.sock"
[jwt]
keys = ["https://127.0.0.1:1/jwks?key={MARK}"]
issuer = "i"
audience = "a"
[access]
hook_url = "http://127.0.0.1:1/hook"
[history]
warehouse = "s3://KEY:{MARK}@bucket/w?endpoint_override=127.0.0.1:1&scheme=http"
"""


@pytest.fixture
def files(rundir):
    """The two configurations, and where they are."""
    for name, text in (("broker.toml", BROKER), ("gateway.toml", GATEWAY)):
        (rundir / name).write_text(text.replace("RUN", str(rundir)).replace("?x=" + MARK, ""))
        (rundir / name).chmod(0o600)
    (rundir / "up.toml").write_text((rundir / "gateway.toml").read_text().replace("workers = 2", ""))
    return rundir


@contextlib.contextmanager
def running(folder: Path, *words: str):
    """A process of ours, in a session of its own."""
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "broker.cli.main", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def below(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def read(pid: int) -> str:
    with contextlib.suppress(OSError):
        return "".join(Path(f"/proc/{pid}/{name}").read_text() for name in ("cmdline", "environ"))
    return ""


@pytest.mark.patient
@for_each(
    ("words", "children"),
    [
        (("up", "--config", "up.toml", "--broker-config", "broker.toml"), (*JOURNAL, "oslo.room")),
        (("broker", "--config", "broker.toml"), (*JOURNAL, "oslo.room")),
        (("gateway", "--config", "gateway.toml"), ("headgate", "headgate", "headgate")),
        (("oslo", "proxy", "--config", "broker.toml", "--uri", "local://RUN/none"), ("oslo.room",)),
        (("nfp", "broker", "--config", "broker.toml"), JOURNAL),
    ],
)
def test_no_process_has_a_secret_where_others_read_it(files, words, children):
    words = [
        str(files / word) if word.endswith(".toml") else word.replace("RUN", str(files)) for word in words
    ]
    with running(files, *words) as process:
        until, seen = time.monotonic() + 30, []
        while time.monotonic() < until:
            seen = [read(pid) for pid in below(process.pid)]
            if len(seen) > len(children) - 1 and all(any(name in each for each in seen) for name in children):
                break
            assert process.poll() is None, (files / "log").read_text()
            time.sleep(0.05)
        assert all(any(name in each for each in seen) for name in children), (files / "log").read_text()
        assert not [each for each in seen if MARK in each]
    assert MARK not in (files / "log").read_text()


@for_each(
    "words",
    [
        ("config", "show", "broker.toml"),
        ("config", "show", "broker.toml", "--json"),
        ("config", "show", "gateway.toml", "--brief"),
        ("gateway", "--config", "gateway.toml", "--show"),
        ("config", "check", "broker.toml"),
        ("broker", "--config", "broker.toml", "--set", f"oslo.redis=redis://:{MARK}@h"),
        ("gateway", "--config", "gateway.toml", "--set", f"access.hook_url=https://u:{MARK}@h/"),
        ("gateway", "--config", "gateway.toml", "--set", f"gateway.redis=['redis://:{MARK}@h']"),
        ("gateway", "--config", "gateway.toml", "--set", f"gateway.rediss=redis://:{MARK}@h"),
        ("oslo", "proxy", "--redis", f"http://:{MARK}@h"),
    ],
)
def test_nothing_that_is_shown_has_it(files, words):
    done = headgate(*(str(files / word) if word.endswith(".toml") else word for word in words))
    assert done.stdout + done.stderr
    assert MARK not in done.stdout + done.stderr


@for_each(("name", "setting"), [("broker.toml", "journal.ship_to"), ("gateway.toml", "gateway.redis")])
def test_a_configuration_that_others_read_is_told_of(files, name, setting):
    file = files / name
    assert "shows the secret" not in headgate("config", "check", file).stdout
    for mode in (0o640, 0o604):
        file.chmod(mode)
        done = headgate("config", "check", file)
        assert done.returncode == 0
        assert f"mode {mode:04o} shows the secret in {setting} to others" in done.stdout
    file.write_text(file.read_text().replace(f":{MARK}@", "@").replace(MARK, ""))
    assert os.stat(file).st_mode & 0o777 == 0o604
