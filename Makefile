# `make demo` and `make test` do all set-up themselves: they create .venv, install, and run.
# They work from any folder (make -C PATH demo) and find the environment ready the second time.
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
ROOT := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
PY := .venv/bin/python
ARGS ?=
CELL ?=

.PHONY: help setup demo test verify bench lint format clean

help:
	@echo "make demo     set up, then train a small GPT on 2 processes for about a minute and write a report"
	@echo "make test     set up, then run every check and test"
	@echo "make verify   the same with the long matrices"
	@echo "make bench    set up, then run the benchmarks; CELL=resnet50:0.5:2 runs one cell of the emulated cluster (root)"
	@echo "make lint     format, lint, types and module sizes only"
	@echo "make format   rewrite the sources in the house format"
	@echo "make clean    remove build products and caches (not .venv)"

setup:
	@cd "$(ROOT)" && sh scripts/setup.sh

demo: setup
	@cd "$(ROOT)" && exec $(PY) -m gradweave demo $(ARGS)

test: setup
	@cd "$(ROOT)" && exec $(PY) scripts/check.py $(ARGS)

verify: setup
	@cd "$(ROOT)" && exec $(PY) scripts/check.py --verify $(ARGS)

bench: setup
	@cd "$(ROOT)" && exec $(PY) $(if $(CELL),-m benchmarks.lab.grid --cells $(CELL),scripts/bench.py $(ARGS))

lint: setup
	@cd "$(ROOT)" && exec $(PY) scripts/check.py --lint

format: setup
	@cd "$(ROOT)" && $(PY) -m ruff format . && $(PY) -m ruff check --fix .

clean:
	@cd "$(ROOT)" && rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@cd "$(ROOT)" && find src tests examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
