import logging
import os
import subprocess
import sys

import msgspec
import pytest

from broker.errors import ConfigError, NotReady
from broker.secret import (
    HIDDEN,
    SecretPlace,
    SecretUrl,
    convert_secret,
    hidden,
    masked,
    masked_in,
    read_file,
    revealed,
)
from tests.tables import for_each

MARK = "hush"


@for_each(
    ("url", "shown"),
    [
        (f"redis://:{MARK}@h:1/0", "redis://h:1/0"),
        (f"redis://u:a/{MARK}?#@{MARK}@h", "redis://h"),
        (f"redis://:{MARK} {MARK}@h", "redis://h"),
        (
            f"abfs://c:{MARK}@a.net/j?client_secret={MARK}&x={MARK}",
            "abfs://c@a.net/j?client_secret=***&x=***",
        ),
        (f"unix:///run/r.sock?password={MARK}", "unix:///run/r.sock?password=***"),
        (f"https://h/p?{MARK}#once={MARK}", "https://h/p?***#once=***"),
        (f"https://{MARK}@h", "https://h"),
        (f"https://h/p?code={MARK}", "https://h/p?code=***"),
        ("abfs://c@a.net/j", "abfs://c@a.net/j"),
        ("tcp://*:5555", "tcp://*:5555"),
        ("ipc://@abstract?", "ipc://@abstract?"),
        (f"local://u:{MARK}@/run/x", "local:///run/x"),
        (f"ipc://u:{MARK}@x", "ipc://x"),
    ],
)
def test_of_a_url_login_and_values_are_hidden(url, shown):
    assert masked(url) == shown
    secret = SecretUrl(url)
    assert secret.secret is SecretPlace(url).secret is (MARK in url), "others must not read it, either"
    texts = [str(secret), repr(secret), f"{secret}", f"{secret:.99}", f"{[secret]}"]
    assert not any(MARK in text for text in texts)
    assert msgspec.json.encode(secret, enc_hook=hidden) == msgspec.json.encode(shown)
    assert msgspec.json.encode(secret, enc_hook=revealed) == msgspec.json.encode(url)
    assert MARK not in masked_in(f"cannot open '{url.replace(' ', '')}' now")
    assert secret.masked_in(f"cannot open {url}: no") == f"cannot open {shown}: no"


def test_what_is_no_url_is_hidden_unless_it_is_a_place():
    assert str(SecretUrl(f"u:{MARK}@h")) == str(SecretPlace(f"u:{MARK}@h")) == HIDDEN
    assert str(SecretPlace("/var/a@b?c")) == "/var/a@b?c"
    assert not SecretPlace("/var/a@b?c").secret


def test_nothing_encodes_one_unasked():
    with pytest.raises(TypeError):
        msgspec.json.encode({"redis": SecretUrl(f"redis://:{MARK}@h")})
    assert msgspec.convert("a://b", SecretUrl, dec_hook=convert_secret) == SecretUrl("a://b")


@for_each(
    ("content", "mode", "said"),
    [
        ("pw\n", 0o600, ""),
        ("pw", 0o640, "mode 0640 shows"),
        (" \n", 0o600, "empty"),
        (None, 0, "No such file"),
    ],
)
def test_a_secret_in_a_file(tmp_path, content, mode, said):
    file = tmp_path / f"f{mode}{bool(content)}"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    if not said:
        assert read_file(str(file)) == "pw"
        return
    with pytest.raises(ConfigError, match=said) as refused:
        read_file(str(file))
    assert isinstance(refused.value, NotReady) is (content is None), "it may yet be mounted"


@pytest.fixture
def told(caplog):
    """What the log says."""
    logging.getLogger("headgate").addHandler(caplog.handler)
    yield caplog
    logging.getLogger("headgate").removeHandler(caplog.handler)


@pytest.mark.skipif(os.geteuid() != 0, reason="optional: not root, who alone can give a file away")
@for_each(("mode", "owner", "place", "taken"), [
    (0o440, 12345, "", True),  # fsGroup, a group for certificates
    (0o440, 0, "", False),
    (0o444, 12345, "", False),
    (0o460, 12345, "", False),
    (0o444, 12345, "given", True),  # a secret of compose keeps the mode of the host's file
    (0o444, 0, "given", True),  # of Podman, for root in the container
    (0o446, 12345, "given", False),
    (0o444, 12345, "beside", False),
    (0o444, 12345, "..data", True),
])  # fmt: skip
def test_of_a_secret_that_was_handed_over_it_is_said_that_others_may_read_it(
    tmp_path, monkeypatch, told, mode, owner, place, taken
):
    folder = tmp_path / f"{mode}-{owner}-{place}"
    (folder / "given" / "data").mkdir(parents=True)
    (folder / "given" / "..data").symlink_to("data")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder / "given"))
    real = folder / "given" / ("data" if place == "..data" else "") / "pw"
    path = real
    if place == "..data":
        path = folder / "given" / "pw"
        path.symlink_to("..data/pw")
    elif place != "given":
        real = folder / "pw"
        path = folder / "given" / ".." / "pw" if place == "beside" else real
    real.write_text("pw")
    os.chown(real, owner, -1)
    real.chmod(mode)
    if not taken:
        with pytest.raises(ConfigError, match=f"mode {mode:04o} shows the secret to others, expected 0600"):
            read_file(str(path))
        return
    assert read_file(str(path)) == read_file(str(path)) == "pw"
    (said,) = {each for each in told.records if each.getMessage().startswith(f"{path}: ")}  # once
    assert f"mode {mode:04o} shows the secret to others; it is used" in said.getMessage()


def test_a_volume_that_nobody_here_can_change(tmp_path, told):
    """A secret of Kubernetes belongs to root and is 0644, wherever it is mounted, and whoever reads it may be root."""
    (tmp_path / "pw").write_text("pw")
    (tmp_path / "pw").chmod(0o644)
    read = f"from broker.secret import read_file; print(read_file({str(tmp_path / 'pw')!r}))"
    mounts = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}"
    words = f'{mounts} && exec {sys.executable} -c "$0"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", words, read], capture_output=True, text=True, check=False
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("optional: no name spaces for mounts here")
    assert done.stdout == "pw\n", done.stderr
    with pytest.raises(ConfigError, match="mode 0644 shows"):
        read_file(str(tmp_path / "pw"))


def test_what_others_keep_is_used_and_said(tmp_path, told):
    """TLS keys, the token of a command line."""
    (tmp_path / "pw").write_text("pw")
    (tmp_path / "pw").chmod(0o666)
    assert read_file(str(tmp_path / "pw"), refuse=False) == "pw"
    assert "mode 0666 shows the secret" in told.text
