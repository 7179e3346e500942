"""The tools of oslo.config see the driver's options."""

import subprocess
import sys
from pathlib import Path

import pytest
from oslo_config import cfg

from broker.oslo.driver import options
from tests.tables import for_each

NAMESPACE = "headgate.oslo"


def tool(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """One of oslo.config's programs, as installed beside this interpreter."""
    program = Path(sys.executable).with_name(name)
    return subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, timeout=50, check=False
    )


def test_the_generator_writes_every_option_with_its_help(tmp_path: Path) -> None:
    sample = tmp_path / "sample.conf"
    done = tool("oslo-config-generator", "--namespace", NAMESPACE, "--output-file", sample)
    assert done.returncode == 0, done.stderr
    text = sample.read_text()
    assert f"[{options.GROUP}]" in text
    for option in options.OPTIONS:
        assert f"\n#{option.name} =" in text, option.name
        assert option.help
        assert option.help.split()[0] in text
    assert str(Path.home()) not in text


@pytest.mark.parametrize(
    ("line", "good"),
    [pytest.param("zmq_linger = 3", True, marks=pytest.mark.patient), ("zmq_lingers = 3", False)],
)
def test_the_validator_knows_the_options(tmp_path: Path, line: str, good: bool) -> None:
    file = tmp_path / "service.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = zmq://h1\n[{options.GROUP}]\n{line}\n")
    done = tool(
        "oslo-config-validator",
        "--input-file",
        file,
        "--namespace",
        NAMESPACE,
        "--namespace",
        "oslo.messaging",
    )
    assert (done.returncode == 0) is good, done.stdout + done.stderr
    assert ("zmq_lingers" in done.stdout + done.stderr) is not good


def test_a_file_sets_them(tmp_path: Path) -> None:
    file = tmp_path / "service.conf"
    file.write_text(f"[{options.GROUP}]\nfanout_ds_address = d1, d2:1\nzmq_tcp_keepalive_idle = 7\n")
    conf = cfg.ConfigOpts()
    options.register(conf)
    options.register(conf)
    conf(["--config-file", str(file)], project="headgate-test", default_config_dirs=[])
    assert conf.oslo_messaging_zmq.fanout_ds_address == ["d1", "d2:1"]
    assert conf.oslo_messaging_zmq.zmq_tcp_keepalive_idle == 7


@for_each("name", ["zmq_linger", "zmq_tcp_keepalive", "zmq_inbox_messages", "zmq_retry_interval"])
def test_numbers_have_bounds(name: str) -> None:
    conf = cfg.ConfigOpts()
    options.register(conf)
    with pytest.raises(ValueError):
        conf.set_override(name, -2, group=options.GROUP)
