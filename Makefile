# make demo   set everything up, and cut the built-in model over three agents on this machine
# make test   set everything up and run all tests
# make lint   ruff, mypy --strict, import-linter
# make clean  remove what was made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(shell find cpp -type f)

.PHONY: demo test lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@$(BIN)/python tools/demo.py

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

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
