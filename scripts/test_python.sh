#!/usr/bin/env bash
# Tests the wheel of the Python package in a new virtual environment.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<END
usage: scripts/test_python.sh WHEEL [PYTEST ARGUMENTS]

Installs WHEEL in a new virtual environment, checks the types of the package and of examples/python with mypy, and runs
tests/python on the built-in model.

environment:
  PYTHON       the Python of the environment (python3)
  PYTHON_VENV  the folder of the environment (target/python)
END
}

case "${1:-}" in
    -h | --help)
        usage
        exit
        ;;
    *.whl) ;;
    *)
        echo "error: no wheel is named; see --help" >&2
        exit 2
        ;;
esac
wheel=$1
shift
venv=${PYTHON_VENV:-${CARGO_TARGET_DIR:-target}/python}

"${PYTHON:-python3}" -m venv --clear "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --timeout 20 --retries 1 "$wheel" \
    -r tests/python/requirements.txt
"$venv/bin/mypy" --strict --cache-dir "$venv/mypy" --python-executable "$venv/bin/python" \
    crates/flux-python/python/flux examples/python
"$venv/bin/python" -m pytest -q -p no:cacheprovider tests/python "$@"
