"""The lists of packages that the images are built from: complete, with hashes, the versions that CI runs with."""

import re
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
LISTS = ("requirements.txt", "requirements-build.txt", "requirements-spark.txt")
ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def versions(file):
    return {normal(name): version for name, version in ENTRY.findall((ROOT / file).read_text())}


def named(*extras):
    """Packages that pyproject names for the program itself and for extras, with those that extras name in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *(line for extra in extras for line in project["optional-dependencies"][extra]),
    ]
    return {normal(re.match(r"[A-Za-z0-9._-]+", line)[0]) for line in lines} - {"headgate"}


def test_every_entry_has_a_version_and_hashes():
    for name in LISTS:
        entries = re.split(r"^(?=[A-Za-z0-9])", (ROOT / "deploy" / name).read_text(), flags=re.MULTILINE)[1:]
        assert entries
        wrong = [
            entry[:60]
            for entry in entries
            if not ENTRY.match(entry)
            or "--hash=sha256:" not in entry
            or "://" in entry  # no list names an index
        ]
        assert wrong == [], name


def test_the_usual_image_has_what_the_program_needs_and_nothing_of_the_pipeline():
    listed = set(versions("deploy/requirements.txt"))
    assert named("cli", "gateway", "nfp", "redis", "journal") <= listed
    assert listed.isdisjoint({"pyarrow", "pandas", "pyspark", "pip", "setuptools"})


def test_the_image_with_spark_has_the_rest():
    listed = set(versions("deploy/requirements.txt")) | set(versions("deploy/requirements-spark.txt"))
    assert named("redis", "journal", "history", "spark") <= listed
    assert set(versions("deploy/requirements.txt")).isdisjoint(versions("deploy/requirements-spark.txt"))


def test_versions_are_those_of_ci():
    locked = versions("requirements.lock")
    listed = {each: version for name in LISTS for each, version in versions(f"deploy/{name}").items()}
    assert {each: version for each, version in listed.items() if locked.get(each, version) != version} == {}


def test_the_dockerfile_installs_these_lists_by_their_hashes():
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    runs = re.findall(r"^RUN .*", text, re.MULTILINE)
    for name in LISTS:
        (run,) = [each for each in runs if f"deploy/{name}" in each]
        assert "--require-hashes" in run, name
        assert "--only-binary :all:" in run, name
    assert all("--no-index" in run for run in runs if "*.whl" in run)
