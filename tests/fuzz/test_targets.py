"""The entry points of fuzzers: seeds and what is kept are replayed, each is fuzzed for a moment, and none is vacuous.

More of it: ``python -m tests.fuzz all --seconds 60``; ``make soak`` runs each for longer.
"""

import gc
import os
import re
from pathlib import Path

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import campaign
from tests.fuzz.entries.packing import pack, unpack
from tests.fuzz.targets import CORPUS, CORPUS_BYTES_MAX, FOUND, INPUT_BYTES_MAX, TARGETS, Target, file_name

RUNS = int(os.environ.get("HEADGATE_FUZZ_RUNS", "100"))
"""Mutations of each target's seeds."""
SOAK_RUNS = 20_000
SEED = int(os.environ.get("HEADGATE_FUZZ_SEED", "0"))
SLOW = {"journal": 10, "overlay": 20, "tls": 5}
"""Target -> so many times fewer inputs."""
ROOT = Path(__file__).parents[2]

ENTRIES = {
    "broker/journal/reading/columns.py": "journal",
    "broker/nfp/frames.py": "nfp-frames",
    "broker/oslo/directory/state.py": "directory",
    "broker/oslo/directory/wire.py": "directory",
    "broker/oslo/driver/serialization.py": "oslo-bodies",
    "broker/oslo/frames.py": "oslo-frames",
    "broker/nesting.py": "payload",
    "broker/services/idset.py": "texts",
    "broker/settings/reading.py": "broker-toml",
    "broker/transport/curve.py": "curve",
    "broker/z85.py": "curve",
    "broker/transport/handshaking.py": "zmtp",
    "broker/transport/tls/layer.py": "tls",
    "broker/transport/websocket/codec.py": "websocket-dialer",
    "broker/transport/zeromq/codec.py": "batch",
    "broker/transport/byte_stream.py": "framing",
    "broker/transport/codec.py": "framing",
    "broker/transport/zeromq/connection.py": "zmtp",
    "broker/transport/zeromq/frames.py": "zmtp",
    "broker/wire/decoding.py": "message",
    "broker/wire/dialects.py": "dialects",
    "broker/wire/framing.py": "framing",
    "gateway/codecs/binary.py": "flux-v1",
    "gateway/codecs/contract.py": "flux-v1",
    "gateway/codecs/control.py": "control",
    "gateway/codecs/jsonview.py": "json-view",
    "gateway/codecs/zws.py": "zws",
    "gateway/identity/keys.py": "keys",
    "gateway/identity/proxyheader.py": "proxy-header",
    "gateway/settings/reading.py": "gateway-toml",
    "gateway/websocket/codec.py": "websocket",
    "gateway/websocket/reader.py": "websocket",
}
"""Files that turn bytes of others into something -> the target that reaches them."""
OWN_FILES = {"gateway/pipeline/warehouse.py"}
"""They read back what this house wrote into its own folders."""
READERS = {
    "decode",
    "decoded",
    "decode_large",
    "feed",
    "from_parts",
    "loads",
    "_decode_into",
    "parse_document",
    "parse_pem",
}
"""What such functions are called in this house."""


@pytest.fixture(params=TARGETS)
def target(request) -> Target:
    found = TARGETS[request.param]
    if found.name == "oslo-bodies":
        pytest.importorskip("oslo_messaging", reason="optional: oslo.messaging is not installed")
    yield found
    found.close()


