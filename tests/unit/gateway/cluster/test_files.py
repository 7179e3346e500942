import os
import stat

import pytest

from broker.errors import ConfigError
from broker.settings import NfpSection, OsloSection, load_wing
from broker.settings import load as load_broker
from broker.transport import curve
from gateway.cluster.files import MARK, OPERATOR, write
from gateway.cluster.shape import Shape
from gateway.identity.tokens import TokenFile
from gateway.settings import load as load_gateway

EVERYTHING = Shape("t", 3, nfp=True, oslo=True)


def files_in(folder):
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def test_each_rank_finds_its_own_key_and_those_of_all_others(tmp_path):
    written = write(Shape("t", 4, host_pattern="hg-{rank}.tree"), tmp_path / "keys")
    settings = load_broker(tmp_path / "keys" / "broker.toml")
    assert settings.size == 4
    assert settings.tree.topology == "kary:2"
    for rank in range(4):
        own = settings.at_rank(rank)
        certificate = curve.load(own.tree.curve_cert)
        assert certificate.public_key == settings.host(rank).public_key == written.keys[f"rank-{rank}.cert"]
        assert settings.host(rank).address == f"tcp://hg-{rank}.tree:8050"
        assert settings.host(rank).bind == "tcp://*:8050"
        assert settings.at_rank(hostname=f"hg-{rank}").broker.rank == rank
    assert len({host.public_key for host in settings.hosts}) == 4


def test_gateway_nfp_and_oslo_are_owners_by_keys_of_their_own(tmp_path):
    write(EVERYTHING, tmp_path, userid=10001)
    settings = load_broker(tmp_path / "broker.toml")
    assert [entry.uri for entry in settings.listen] == ["tcp://*:8051"]
    listed = {client.name: client for client in settings.clients}
    assert set(listed) == {"gateway", "nfp", "oslo"}
    for name, client in listed.items():
        assert client.public_key == curve.load(tmp_path / f"{name}.cert").public_key
        assert (client.userid, client.roles) == (10001, ("owner",))


def test_the_gateway_dials_rank_0_with_its_key(tmp_path):
    written = write(Shape("t", 2), tmp_path)
    settings = load_gateway(tmp_path / "gateway.toml")
    assert settings.gateway.upstream == "tcp://broker-0:8051"
    assert settings.gateway.upstream_cert == str(tmp_path / "gateway.cert")
    assert curve.load_public(settings.gateway.upstream_key).public_key == written.keys["rank-0.cert"]
    assert settings.tokens.file == str(tmp_path / "tokens.json")
    assert [(user.name, user.roles) for user in settings.users] == [(OPERATOR, ("owner",))]


def test_the_token_is_the_operators_and_only_its_hash_is_kept(tmp_path):
    written = write(Shape("t", 1), tmp_path)
    assert TokenFile(tmp_path / "tokens.json").check(written.token, 0.0).user == OPERATOR
    secret = written.token.split("_", 2)[2]  # which may hold a _ itself
    assert all(secret.encode() not in path.read_bytes() for path in files_in(tmp_path).values())


def test_wings_have_settings_and_keys(tmp_path):
    write(EVERYTHING, tmp_path)
    nfp = load_wing(NfpSection, tmp_path / "nfp.toml")
    assert (
        curve.load(nfp.key_secret).public_key == curve.load_public(tmp_path / "nfp" / "broker.key").public_key
    )
    oslo = load_wing(OsloSection, tmp_path / "oslo.toml")
    assert curve.load(oslo.curve_cert).secret_key


def test_nothing_is_written_that_the_shape_does_not_have(tmp_path):
    write(Shape("t", 1, gateway=False, client_port=0), tmp_path)
    assert set(files_in(tmp_path)) == {"broker.toml", "rank-0.cert", "rank-0.pub"}
    settings = load_broker(tmp_path / "broker.toml")
    assert settings.listen == settings.clients == ()


def test_secrets_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        write(EVERYTHING, tmp_path / "a" / "keys")
    finally:
        os.umask(before)
    folder = tmp_path / "a" / "keys"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "nfp").stat().st_mode) == 0o700
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in files_in(folder).items()}
    secret = {name for name, path in files_in(folder).items() if b"secret-key" in path.read_bytes()}
    assert len(secret) == 7
    assert {modes[name] for name in secret} == {0o600}
    assert modes["tokens.json"] == 0o600
    assert modes["broker.toml"] == 0o644


