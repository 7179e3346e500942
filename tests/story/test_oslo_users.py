"""A node's proxy and its services are different users: `transport_url = zmq://` alone is enough for those of the group.

In a namespace of mounts with a `/run` of its own, as the shipped unit has it; needs root.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import time

import pytest

from broker.transport import curve
from tests.deploy import units
from tests.deploy.paths import ROOT

PROXY, GROUP, SERVICE, STRANGER = 10001, 10002, 10003, 10004
FOLDER = "/run/headgate-oslo"
ENTER = """
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /mnt
for name in python project site; do mkdir /mnt/$name; eval "mount --bind -o ro \\"\\$$name\\" /mnt/$name"; done
echo '[oslo]' > /mnt/oslo.toml
cp "$certificate" /mnt/services.cert && chown 10001:10002 /mnt/services.cert && chmod 0640 /mnt/services.cert
install -d -m 0750 -o 10001 -g 10001 /run/headgate-oslo
echo entered
exec sleep 60
"""

pytestmark = [
    pytest.mark.story,
    pytest.mark.patient,
    pytest.mark.timeout(90),
    pytest.mark.skipif(os.geteuid() != 0, reason="optional: not root"),
    pytest.mark.skipif(shutil.which("nsenter") is None, reason="optional: no nsenter"),
]


@pytest.fixture
def inside(rundir):
    """Runs Python in the namespace, as a user with groups."""
    pytest.importorskip("oslo_messaging", reason="optional: oslo.messaging is not installed")
    places = {"python": sys.base_prefix, "project": str(ROOT), "site": sysconfig.get_paths()["purelib"]}
    curve.save(curve.generate(), rundir / "services.cert")
    environ = {"PATH": os.environ["PATH"], "certificate": str(rundir / "services.cert"), **places}
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", ENTER],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started = [holder]

    def start(uid, groups, *words):
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", *groups, "--"]
        enter = ["nsenter", f"--target={holder.pid}", "--mount"]
        settings = "LD_LIBRARY_PATH=/mnt/python/lib PYTHONHOME=/mnt/python PYTHONPATH=/mnt/project:/mnt/site"
        python = [
            "env",
            "-i",
            "-C",
            "/",
            *settings.split(),
            "PYTHONDONTWRITEBYTECODE=1",
            "/mnt/python/bin/python3",
        ]
        started.append(
            subprocess.Popen(
                [*enter, *become, *python, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return started[-1]

    if holder.stdout.readline() != "entered\n":
        pytest.skip(f"optional: no namespace of mounts: {holder.communicate()[1].strip()}")
    try:
        yield start, f"/proc/{holder.pid}/root{FOLDER}"
    finally:
        for process in reversed(started):
            process.kill()
            process.communicate()


def test_a_service_of_another_user_changes_only_its_transport_url(inside):
    start, folder = inside
    words = units.one(units.read("headgate-oslo-proxy.service"), "ExecStart").split()[1:]
    words = [word.replace("/etc/headgate", "/mnt").replace("openstack", str(GROUP)) for word in words]
    proxy = start(PROXY, [f"--groups={GROUP}"], "-m", "broker.cli.main", *words)
    until = time.monotonic() + 20
    while not os.path.exists(f"{folder}/directory.ctl"):
        assert proxy.poll() is None, proxy.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    service = start(SERVICE, [f"--groups={GROUP}"], "/mnt/project/tests/live/oslo_user.py")
    assert service.communicate(timeout=30)[0].splitlines()[-1] == f"answered by {SERVICE}"
    # the certificate of all services, as the guide has it: its owner's and their group's
    url = "zmq://?zmq_curve_cert=/mnt/services.cert"
    secured = start(SERVICE, [f"--groups={GROUP}"], "/mnt/project/tests/live/oslo_user.py", url)
    assert secured.communicate(timeout=30)[0].splitlines()[-1] == f"answered by {SERVICE}"
    stranger = start(STRANGER, ["--clear-groups"], "/mnt/project/tests/live/oslo_user.py")
    said = stranger.communicate(timeout=30)[0]
    path = f"{FOLDER}/directory.ctl may not be reached by the user {STRANGER} of this process"
    assert f"no proxy of this node yet: {path}: is it in the group of its folder?" in said
    assert path in said.splitlines()[-1]
    assert said.splitlines()[-1].startswith("failed: ")
