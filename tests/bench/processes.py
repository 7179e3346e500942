"""What /proc tells about a process, and how to end one that we started."""

import os
import subprocess
from pathlib import Path
from typing import Any

STOP_S = 10.0


def cpu_s(pids: list[int]) -> float:
    """CPU seconds used so far by all threads of the processes, to the nanosecond where the kernel tells."""
    total = 0.0
    for pid in pids:
        try:
            total += (
                sum(int(p.read_text().split()[0]) for p in Path(f"/proc/{pid}/task").glob("*/schedstat"))
                / 1e9
            )
        except (OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def rss_bytes(pid: int) -> int:
    """Resident memory of one process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} shows no VmRSS")


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents first."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *descendants(child)]
    return found


def command(pid: int) -> str:
    """The command line of a process, blanks between its words."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def stop(process: subprocess.Popen[Any]) -> None:
    """Close stdin, then ask, then insist; only for processes of ours."""
    if process.stdin is not None:
        process.stdin.close()
    for harder in (process.terminate, process.kill):
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            harder()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def machine() -> dict[str, object]:
    """What a reader has to know about this machine before comparing."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        "unknown",
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": os.uname().release,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
