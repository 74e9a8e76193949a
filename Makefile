# One command for each thing that people do here. Every target sets up what it needs in .venv.
PYTHON ?= python3
VENV ?= .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
READY_DEMO := $(VENV)/.ready-demo
READY_DEV := $(VENV)/.ready-dev
READY_BENCH := $(VENV)/.ready-bench
TORCH ?= torch==2.13.0
TENSORFLOW ?= tensorflow-cpu tf2onnx

.PHONY: help demo test check lint types imports bench bundles docs clean

help:  ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(READY_DEMO): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[simulator]'
	$(BIN)/python -m rerank_features.compiler.build
	@touch $@

# PyTorch first and pinned, TensorFlow without GPU parts: otherwise they bring gigabytes of GPU libraries.
$(READY_DEV): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet '$(TORCH)' $(TENSORFLOW)
	$(BIN)/python -m pip install --quiet --editable '.[convert,train,simulator,dev]'
	$(BIN)/python -m rerank_features.compiler.build
	@touch $@ $(READY_DEMO)

demo: $(READY_DEMO)  ## Replay real users, print lists and figures, write out/demo.html
	$(BIN)/rerank demo --report out/demo.html

test: $(READY_DEV)  ## Run all tests
	$(BIN)/python -m pytest -n auto

check: lint types imports  ## Lint, format, types, import contracts, tests with coverage
	$(BIN)/python -m pytest -n auto --cov --cov-report=term-missing:skip-covered

lint: $(READY_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY_DEV)
	$(BIN)/mypy

imports: $(READY_DEV)
	$(BIN)/lint-imports

# The models are exported with PyTorch and onnxmltools; each peer gets an environment of its own below build/bench.
$(READY_BENCH): $(READY_DEV)
	$(BIN)/python -m pip install --quiet onnxmltools
	@touch $@

bench: $(READY_BENCH)  ## Measure the loop, the features, and the engine beside its peers
	$(BIN)/python bench/make_models.py --out build/bench/models
	$(BIN)/python bench/peers/prepare.py --models build/bench/models --peers build/bench/peers
	OMP_NUM_THREADS=1 $(BIN)/rerank bench loop
	OMP_NUM_THREADS=1 $(BIN)/rerank bench features
	$(BIN)/rerank bench engine

bundles: $(READY_DEV)  ## Train the bundled models again
	$(BIN)/python models/make_bundles.py

docs: $(READY_DEV)  ## Build the documentation
	$(BIN)/mkdocs build --strict

clean:  ## Remove what the other targets made
	rm -rf $(VENV) out site build/bench .coverage htmlcov .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
