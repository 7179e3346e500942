"""netlab - a throw-away network of N test hosts on one Linux machine (no root needed where user
namespaces are allowed, no tc/netem, no iptables, stdlib only; wants util-linux and iproute2).

Each host is a network+mount+UTS namespace with eth0 = 10.77.0.(i+1)/24 and fd77::(i+1)/64, named
n0, n1, ... in /etc/hosts.  The hosts meet in a user-space Ethernet switch (AF_PACKET), which can
delay, drop, rate-limit or block frames per ordered pair of hosts.  A blocked link is SILENT (no
RST, no ICMP), as in a real partition.  Nothing is created in the machine's own network namespace,
and everything vanishes when the owner exits, even by SIGKILL.

    from tests.netlab import NetLab
    with NetLab(4) as lab:
        srv = lab.popen(0, ["python3", "server.py", "--bind", lab.ip(0)])
        lab.link(0, 1, delay="20ms", jitter="2ms", loss="1%", rate="10mbit")  # both ways
        lab.partition([0, 1], [2, 3]); ...; lab.heal()                        # links keep delay etc.
        lab.down(3); lab.up(3); lab.pcap("wire.pcap"); print(lab.stats())
        print(lab.run(2, ["ping", "-c1", "n0"], capture_output=True, text=True).stdout)
"""

import heapq
import json
import os
import random
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

UNITS = {
    "": 1,
    "s": 1,
    "ms": 1e-3,
    "us": 1e-6,
    "%": 1e-2,
    "bit": 1 / 8,
    "kbit": 125,
    "mbit": 125e3,
    "gbit": 125e6,
}
ZERO = {"delay": 0.0, "jitter": 0.0, "loss": 0.0, "rate": 0.0}


def quantity(text):
    """'20ms' -> 0.02 (seconds), '1%' -> 0.01, '10mbit' -> bytes/s; plain numbers are s, fraction, bytes/s."""
    m = re.fullmatch(r"([0-9.]+(?:e-?\d+)?)\s*([a-z%]*)", str(text).strip().lower())
    if not m or m[2] not in UNITS:
        raise ValueError(f"not a quantity: {text!r}")
    return float(m[1]) * UNITS[m[2]]


def switch(n, seed):
    """The switch process: frames between h0..h(n-1), commands as JSON lines on stdin, one reply line each.

    A frame is what the sender's TCP handed to eth0: up to 64 KiB, so loss= counts segments in bulk transfers."""
    rng, socks, pcap = random.Random(seed), [], None
    for i in range(n):
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        s.setsockopt(263, 15, 1)  # PACKET_VNET_HDR: keeps checksum/GSO offload intact
        try:
            s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
        except OSError:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        s.bind((f"h{i}", 0))
        s.setblocking(False)
        socks.append(s)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    link, free, cut, heap, seq, buf = (
        {p: dict(ZERO) for p in pairs},
        dict.fromkeys(pairs, 0.0),
        set(),
        [],
        0,
        b"",
    )
    last, count = dict.fromkeys(pairs, 0.0), {p: [0, 0, 0] for p in pairs}  # frames, bytes, dropped

    def send(dst, frame):
        try:
            socks[dst].send(frame)
        except OSError:
            pass  # host gone or its queue full: the frame is lost

    print("ready", flush=True)
    while True:
        wait = max(0.0, heap[0][0] - time.monotonic()) if heap else None
        ready = select.select([0, *socks], [], [], wait)[0]
        for src, s in enumerate(socks):
            for _ in range(64 if s in ready else 0):  # bounded batch, so no host starves another
                try:
                    frame = s.recv(1 << 17)  # 10 bytes of virtio header, then Ethernet
                except OSError:
                    break
                now = time.monotonic()
                if pcap:
                    sec, size = time.time(), len(frame) - 10
                    pcap.write(struct.pack("<IIII", int(sec), int(sec % 1 * 1e6), size, size) + frame[10:])
                mac = frame[10:16]  # host i owns 02:00:00:00:00:(i+1)
                one = mac[5] - 1 if mac[:5] == b"\2\0\0\0\0" and 0 < mac[5] <= n else None
                for dst in [one] if one is not None else range(n):
                    if dst == src:
                        continue
                    p, c = (src, dst), count[src, dst]
                    k = link[p]
                    if p in cut or (k["loss"] and rng.random() < k["loss"]):
                        c[2] += 1
                        continue
                    c[0] += 1
                    c[1] += len(frame) - 10
                    due = now + k["delay"] + (rng.random() * k["jitter"] if k["jitter"] else 0)
                    if k["rate"]:
                        free[p] = max(free[p], now) + len(frame) / k["rate"]
                        due += free[p] - now
                    if due <= now and not heap:
                        send(dst, frame)
                        continue
                    last[p] = due = max(due, last[p])  # a link never reorders
                    heapq.heappush(heap, (due, seq, p, frame))
                    seq += 1
        while heap and heap[0][0] <= time.monotonic():
            _, _, p, frame = heapq.heappop(heap)
            if p in cut:  # cut while in flight
                count[p][2] += 1
            else:
                send(p[1], frame)
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, buf = (buf + data).split(b"\n")
            for line in lines:
                op, arg = json.loads(line)
                if op == "link":
                    for a, b, k in arg:
                        link[a, b].update(k)
                elif op == "cut":
                    cut |= {tuple(p) for p in arg}
                elif op == "heal":
                    cut -= {tuple(p) for p in arg} if arg else set(pairs)
                elif op == "pcap":
                    pcap = pcap and pcap.close()
                    if arg:
                        pcap = open(arg, "wb", buffering=0)  # noqa: SIM115 - closed by the next order
                        pcap.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1))
                print(
                    json.dumps({f"{a}>{b}": c for (a, b), c in count.items()} if op == "stats" else 0),
                    flush=True,
                )


