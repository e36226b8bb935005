# make demo   set everything up, and cut the built-in model over three agents on this machine
# make test   set everything up and run all tests
# make lint   ruff, mypy --strict, import-linter
# make clean  remove what was made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(shell find cpp -type f)

.PHONY: demo test test-core test-integration test-portability test-cluster lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@$(BIN)/python tools/demo.py

# Two groups of tiers at a time, each printing when it is done; then the cluster's, which go by the
# clock, alone.
test: $(VENV)/.installed-dev
	@echo 'Running all tests; the first results come after some minutes.'
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-core test-integration test-portability
	@$(MAKE) --no-print-directory test-cluster

test-core: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -p no:cacheprovider tests/unit tests/property tests/kernel tests/parity

test-integration: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -p no:cacheprovider tests/integration

test-portability: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -p no:cacheprovider tests/portability

test-cluster: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/cluster

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@PYTHON='$(PYTHON)' sh tools/check_requirements.sh
	$(PYTHON) -m venv $(VENV)

# The first build compiles the core: a minute or two.
$(VENV)/.installed: $(BIN)/python $(BUILD_INPUTS)
	@PYTHON='$(PYTHON)' sh tools/check_requirements.sh
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
