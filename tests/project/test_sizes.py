"""The size gate finds what it is there to find."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_style.py"


@pytest.fixture(scope="module")
def gate():
    spec = importlib.util.spec_from_file_location("check_style", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_long_module_and_a_long_function_are_named(gate, tmp_path, capsys):
    body = "".join(f"    x{n} = {n}\n" for n in range(60))
    (tmp_path / "long.py").write_text("def f():\n" + body + "\n" * 400)
    assert gate.main([str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "long.py:1: module of 461 lines" in output
    assert "function f of 61 lines" in output


def test_a_docstring_does_not_count_as_code(gate, tmp_path):
    body = "".join(f"    x{n} = {n}\n" for n in range(58))
    (tmp_path / "fine.py").write_text('def f():\n    """One.\n' + "\n" * 30 + '    """\n' + body)
    assert gate.main([str(tmp_path)]) == 0
