# `make bundle` and `make test` need Python (3.10 or newer) and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: bundle test check clean

bundle: $(VENV)/.installed
	$(BIN)/cutlass-aot build manifests/sm100.toml

test: bundle
	$(BIN)/python -m pytest

# Style, types and layers.
check: $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[build,dev]'
	touch $@

clean:
	rm -rf $(VENV) build/store build/bundles build/wheels
