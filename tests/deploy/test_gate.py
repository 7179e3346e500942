"""The checkers of others look at everything, and find something where there is something.

That they find nothing in what is there is said by `python -m tests.deploy`.
"""

import copy
import re
import tomllib

import pytest
import yaml

from tests.deploy import checks, manifests, units
from tests.deploy.paths import DEPLOY, ROOT

pytestmark = pytest.mark.tools


def complaints(check, *given, **named):
    try:
        return check(*given, **named)
    except checks.Missing as missing:
        pytest.skip(str(missing))


def test_everything_that_lies_there_is_looked_at():
    names = " ".join(name for name, _ in checks.everything())
    for path in [*DEPLOY.glob("systemd/*.service"), *DEPLOY.glob("systemd/*.d/*.conf")]:
        assert path.name in names
    built = {path.parent.name for path in DEPLOY.glob("kubernetes/overlays/*/kustomization.yaml")}
    assert built == set(manifests.OVERLAYS)
    assert {path.name for path in DEPLOY.glob("kubernetes/components/*")} == {
        "journal",
        "journal-ship",
        "pipeline",
    }


# ---------------------------------------------------------------- each of them can complain


def test_hadolint_finds_an_entry_point_in_shell_form(tmp_path):
    bad = tmp_path / "Dockerfile"
    bad.write_text((ROOT / "Dockerfile").read_text() + "\nENTRYPOINT headgate\n")
    assert any("DL3025" in line for line in complaints(checks.dockerfile, bad))


def test_the_schema_finds_an_unknown_key_of_a_service(tmp_path):
    given = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    given["services"]["gateway"]["read_ony"] = True
    bad = tmp_path / "compose.yaml"
    bad.write_text(yaml.safe_dump(given))
    assert any("read_ony" in line for line in complaints(checks.compose, bad))


def test_the_schema_finds_an_unknown_key_of_a_job(tmp_path):
    text = (ROOT / ".github/workflows/release.yml").read_text()
    bad = tmp_path / "release.yml"
    bad.write_text(text.replace("runs-on:", "run-on:", 1))
    assert complaints(checks.workflow, bad)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("matrix.version", "matrix.versoin", "versoin"),
        ("run: make oslo\n", "run: cd $FOLDER; make oslo\n", "SC2086"),
    ],
)
def test_actionlint_finds_a_wrong_expression_and_a_wrong_command(tmp_path, before, after, expected):
    text = (ROOT / ".github/workflows/oslo.yml").read_text()
    assert before in text
    bad = tmp_path / "oslo.yml"
    bad.write_text(text.replace(before, after))
    assert any(expected in line for line in complaints(checks.workflow, bad))


def test_shellcheck_finds_a_list_that_is_none(tmp_path):
    bad = tmp_path / "run"
    bad.write_text('#!/bin/bash\nnames=\'a b\'\nfor name in "$names"; do echo "$name"; done\n')
    assert any("SC2066" in line for line in complaints(checks.script, bad))


def test_every_python_that_is_released_is_looked_for():
    """The list of the workflow's last look is the list that is built."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    built = {each.partition("-")[0] for each in tables["cibuildwheel"]["build"]}
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["check"]["steps"]
    (looked,) = [step["run"] for step in steps if "for python in" in step.get("run", "")]
    assert set(re.search(r"for python in (.*);", looked)[1].split()) == built


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 8050}]}]},
}


ONE_VERSION = checks.KUBERNETES[-1:]


def changed(given, path, value):
    """A copy of nested dictionaries and lists with one value replaced."""
    made = copy.deepcopy(given)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


def test_a_pod_that_is_right_is_left_alone():
    assert complaints(checks.schemas, [POD], ONE_VERSION) == []


def test_the_schemas_find_a_wrong_type_and_an_unknown_key():
    for path, value in (
        (("spec", "containers", 0, "ports", 0, "containerPort"), "8050"),
        (("spec", "enableServiceLink"), False),
        (("spec", "containers", 0, "securityContext"), {"capabilities": {"drop": "ALL"}}),
    ):
        assert complaints(checks.schemas, [changed(POD, path, value)], ONE_VERSION), path


MONITOR = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "ServiceMonitor",
    "metadata": {"name": "m"},
    "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "endpoints": [
            {
                "port": "metrics",
                "path": "/metrics",
                "interval": "30s",
                "relabelings": [{"targetLabel": "job", "replacement": "headgate-broker"}],
            }
        ],
    },
}


def test_a_service_monitor_has_a_form_too():
    assert list(checks.unlike(MONITOR, checks.SERVICE_MONITOR, "ServiceMonitor")) == []
    for path, value, expected in (
        (("spec", "endpoints", 0, "port"), 9464, "spec.endpoints[0].port: saw 9464, expected str"),
        (("spec", "endpoint"), [], "spec: unknown key 'endpoint'"),
        (("spec", "selector"), {}, "spec.selector: no 'matchLabels'"),
    ):
        found = list(checks.unlike(changed(MONITOR, path, value), checks.SERVICE_MONITOR, "ServiceMonitor"))
        assert found == [f"ServiceMonitor.{expected}"]


def test_kustomize_says_what_it_cannot_build(tmp_path):
    (tmp_path / "kustomization.yaml").write_text("resources: [nothing.yaml]\n")
    complaints(checks.program, "kubectl")
    with pytest.raises(RuntimeError, match=r"nothing\.yaml"):
        manifests.kustomize(tmp_path)


def test_verify_finds_what_systemd_would_only_log(tmp_path, monkeypatch):
    text = (units.FOLDER / "headgate-broker.service").read_text()
    monkeypatch.setattr(units, "FOLDER", tmp_path)
    for before, after, expected in (
        ("KillMode=mixed", "KilMode=mixed", "Unknown key 'KilMode'"),
        ("Type=notify", "Type=notfy", "Failed to parse service type"),
        ("@system-service", "@sytem-service", "Unknown system call group"),
        ("ExecStart=headgate", "ExecStart=headgat", "is not executable"),
    ):
        assert before in text
        (tmp_path / "headgate-broker.service").write_text(text.replace(before, after))
        said = complaints(checks.unit, "headgate-broker.service")
        assert any(expected in line for line in said), (after, said)


def test_a_drop_in_is_looked_at(tmp_path):
    drop = tmp_path / "bad.conf"
    drop.write_text("[Service]\nRestrictNamespace=yes\n")
    found = complaints(checks.unit, "headgate-broker.service", drop)
    assert any("Unknown key 'RestrictNamespace'" in line for line in found)


def test_a_unit_without_its_sandbox_is_exposed(tmp_path):
    drop = tmp_path / "bare.conf"
    drop.write_text(
        "[Service]\nProtectSystem=no\nSystemCallFilter=\nCapabilityBoundingSet=~\nRestrictAddressFamilies=\n"
    )
    (found,) = complaints(checks.exposure, "headgate-broker.service", drop)
    assert "Overall exposure level" in found
