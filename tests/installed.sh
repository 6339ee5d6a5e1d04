#!/usr/bin/env bash
# The package as a user has it: built, installed into a clean environment, tested there without its sources beside it.
#   bash tests/installed.sh           with the versions of constraints.txt
#   bash tests/installed.sh oldest    with the oldest version of each dependency that pyproject.toml admits
# PYTHON names the interpreter (default python3), PYTEST what to run (default: every test). The wheel and the sdist stay in dist/.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/build"
"$work/build/bin/pip" install --disable-pip-version-check -q build
rm -rf dist
"$work/build/bin/python" -m build --outdir dist . > "$work/build.log" || { cat "$work/build.log"; exit 1; }
ls -l dist

versions=constraints.txt
if [ "${1:-}" = oldest ]; then
    versions=$work/oldest.txt
    "$python" - > "$versions" <<'PYTHON'
import re, tomllib
for needed in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]:
    name, version = re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\w.]+)", needed).groups()
    print(f"{name}=={version}")
PYTHON
    cat "$versions"
fi

"$python" -m venv "$work/clean"
"$work/clean/bin/pip" install --disable-pip-version-check -q -c "$versions" "$(echo dist/*.whl)[test]"
tar -xzf dist/*.tar.gz -C "$work"
cd "$work"/gatedrnn-*/
rm -r gatedrnn  # so that only the installed package can be found
"$work/clean/bin/python" -c 'import gatedrnn, torch; print(gatedrnn.__file__, gatedrnn.__version__, torch.__version__)'
PATH="$work/clean/bin:$PATH" "$work/clean/bin/python" -m pytest -n auto --maxprocesses 8 --dist loadfile ${PYTEST:-}
