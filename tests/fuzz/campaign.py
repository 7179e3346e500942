"""A fuzzer of our own: mutations of a corpus, guided by the lines of the product that an input reaches.

It needs nothing but this repository, and finds less than one that is guided by every branch (``guided``). One input in
``TRACED_EACH`` is run with Python's own tracing; those that reach new lines join the corpus of the campaign.
"""

import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

from tests.fuzz import mutate
from tests.fuzz.targets import FOUND, INPUT_BYTES_MAX, Target, file_name

TRACED_EACH = 8
HANG_S = 5.0
"""An input that takes longer is a finding."""
GROWTH_KIB = 256 << 10
"""So much more memory after one input is a finding."""
SHRINK_TRIES = 2_000
PRODUCT = tuple(str(Path(__file__).parents[2] / name) for name in ("broker", "gateway"))
PIECES = (
    b"0", b"-1", b"1e9", b"4294967295", b"18446744073709551616", b'"', b"\\u0000", b"null", b"[", b"]", b"{", b"}",
    b",", b"..", b"/", b"\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\n", b"=", b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
)  # fmt: skip


class SlowError(Exception):
    """An input took longer than ``HANG_S``."""


class LargeError(Exception):
    """An input took more memory than ``GROWTH_KIB``."""


class Finding(NamedTuple):
    """One fault, by the smallest input that was found for it."""

    data: bytes
    what: str
    """Exception and place: the same for the same fault."""
    trace: str


class Outcome(NamedTuple):
    """One campaign at one target."""

    name: str
    inputs: int
    read: int
    """Inputs that were taken, not refused."""
    lines: int
    """Lines of the product reached, as far as inputs were traced."""
    fresh: list[bytes]
    """Inputs that reached lines which the corpus did not."""
    findings: list[Finding]
    seconds: float


def run(target: Target, *, seconds: float = 0.0, runs: int = 0, seed: int = 0) -> Outcome:
    """Fuzz one target until ``seconds`` are over or ``runs`` inputs are tried, whichever is first; 0: no such limit.

    The inputs of a campaign with ``runs`` alone are the same each time.
    """
    campaign = _Campaign(target, seed)
    begun = time.monotonic()
    try:
        while (not runs or campaign.inputs < runs) and (not seconds or time.monotonic() - begun < seconds):
            campaign.step()
    finally:
        target.close()
    return campaign.outcome(time.monotonic() - begun)


class _Campaign:
    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._dice = Random(f"{target.name}-{seed}")
        self._lines: set[tuple[str, int]] = set()
        self._corpus: list[bytes] = []
        self._fresh: list[bytes] = []
        self._findings: dict[str, Finding] = {}
        self._waiting = target.corpus()
        self.inputs = 0
        self._read = 0

    def step(self) -> None:
        """One input: what is in the corpus first, then mutations of it."""
        if self._waiting:
            data, mutated = self._waiting.pop(0), False
            self._corpus.append(data)
        else:
            data, mutated = self._mutation(), True
        self.inputs += 1
        traced = not mutated or self._dice.randrange(TRACED_EACH) == 0
        new: set[tuple[str, int]] = set()
        try:
            with guarded(), traced_lines(new if traced else None):
                self._read += self._target.entry(data)
        except Exception as error:
            self._found(data, error)
            return
        if not new <= self._lines:
            self._lines |= new
            if mutated:
                self._corpus.append(data)
                self._fresh.append(data)

    def _mutation(self) -> bytes:
        dice = self._dice
        data = dice.choice(self._corpus)
        how = dice.random()
        if how < 0.15:
            other = dice.choice(self._corpus)
            data = data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]
        elif how < 0.35:
            at = dice.randrange(len(data) + 1)
            data = (
                data[:at]
                + dice.choice(PIECES) * dice.choice((1, 1, 1, 2, 40))
                + data[at + dice.randrange(4) :]
            )
        if how > 0.1:
            data = mutate.body(data, dice)
        return self._target.finish(data[:INPUT_BYTES_MAX])

    def _found(self, data: bytes, error: Exception) -> None:
        what = signature(error)
        if what not in self._findings:
            small = shrink(data, lambda one: fault_of(self._target, one) == what)
            self._findings[what] = Finding(small, what, "".join(traceback.format_exception(error, limit=-6)))

    def outcome(self, seconds: float) -> Outcome:
        return Outcome(
            self._target.name,
            self.inputs,
            self._read,
            len(self._lines),
            self._fresh,
            list(self._findings.values()),
            seconds,
        )


# ---------------------------------------------------------------- one input


def fault_of(target: Target, data: bytes) -> str:
    """The signature of the fault that an input shows; "" when there is none."""
    try:
        with guarded():
            target.entry(data)
    except Exception as error:
        return signature(error)
    return ""


def signature(error: BaseException) -> str:
    """What and where: the exception's class and the last line of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if each.filename.startswith(PRODUCT) or "/tests/fuzz/" in each.filename]
    last = (ours or frames)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


@contextmanager
def guarded() -> Iterator[None]:
    """Raise where an input takes too long or too much memory."""

    def expired(_number: int, _frame: FrameType | None) -> None:
        raise SlowError(f"longer than {HANG_S:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    used_kib = peak_kib()
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    grown_kib = peak_kib() - used_kib
    if grown_kib > GROWTH_KIB:
        raise LargeError(f"{grown_kib >> 10} MiB for one input")


def peak_kib() -> int:
    """The most memory that this process has held; ``ru_maxrss`` counts that of who started it, too."""
    with open("/proc/self/status", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"VmHWM:"))


@contextmanager
def traced_lines(lines: set[tuple[str, int]] | None) -> Iterator[None]:
    """Collect the lines of the product that are run; None collects nothing and costs nothing."""
    if lines is None:
        yield
        return

    def inside(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return inside

    def called(frame: FrameType, _event: str, _argument: Any) -> Any:
        return inside if frame.f_code.co_filename.startswith(PRODUCT) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield
    finally:
        sys.settrace(before)


def shrink(data: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """A smaller input that still ``fails``: pieces are left out, large ones first, as long as it does."""
    tries, size = 0, max(1, len(data) // 2)
    while size and tries < SHRINK_TRIES:
        at, shorter = 0, False
        while at < len(data) and tries < SHRINK_TRIES:
            tries += 1
            smaller = data[:at] + data[at + size :]
            if fails(smaller):
                data, shorter = smaller, True
            else:
                at += size
        size = size if shorter and size == 1 else size // 2
    return data


def spare(target: Target, kept: list[bytes]) -> list[bytes]:
    """Those of ``kept`` that may go: what they reach, the seeds and shorter ones reach, too."""
    lines: set[tuple[str, int]] = set()
    out = []
    try:
        for data in [*target.seeds(), *sorted(kept, key=len)]:
            new: set[tuple[str, int]] = set()
            with traced_lines(new):
                target.entry(data)
            if new <= lines and data in kept:
                out.append(data)
            lines |= new
    finally:
        target.close()
    return out


def write(findings: list[Finding], folder: Path) -> list[Path]:
    """Put findings where tests replay them; returns the files."""
    paths = []
    for each in findings:
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(folder / file_name(each.data, FOUND))
        paths[-1].write_bytes(each.data)
    return paths
