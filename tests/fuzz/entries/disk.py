"""What is read from files: journals, settings, certificates."""

import tempfile
import tomllib
from functools import cache
from pathlib import Path

from broker import settings
from broker.errors import ConfigError
from broker.transport import curve
from gateway import settings as gateway_settings
from tests.fuzz import test_journal
from tests.live.segments import name_of

DEPLOY = Path(__file__).parents[3] / "deploy"
_PUBLIC = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
_SECRET = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"


# ---------------------------------------------------------------- journals


def journal(data: bytes) -> bool:
    """A segment: every reader ends, all agree, and every byte is in a block or in a damage."""
    return test_journal.check(_segment(), data) > 0


@cache
def _segment() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="hg-fuzz-", dir=_memory())
    _kept.append(folder)
    return Path(folder.name) / name_of("rank0", 0)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


_kept: list[tempfile.TemporaryDirectory[str]] = []


def close() -> None:
    """Remove the segment."""
    _segment.cache_clear()
    while _kept:
        _kept.pop().cleanup()


def journal_seeds() -> list[bytes]:
    return test_journal.seeds()


def resealed(data: bytes) -> bytes:
    """For mutations: the sums of damaged blocks made right, so that what is inside is looked at."""
    sealed = bytearray(data)
    test_journal._seal(sealed)
    return bytes(sealed)


# ---------------------------------------------------------------- settings


def broker_settings(data: bytes) -> bool:
    """A broker's file: read, or refused with a line for each fault; keys are found at their lines in any TOML."""
    return _settings(data, settings.loads)


def gateway_file(data: bytes) -> bool:
    """A gateway's file."""
    return _settings(data, gateway_settings.loads)


def _settings(data: bytes, read) -> bool:
    text = data.decode("utf-8", "replace")
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        tables = None
    if tables is not None:
        lines = settings.key_lines(text)
        assert {(name,) for name in tables} <= set(lines)
        assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
    try:
        read(text, "f")
    except ConfigError as error:
        refusal = str(error)
    else:
        assert tables is not None
        return True
    assert refusal.startswith("f:")
    return False


def _sections(file: str) -> list[bytes]:
    text = (DEPLOY / file).read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [text.encode()[:3000], "\n".join(lines).encode()]


def broker_settings_seeds() -> list[bytes]:
    return [
        *_sections("broker.toml"),
        b'[tree]\nsize = 3\ntopology = "kary:2"\n[[hosts]]\nrank = 0\nhostname = "a"\naddress = "tcp://127.0.0.1:8050"\n',
        b'[[listen]]\nuri = "ws://h"\n[[clients]]\nname = "g"\nroles = ["owner"]\nuserid = 7\npublic_key = "%s"\n'
        % _PUBLIC.encode(),
        b'a = [{b = """x\n""", "c.d" = 1}, 2]\n[e."f"]\ng = 1979-05-27\n',
    ]


def gateway_file_seeds() -> list[bytes]:
    users = (
        b'[[users]]\nname = "x"\nuserid = 1\nroles = ["user"]\n[[rules]]\nroles = ["user"]\nprefixes = [""]\n'
    )
    return [
        *_sections("gateway.toml"),
        users,
        b'[[listen]]\nurl = "https://0.0.0.0:1"\n',
        b"[limits]\nmessage_bytes = 1\n",
    ]


# ---------------------------------------------------------------- certificates


def zpl_certificate(data: bytes) -> bool:
    """A CURVE certificate: read, or refused in a line that holds no secret; what is read is written back the same."""
    text = data.decode("utf-8", "replace")
    refusal = ""
    try:
        found = curve.decode(text)
    except ConfigError as error:
        refusal = str(error)
    if refusal:
        assert _SECRET not in refusal
        return False
    assert found.secret_key is None or found.secret_key not in repr(found)
    try:
        written = curve.encode(found)
    except ConfigError:  # a value that cannot be quoted
        return True
    assert curve.decode(written) == found
    return True


def zpl_certificate_seeds() -> list[bytes]:
    made = curve.Certificate(_PUBLIC, _SECRET, {"name": "rank 3", "time": "now"})
    loose = f"curve\n    public-key = {_PUBLIC}\n# comment\n"
    return [curve.encode(made).encode(), curve.encode(made.public).encode(), loose.encode()]
