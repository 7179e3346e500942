"""Files that the broker makes for itself and its owner."""

import os
import stat

import pytest

from broker.errors import ConfigError
from broker.nfp.server.broker import dispatch_config
from broker.nfp.server.names import access_of, prepare
from broker.settings.nfp import KeyEntry, TaskEntry
from broker.transport import curve
from tests.live.nfp import section


def test_keys_are_made_once_and_kept(rundir):
    first, second = prepare(section(rundir)), prepare(section(rundir))
    base = rundir / "nfp"
    assert first == second
    assert stat.S_IMODE(os.stat(base).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(base / "owner.key_secret").st_mode) == 0o600
    assert curve.load_public(base / "broker.key").public_key == first.broker.public_key
    assert curve.load_public(base / "owner.key").secret_key is None


def test_a_certificate_of_ones_own(rundir):
    mine = curve.generate()
    curve.save(mine, rundir / "mine.cert")
    keys = prepare(section(rundir, key_secret=str(rundir / "mine.cert")))
    assert keys.broker.public_key == mine.public_key
    assert curve.load_public(rundir / "nfp" / "broker.key").public_key == mine.public_key
    with pytest.raises(ConfigError, match="absent"):
        prepare(section(rundir, key_secret=str(rundir / "absent.cert")))


def test_another_certificate_replaces_the_public_one(rundir):
    prepare(section(rundir))
    os.unlink(rundir / "nfp" / "broker.key_secret")
    keys = prepare(section(rundir))
    assert curve.load_public(rundir / "nfp" / "broker.key").public_key == keys.broker.public_key


def test_plaintext_needs_none(rundir):
    assert prepare(section(rundir, curve=False)) == (None, None)
    assert os.listdir(rundir / "nfp") == []


def test_a_base_directory_that_cannot_be(rundir):
    (rundir / "nfp").write_text("a file")
    with pytest.raises(ConfigError, match="base directory"):
        prepare(section(rundir))


def test_the_owner_is_listed_and_so_are_the_keys_of_the_settings(rundir):
    worker = curve.generate().public_key
    settings = section(rundir, unlisted="deny", keys=[{"key": worker, "services": ["svc*"], "userid": 7}])
    assert isinstance(settings.keys[0], KeyEntry)
    keys = prepare(settings)
    access = access_of(settings, keys)
    assert access.principal_of(keys.owner.public_key, "x").owner
    assert access.principal_of(worker, "x").holder == "uid:7"
    assert access.may_offer(access.principal_of(worker, "x"), "svc1")
    assert access.principal_of(curve.generate().public_key, "x") is None


def test_settings_reach_the_dispatcher(rundir):
    settings = section(
        rundir,
        keepalive_ms=500,
        credits=3,
        queue_max=7,
        queue_per_client=5,
        tasks=[{"service": "a", "task": "b", "idempotent": False}],
    )
    assert isinstance(settings.tasks[0], TaskEntry)
    config = dispatch_config(settings)
    assert (config.keepalive_s, config.credits, config.queue_max, config.queue_per_client) == (0.5, 3, 7, 5)
    assert access_of(settings, prepare(settings)).idempotent("a", "b") is False
