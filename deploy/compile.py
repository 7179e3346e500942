"""What is hot, compiled to C with mypyc: a hook of the wheel's build, on where HATCH_BUILD_HOOK_ENABLE_CUSTOM=true.

A file with the line ``# compiled: mypyc`` is compiled. All of them become one shared object, in which they call one
another as C does, and beside it a small one for each, which is what Python imports. The sources stay as they are: what
is made here is put straight into the wheel.
"""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # whoever only asks what is compiled
    BuildHookInterface = object

if TYPE_CHECKING:
    from setuptools import Extension

MARK = "# compiled: mypyc"
MYPY = ("--config-file=", "--no-warn-unused-ignores", "--ignore-missing-imports")
HIDDEN = "-fvisibility=hidden"
"""Calls from one C file to another go straight there, not by the table in which others could put their own."""


def marked(root: Path) -> list[str]:
    """The files of ``root`` that are compiled."""
    return sorted(
        str(path.relative_to(root))
        for package in ("broker", "gateway")
        for path in root.joinpath(package).rglob("*.py")
        if MARK in path.read_text(encoding="utf-8").splitlines()
    )


def build(extensions: list[Extension], folder: Path) -> Path:
    """The folder below ``folder`` that the shared objects are in; every core compiles a C file at a time."""
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    cores = len(os.sched_getaffinity(0))

    class BuildExt(build_ext):
        def build_extensions(self) -> None:
            compile_serially = self.compiler.compile

            def compile_files(sources: list[str], **options: Any) -> list[str]:
                longest_first = sorted(sources, key=os.path.getsize, reverse=True)
                made = pool.map(lambda source: compile_serially([source], **options), longest_first)
                return [each for objects in made for each in objects]

            self.compiler.compile = compile_files
            with ThreadPoolExecutor(cores) as pool:
                super().build_extensions()

    command = BuildExt(Distribution({"name": "headgate", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.parallel = cores
    command.ensure_finalized()
    command.run()
    return folder / "lib"


class CompileHook(BuildHookInterface):
    """Puts shared objects beside the files that they are made of."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if version == "editable":
            return  # shows the sources as they are
        from mypyc.build import mypycify

        gc.disable()  # mypy makes millions of objects and no garbage
        self.folder = TemporaryDirectory()
        folder = Path(self.folder.name)
        extensions = mypycify(
            [*MYPY, f"--cache-dir={folder}/cache", *marked(Path(self.root))],
            target_dir=str(folder / "c"),
            multi_file=True,
            opt_level=os.environ.get("MYPYC_OPT_LEVEL", "2"),
            debug_level="0",
        )
        gc.freeze()  # nor is it looked for when this process ends
        for each in extensions:
            each.extra_compile_args = [*each.extra_compile_args, HIDDEN]
        made = build(extensions, folder)
        build_data["infer_tag"] = True
        build_data["pure_python"] = False
        build_data["force_include"] |= {
            str(path): str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()
        }

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """See hatchling."""
        if version != "editable":
            self.folder.cleanup()
