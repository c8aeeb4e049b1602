"""The installed package is whole: metadata, data files, command. Also run against the built wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import subprocess
import sys
from pathlib import Path

import gradweave


def test_metadata_gives_licence_versions_and_extras():
    metadata = importlib.metadata.metadata("gradweave")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert {"torch", "tensorflow", "dev"} <= set(metadata.get_all("Provides-Extra"))
    assert importlib.metadata.version("gradweave") == gradweave.__version__


def test_base_install_does_not_ask_for_torch():
    required = [line for line in importlib.metadata.requires("gradweave") if "extra ==" not in line]
    assert sorted(line.split(">")[0] for line in required) == ["jinja2", "numpy", "rich", "typer"]


def test_type_marker_and_report_templates_are_in_the_package():
    root = importlib.resources.files("gradweave")
    assert root.joinpath("py.typed").is_file()
    templates = [entry.name for entry in root.joinpath("trace", "reports", "templates").iterdir()]
    assert any(name.endswith(".j2") for name in templates)


def test_the_command_is_installed_next_to_the_interpreter():
    command = Path(sys.executable).parent / "gradweave"
    result = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=50)
    assert result.stdout.strip() == f"gradweave {gradweave.__version__}"