def test_seeds_are_read_and_a_moment_of_fuzzing_finds_nothing(target):
    read = [target.entry(data) for data in target.corpus()]
    assert any(read), "an entry that refuses all its seeds tests nothing"
    assert not all(read) or not target.entry(b"\xff" * 40), "an entry that takes everything refuses nothing"
    runs = len(read) + RUNS // SLOW.get(target.name, 1)  # seeds are tried first
    outcome = campaign.run(target, runs=runs, seed=SEED)
    assert not outcome.findings, f"{outcome.findings[0].what}: {outcome.findings[0].data[:400].hex()}\n" + (
        outcome.findings[0].trace
    )
    assert 0 < outcome.read < outcome.inputs


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_longer_time_of_fuzzing_finds_nothing(target):
    outcome = campaign.run(target, runs=SOAK_RUNS // SLOW.get(target.name, 1), seed=SEED + 1)
    assert not outcome.findings, f"{outcome.findings[0].what}: {outcome.findings[0].data[:400].hex()}"


def test_every_decoder_has_an_entry():
    found = set()
    for path in [*ROOT.glob("broker/**/*.py"), *ROOT.glob("gateway/**/*.py")]:
        if READERS & set(re.findall(r"^ *def (\w+)", path.read_text(), re.MULTILINE)):
            found.add(str(path.relative_to(ROOT)))
    assert found - OWN_FILES == set(ENTRIES), (
        "a new decoder needs an entry in tests/fuzz/entries, and its line in ENTRIES"
    )
    assert set(ENTRIES.values()) <= set(TARGETS)


def test_the_corpus_is_small_and_belongs_to_targets():
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < CORPUS_BYTES_MAX
    for path in files:
        data = path.read_bytes()
        assert path.parent.name in TARGETS
        assert path.name in (file_name(data), file_name(data, FOUND)), (
            f"{path} is not called after what it holds"
        )
        assert len(data) <= INPUT_BYTES_MAX


def test_frames_in_one_string():
    frames = [b"", b"a", b"x" * 254, b"y" * 255, b"z" * 3000]
    assert unpack(pack(frames)) == frames
    assert unpack(b"\x05ab") == [b"ab"]
    assert unpack(b"\xff") == [b""]


# ---------------------------------------------------------------- the fuzzer finds what there is to find


def planted(data: bytes) -> bool:
    """Refuses most, and fails where three conditions meet, one line behind the other."""
    if not data.startswith(b"{"):
        return False
    if b"]" in data and data.count(b",") > 2:
        raise KeyError("planted")
    return True


def test_a_planted_fault_is_found_made_small_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(TARGETS, "planted", Target("planted", planted, lambda: [b'{"a":1}', b"[1,2]"]))
    words = [
        "planted",
        "--engine",
        "own",
        "--runs",
        "6000",
        "--seconds",
        "0",
        "--out",
        str(tmp_path),
        "--seed",
        "3",
    ]
    assert command.main(words) == 1
    (kept,) = (tmp_path / "planted").iterdir()
    assert kept.name.startswith(FOUND)
    assert sorted(kept.read_bytes()) == sorted(b"{,,,]")
    assert "KeyError at test_targets.py" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["slow", "large"])
def test_inputs_that_take_too_long_or_too_much_are_findings(name, monkeypatch):
    held = []

    def entry(data: bytes) -> bool:
        while name == "slow" and data:
            held.append(1) if not held else None
        if data:
            held.append(bytearray(192 << 20))
        return True

    monkeypatch.setattr(campaign, "HANG_S", 0.05 if name == "slow" else 30.0)
    monkeypatch.setattr(campaign, "GROWTH_KIB", 8 << 10)
    monkeypatch.setattr(campaign, "SHRINK_TRIES", 2)
    # growth is that of the peak: tests before may have made it high, or have left what is freed while we grow
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    outcome = campaign.run(Target(name, entry, lambda: [b"x"]), runs=1)
    assert [finding.what.split()[0] for finding in outcome.findings] == [f"{name.capitalize()}Error"]


def test_pruning_keeps_what_reaches_more(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "CORPUS", tmp_path)
    folder = tmp_path / "json-view"
    folder.mkdir()
    wanted = b'{"type":"event","topic":"a","sequence":7,"routes":["3132"],"flags":["upstream"]}'
    for data, prefix in ((b"{", ""), (b"{{", ""), (wanted, ""), (b"[]", FOUND)):
        (folder / file_name(data, prefix)).write_bytes(data)
    seeds = [b'{"type":"ping"}', b"[]", b"{{{"]
    target = TARGETS["json-view"]._replace(seeds=lambda: seeds)
    monkeypatch.setitem(TARGETS, "json-view", target)
    assert command.main(["json-view", "--prune"]) == 0
    assert {path.read_bytes() for path in folder.iterdir()} == {wanted, b"[]"}
    assert capsys.readouterr().out.split() == ["json-view", "1", "files"]


def test_campaigns_of_one_seed_are_the_same():
    def tried(seed: int) -> list[bytes]:
        inputs: list[bytes] = []
        campaign.run(
            Target("tried", lambda data: not inputs.append(data), lambda: [b'{"a":1}']), runs=100, seed=seed
        )
        return inputs

    assert tried(5) == tried(5)
    assert tried(6) != tried(5)
