"""Settings on the command line: --set, config check, config show, keygen."""

import json
import stat
import tomllib
from pathlib import Path

import msgspec
import pytest

import gateway.settings
from broker.cli import config, exits, settings_text
from broker.cli.main import main
from broker.errors import ConfigError
from broker.settings import Settings, apply, loads, schema
from broker.transport import curve
from tests.tables import for_each

# ---------------------------------------------------------------- --set


@for_each(
    ("assignment", "section", "key", "value"),
    [
        ("broker.log_level=debug", "broker", "log_level", "debug"),
        ('broker.log_level="debug"', "broker", "log_level", "debug"),
        ("tree.topology=kary:3", "tree", "topology", "kary:3"),
        ("tree.batch=false", "tree", "batch", False),
        ("tree.torpid_max_s=60", "tree", "torpid_max_s", 60.0),
        ('access.admin_users=["a", 7]', "access", "admin_users", ("a", 7)),
        ("limits.routes_max=4", "limits", "routes_max", 4),
        ("broker.attrs.site=north hall", "broker", "attrs", {"site": "north hall"}),
        ("broker.attrs.site=7", "broker", "attrs", {"site": "7"}),
        ("broker.attrs.day=2020-01-01", "broker", "attrs", {"day": "2020-01-01"}),
    ],
)
def test_set(assignment, section, key, value):
    settings = apply(Settings.defaults(), [assignment])
    assert getattr(getattr(settings, section), key) == value


@for_each(
    ("assignment", "said"),
    [
        ("broker.rnak=1", "did you mean rank"),
        ("broker=1", "expected section.key=value"),
        ("broker.rank", "expected section.key=value"),
        ("house.rank=1", "no section 'house'"),
        ("hosts.rank=1", "no section 'hosts'"),
        ("tree.batch=7", "saw 7, expected bool"),
        ("broker.heartbeat_period_s=2020-01-01", "expected float"),
        ("broker.attrs={a=1}", "saw 1, expected str"),
        ("broker.rank.a=1", "saw {.a.: 1}, expected int"),
        ("tree.topology=ring", 'saw .ring., expected "kary:K"'),
        ("broker.log_level=loud", 'expected one of "debug"'),
        ("tree.size=4", "no host with rank 0"),
        ("limits.outbox_high_bytes=999999999", "at most response_cap_bytes"),
    ],
)
def test_set_that_is_wrong(assignment, said):
    with pytest.raises(ConfigError, match=said):
        apply(Settings.defaults(), [assignment])


def test_later_assignments_win():
    settings = apply(Settings.defaults(), ["broker.log_level=debug", "broker.log_level=error"])
    assert settings.broker.log_level == "error"


# ---------------------------------------------------------------- config


def test_check_names_every_fault_with_its_line(rundir, capsys):
    file = rundir / "b.toml"
    file.write_text('[broker]\nrnak = 1\n\n[tree]\nsize = "x"\n')
    assert main(["config", "check", str(file)]) == exits.CONFIG
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert f"{file}:2: broker.rnak" in lines[0]
    assert f"{file}:5: tree.size" in lines[1]


