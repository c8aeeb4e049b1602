#!/bin/sh
# Creates .venv next to the sources and installs Gradweave with what its tests need.
# Safe to run again: a stamp of everything that decides the environment makes the second run immediate.
# Settings: PYTHON=/path/to/python picks the interpreter; pip's own variables (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...) are obeyed.
set -eu
cd "$(dirname "$0")/.."
LOG=build/setup.log
STAMP=.venv/gradweave-setup.stamp

fail() {
    printf 'set-up failed: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    exit 1
}

usable() { "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

find_python() {
    for name in ${PYTHON:-python3.11 python3 python3.12 python3.13 python3.10 python}; do
        if usable "$name"; then
            command -v "$name"
            return
        fi
    done
    fail "no Python 3.10 or newer was found" \
        "tried: ${PYTHON:-python3.11 python3 python3.12 python3.13 python3.10 python}" \
        "fix: install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: make test PYTHON=/path/to/python3"
}

fingerprint() {
    { pwd; "$1" -V; cat pyproject.toml constraints.txt scripts/setup.sh; } | cksum
}

make_venv() {
    .venv/bin/python -m pip --version >/dev/null 2>&1 && return
    rm -rf .venv
    echo "creating .venv with $1"
    if ! "$1" -m venv .venv >"$LOG" 2>&1; then
        rm -rf .venv
        "$1" -c 'import ensurepip' >/dev/null 2>&1 || fail "$1 cannot create virtual environments: its ensurepip module is missing" \
            "tried: $1 -m venv .venv" \
            "fix: install it (Debian, Ubuntu: apt-get install python3-venv), then run make again"
        tail -n 5 "$LOG" >&2
        fail "$1 could not create .venv" "tried: $1 -m venv .venv (output in $LOG)" "fix: check that this folder is writable and the disk has space"
    fi
}

install() {
    .venv/bin/python -m pip install --disable-pip-version-check --no-input "$@" >>"$LOG" 2>&1 && return
    tail -n 12 "$LOG" >&2
    if grep -qE 'Max retries|NewConnectionError|Name or service not known|Temporary failure in name resolution|Network is unreachable' "$LOG"; then
        fail "the package index cannot be reached" "tried: pip install $*" \
            "fix: connect this machine to the network, or point pip to a mirror (PIP_INDEX_URL) or to a folder of wheels (PIP_FIND_LINKS)"
    fi
    fail "pip could not install what Gradweave needs" "tried: pip install $* (output in $LOG)" \
        "fix: read the lines above; 'No matching distribution' usually means that no network or mirror serves that version for this Python"
}

mkdir -p build
if [ -x .venv/bin/python ] && usable .venv/bin/python && [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$(fingerprint .venv/bin/python)" ]; then
    exit 0
fi
: >"$LOG"
BASE=$(find_python)
make_venv "$BASE"
: >"$LOG"
PINS="-c constraints.txt"
# The pinned versions are those of CPython 3.11; on 3.10 only torch is held, since several pins need 3.11.
.venv/bin/python -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' || PINS=
echo "installing Gradweave and its test dependencies into .venv (torch is large: minutes the first time; output in $LOG)"
# shellcheck disable=SC2086  # PINS is two words or none
install $PINS 'setuptools>=77' wheel
# shellcheck disable=SC2086
install $PINS torch==2.13.0 --no-build-isolation -e '.[torch,dev]'
fingerprint .venv/bin/python >"$STAMP"
echo "set-up done"
