"""`[journal]`: read, rooted, held against its rules; set from the command line and shown; what the recorder is told."""

import os

import msgspec
import pytest

from broker.cli import config, settings_text
from broker.errors import ConfigError
from broker.journal.options import JournalOptions
from broker.settings import JournalSection, Settings, apply, check, load, load_journal, loads
from tests.tables import for_each
from tests.unit.configuration import refusal


def test_it_is_off_until_somebody_turns_it_on():
    assert loads("").journal == JournalSection()
    assert not JournalSection().enabled


def test_the_folder_survives_restarts(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/var/somewhere")
    assert JournalSection().directory == "/var/somewhere/headgate/journal"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert JournalSection().directory == "/home/ada/.local/state/headgate/journal"


def test_everything_is_read():
    section = loads(
        """
        [journal]
        enabled = true
        directory = "/srv/journal"
        capture = "both"
        payload = false
        codec = "zstd"
        rotate_bytes = 65536
        rotate_s = 5
        sync = "interval"
        sync_s = 0.5
        keep_bytes = 1000000
        keep_s = 3600
        queue_bytes = 131072
        block_s = 0.05
        """
    ).journal
    assert section == JournalSection(
        enabled=True,
        directory="/srv/journal",
        capture="both",
        payload=False,
        codec="zstd",
        rotate_bytes=65536,
        rotate_s=5.0,
        sync="interval",
        sync_s=0.5,
        keep_bytes=1_000_000,
        keep_s=3600.0,
        queue_bytes=131072,
        block_s=0.05,
    )
    assert check(Settings(journal=section)).journal == section


def test_the_recorder_is_told_all_of_it():
    section = JournalSection(capture="both", payload=False, codec="lz4", sync="block", keep_s=900.0)
    options = JournalOptions(writer="rank3", rank=3, **section.options())
    for field in msgspec.structs.fields(section):
        if field.name != "enabled":
            assert getattr(options, field.name) == getattr(section, field.name)


def test_defaults_are_those_of_the_recorder():
    """A journal that is made without a configuration is like one that is made with an empty one."""
    assert JournalOptions(writer="rank0", **JournalSection().options()) == JournalOptions(
        writer="rank0", directory=JournalSection().directory
    )


def test_a_relative_folder_starts_at_the_file(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text('[journal]\nenabled = true\ndirectory = "journal"\n')
    assert load(file).journal.directory == str(tmp_path / "journal")
    assert load_journal(file).enabled


def test_a_folder_of_the_command_line_starts_where_it_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert JournalSection(capture="both").at("here") == JournalSection(
        enabled=True, directory=str(tmp_path / "here"), capture="both"
    )
    given = apply(Settings.defaults(), ["journal.directory=there", "journal.enabled=true"])
    assert given.journal.directory == str(tmp_path / "there")
    assert given.journal.enabled


@for_each(
    ("text", "expected"),
    [
        ("captre = 'in'", "f:2: journal.captre: saw an unknown key"),
        ("capture = 'out'", 'f:2: journal.capture: saw \'out\', expected one of "in", "both"'),
        ("codec = 'gzip'", 'expected one of "none", "zstd", "lz4"'),
        ("directory = ''", "f:2: journal.directory: saw '', expected str of length >= 1"),
        ("rotate_bytes = 1000", "f:2: journal.rotate_bytes: saw 1000, expected int >= 65536"),
        ("rotate_s = 0", "f:2: journal.rotate_s: saw 0, expected float >= 1"),
        ("queue_bytes = 1", "f:2: journal.queue_bytes: saw 1, expected int >= 65536"),
        ("block_s = 0", "f:2: journal.block_s: saw 0, expected float >= 0.01"),
        ("sync = 'always'", 'expected one of "none", "interval", "block"'),
        ("enabled = 1", "f:2: journal.enabled: saw 1, expected bool"),
        (
            "keep_bytes = 1000",
            "f:2: journal.keep_bytes: saw '1000', expected 0 for all, or at least rotate_bytes",
        ),
        ("keep_s = 60", "f:2: journal.keep_s: saw '60.0', expected 0 for all, or at least rotate_s, 600"),
        (
            "ship_to = '/mnt/j'",
            "f:2: journal.ship_to: saw '/mnt/j', expected a URL such as s3://bucket/folder",
        ),
        ("rotate_s = 2\nblock_s = 3", "f:2: journal.rotate_s: saw '2.0', expected at least block_s, 3"),
    ],
)
def test_wrong_lines(text, expected):
    lines = refusal(f"[journal]\n{text}")
    assert any(expected in line for line in lines), lines


def test_set_that_is_wrong():
    with pytest.raises(ConfigError, match="did you mean capture"):
        apply(Settings.defaults(), ["journal.captur=in"])


def test_it_is_shown(tmp_path):
    settings = Settings(journal=JournalSection().at(str(tmp_path)))
    lines = list(settings_text.lines(settings, explain=True))
    assert f'directory = "{tmp_path}"  # not the default' in lines
    assert loads("\n".join(lines)) == settings
    assert config.facts(settings)["journal"] == str(tmp_path)
    assert config.summary(settings).endswith(f", journal in {tmp_path}")
    assert "journal" not in config.summary(Settings.defaults())
    assert os.path.isabs(config.facts(settings)["journal"])
