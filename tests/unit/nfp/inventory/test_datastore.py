"""The inventory file: what each worker is given, as deployed NorFab gives it; changes on disk; faults and limits."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.nfp import rendering
from broker.nfp.inventory import Datastore, datastore, reading
from tests.tables import for_each

SAMPLE = Path(__file__).parent / "sample"
ENVIRON = {"NFP_PORT": "5555", "NFP_SHARED_KEY": "k" * 40, "NFP_PASSWORD": "secret: #1"}
DEPLOYED = json.loads((SAMPLE / "deployed.json").read_text())
"""What NorFab 0.25.0 makes of the sample for each of these workers, read anew for each; "whole" is all it shows."""


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str, name: str = "inventory.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat().st_mtime_ns if path.exists() else 0
        path.write_text(text)
        if path.stat().st_mtime_ns == before:
            os.utime(path, ns=(before + 1, before + 1))
        return path

    return _write


def opened(path: Path, clock: Clock | None = None, environ: dict[str, str] | None = None) -> Datastore:
    found = Datastore(path, environ=environ or {}, clock=clock or Clock())
    found.load()
    return found


def fault(path: Path, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Datastore(path, environ=environ).load()
    return str(caught.value)


# -- as deployed ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample() -> Datastore:
    found = Datastore(SAMPLE / "inventory.yaml", environ=ENVIRON)
    found.load()
    return found


@for_each("name", [name for name in DEPLOYED if name != "whole"])
def test_a_worker_is_given_what_norfab_gives_it(sample: Datastore, name: str) -> None:
    seen, expected = sample.get_inventory(name), DEPLOYED[name]
    if expected is not None and "again" in expected and name.startswith("nornir-"):
        # NorFab merges into what an alias shares with its anchor, so that a change to one shows in the other.
        assert expected["again"]["options"] == expected["runner"]["options"]
        expected["again"]["options"]["num_workers"] = 100
    assert seen == expected


def test_all_that_is_shown(sample: Datastore) -> None:
    seen = sample.whole()
    assert seen.pop("logging") == {"handlers": {"terminal": {"level": "CRITICAL"}}}
    assert seen == DEPLOYED["whole"]


def test_answers_are_copies(sample: Datastore) -> None:
    for _ in range(2):
        given = sample.get_inventory("nornir-worker-2")
        assert given is not None
        assert given["tags"] == ["second", "third", "third", "first"]
        given["tags"].append("changed")
        sample.whole()["workers"].clear()
    assert sample.get_inventory("nornir-worker-1") is not None


def test_without_a_file_there_is_nothing_for_anybody() -> None:
    nothing = Datastore(None)
    assert nothing.load()["files"] == 0
    assert nothing.get_inventory("w") is None
    assert nothing.whole()["workers"] == {}


def test_environment_of_this_process_is_the_default(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NFP_TEST_SITE", "lab")
    found = Datastore(write("workers: {'*': [{site: '{{ env.NFP_TEST_SITE }}'}]}"))
    found.load()
    assert found.get_inventory("w") == {"site": "lab"}


def test_what_json_has_not(write: Write) -> None:
    text = (
        "workers: {w: [{7: a, 2.5: b, true: c, null: d, 2026-11-20: e, nan: .nan, bytes: !!binary aGk=, "
        "set: !!set {b, a}, pairs: !!pairs [a: 1]}]}"
    )
    given = opened(write(text)).get_inventory("w")
    assert given == {
        "7": "a",
        "2.5": "b",
        "true": "c",
        "null": "d",
        "2026-11-20": "e",
        "nan": None,
        "bytes": "aGk=",
        "set": ["a", "b"],
        "pairs": [["a", 1]],
    }
    assert json.loads(json.dumps(given)) == given


# -- changes --------------------------------------------------------------------------------------


def test_a_change_is_seen_within_the_interval(write: Write) -> None:
    clock = Clock()
    write("n: 1", "one.yaml")
    found = opened(write("workers: {w: [one.yaml]}"), clock)
    assert found.get_inventory("w") == {"n": 1}
    write("n: 2", "one.yaml")
    found.look()
    assert found.get_inventory("w") == {"n": 1}, "not looked at again so soon"
    clock.now += datastore.CHECK_S
    assert found.get_inventory("w") == {"n": 1}, "answered without a look at files"
    found.look()
    assert found.get_inventory("w") == {"n": 2}
    write("workers: {v: [one.yaml]}")
    clock.now += datastore.CHECK_S
    found.look()
    assert (found.get_inventory("w"), found.get_inventory("v")) == (None, {"n": 2})


def test_only_what_changed_is_read(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    write("n: 1", "one.yaml")
    write("m: 1", "two.yaml")
    found = opened(write("workers: {w: [one.yaml, two.yaml]}"), clock)
    seen: list[str] = []
    real = datastore.read
    monkeypatch.setattr(
        datastore, "read", lambda text, source: (seen.append(source.name), real(text, source))[1]
    )
    write("m: 2", "two.yaml")
    clock.now += 10
    found.look()
    assert found.get_inventory("w") == {"n": 1, "m": 2}
    assert seen == ["two.yaml"]


def test_a_fault_keeps_what_there_was(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    path = write("workers: {w: [{n: 1}]}")
    found = opened(path, clock)
    write("workers: {w: [{n: 2}]\n  v: [")
    with caplog.at_level(logging.ERROR, "headgate"):
        for _ in range(3):
            clock.now += 10
            found.look()
            assert found.get_inventory("w") == {"n": 1}
    assert len(caplog.records) == 1, "said once, not at each look"
    assert f"{path}:2: " in caplog.text
    assert found.problem in caplog.text
    with pytest.raises(ConfigError, match=r"inventory.yaml:2: "):
        found.load()
    write("workers: {w: [{n: 3}]}")
    clock.now += 10
    found.look()
    assert found.get_inventory("w") == {"n": 3}
    assert found.problem == ""


def test_a_file_that_appears_heals(write: Write) -> None:
    clock = Clock()
    found = opened(write("workers: {}"), clock)
    write("workers: {w: [late.yaml]}")
    clock.now += 10
    found.look()
    assert found.get_inventory("w") is None
    assert "'late.yaml' cannot be read" in found.problem
    write("n: 1", "late.yaml")
    clock.now += 10
    found.look()
    assert found.get_inventory("w") == {"n": 1}


def test_loading_on_demand_does_not_wait_for_the_interval(write: Write) -> None:
    path = write("workers: {w: [{n: 1}]}")
    found = opened(path)
    write("workers: {w: [{n: 2}]}")
    told = found.load()
    assert told == {"file": "inventory.yaml", "patterns": 1, "files": 0, "notes": []}
    assert found.get_inventory("w") == {"n": 2}


# -- faults ---------------------------------------------------------------------------------------


def test_no_such_file(tmp_path: Path) -> None:
    assert (
        fault(tmp_path / "nowhere.yaml")
        == f"{tmp_path}/nowhere.yaml cannot be read: No such file or directory"
    )


@for_each(
    ("text", "said"),
    [
        ("- a", ":1: saw of type list, expected a mapping"),
        ("a: 1\nworkers: [x]", ":2: workers is no mapping"),
        ("workers:\n  w: one.yaml", ":2: 'w' has no list"),
        (
            "workers:\n  w:\n    - a.yaml\n    - 7",
            ":4: an entry of 'w' is neither a file's name nor a mapping",
        ),
        ("workers:\n  w:\n    - {}\n    - gone.yaml", ":4: 'gone.yaml' cannot be read: No such file"),
        ("workers:\n  w: [.]", ":2: '.' cannot be read: Is a directory"),
        (
            "workers:\n  w: [../x.yaml]",
            ":2: '../x.yaml' is outside, expected a file in the inventory's folder",
        ),
        ("workers:\n  w: [/etc/hostname]", ":2: '/etc/hostname' is outside"),
        ('workers:\n  w: ["a\\0b"]', ":2: 'a\\x00b' has a NUL"),
        ("a: 1\nb: [", ":2: "),
        ("a: 1\nb: \x07", ":2: control characters are not allowed"),
        ("a: !!python/object/apply:os.system [id]", ":1: could not determine a constructor"),
        ("a: 1\nb: 2026-13-45", ":2: month must be in 1..12"),
        ("a: 1\nb: 9223372036854775808", ":2: a number of 64 bits, expected at most 63"),
        ("a: 1\n? [1, 2]\n: 3", ":2: found unhashable key"),
        ("a: 1\n? !!binary aGk=\n: 3\n? !!timestamp 2026-13-45\n: 4", ":4: month must be in 1..12"),
        ("a: 1\n---\nb: 2", ":2: but found another document"),
        ("a: &a [*a]", ":1: an alias inside of what it stands for"),
        ("a: &a {<<: *a}", ":1: an alias inside of what it stands for"),
        ("a: {{ env.X", ":1: "),
        ("a: 1\nb: {{ 1 / 0 }}", ":2: rendering: ZeroDivisionError"),
        ("{% if x %}\na: 1\n", ":1: Unexpected end of template"),
        ("{% include 'other.yaml' %}", ":1: rendering: TypeError: no loader"),
        ("a: 1\n{# {{ #}b: [", ":2: "),
    ],
)
def test_faults_name_file_and_line(write: Write, text: str, said: str) -> None:
    path = write(text)
    assert f"{path}{said}" in fault(path)


def test_a_fault_in_a_file_of_a_worker(write: Write) -> None:
    path = write("workers: {w: [site/one.yaml]}")
    write("a: 1\nb: {{ env.NAME }}: c", "site/one.yaml")
    assert fault(path, NAME="x: y").startswith("site/one.yaml:2: mapping values are not allowed")
    assert fault(path, NAME="x: y").endswith("(line after rendering)")


def test_links_out_of_the_folder_are_not_followed(write: Write, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside.yaml"
    outside.write_text("secret: 1")
    path = write("workers: {w: [inner/link.yaml]}", "inventory/inventory.yaml")
    link = path.parent / "inner" / "link.yaml"
    link.parent.mkdir()
    link.symlink_to(outside)
    assert "'inner/link.yaml' is outside" in fault(path)
    link.unlink()
    (path.parent / "real.yaml").write_text("n: 1")
    link.symlink_to("../real.yaml")
    assert opened(path).get_inventory("w") == {"n": 1}


def test_a_pipe_does_not_stop_the_broker(write: Write, tmp_path: Path) -> None:
    path = write("workers: {w: [pipe.yaml]}")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "'pipe.yaml' is no regular file" in fault(path)


def test_bytes_that_are_no_text(write: Write, tmp_path: Path) -> None:
    path = write("workers: {w: [one.yaml]}")
    (tmp_path / "one.yaml").write_bytes(b"a: \xff")
    assert "'one.yaml' is not UTF-8 at byte 3" in fault(path)


def test_double_keys_are_told_and_the_last_counts(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write("workers:\n  w:\n  - hosts:\n      a: 1\n      b: 2\n      a: 3\n")
    with caplog.at_level(logging.WARNING, "headgate"):
        found = opened(path)
    assert f"{path}:6: 'a' again, first in line 4: the last one counts" in caplog.text
    assert found.get_inventory("w") == {"hosts": {"a": 3, "b": 2}}


def test_a_long_number_is_a_key_and_no_value(write: Write) -> None:
    number = 10**25
    found = opened(write(f"workers:\n  w:\n  - {number}: serial"))
    assert found.get_inventory("w") == {str(number): "serial"}
    assert ":3: a number of 84 bits, expected at most 63" in fault(
        write(f"workers:\n  w:\n  - serial: {number}")
    )


# -- limits ---------------------------------------------------------------------------------------


def test_a_bomb_of_aliases(write: Write) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert f"more than {reading.NODES_MAX} values" in fault(write("\n".join(lines)))


def test_a_bomb_of_merge_keys(write: Write) -> None:
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    assert f"more than {reading.NODES_MAX} values" in fault(write("\n".join(lines)))


def test_a_long_text_many_times(write: Write) -> None:
    text = f"a: &a {'x' * 200_000}\nb: [{', '.join(['*a'] * 400)}]"
    assert f"{reading.CHARS_MAX} characters, aliases followed" in fault(write(text))


@for_each("opening", ["[", "[a, ", "{a: ", "- ", "? "])
@for_each("times", [reading.DEPTH_MAX, 999, 1000, 100_000])
def test_depth(write: Write, opening: str, times: int) -> None:
    """Ours is the limit that is told, whatever the YAML library's own is."""
    closing = {"[": "]", "{": "}"}.get(opening[0], "")
    text = f"a:\n  {opening * times}x{closing * times}"
    assert f":2: nested deeper than {reading.DEPTH_MAX}" in fault(write(text))


