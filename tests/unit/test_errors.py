"""What people read on standard error."""

import io
import sys

import pytest

from broker.errors import print_error


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks and their launcher share an unbuffered standard error (PYTHONUNBUFFERED): in two, lines would mix."""
    written: list[str] = []

    class Unbuffered(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stderr", Unbuffered())
    print_error("headgate: rank 2 (pid 7) ended with code 137")
    monkeypatch.setattr(sys, "stderr", None)
    print_error("nobody reads it")
    assert written == ["headgate: rank 2 (pid 7) ended with code 137\n"]
