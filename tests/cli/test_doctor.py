"""`gradweave doctor`: facts, the measured loopback, what is missing."""

from __future__ import annotations

import json
import sys

import pytest
import typer

from gradweave.cli import checks, doctor, loopback
from gradweave.errors import CollectiveError
from tests.cli.command import gradweave, gradweave_without_torch


def test_json_holds_versions_backends_and_a_measured_all_reduce():
    result = gradweave("doctor", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    checks = {(check["area"], check["name"]): check for check in document["checks"]}
    assert document["ok"] is True
    assert checks["software", "python"]["detail"].startswith(".".join(map(str, sys.version_info[:3])))
    assert checks["software", "torch"]["state"] == checks["backends", "gloo"]["state"] == "ok"
    measured = [check for check in document["checks"] if check["area"] == "loopback all-reduce"]
    assert [check["name"] for check in measured] == ["4 KiB", "1 MiB", "25 MiB"]
    assert all(check["state"] == "ok" and "MB/s" in check["detail"] for check in measured)


def test_what_is_missing_comes_with_the_way_to_get_it():
    document = json.loads(gradweave("doctor", "--quick", "--json").stdout)
    missing = [check for check in document["checks"] if check["state"] in ("missing", "failed")]
    assert all(check["fix"] for check in missing)
    assert {"browser", "GPU"} <= {check["name"] for check in document["checks"]}


def test_backends_of_devices_that_are_not_here_are_not_missed(tmp_path):
    assert checks._backend("nccl", False, "CUDA devices", False).state == "unneeded"
    assert checks._backend("nccl", False, "CUDA devices", True).state == "missing"
    assert checks._backend("nccl", True, "CUDA devices", False).state == "ok"
    (tmp_path / "nvidia-uvm").touch()
    assert not checks.has_device("nvidia", tmp_path)
    (tmp_path / "nvidia0").touch()
    assert checks.has_device("nvidia", tmp_path)


def test_it_says_at_once_that_it_works(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "all_checks", lambda loopback: iter(()))
    with pytest.raises(typer.Exit):
        doctor.doctor(quick=False, as_json=True)
    assert "measuring takes" in capsys.readouterr().err


def test_without_torch_it_says_so_and_ends_well():
    result = gradweave_without_torch("doctor", "--quick", "--json")
    assert result.returncode == 0, result.stderr
    torch = next(check for check in json.loads(result.stdout)["checks"] if check["name"] == "torch")
    assert torch["state"] == "missing" and "pip install" in torch["fix"]


def test_the_table_fits_80_columns():
    assert max(map(len, gradweave("doctor", "--quick").stdout.splitlines())) <= 80


def test_workers_that_do_not_end_in_time_are_an_error_and_are_killed():
    with pytest.raises(CollectiveError, match="did not finish"):
        loopback.measure_loopback(timeout_s=0.05)