def test_an_open_folder_of_ours_is_closed(tmp_path):
    folder = tmp_path / "volume"
    folder.mkdir(mode=0o755)
    write(Shape("t", 1), folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_second_call_changes_nothing(tmp_path):
    write(EVERYTHING, tmp_path)
    before = {name: path.read_bytes() for name, path in files_in(tmp_path).items()}
    again = write(EVERYTHING, tmp_path)
    assert again.made == ()
    assert again.token == ""
    assert {name: path.read_bytes() for name, path in files_in(tmp_path).items()} == before
    assert set(again.kept) >= {"broker.toml", "gateway.toml", "rank-0.cert", "tokens.json"}


def test_a_larger_size_adds_ranks_and_keeps_every_key(tmp_path):
    first = write(Shape("t", 2), tmp_path)
    second = write(Shape("t", 4), tmp_path)
    assert set(second.made) == {"rank-2.cert", "rank-2.pub", "rank-3.cert", "rank-3.pub", "broker.toml"}
    assert all(second.keys[name] == key for name, key in first.keys.items())
    assert load_broker(tmp_path / "broker.toml").size == 4


def test_settings_above_the_mark_are_their_writers(tmp_path):
    write(Shape("t", 2), tmp_path)
    file = tmp_path / "broker.toml"
    head, mark, below = file.read_text().partition(MARK)
    file.write_text(f'{head}[broker]\nlog_level = "debug"\n\n{mark}{below}')
    write(Shape("t", 3), tmp_path)
    settings = load_broker(file)
    assert (settings.broker.log_level, settings.size) == ("debug", 3)
    assert write(Shape("t", 3), tmp_path).made == ()


def test_other_settings_of_the_gateway_stay(tmp_path):
    write(Shape("t", 2), tmp_path)
    file = tmp_path / "gateway.toml"
    file.write_text(file.read_text() + "\n[limits]\nping_s = 10.0\n")
    write(Shape("t", 3), tmp_path)
    assert load_gateway(file).limits.ping_s == 10


def test_renew_replaces_every_key(tmp_path):
    first = write(EVERYTHING, tmp_path)
    second = write(EVERYTHING, tmp_path, renew=True)
    assert set(second.keys) == set(first.keys)
    assert not set(second.keys.values()) & set(first.keys.values())
    tokens = TokenFile(tmp_path / "tokens.json")
    assert tokens.check(second.token, 0.0).user == OPERATOR
    assert len(tokens.entries()) == 1
    public = curve.load_public(tmp_path / "nfp" / "broker.key").public_key
    assert public == second.keys["nfp/broker.key_secret"]


def test_addresses_of_the_caller_go_before_names(tmp_path):
    write(
        Shape("t", 3),
        tmp_path,
        addresses={0: "tcp://10.0.0.1:8050", 1: "ipc:///run/x/tree-1"},
        binds={1: "ipc:///run/x/rank-1"},
    )
    hosts = load_broker(tmp_path / "broker.toml").hosts
    assert [(host.address, host.bind) for host in hosts] == [
        ("tcp://10.0.0.1:8050", None),
        ("ipc:///run/x/tree-1", "ipc:///run/x/rank-1"),
        ("tcp://broker-2:8050", "tcp://*:8050"),
    ]


def test_wrong_settings_of_the_reader_are_told_and_nothing_is_lost(tmp_path):
    write(Shape("t", 2), tmp_path)
    file = tmp_path / "broker.toml"
    wrong = "[broker]\nrank = -1\n" + file.read_text()
    file.write_text(wrong)
    with pytest.raises(ConfigError, match=r"broker\.toml:2: broker\.rank"):
        write(Shape("t", 3), tmp_path)
    assert file.read_text() == wrong


def test_a_certificate_that_others_can_read_is_refused(tmp_path):
    write(Shape("t", 2), tmp_path)
    (tmp_path / "rank-1.cert").chmod(0o644)
    with pytest.raises(ConfigError, match="0644"):
        write(Shape("t", 2), tmp_path)


def test_a_folder_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        write(Shape("t", 2), tmp_path / "file")


def test_no_half_of_a_file_is_left(tmp_path):
    write(EVERYTHING, tmp_path)
    assert [name for name in files_in(tmp_path) if name.split("/")[-1].startswith(".")] == []


def test_a_folder_that_is_in_use_keeps_its_mode(tmp_path):
    """`init` in somebody's folder, be it /tmp or /etc, closes it to nobody."""
    for name in ("new", "used"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o1777)
    (tmp_path / "used" / "other").write_text("")
    for name in ("new", "used"):
        write(Shape("t", 1), tmp_path / name)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "used").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "used" / "rank-0.cert").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "used" / "tokens.json").stat().st_mode) == 0o600
