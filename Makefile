# hpcfed: `make demo` sets everything up and runs; `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check install -q -c constraints.txt

# Small machines: more ranks than cores, ranks bound to no core, one thread each; as root, mpirun wants to be told.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export PRTE_MCA_hwloc_default_binding_policy := none
export OMP_NUM_THREADS := 1
# Many short processes: what Python compiles is kept, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

RUN := $(BIN)/mpirun -np 2 $(BIN)/python -m hpcfed.main
ONE_LINE := 'import json, sys; print("{run}: {algorithm}, test accuracy {accuracy[mean]:.4f}".format(**json.load(sys.stdin)))'

BENCH := overhead faster augment startup sums placement ranks clients

.PHONY: help setup demo check test lint docs gallery bench rehearse clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' '$(strip $(MAKEFILE_LIST))' | expand -t 16

setup: .venv/.installed ## make .venv with pinned versions and an MPI runtime

.venv/.installed: setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hpcfed needs Python 3.11 or newer; set PYTHON=..."; exit 2; }
	@$(PYTHON) -m venv .venv || { echo "no venv module: apt-get install python3-venv"; exit 2; }
	$(PIP) -e '.[mpi]'
	@touch $@

.venv/.docs: .venv/.installed
	$(PIP) -e '.[mpi,docs]'
	@touch $@

.venv/.tests: .venv/.docs
	$(PIP) -e '.[mpi,docs,report,models,onnx,export,tensorboard,hf,timm,tune,test]'
	@touch $@

demo: setup ## 20 clients, four architectures, two ranks: each alone, then FedClassAvg
	$(RUN) --algorithm.name local --rounds 80 --out runs/demo-local --overwrite --quiet
	$(RUN) --rounds 80 --out runs/demo --overwrite
	$(BIN)/hpcfed plot runs/demo-local runs/demo -o runs/demo/curves.png
	@for run in runs/demo-local runs/demo; do $(BIN)/hpcfed summary $$run --json | $(BIN)/python -c $(ONE_LINE); done

check: lint ## after each change, about a minute: style, types, house rules, golden values, quick units
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m quick

test: .venv/.tests ## install what the tests need, run all of them, and list the slowest
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --durations=25

lint: .venv/.tests ## check style and types
	$(BIN)/ruff format --check -q hpcfed tests benchmarks docs setup.py
	$(BIN)/ruff check hpcfed tests benchmarks docs setup.py
	$(BIN)/mypy

docs: .venv/.docs ## build the documentation and check its pages: build/docs/index.html
	PYTHONPATH=. $(BIN)/python docs/generate.py build
	$(BIN)/zensical build --strict -f build/zensical.toml
	$(BIN)/python docs/links.py build/docs
	$(BIN)/python -m pytest -q docs/test_site.py
	@echo build/docs/index.html

gallery: .venv/.tests ## run the jobs of the documentation's pictures, and draw them: about 10 minutes
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=. $(BIN)/python docs/gallery.py

bench: .venv/.tests ## measure speed on this machine's cores, under 15 minutes: benchmarks/results/bench/table.md
	@for name in $(BENCH); do echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done
	@$(BIN)/python benchmarks/report.py > /dev/null

rehearse: ## try the quarter of an hour on a GPU machine beforehand, with its builds and without a GPU: several GB, half an hour
	bash benchmarks/gpu/rehearse.sh build/rehearse

clean: ## remove what was built, keep runs
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .hypothesis
