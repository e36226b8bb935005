# make demo   set everything up and let the built-in model tell a story
# make test   set everything up and run all tests
# make lint   ruff, mypy --strict, import-linter
# make clean  remove what was made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(shell find cpp -type f)

DEMO_PROMPT := Once upon a time, there was a little fox who

.PHONY: demo test lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@echo 'The built-in model, cut into three stages, continues: $(DEMO_PROMPT)'
	@$(BIN)/potluck run demo --stages 3 --seed 7 -n 120 -p '$(DEMO_PROMPT)'
	@echo
	@echo 'How to go on:'
	@echo '  $(BIN)/potluck run demo                      a chat; Ctrl-D ends it'
	@echo '  $(BIN)/potluck run MODEL -p "…"              MODEL: a Hugging Face directory, a .gguf file, a hub id'
	@echo '  $(BIN)/potluck bench demo                    tokens per second'
	@echo '  $(BIN)/potluck --help                        everything else'

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
