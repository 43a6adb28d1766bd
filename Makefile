# make demo, make test: each does all the set-up it needs on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
NEWEST_PYTHON ?= python3.13
NEWEST_VENV ?= .venv-newest
NEWEST = numpy scipy tensorflow "tensorflow-probability[tf]" check-shapes Deprecated multipledispatch \
	packaging pooch setuptools tabulate threadpoolctl tqdm typing_extensions
WHEEL_VENV ?= .venv-wheel
BENCH_VENV ?= .venv-benchmarks
BENCH_READY = $(BENCH_VENV)/.ready
FLOWER_VENV ?= .venv-flower
FLOWER_READY = $(FLOWER_VENV)/.ready
STREAMS_OUT ?= docs/results/streams
PINS = experiments/benchmarks/constraints.txt
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: demo house test test-runs test-slow test-nvflare test-flower test-all lint docs linkcheck notebooks wheel newest \
	newest-packages bench bench-streams mutate clean

# An environment that has the package of another checkout is left alone.
OTHERS = import importlib.metadata as metadata, json, sys; \
	found = (one.read_text("direct_url.json") for one in metadata.distributions(name="streaming-gp")); \
	urls = {json.loads(text)["url"] for text in found if text} - {sys.argv[1]}; \
	sys.exit(f"{sys.prefix} has the package of {urls}: give another environment" if urls else 0)
unless_of_another = @test ! -x $(1)/bin/python || $(1)/bin/python -I -c '$(OTHERS)' "file://$(CURDIR)"

$(READY): setup.cfg pyproject.toml constraints.txt
	$(call unless_of_another,$(VENV))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/python examples/banana.py --quick --out out/banana

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-runs: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "(example or ray) and not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "(slow or example or ray) and not nvflare and not flower"

# Sites as processes, with certificates that NVFlare provisions: its extra comes on top.
test-nvflare: $(READY)
	$(call unless_of_another,$(VENV))
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev,nvflare]"
	$(BIN)/python -m pytest -m nvflare

# SuperLink and SuperNodes as processes. Flower's pins replace some of the others: an environment of its own.
$(FLOWER_READY): setup.cfg constraints.txt constraints-flower.txt
	$(call unless_of_another,$(FLOWER_VENV))
	$(PYTHON) -m venv $(FLOWER_VENV)
	grep -v -E "^(packaging|protobuf|rich)==" constraints.txt > $(FLOWER_VENV)/constraints.txt
	$(FLOWER_VENV)/bin/pip install --quiet --no-compile --constraint $(FLOWER_VENV)/constraints.txt \
		--constraint constraints-flower.txt --editable ".[test,flower]"
	touch $(FLOWER_READY)

test-flower: $(FLOWER_READY)
	$(FLOWER_VENV)/bin/python -m pytest -m flower

test-all: test test-slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

# Do the addresses in the documentation answer? Needs the internet; make docs checks internal links.
linkcheck: $(READY)
	$(BIN)/sphinx-build -q -D nb_execution_mode=off -D suppress_warnings=myst-nb.lexer \
		-b linkcheck docs docs/_build/linkcheck

# Runs every notebook, and writes it with its outputs and its first figure, which is its thumbnail
# in docs/notebooks/thumbnails.
notebooks: $(READY)
	$(BIN)/python docs/run_notebooks.py out/notebooks

# The package as users install it: the demo runs from the wheel, which is built from the source archive,
# far from the repository and with no extras.
wheel: $(READY)
	rm -rf dist $(WHEEL_VENV)
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/pip install --quiet --no-compile --constraint constraints.txt dist/streaming_gp-*.whl
	cd / && $(abspath $(WHEEL_VENV))/bin/streaming-gp demo

# The demo under the newest of everything, against the metadata of GPflow, which holds NumPy below 2 and
# Python below 3.13. It may fail for reasons that lie outside.
newest: newest-packages
	$(NEWEST_VENV)/bin/pip install --quiet --no-deps --ignore-requires-python gpflow .
	cd / && $(abspath $(NEWEST_VENV))/bin/python -W error::DeprecationWarning:streaming_gp -m streaming_gp demo

newest-packages:
	$(NEWEST_PYTHON) -m venv $(NEWEST_VENV)
	$(NEWEST_VENV)/bin/pip install --quiet --no-compile $(NEWEST)

# The size of the package, and the files that a batch, a prediction and an answer pass.
house: $(READY)
	$(BIN)/python docs/journeys.py

bench: $(READY)
	$(BIN)/python examples/barrett_stream.py --out out/barrett

# Do the tests see a changed sign? Continues docs/results/mutations; MUTATE="--only losses --sample 50".
mutate: $(READY)
	$(BIN)/python -m tests.mutations $(MUTATE)

# The other packages that are compared with have an environment of their own.
$(BENCH_READY): setup.cfg constraints.txt $(PINS)
	$(call unless_of_another,$(BENCH_VENV))
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/pip install --quiet --no-compile --constraint constraints.txt --constraint $(PINS) \
		--editable ".[benchmarks]"
	touch $(BENCH_READY)

# Continues docs/results/streams; make bench-streams ONLY="'kin8nm-*/private*'" runs a part of it.
bench-streams: $(BENCH_READY)
	$(BENCH_VENV)/bin/python -m experiments.benchmarks --out $(STREAMS_OUT) $(if $(ONLY),--only $(ONLY))

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(FLOWER_VENV) $(WHEEL_VENV) $(NEWEST_VENV) dist out docs/_build build *.egg-info