class NetLab:
    """Use as a context manager.  Keyword arguments after n are the starting link settings of every pair."""

    def __init__(self, n, seed=0, **link):
        if not 1 <= n <= 250:
            raise ValueError("1..250 hosts")
        self.n, self.procs, self._seed, self._base, self._held = n, [], seed, link, []
        self._user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        self._lock = threading.Lock()

    def __enter__(self):
        try:
            stay = "echo ok; exec cat >/dev/null"
            fabric = self._hold("unshare", "-rn" if self._user else "-n", "sh", "-ec", stay)
            self._fabric = ["nsenter", "-t", str(fabric.pid), *self._user, "-n"]
            names = "127.0.0.1 localhost\n::1 localhost\n" + "".join(
                f"{self.ip(i)} n{i}\n" for i in range(self.n)
            )
            files = 'mount -t tmpfs none /mnt; printf %s "$1" >/mnt/h; mount --bind /mnt/h /etc/hosts; umount /mnt'
            self.hosts = [
                self._hold(
                    *self._fabric,
                    "unshare",
                    "-nmu",
                    "sh",
                    "-ec",
                    f"{files}; hostname $0; {stay}",
                    f"n{i}",
                    names,
                )
                for i in range(self.n)
            ]
            self._sh(
                self._fabric,
                "ip link set lo up\n"
                + "".join(
                    f"ip link add h{i} type veth peer name eth0 netns {h.pid} address {self.mac(i)}\n"
                    f"echo 1 >/proc/sys/net/ipv6/conf/h{i}/disable_ipv6 || :\nip link set h{i} up\n"
                    for i, h in enumerate(self.hosts)
                ),
            )
            fixed = "".join(
                f"neigh replace {self.ip(i, v6)} lladdr {self.mac(i)} dev eth0 nud permanent\n"
                for i in range(self.n)
                for v6 in (False, True)
            )  # so a cut link stays silent
            for i in range(self.n):
                self._sh(
                    self.inside(i, "/"),
                    f"ip link set lo up; ip addr add {self.ip(i)}/24 dev eth0; ip addr add "
                    f"{self.ip(i, True)}/64 dev eth0 nodad || :; ip link set eth0 up; ip -force -batch - "
                    f"<<E\n{fixed}E\n",
                )
            self._sw = self._hold(
                *self._fabric,
                sys.executable,
                os.path.abspath(__file__),
                "_switch",
                str(self.n),
                str(self._seed),
            )
            if self._base:
                self.link(**self._base)
            return self
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc):
        self.close()

    def close(self):
        for i in range(len(self.procs)):
            self.kill(i)
        for p in self._held:  # EOF ends them; with them go namespaces and veths
            p.stdin.close()
        for p in self._held:
            try:
                p.wait(3)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
            p.stdout.close()
        self._held, self.procs = [], []

    def _hold(self, *cmd):
        """Start a process that stays until its stdin closes; return it once it has printed its first line."""
        p = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._held.append(p)
        if not p.stdout.readline():
            raise OSError(
                f"cannot make the network (root or user namespaces needed): {shlex.join(cmd)[:120]}"
            )
        return p

    def _sh(self, prefix, script):
        subprocess.run([*prefix, "sh", "-ec", script], check=True, stdin=subprocess.DEVNULL)

    def inside(self, i, cwd=None):
        """The words in front of a command that run it in host i."""
        return [
            "nsenter",
            "-t",
            str(self.hosts[i].pid),
            *self._user,
            "-n",
            "-m",
            "-u",
            f"--wd={cwd or os.getcwd()}",
            "--",
        ]

    def _ask(self, op, arg=None):
        with self._lock:
            self._sw.stdin.write(json.dumps([op, arg]).encode() + b"\n")
            self._sw.stdin.flush()
            return json.loads(self._sw.stdout.readline())

    def ip(self, i, v6=False):
        return f"fd77::{i + 1:x}" if v6 else f"10.77.0.{i + 1}"

    def mac(self, i):
        return f"02:00:00:00:00:{i + 1:02x}"

    def popen(self, i, cmd, env=None, cwd=None, **kw):
        """subprocess.Popen in host i; NETLAB_INDEX, NETLAB_SIZE, NETLAB_IP and NETLAB_IPS are set."""
        env = dict(
            os.environ if env is None else env,
            NETLAB_INDEX=str(i),
            NETLAB_SIZE=str(self.n),
            NETLAB_IP=self.ip(i),
            NETLAB_IPS=",".join(map(self.ip, range(self.n))),
        )
        # dies with us; not from a side thread, as the signal follows the thread that started it
        tie = (
            ["setpriv", "--pdeathsig=KILL", "--"]
            if threading.current_thread() is threading.main_thread()
            else []
        )
        p = subprocess.Popen([*self.inside(i, cwd), *tie, *cmd], env=env, start_new_session=True, **kw)
        p.netlab_host = i
        self.procs.append(p)
        return p

    def run(self, i, cmd, timeout=30, **kw):
        """subprocess.run in host i (with a time limit)."""
        return subprocess.run([*self.inside(i), *cmd], timeout=timeout, **kw)

    def kill(self, i, sig=signal.SIGKILL):
        """Signal the i-th started command and its whole session group; SIGKILL also reaps it."""
        p = self.procs[i]
        try:
            os.killpg(p.pid, sig)
        except ProcessLookupError:
            pass
        if sig == signal.SIGKILL:
            p.wait()

    def _pairs(self, a, b, oneway=False):
        a, b = ([range(self.n), [x]][x is not None] if not hasattr(x, "__iter__") else x for x in (a, b))
        out = {(x, y) for x in a for y in b if x != y}
        return sorted(out if oneway else out | {(y, x) for x, y in out})

    def link(self, a=None, b=None, oneway=False, **what):
        """Set delay, jitter, loss, rate between a and b (hosts, lists of hosts, or None for all)."""
        what = {k: quantity(v) for k, v in what.items()}
        if what.keys() - ZERO.keys():
            raise ValueError(f"unknown link setting: {sorted(what.keys() - ZERO.keys())}")
        self._ask("link", [(x, y, what) for x, y in self._pairs(a, b, oneway)])

    def cut(self, a=None, b=None, oneway=False):
        self._ask("cut", self._pairs(a, b, oneway))

    def partition(self, *groups):
        """Hosts of different groups no longer reach each other; hosts named in no group form one more."""
        rest = set(range(self.n)).difference(*groups)
        groups = [*groups, *([rest] if rest else [])]
        self._ask("cut", [p for g in groups for h in groups if g is not h for p in self._pairs(g, h)])

    def heal(self, a=None, b=None):
        self._ask("heal", self._pairs(a, b))

    down, up = cut, heal  # down(i): host i reaches nobody and nobody reaches it

    def pcap(self, path):
        """Write every frame that enters the switch to a capture file; None ends it."""
        self._ask("pcap", path and os.path.abspath(path))

    def stats(self):
        """{'0>1': [frames, bytes, dropped], ...}"""
        return self._ask("stats")


def main():
    """Only the switch runs as a program of its own."""
    if sys.argv[1:2] != ["_switch"]:
        return "netlab is a library: with NetLab(n) as lab: ..."
    return switch(int(sys.argv[2]), int(sys.argv[3]))


if __name__ == "__main__":
    sys.exit(main())
