"""What a kubelet does with a pod template, as far as one machine can: volumes, init containers, a read-only root, the
user, the environment and the probes of a manifest, in a network namespace with the pod's names. As root, no container.

The image's file system is this machine's /usr, this Python and this project, at the same paths; what the Dockerfile
sets (ENV, ENTRYPOINT) is taken from it. Not played: seccomp, limits, restarts, Services.
"""

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deploy import dockerfile, manifests
from tests.deploy.paths import ROOT
from tests.live import guard
from tests.netlab import NetLab

NEEDED = ("chroot", "mount", "nsenter", "setpriv", "unshare")
START_S = 30
_LINKS = ("bin", "lib", "lib64", "sbin")
_ETC = ("ld.so.cache", "nsswitch.conf", "localtime")


def lacking() -> str:
    """What this machine lacks to play a kubelet; "" nothing."""
    if os.geteuid() != 0:
        return "not root"
    if not ROOT.stat().st_mode & 0o001:
        return "nobody else may enter this clone"
    return ", ".join(f"no {name}" for name in NEEDED if shutil.which(name) is None)


class Pod:
    """One pod on one host of a lab.

    Args:
        lab: its hosts are the pods' network namespaces. host: which of them.
        name: of the pod. index: of a StatefulSet's pod, for its label; None for others.
        template: the pod template. built: all manifests, for ConfigMaps and Secrets.
        names: lines for /etc/hosts, which stand for the cluster's DNS. folder: empty, for volumes.
    """

    def __init__(self, lab: NetLab, host, name, index, template, built, names, folder: Path) -> None:
        self.lab, self.host, self.name, self.index = lab, host, name, index
        self.spec = template["spec"]
        self._built = built
        self._folder = folder
        folder.chmod(0o755)
        self._volumes = {each["name"]: self._volume(each) for each in self.spec["volumes"]}
        (folder / "hosts").write_text(names)

    # ------------------------------------------------------------ volumes

    def _volume(self, volume) -> Path:
        """A folder with the owner and the mode that a kubelet gives it: root, and the group of fsGroup."""
        path = self._folder / "volumes" / volume["name"]
        path.mkdir(parents=True)
        group = self.spec["securityContext"]["fsGroup"]
        source = volume.get("projected") or volume.get("secret")
        if source is not None:
            for name, text in self._files(source).items():
                (path / name).write_bytes(text)
                os.chown(path / name, 0, group)
                (path / name).chmod(source["defaultMode"] | 0o040)
        os.chown(path, 0, group)
        path.chmod(0o2777 if source is None else 0o2755)
        return path

    def _files(self, source) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for each in source.get("sources", [{"secret": source}]):
            if "configMap" in each:
                data = manifests.the(self._built, "ConfigMap", each["configMap"]["name"])["data"]
                found |= {name: text.encode() for name, text in data.items()}
            else:
                name = each["secret"].get("name") or each["secret"]["secretName"]
                data = manifests.the(self._built, "Secret", name)["data"]
                found |= {name: base64.b64decode(text) for name, text in data.items()}
        return found

    # ------------------------------------------------------------ containers

    def start(self) -> subprocess.Popen:
        """Run the init containers to their end, then start the container; its output goes to ``log``."""
        for container in self.spec.get("initContainers", []):
            done = self._run(container, self._command(container))
            assert done.returncode == 0, done.stdout
        (container,) = self.spec["containers"]
        with self.log.open("wb") as log:
            words = self._inside(container, self._command(container))
            return self.lab.popen(self.host, words, cwd="/", stdout=log, stderr=subprocess.STDOUT)

    @property
    def log(self) -> Path:
        return self._folder / "log"

    def probe(self, kind: str) -> subprocess.CompletedProcess:
        """Execute the command of an exec probe, within its time."""
        (container,) = self.spec["containers"]
        return self._run(container, container[kind]["exec"]["command"], container[kind]["timeoutSeconds"])

    def execute(self, *words: str) -> subprocess.CompletedProcess:
        """A command in the container, as `kubectl exec` runs it."""
        (container,) = self.spec["containers"]
        return self._run(container, list(words))

    def _run(self, container, command, timeout=START_S) -> subprocess.CompletedProcess:
        return self.lab.run(
            self.host,
            self._inside(container, command),
            timeout=timeout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _command(self, container) -> list[str]:
        environ = self._environ(container)
        words = container.get("command") or dockerfile.exec_form(dockerfile.last("headgate", "ENTRYPOINT"))
        words = [*words, *container.get("args", [])]
        return [re.sub(r"\$\((\w+)\)", lambda match: environ[match[1]], word) for word in words]

    def _environ(self, container) -> dict[str, str]:
        found = dockerfile.environment("headgate")
        found["PATH"] = f"{sys.prefix}/bin:/usr/bin:/bin"
        found[guard.MARK] = os.environ[guard.MARK]
        for each in container.get("env", []):
            found[each["name"]] = each.get("value") or self._field(each["valueFrom"]["fieldRef"]["fieldPath"])
        return found

    def _field(self, path: str) -> str:
        assert path == "metadata.labels['apps.kubernetes.io/pod-index']", path
        return str(self.index)

    def _inside(self, container, command: list[str]) -> list[str]:
        """The words that run a command in a mount namespace with the container's root."""
        context = self.spec["securityContext"]
        user, group = context["runAsUser"], context["runAsGroup"]
        drop = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        run = ["setpriv", f"--reuid={user}", f"--regid={group}", f"--groups={context['fsGroup']}", *drop]
        environ = [f"{name}={value}" for name, value in self._environ(container).items()]
        words = ["chroot", "/mnt", *run, "env", "-i", *environ, *command]
        script = [*self._root(container), f"hostname {self.name}", f"cd /mnt; exec {shlex.join(words)}"]
        return ["unshare", "--mount", "--uts", "sh", "-ec", "\n".join(script)]

    def _root(self, container) -> list[str]:
        """Shell lines that make the root below /mnt."""
        lines = ["mount -t tmpfs -o mode=755 root /mnt", "mkdir -p /mnt/etc /mnt/proc /mnt/dev"]
        lines += [f"[ ! -L /{name} ] || ln -s usr/{name} /mnt/{name}" for name in _LINKS]
        lines += [f"[ ! -e /etc/{name} ] || cp /etc/{name} /mnt/etc/" for name in _ETC]
        lines += [
            f"cp {self._folder}/hosts /mnt/etc/hosts",
            "echo headgate:x:10001:10001::/nonexistent:/bin/false > /mnt/etc/passwd",
            "mount --rbind /proc /mnt/proc; mount --rbind /dev /mnt/dev",
        ]
        for mount in container["volumeMounts"]:
            place, source = mount["mountPath"], self._volumes[mount["name"]]
            lines += [f"mkdir -p /mnt{place}", f"mount --bind {source} /mnt{place}"]
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro /mnt{place}")
        # after the volumes: one of them may be /tmp, and this clone below it
        for place in ("/usr", *sorted({sys.prefix, sys.base_prefix, str(ROOT)})):
            lines += [f"mkdir -p /mnt{place}", f"mount --rbind -o ro {place} /mnt{place}"]
        if container["securityContext"]["readOnlyRootFilesystem"]:
            lines.append("mount -o remount,ro /mnt")
        return lines

    def fetch(self, url: str) -> tuple[int, str]:
        """GET from this pod's host: (status, body); (0, why) when nobody answers."""
        done = self.lab.run(
            self.host, [sys.executable, "-c", _GET, url], capture_output=True, text=True, timeout=START_S
        )
        status, body = json.loads(done.stdout)
        return status, body


_GET = """
import json, sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=5) as answer:
        print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, error.read().decode()]))
except OSError as error:
    print(json.dumps([0, str(error)]))
"""
