"""What stands in the way at the start is one clear line, and exit code 78, or 75 where it may pass by itself."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broker.transport.curve import generate, save
from tests.live.manager import Manager
from tests.live.starter import BROKER, GATEWAY, NFP_BROKER, OSLO_PROXY, ran, started

pytestmark = pytest.mark.story

EX_TEMPFAIL, EX_CONFIG = 75, 78
HEADGATE = [sys.executable, "-c", "import sys; from broker.cli.main import main; sys.exit(main())"]


def start(rundir: Path, text: str, prefix: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """``headgate broker`` with this configuration; it must not stay."""
    file = rundir / "broker.toml"
    file.write_text(text)
    words = [*HEADGATE, "broker", "--config", str(file)]
    if prefix:
        return subprocess.run([*prefix, *words], capture_output=True, text=True, timeout=20, check=False)
    return ran(words, loads=BROKER, timeout=20)


def refused(done: "subprocess.CompletedProcess[str]", *words: str, code: int = EX_CONFIG) -> None:
    said = [line for line in done.stderr.splitlines() if " INFO " not in line and " WARNING " not in line]
    assert done.returncode == code, done.stderr
    assert len(said) == 1, done.stderr
    for word in words:
        assert word in said[0], said[0]
    assert "Traceback" not in done.stderr


def without_privilege() -> tuple[str, ...]:
    """What makes root subject to the modes of files. It stays the same user, for nobody else may read its clone."""
    if os.getuid() != 0:
        return ()
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")


def test_a_directory_it_may_not_write(rundir):
    locked = rundir / "locked"
    locked.mkdir(mode=0o555)
    refused(
        start(rundir, f'[broker]\nrundir = "{locked}/run"\n', without_privilege()), str(locked), "ermission"
    )


def test_a_directory_of_somebody_else(rundir):
    if os.getuid() != 0:
        pytest.skip("optional: needs root to give a directory away")
    other = rundir / "run"
    other.mkdir(mode=0o755)
    os.chown(other, 65534, 65534)
    refused(start(rundir, f'[broker]\nrundir = "{other}"\n'), str(other), "the folder of uid 65534")


def test_a_socket_that_another_broker_listens_at(rundir):
    (rundir / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(rundir / "run" / "local-0"))
        other.listen()
        refused(
            start(rundir, f'[broker]\nrundir = "{rundir}/run"\n'), "local-0", "in use, by ", code=EX_TEMPFAIL
        )
    assert (rundir / "run" / "local-0").exists()


def test_a_full_disk(rundir):
    """No room for the directory: a tmpfs of few inodes, which root can make."""
    if os.getuid() != 0:
        pytest.skip("optional: needs root to mount a small file system")
    small = rundir / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "none", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("optional: needs the right to mount a small file system")
    try:
        (small / "filler").write_text("")
        refused(
            start(rundir, f'[broker]\nrundir = "{small}/run"\n'), str(small), "o space left", code=EX_TEMPFAIL
        )
    finally:
        subprocess.run(["umount", str(small)], check=True)


CURVE = """
[broker]
rundir = "{rundir}/other"
[tree]
size = 2
curve_cert = "{cert}"
[[hosts]]
rank = 0
address = "ipc://{rundir}/tree-0"
public_key = "{key}"
[[hosts]]
rank = 1
address = "ipc://{rundir}/tree-1"
public_key = "{key}"
"""
KEY = "abcdefghijklmnopqrstuvwxyz0123456789ABCD"


def curve(rundir: Path, name: str) -> str:
    return CURVE.format(rundir=rundir, cert=rundir / name, key=KEY).replace("[tree]", "rank = 0\n[tree]")


def certificate(path: Path, mode: int) -> None:
    path.write_text(f'metadata\n    name = "me"\ncurve\n    public-key = "{KEY}"\n    secret-key = "{KEY}"\n')
    path.chmod(mode)


def stands_in_the_way(rundir: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    """What is there already, and a configuration that leads to it."""
    place = '[broker]\nrundir = "{}"\n'
    (rundir / "file").write_text("")
    (rundir / "run").mkdir()
    (rundir / "run" / "local-0").write_text("precious")
    certificate(rundir / "open.cert", 0o644)
    (rundir / "empty.cert").write_text("nothing")
    (rundir / "empty.cert").chmod(0o600)
    return [
        ("a file where the directory should be", place.format(rundir / "file"), (f"{rundir}/file",)),
        (
            "a file where the socket should be",
            place.format(rundir / "run"),
            ("local-0", "a file that is no socket is there"),
        ),
        ("a path longer than a socket address", place.format(f"{rundir}/{'long' * 30}"), ("107 bytes",)),
        ("a certificate that others may read", curve(rundir, "open.cert"), ("open.cert",)),
        ("a certificate without keys", curve(rundir, "empty.cert"), ("empty.cert",)),
    ]


def test_what_stands_in_the_way_is_named(rundir):
    wrong = {}
    for what, text, words in stands_in_the_way(rundir):
        try:
            refused(start(rundir, text), *words)
        except AssertionError as error:
            wrong[what] = str(error)
    assert wrong == {}
    assert (rundir / "run" / "local-0").read_text() == "precious"


def test_a_port_in_use(rundir):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        text = (
            f'[broker]\nrank = 0\nrundir = "{rundir}/run"\n[tree]\nsize = 2\n'
            f'[[hosts]]\nrank = 0\naddress = "tcp://127.0.0.1:{port}"\n'
            '[[hosts]]\nrank = 1\naddress = "tcp://127.0.0.1:1"\n'
        )
        refused(start(rundir, text), str(port), "in use", f"(process {os.getpid()})", code=EX_TEMPFAIL)


def not_there_yet(rundir: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """What may pass by itself: a configuration, and what is said of it."""
    run = f'[broker]\nrundir = "{rundir}/later"\n'
    save(ours := generate(), rundir / "node.cert")
    elsewhere = "tcp://192.0.2.1:8050"
    return {
        "a certificate": (curve(rundir, "none.cert"), ("none.cert", "No such file")),
        "an address": (
            curve(rundir, "node.cert")
            .replace(KEY, ours.public_key)
            .replace(f"ipc://{rundir}/tree-0", elsewhere),
            (elsewhere, "assign requested address"),
        ),
        "a listener's address": (
            f'{run}[[listen]]\nuri = "{elsewhere}"\ninsecure = true\n',
            (elsewhere, "assign requested address"),
        ),
        "the address of metrics": (
            f'{run}metrics_listen = "http://192.0.2.1:9000"\nmetrics_insecure = true\n',
            ("metrics_listen", "192.0.2.1"),
        ),
    }


def test_what_may_be_there_later_is_no_wrong_configuration(rundir):
    wrong = {}
    for what, (text, words) in not_there_yet(rundir).items():
        try:
            refused(start(rundir, text), *words, code=EX_TEMPFAIL)
        except AssertionError as error:
            wrong[what] = str(error)
    assert wrong == {}


def other_services(rundir: Path) -> dict[str, tuple[list[str], tuple[str, ...], str]]:
    """Of the others: their words, what they load, and what is not there yet."""
    web = ["gateway", "--upstream", f"local://{rundir}/none", "--set", f"gateway.statedir={rundir}/web"]
    none = f"{rundir}/none.pem"
    (rundir / "away.toml").write_text('[[listen]]\nurl = "http://192.0.2.1:8280"\ninsecure = true\n')
    (rundir / "tls.toml").write_text(f'[[listen]]\nurl = "https://127.0.0.1:0"\ncert = "{none}"\n')
    away, tls = (["--config", f"{rundir}/{name}.toml"] for name in ("away", "tls"))
    nfp = ["nfp", "broker", "--base-dir", f"{rundir}/nfp", "--no-curve", "--insecure", "--endpoint"]
    oslo = ["oslo", "proxy", "--ipc-dir", f"{rundir}/oslo", "--insecure", "--host"]
    return {
        "gateway": ([*web, *away], GATEWAY, "192.0.2.1"),
        "workers": ([*web, *away, "--workers", "2"], GATEWAY, "192.0.2.1"),
        "gateway's certificate": ([*web, *tls], GATEWAY, none),
        "nfp": ([*nfp, "tcp://192.0.2.1:5555"], NFP_BROKER, "192.0.2.1"),
        "oslo": ([*oslo, "192.0.2.1"], OSLO_PROXY, "192.0.2.1"),
    }


def test_other_services_say_the_same(rundir):
    wrong = {}
    for what, (words, loads, word) in other_services(rundir).items():
        try:
            refused(ran([*HEADGATE, *words], loads=loads, timeout=20), word, code=EX_TEMPFAIL)
        except AssertionError as error:
            wrong[what] = str(error)
    assert wrong == {}


def test_a_service_waits_for_what_may_be_there_later(rundir):
    """Its manager hears that it is starting, and why not yet; nobody has to start it again."""
    file = rundir / "broker.toml"
    ours = generate()
    file.write_text(curve(rundir, "later.cert").replace(KEY, ours.public_key))
    with Manager(rundir / "notify") as manager, (rundir / "log").open("wb") as log:
        words = [*HEADGATE, "broker", "--config", str(file)]
        process = started(words, loads=BROKER, stdout=log, stderr=log, env=manager.environ)
        try:
            said = manager.wait(lambda lines: any("cannot start yet" in line for line in lines))
            assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in said)
            save(ours, rundir / "made")
            (rundir / "made").rename(rundir / "later.cert")
            manager.wait_line("READY=1")
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
    told = [line for line in (rundir / "log").read_text().splitlines() if "cannot start yet" in line]
    assert ["later.cert" in line for line in told] == [True]


def test_plaintext_that_other_machines_can_reach(rundir):
    text = (
        f'[broker]\nrank = 0\nrundir = "{rundir}/run"\n[tree]\nsize = 2\n'
        '[[hosts]]\nrank = 0\naddress = "tcp://192.0.2.1:8050"\n[[hosts]]\nrank = 1\naddress = "tcp://192.0.2.2:8050"\n'
    )
    done = start(rundir, text)
    assert done.returncode == EX_CONFIG
    assert "Traceback" not in done.stderr
    assert "insecure" in done.stderr or "curve" in done.stderr