def test_depth_by_aliases(write: Write) -> None:
    chain = "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 2000))
    assert f"nested deeper than {reading.DEPTH_MAX}" in fault(write(f"a0: &a0 []\n{chain}"))
    short = "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 50))
    opened(write(f"a0: &a0 []\n{short}"))


@for_each(
    "text",
    [
        "a: {{ 'x' * 10**9 }}",
        "a: {{ 10**9 * 'x' }}",
        "a: {{ [1] * 10**9 }}",
        "a: {{ 9**9**9 }}",
        "{% for a in range(10**9) %}{% endfor %}",
        "{% for a in range(9999) %}{% for b in range(9999) %}# xxxxxxxxxxxxxxxx\n{% endfor %}{% endfor %}",
        "a: {{ env.__class__.__mro__ }}{{ ().__class__.__base__.__subclasses__() }}",
        "a: {{ env.clear() }}",
    ],
)
def test_templates_are_confined(write: Write, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "RENDERED_CHARS_MAX", 1 << 20)
    assert "render" in fault(write(text), NAME="value")


def test_files_are_limited(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datastore, "FILES_MAX", 2)
    monkeypatch.setattr(datastore, "FILE_BYTES_MAX", 64)
    for name in ("a", "b", "c"):
        write("n: 1", f"{name}.yaml")
    assert ":1: more than 2 files" in fault(write("workers: {w: [a.yaml, b.yaml, c.yaml]}"))
    write("#" * 65, "a.yaml")
    assert "'a.yaml' is larger than 64 bytes" in fault(write("workers: {w: [a.yaml]}"))


def test_users_see_the_whole_without_its_secrets(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(
        "workers: {w1: [{service: nornir, password: word, url: 'http://u:p@h/'}]}\nbroker: {token: t}"
    )
    datastore = Datastore(path, environ={})
    datastore.load()
    shown = datastore.whole(redacted=True)
    assert shown["workers"] == {"w1": [{"service": "nornir", "password": "***", "url": "http://***@h/"}]}
    assert shown["broker"] == {"token": "***"}
    assert datastore.whole()["broker"] == {"token": "t"}
