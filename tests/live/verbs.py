"""Verbs of the command line in this process: what they say and how they end, without the start of an interpreter."""

import contextlib
import io
import subprocess
from pathlib import Path

from broker.cli.main import main


def headgate(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``headgate WORDS`` to its end."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse: a wrong option, or --help
            code = int(end.code or 0)
    said, complained = (str(each.buffer.getvalue(), "utf-8") for each in (out, err))
    return subprocess.CompletedProcess(words, code, said, complained)
