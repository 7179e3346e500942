"""The image by itself: what it says of itself, what is in it, and that it runs with next to no rights."""

import contextlib
import json
import re
import tarfile
import time

import pytest

from tests.containers.images import podman

LOCKED = (
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--tmpfs=/run:mode=1777",
    "--tmpfs=/tmp:mode=1777",
)
"""As the compose file runs it."""
JOIN_S = 30.0
SIZE_MAX = 400_000_000


@contextlib.contextmanager
def running(image, *options, command=()):
    """A container; removed at the end, running or not."""
    container = podman("run", "--detach", *options, image, *command).strip()
    try:
        yield container
    finally:
        podman("rm", "--force", "--time", "0", container, check=False)


def healthy(container):
    deadline = time.monotonic() + JOIN_S
    while time.monotonic() < deadline:
        told = podman("exec", container, "headgate", "health", "--json", check=False)
        if told and json.loads(told)["healthy"]:
            return True
        time.sleep(0.3)
    raise AssertionError(f"not healthy: {podman('logs', container)}")


def test_what_the_image_says_of_itself(image):
    (found,) = json.loads(podman("image", "inspect", image))
    assert found["Size"] <= SIZE_MAX
    config = found["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["headgate"]
    assert config["StopSignal"] == "SIGTERM"
    health = found.get("Healthcheck") or found.get("HealthCheck") or config.get("Healthcheck")
    assert health["Test"] == ["CMD", "headgate", "health"]
    labels = {
        name.rpartition(".")[2] for name in config["Labels"] if name.startswith("org.opencontainers.image.")
    }
    assert {"title", "description", "licenses", "version", "revision"} <= labels


def test_no_layer_has_a_key_a_compiler_or_what_pip_left(image, tmp_path):
    podman("save", "--format", "docker-archive", "--output", str(tmp_path / "image.tar"), image, timeout=300)
    secret = re.compile(rb'secret-key *= *"[^"\s]{40}"|PRIVATE KEY-----\s+\w')
    ours, seen = [], 0
    with tarfile.open(tmp_path / "image.tar") as archive:
        layers = [member for member in archive if member.isfile() and member.name.endswith(".tar")]
        for layer in layers:
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                for file in files:
                    if not file.isfile():
                        continue
                    seen += 1
                    if file.name.endswith((".key_secret", "tokens.json")) or re.search(
                        r"bin/(gcc|cc1?|uv)$", file.name
                    ):
                        ours.append(file.name)
                    elif file.name.startswith(
                        ("opt/", "etc/headgate", "keys", "var/lib/headgate", "run/", "root/")
                    ):
                        if (
                            "site-packages" not in file.name
                            or "/broker/" in file.name
                            or "/gateway/" in file.name
                        ):
                            text = files.extractfile(file).read()
                            ours += [file.name] if secret.search(text) else []
                        if "/.cache/" in file.name or re.search(
                            r"/opt/headgate/.*/site-packages/pip/", file.name
                        ):
                            ours.append(file.name)
    assert seen > 1000, "the layers were looked into"
    assert ours == []


@pytest.mark.parametrize("user", ["10001:10001", "12345:23456", "0:0"])
def test_a_broker_runs_as_any_user_on_a_read_only_root(image, user):
    with running(image, *LOCKED, f"--user={user}") as container:
        assert healthy(container)
        assert (
            podman("exec", container, "headgate", "attr", "get", "rundir")
            .split()[-1]
            .endswith("/run/headgate")
        )
        began = time.monotonic()
        podman("stop", "--time", "20", container)
        assert time.monotonic() - began < 10
        (seen,) = json.loads(podman("inspect", container))
        assert seen["State"]["ExitCode"] == 0, podman("logs", container)


def test_without_anything_mounted(image):
    with running(image) as container:
        assert healthy(container)


def test_the_health_check_of_the_image(image):
    with running(image) as container:
        healthy(container)
        podman("healthcheck", "run", container)


def test_a_wrong_configuration_ends_with_78(image):
    with running(image, command=("broker", "--config", "/nowhere")) as container:
        assert podman("wait", container).strip() == "78"


def test_the_version_needs_no_configuration(image):
    with running(image, "--network=none", command=("--version",)) as container:
        assert podman("wait", container).strip() == "0"
        assert "headgate" in podman("logs", container)


def test_nothing_of_spark_or_a_compiler_is_in_it(image):
    with running(image) as container:
        healthy(container)
        names = "['pyspark', 'pip', 'pandas', 'pyarrow']"
        script = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
        assert podman("exec", container, "python", "-c", script).strip() == "[]"