def test_check_of_a_good_file(rundir, capsys):
    file = rundir / "b.toml"
    file.write_text("[broker]\nrank = 0\n")
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: ok, a tree of one, 1 listener(s), 0 CURVE client(s)\n"
    assert main(["config", "check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


LISTEN = '[[listen]]\nuri = "{}"\n'
CLIENT = f'[[clients]]\npublic_key = "{"k" * 40}"\nuserid = 5\n'


@for_each(
    ("text", "said"),
    [
        (
            LISTEN.format("tcp://127.0.0.1:1"),
            "listen[0] tcp://127.0.0.1:1: nobody is ever let in: plaintext",
        ),
        (f'[tree]\ncurve_cert = "c"\n{LISTEN.format("tcp://127.0.0.1:1")}', "there are no [[clients]]"),
        (f'[tree]\ncurve_cert = "c"\n{LISTEN.format("tcp://127.0.0.1:1")}{CLIENT}', ""),
        (LISTEN.format("ipc:///run/x"), ""),
        ('[[listen]]\nurl = "http://127.0.0.1:0"\n', "nobody is ever let in: no [[users]]"),
        (
            '[[users]]\nname = "ann"\nuserid = 5\n[[users]]\nname = "bob"\nuserid = 5\n',
            "userid 5 is shared by 'ann', 'bob' of [[users]]",
        ),
    ],
)
def test_a_door_at_which_nobody_is_let_in_is_a_warning_and_a_userid_that_is_shared(
    text, said, rundir, capsys
):
    file = rundir / "b.toml"
    file.write_text(text)
    assert main(["config", "check", str(file), "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert [said in warning for warning in warnings] == ([True] if said else [])


@for_each(
    ("text", "setting"),
    [
        ('[journal]\nship_to = "s3://b/j?hush"', "journal.ship_to"),
        (
            '[[listen]]\nurl = "http://127.0.0.1:0"\n[jwt]\naudience = "a"\nissuer = "b"\nkeys = ["https://hush@h/"]',
            "jwt.keys[0]",
        ),
        ('[[listen]]\nuri = "ipc:///run/x?a@b"', ""),
    ],
)
def test_what_is_not_shown_is_not_for_others_to_read(text, setting, rundir, capsys):
    file = rundir / "b.toml"
    file.write_text(text)
    file.chmod(0o644)
    assert main(["config", "check", str(file), "--json"]) == 0
    told = [w for w in json.loads(capsys.readouterr().out)["warnings"] if "shows the secret" in w]
    assert [f"the secret in {setting} to others" in each for each in told] == ([True] if setting else [])


GATEWAYS = '[[listen]]\nurl = "http://127.0.0.1:0"\n[[users]]\nname = "ann"\nuserid = 5\n'


def test_a_gateways_file_is_known_by_its_sections(rundir, capsys):
    file = rundir / "g.toml"
    file.write_text(GATEWAYS)
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: ok, a gateway on http://127.0.0.1:0, 1 user(s), 0 rule(s)\n"
    assert main(["config", "show", str(file), "--set", "gateway.workers=3"]) == 0
    assert gateway.settings.loads(capsys.readouterr().out).gateway.workers == 3
    file.write_text(GATEWAYS.replace("userid = 5", "userid = -5"))
    assert main(["config", "check", str(file)]) == exits.CONFIG
    assert f"{file}:5: users[0].userid" in capsys.readouterr().err


@for_each(
    ("text", "gateways"),
    [
        ("", False),
        ("[access]\nallow_owner = true", False),
        ("[tree]\n[gateway]", False),
        ("[jwt]", True),
        ('[[listen]]\nuri = "x"', False),
        ("listen = 3", False),
        ("no toml", False),
    ],
)
def test_whose_file_it_is(rundir, text, gateways):
    file = rundir / "x.toml"
    file.write_text(text)
    assert config.is_gateways(str(file)) is gateways


@pytest.mark.parametrize("flags", [[], ["--brief"]])
def test_what_show_prints_says_the_same(flags, rundir, capsys):
    file = rundir / "b.toml"
    file.write_text(
        '[broker]\nlog_level = "debug"\n[broker.attrs]\n"a b" = "\\"quoted\\" \\\\ café"\n'
        '[[hosts]]\nrank = 0\naddress = "ipc:///tmp/x"\n[[listen]]\nuri = "tcp://127.0.0.1:8051"\n'
    )
    assert main(["config", "show", str(file), *flags]) == 0
    assert loads(capsys.readouterr().out) == loads(file.read_text())


def test_show_marks_what_was_changed(capsys):
    main(["config", "show", "--set", "broker.log_level=debug"])
    text = capsys.readouterr().out
    assert 'log_level = "debug"  # not the default\n' in text
    assert text.count("# not the default") == 1


def test_show_as_json(capsys):
    main(["config", "show", "--json"])
    assert json.loads(capsys.readouterr().out) == json.loads(msgspec.json.encode(Settings.defaults()))


def test_show_explains_sections_that_may_be_given_again(capsys):
    main(["config", "show"])
    text = capsys.readouterr().out
    assert "\n#[[hosts]]\n# The rank this entry is about. Has to be set. (Example.)\n#rank = 0\n" in text
    assert loads(text) == Settings.defaults()


@for_each("kind", ["broker", "gateway"])
def test_a_file_to_begin_with(kind, tmp_path, capsys):
    """It can be used as it stands, and is what stands in deploy/."""
    assert main(["config", "sample", kind]) == 0
    text = capsys.readouterr().out
    assert text == (Path(__file__).parents[3] / "deploy" / f"{kind}.toml").read_text()
    file = tmp_path / "a.toml"
    file.write_text(text)
    assert main(["config", "check", str(file)]) == 0
    capsys.readouterr()


def test_the_gateway_shows_its_settings(tmp_path, capsys):
    assert main(["gateway", "--show", "--set", "gateway.workers=3"]) == 0
    text = capsys.readouterr().out
    assert "\nworkers = 3  # not the default\n" in text
    assert "\n#[[users]]\n" in text
    assert gateway.settings.loads(text).gateway.workers == 3


@for_each("settings", [Settings, gateway.settings.GatewaySettings])
def test_every_setting_has_a_meaning(settings):
    for section in msgspec.structs.fields(settings):
        struct = section.type if isinstance(section.type, type) else section.type.__args__[0]
        for field in msgspec.structs.fields(struct):
            assert settings_text.meaning(struct, field.name), f"{struct.__name__}.{field.name}"
    assert settings_text.meaning(schema.Settings, "nothing") == ""


def test_toml_values_are_toml():
    value = {"a b": [1, 2.5, True, "ü\n"], "c": {}}
    assert tomllib.loads(f"value = {settings_text.toml(value)}")["value"] == value


# ---------------------------------------------------------------- keygen


def test_keygen(rundir, capsys):
    file = rundir / "n.cert"
    assert main(["keygen", str(file), "--name", "node3"]) == 0
    certificate = curve.load(file)
    assert certificate.metadata["name"] == "node3"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert capsys.readouterr().out == f'public_key = "{certificate.public_key}"\n'


def test_keygen_keeps_an_existing_key(rundir, capsys):
    file = rundir / "n.cert"
    file.write_text("precious")
    assert main(["keygen", str(file)]) == exits.CONFIG
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "precious"
    assert main(["keygen", str(file), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["public_key"] == curve.load(file).public_key
