"""Runs every benchmark under `benchmarks/` whose module has a `main()`, one after the other, as its own process.

python scripts/bench.py [NAME ...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(names: list[str]) -> int:
    """Run the named benchmarks (all by default); return 1 if one of them failed or none exists."""
    found = sorted(p for p in (ROOT / "benchmarks").glob("*.py") if "def main(" in p.read_text(encoding="utf-8"))
    chosen = [p for p in found if not names or p.stem in names]
    if not chosen:
        print(
            f"no such benchmark: {' '.join(names) or 'benchmarks/*.py'}; there are: {' '.join(p.stem for p in found) or 'none'}"
        )
        return 1
    failed = []
    for path in chosen:
        print(f"=== {path.stem}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{path.stem}"], cwd=ROOT).returncode:
            failed.append(path.stem)
    print(f"{len(chosen) - len(failed)} benchmarks ran, {len(failed)} failed{': ' + ' '.join(failed) if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
