"""client.js as somebody installs it from npm: a program in TypeScript that is checked, and runs in node."""

import asyncio
import json
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import OPTIONAL
from tests.live.gateways import live

pytestmark = pytest.mark.interop
BUILT = Path(__file__).parents[2] / "build" / "npm"
PROGRAM = """\
import { connect, Event, FluxError } from 'headgate-client';

const [url, token] = process.argv.slice(2);
const flux = connect(url, { token });
const { value } = await flux.rpc('attr.get', { name: 'size' });
const heard: Event[] = [];
const news = await flux.subscribe('demo.', (event) => { heard.push(event); });
const sequence: number = await flux.publish('demo.npm', { n: 1 });
await flux.ping();
await news.unsubscribe();
const refused: FluxError = await flux.rpc('nobody.here').catch((error) => error);
console.log(JSON.stringify([value, heard[0]?.sequence === sequence, heard[0]?.payload, refused.name]));
flux.close();
"""
WRONG = "import { connect } from 'headgate-client';\nconnect('/v1/ws', { overflow: 'never' });\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another project, which has installed the package."""
    folder = tmp_path_factory.mktemp("project")
    packed = next(BUILT.glob("*.tgz"), None)
    if packed is None:
        pytest.skip(f"{OPTIONAL} client.js is not packed: `make npm` does, with npm and its registry")
    run(folder, "npm", "init", "--yes")
    run(folder, "npm", "install", "--offline", str(packed))
    return folder


def run(folder: Path, *argv: str) -> str:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def complaints(project: Path) -> list[str]:
    """What the compiler says of two programs; it compiles the one that is right all the same."""
    (project / "globals.d.ts").write_text("declare const process: { argv: string[] };\n")
    programs = {"program.mts": PROGRAM, "wrong.mts": WRONG}
    for name, text in programs.items():
        (project / name).write_text(text)
    words = ("--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2024,dom", "globals.d.ts")
    done = subprocess.run(
        [str(BUILT / "node_modules/.bin/tsc"), *words, *programs],
        cwd=project, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout.splitlines()


async def test_a_program_in_typescript_calls_and_hears(
    project: Path, complaints: list[str], tmp_path: Path
) -> None:
    assert [each for each in complaints if not each.startswith(("wrong.mts", " "))] == []
    node = shutil.which("node")
    assert node
    async with live(tmp_path / "live") as there:
        words = (
            node,
            "--no-warnings",
            "--experimental-websocket",
            "program.mjs",
            there.ws,
            there.tokens["ada"],
        )
        said = await asyncio.to_thread(run, project, *words)
    assert said == '["1",true,{"n":1},"ENOSYS"]\n'


def test_a_wrong_option_is_found_before_it_runs(complaints: list[str]) -> None:
    assert any(
        each.startswith("wrong.mts") and "TS2322: Type '\"never\"' is not assignable" in each
        for each in complaints
    ), complaints


def test_the_package_has_what_it_exports_and_nothing_else(project: Path) -> None:
    installed = project / "node_modules" / "headgate-client"
    assert json.loads((installed / "package.json").read_text())["version"] == metadata.version("headgate")
    there = {str(file.relative_to(installed)) for file in installed.rglob("*") if file.is_file()}
    scripts = {file for file in there if file.endswith(".js")}
    assert {file[:-3] for file in scripts} == {file[6:-5] for file in there if file.endswith(".d.ts")}
    assert there - scripts == {"package.json", "README.md", "LICENSE"} | {
        f"types/{file[:-3]}.d.ts" for file in scripts
    }
