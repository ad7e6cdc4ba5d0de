# Two commands on a fresh machine with Python ≥ 3.11:
#   make demo   learn from embedded data, evaluate, write runs/demo/report.html
#   make test   lint, types, the whole test suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready

.PHONY: demo test lint types tests storm bench docs clean

demo: $(DEMO)
	$(BIN)/nearfar demo --out runs/demo

test: lint types tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# one thread each for two workers: faster on two cores than two threads for one, and no test is timed
tests: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# the documentation site in build/docs: guides, API reference, search; a broken link is an error
docs: $(READY)
	$(BIN)/python -m sphinx -q -W --keep-going -E docs build/docs

# random mishaps against every promise, each reproducible from its seed (docs/reliability.md)
HOURS ?= 1
SEED ?= 0
storm: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.storm --hours $(HOURS) --seed $(SEED)

# each benchmark prints ratios measured in one run, arms interleaved
bench: $(READY)
	$(BIN)/nearfar bench
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# the demo installs what it needs and no developer tools; the tests add theirs to the same environment
EXTRAS = $(if $(filter $(READY),$@),dev,report$(comma)tensorboard)
comma := ,
$(DEMO) $(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nearfar needs Python 3.11 or newer; set PYTHON=python3.12 or the like")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis build
