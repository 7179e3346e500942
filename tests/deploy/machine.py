"""A machine whose PID 1 is the real systemd, made of namespaces: for running the units, not only reading them. As root.

Its root is this machine's in an overlay whose changes are in memory; it has its own processes, network, names, mounts
and a branch of cgroups that nobody else uses. Only journald runs besides what is started; all ends with this process.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.deploy import units
from tests.deploy.paths import ROOT

USER, UID = "headgate", 10001
SYSTEMD = Path("/usr/lib/systemd/systemd")
CGROUPS = Path("/sys/fs/cgroup/systemd")
"""The hierarchy that systemd keeps its units in (cgroup v1); free where PID 1 is something else."""
BOOT_S = 30.0
RUN_S = 60.0
_NEEDED = ("ip", "journalctl", "nsenter", "pivot_root", "setpriv", "systemctl", "unshare")

_PID_1 = r"""
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$work"
mkdir "$work/up" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=/,upperdir=$work/up,workdir=$work/work" overlay "$work/root"
cd "$work/root"

# the program: this project, by this Python, out of reach of ProtectHome
mkdir -p opt/python opt/project opt/site
mount --bind -o ro "$python" opt/python
mount --bind -o ro "$project" opt/project
mount --bind -o ro "$site" opt/site
cat > usr/local/bin/headgate <<'END'
#!/bin/sh
export LD_LIBRARY_PATH=/opt/python/lib PYTHONHOME=/opt/python PYTHONPATH=/opt/project:/opt/site
export PYTHONDONTWRITEBYTECODE=1
exec /opt/python/bin/python3 -P -m broker.cli.main "$@"
END
chmod 755 usr/local/bin/headgate

# nothing starts by itself but the journal
rm -rf etc/systemd/system etc/fstab etc/headgate var/lib/headgate
mkdir -p etc/systemd/system etc/headgate
for target in sysinit sockets timers multi-user local-fs; do rm -rf "usr/lib/systemd/system/$target.target.wants"; done
mkdir usr/lib/systemd/system/sysinit.target.wants usr/lib/systemd/system/sockets.target.wants
ln -s ../systemd-journald.service usr/lib/systemd/system/sysinit.target.wants/
ln -s ../systemd-journald.socket usr/lib/systemd/system/sockets.target.wants/
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n' > etc/systemd/system/test.target
cp "$project"/deploy/systemd/*.service etc/systemd/system/
echo "headgate:x:10001:10001::/nonexistent:/usr/sbin/nologin" >> etc/passwd
printf 'headgate:x:10001:\nopenstack:x:10002:headgate\n' >> etc/group
chown 10001:10001 etc/headgate
chmod 750 etc/headgate
: > etc/machine-id

mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
mkdir sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
ip link set lo up
hostname node0
pivot_root . mnt
umount -l /mnt
mount --make-rshared /
exec env -i container=other PATH=/usr/local/bin:/usr/sbin:/usr/bin /usr/lib/systemd/systemd --unit=test.target \
    --log-target=journal --show-status=0 systemd.unified_cgroup_hierarchy=0
"""


def lacking() -> str:
    """What this machine lacks for another one in it; "" nothing."""
    if os.geteuid() != 0:
        return "not root"
    missing = [f"no {name}" for name in _NEEDED if shutil.which(name) is None]
    if not SYSTEMD.exists():
        missing.append("no systemd")
    if not (CGROUPS / "cgroup.procs").exists() or Path("/proc/1/comm").read_text().strip() == "systemd":
        missing.append("no hierarchy of cgroups to lend")
    return ", ".join(missing)


class Machine:
    """The machine; see ``machine``."""

    def __init__(self, pid: int) -> None:
        self._inside = ["nsenter", f"--target={pid}", "--all", "--root", "--", "env", "-i", "-C", "/"]
        self._inside.append("PATH=/usr/local/bin:/usr/sbin:/usr/bin")

    def run(
        self, *words: str, uid: int | None = None, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as root or as a user without groups."""
        become = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        return subprocess.run(
            [*self._inside, *become, *words],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_S,
        )

    def headgate(self, *words: str, uid: int = UID) -> subprocess.CompletedProcess[str]:
        """The command, by default as the services' own user."""
        return self.run("headgate", *words, uid=uid)

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Put a file into it, and the folders above."""
        place = shlex.quote(path)
        done = self.run(
            "sh", "-ec", f"mkdir -p $(dirname {place}); cat > {place}; chmod {mode:o} {place}", text=text
        )
        assert done.returncode == 0, done.stderr

    def systemctl(self, verb: str, *names: str) -> int:
        """Returns its exit code."""
        return self.run("systemctl", verb, *names).returncode

    def start(self, *names: str) -> None:
        """Start units, and fail with their log when one does not."""
        assert self.systemctl("start", *names) == 0, self.log(*names)

    def show(self, name: str, key: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={key}", name).stdout.strip()

    def main_pid(self, name: str) -> int:
        """Of a unit, in the machine's own numbers; 0 none."""
        return int(self.show(name, "MainPID"))

    def log(self, *names: str) -> str:
        """What units said."""
        return self.run("journalctl", "--no-pager", *(f"--unit={name}" for name in names)).stdout

    def drop_in(self, name: str, *paths: Path, text: str = "") -> None:
        """Give a unit drop-ins, and no others."""
        folder = f"/etc/systemd/system/{name}.d"
        self.run("rm", "-rf", folder)
        for path in paths:
            self.write(f"{folder}/{path.name}", path.read_text())
        if text:
            self.write(f"{folder}/zz.conf", text)
        self.systemctl("daemon-reload")


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    """Boot one; it is gone at the end.

    Raises:
        OSError: this machine does not allow it; the text says what it said.
    """
    branch = CGROUPS / f"headgate-{os.getpid()}"
    branch.mkdir()
    work = Path(tempfile.mkdtemp(prefix="headgate-machine-"))
    environ = {
        "PATH": os.environ["PATH"],
        "work": str(work),
        "project": str(ROOT),
        "python": sys.base_prefix,
        "site": sysconfig.get_paths()["purelib"],
    }
    enter = f"echo $$ > {branch}/cgroup.procs; exec setpriv --pdeathsig=KILL -- unshare "
    enter += '--mount --uts --ipc --net --cgroup --pid --fork --kill-child sh -ec "$0"'
    process = subprocess.Popen(
        ["sh", "-ec", enter, _PID_1], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield _booted(process)
    finally:
        process.kill()
        process.communicate()
        _remove(branch)
        work.rmdir()


def _booted(process: "subprocess.Popen[str]") -> Machine:
    """Wait for PID 1 to have reached its target."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + BOOT_S
    while time.monotonic() < until and process.poll() is None:
        first = children.read_text().split()
        if first and _is_systemd(int(first[0])):
            made = Machine(int(first[0]))
            if made.run("systemctl", "is-active", "test.target").stdout.strip() == "active":
                return made
        time.sleep(0.05)
    process.kill()
    said = process.communicate()[0].strip().splitlines()
    raise OSError(said[-1] if said else f"it did not boot within {BOOT_S:.0f} s")


def _is_systemd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "systemd"
    except OSError:
        return False


def _remove(branch: Path) -> None:
    """Remove a branch of cgroups once the last process in it is gone."""
    until = time.monotonic() + 10
    while branch.exists() and time.monotonic() < until:
        for path, _, _ in os.walk(branch, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        time.sleep(0.02)


def rooms() -> list[str]:
    """The units of all rooms of an oslo proxy."""
    return " ".join(units.read("headgate-oslo-proxy.service")["Unit"]["Conflicts"]).split()
