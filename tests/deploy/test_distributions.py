"""Two distributions of one tree: `headgate-core` has the code, `headgate` the command, and asks for all of it."""

import re
import tomllib

import pytest

from broker import __version__
from broker.cli.extras import EXTRA_OF, lacking
from tests.deploy.paths import ROOT

pytestmark = pytest.mark.tools

CORE = tomllib.loads((ROOT / "pyproject.toml").read_text())
META = tomllib.loads((ROOT / "deploy" / "headgate" / "pyproject.toml").read_text())
MODULES = {"Jinja2": "jinja2", "PyJWT": "jwt", "PyYAML": "yaml", "prometheus-client": "prometheus_client"}
"""Distribution -> its module, where it is called otherwise."""
OF_DEVELOPERS = {"all", "cli", "gateway", "nfp", "lint"}


def name(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0]


def test_what_people_type_is_all_of_the_command_in_the_same_version():
    assert META["project"]["name"] == "headgate"
    assert META["project"]["version"] == CORE["project"]["version"] == __version__
    assert META["project"]["dependencies"] == [f"headgate-core[all]=={__version__}"]
    assert META["tool"]["hatch"]["build"]["targets"]["wheel"] == {"bypass-selection": True}
    assert META["project"]["scripts"] == {"headgate": CORE["project"]["scripts"]["headgate-core"]}
    assert "entry-points" not in META["project"]


def test_no_file_belongs_to_both():
    assert not META["project"]["scripts"].keys() & CORE["project"]["scripts"].keys()


def test_every_extra_for_users_may_be_asked_of_either():
    extras = {
        extra
        for extra in CORE["project"]["optional-dependencies"]
        if extra not in OF_DEVELOPERS and not extra.startswith("test")
    }
    assert META["project"]["optional-dependencies"] == {
        extra: [f"headgate-core[{extra}]=={__version__}"] for extra in extras
    }


def test_the_core_asks_for_what_a_broker_a_proxy_and_the_driver_load():
    assert {name(line) for line in CORE["project"]["dependencies"]} == {"msgspec", "pyzmq"}


def test_a_verb_that_lacks_a_library_says_which_extra_brings_it():
    extras = CORE["project"]["optional-dependencies"]
    assert extras["all"] == ["headgate-core[cli,gateway,nfp]"]
    brought = {
        MODULES.get(name(line), name(line)): extra
        for extra in ("cli", "gateway", "nfp")
        for line in extras[extra]
    }
    assert brought == EXTRA_OF
    said = lacking(ModuleNotFoundError("no", name="jwt.algorithms"))
    assert (
        said
        == "jwt is not installed: pip install headgate, or 'headgate-core[gateway]' for as much as this needs"
    )
    assert lacking(ModuleNotFoundError("no", name="numpy")) == ""
