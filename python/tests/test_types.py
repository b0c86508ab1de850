"""The types of the installed package are those of its objects, and a program with types can use it."""

import subprocess
import sys
from pathlib import Path

import pytest

TYPED = Path(__file__).parent / "typed.py"


# What is under test is the package that the interpreter finds.
@pytest.mark.parametrize(
    "words",
    [
        ["mypy", "--strict", str(TYPED)],
        ["mypy", "--strict", "--package", "waggle"],
        ["mypy.stubtest", "waggle._waggle"],
    ],
    ids=["a-program", "the-package", "the-stubs"],
)
def test_types(words, tmp_path):
    ran = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
