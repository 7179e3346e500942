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
