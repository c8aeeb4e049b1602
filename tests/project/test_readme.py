"""What the README names exists."""

from __future__ import annotations

import re
from pathlib import Path

import gradweave
from gradweave.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_name_after_gw_is_public():
    names = set(re.findall(r"\bgw\.([A-Za-z_]+)", README))
    assert len(names) > 10
    assert names <= set(gradweave.__all__)


def test_every_command_and_make_target_exists():
    commands = set(re.findall(r"`gradweave ([a-z]+)", README)) | set(re.findall(r"^gradweave ([a-z]+)", README, re.MULTILINE))
    assert commands and commands <= {command.name for command in app.registered_commands}
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z]+)`", README)) | set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_verdict_is_named():
    sources = "".join((ROOT / "src/gradweave/trace" / name).read_text() for name in ("scenario.py", "summary.py"))
    verdicts = set(re.findall(r'"((?:Nothing|Too|Little|Held|Bound)[a-z ]+)[:"]', sources))
    assert len(verdicts) == 7
    assert all(re.search(rf"^\|.*{verdict}", README, re.MULTILINE) for verdict in verdicts), verdicts


def test_what_newcomers_asked_is_answered():
    for answer in (
        "`optimizer.segments[-1].last + 1`",  # how many gradients there are
        "`examples/minimal_optimizer.py`",
        "goes before `set_split_strategy_*`",
        "len(batches) // gw.size() * gw.size()",  # uneven numbers of batches
        "pip install tensorboard",
    ):
        assert answer in README
    assert "no split can beat" not in README


def test_every_option_of_a_command_line_is_known():
    shown = " ".join(line for line in README.splitlines() if line.startswith("gradweave ") or line.startswith("| `gradweave "))
    sources = " ".join(path.read_text() for path in (ROOT / "src" / "gradweave" / "cli").glob("*.py"))
    options = set(re.findall(r"(?<!\S)`?(--[a-z]+)", shown))
    assert options
    assert all(f'"{option}"' in sources for option in options)
