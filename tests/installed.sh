#!/usr/bin/env bash
# Build the wheel and the sdist, install the wheel into a clean environment, and run the tests of the sdist there, away from the sources.
#   bash tests/installed.sh           with the versions of constraints.txt
#   bash tests/installed.sh oldest    with the oldest versions that pyproject.toml admits and that can be installed together
#   bash tests/installed.sh newest    with the newest that pip finds
# PYTHON is the interpreter (default python3); PYTEST further arguments of pytest, such as "-n 1 tests/unit" (default: every test).
# The wheel and the sdist stay in dist/. `oldest` and `newest` download PyTorch, on Linux with CUDA (3 GB).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/build"
"$work/build/bin/pip" install --disable-pip-version-check -q build uv
rm -rf dist
"$work/build/bin/python" -m build --outdir dist . > "$work/build.log" || { cat "$work/build.log"; exit 1; }
ls -l dist

versions=constraints.txt
if [ "${1:-}" = oldest ]; then
    versions=$work/oldest.txt
    "$work/build/bin/uv" pip compile -q --resolution lowest-direct --python "$work/build/bin/python" --extra test \
        --no-header --no-annotate -o "$versions" pyproject.toml > /dev/null
    cat "$versions"
elif [ "${1:-}" = newest ]; then
    versions=/dev/null
fi

"$python" -m venv "$work/clean"
"$work/clean/bin/pip" install --disable-pip-version-check -q -c "$versions" "$(echo dist/*.whl)[test]"
tar -xzf dist/*.tar.gz -C "$work"
cd "$work"/gatedrnn-*/
rm -r gatedrnn gatedrnn.egg-info # only the installed package can be found
export PATH="$work/clean/bin:$PATH"
python -c 'import gatedrnn, torch; print(gatedrnn.__file__, gatedrnn.__version__, torch.__version__)'
# shellcheck disable=SC2086 # several arguments
python -m pytest -n auto --dist loadfile ${PYTEST:-}
