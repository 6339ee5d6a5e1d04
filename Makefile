# Two commands a stranger needs: `make demo` and `make test`. Each creates .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt

# `make test-instructions`: again with what lesser CPUs have. `make test-arm64`: on an emulated ARM64, Debian only.
# `make wheel`: built, installed and tested in a clean environment; `make oldest`, `make newest`: with the oldest or newest versions.
.PHONY: demo test test-instructions test-arm64 wheel oldest newest check bench gpu-check docs clean

demo: .venv/.run
	$(BIN)/gatedrnn demo --out gatedrnn-demo

test: .venv/.dev # passive: threads that wait leave the core to other tests
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n auto --dist loadfile

test-instructions: .venv/.dev
	$(BIN)/python tests/instructions.py

test-arm64: .venv/.dev
	bash benchmarks/arm64.sh

wheel:
	PYTHON=$(PYTHON) bash tests/installed.sh

oldest newest:
	PYTHON=$(PYTHON) bash tests/installed.sh $@

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: .venv/.run
	$(BIN)/python benchmarks/recurrence.py

gpu-check: .venv/.dev
	$(BIN)/python benchmarks/gpu_check.py

docs: .venv/.dev
	$(BIN)/sphinx-build -W -q docs docs/_build

clean:
	rm -rf .venv dist build docs/_build gatedrnn-demo

.venv/.run: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]'
	touch $@ .venv/.run
