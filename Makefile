# make demo, make test: each does all the set-up it needs on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: demo test test-runs test-slow test-all lint docs bench clean

$(READY): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/python examples/banana.py --quick --out out/banana

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-runs: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "(example or ray) and not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "slow or example or ray"

test-all: test test-slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

bench: $(READY)
	$(BIN)/python examples/barrett_stream.py --out out/barrett

clean:
	rm -rf $(VENV) out docs/_build build *.egg-info
