"""Debian's Chromium without a window: the page after its script has run, and what it complained of."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking",
    "--disable-component-update --disable-sync --enable-logging=stderr --v=0 --virtual-time-budget=3000",
)


@dataclass
class Page(HTMLParser):
    """Numbers of the page by their path in the JSON, and all text."""

    numbers: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    text: str = ""
    complaints: list[str] = field(default_factory=list)
    _open: tuple[str, int] | None = None
    _skipping: bool = False

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipping = tag in ("script", "style")
        found = dict(attrs)
        key = found.get("data-key")
        self._open = (key, int(found.get("data-digits") or 0)) if key else None

    def handle_endtag(self, tag: str) -> None:
        self._open, self._skipping = None, False

    def handle_data(self, data: str) -> None:
        if self._skipping:
            return
        self.text += data
        if self._open:
            self.numbers.setdefault(self._open[0], []).append((data, self._open[1]))


def open_page(path: Path, profile: Path, *flags: str) -> Page:
    """Load a file, run its script, return what stands there."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *" ".join(FLAGS).split(), *flags, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    page = Page()
    page.complaints = re.findall(r".*CONSOLE.*", done.stderr)
    page.feed(done.stdout)
    return page
