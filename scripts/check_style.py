"""Sizes of modules and functions.

Fails when a module under `src` or `benchmarks` has more than 400 lines or a function more than 60. The lines of a function are
counted from `def` to its end without its docstring, since an example in a docstring is not code to hold in the head.

    python scripts/check_style.py [FOLDER ...]
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES = 400
FUNCTION_LINES = 60
ROOT = Path(__file__).resolve().parent.parent


def functions(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    """Yield name, first line and number of code lines of every function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
            yield node.name, node.lineno, lines


def offences(path: Path) -> Iterator[str]:
    """Yield one line per module or function that is too long."""
    text = path.read_text(encoding="utf-8")
    count = text.count("\n")
    if count > MODULE_LINES:
        yield f"{path}:1: module of {count} lines (limit {MODULE_LINES})"
    for name, line, lines in functions(ast.parse(text)):
        if lines > FUNCTION_LINES:
            yield f"{path}:{line}: function {name} of {lines} lines (limit {FUNCTION_LINES})"


def main(folders: list[str]) -> int:
    """Check every Python file of the folders; print the offenders and a summary; return the exit code."""
    roots = [Path(f) for f in folders] or [p for p in (ROOT / "src", ROOT / "benchmarks", ROOT / "scripts") if p.is_dir()]
    files = sorted(path for root in roots for path in root.rglob("*.py"))
    found = [offence for path in files for offence in offences(path)]
    print("\n".join(found), end="\n" if found else "")
    sizes = [path.read_text(encoding="utf-8").count("\n") for path in files]
    if sizes:
        print(f"{len(files)} modules, median {statistics.median(sizes):.0f} lines, longest {max(sizes)}; {len(found)} too long")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
