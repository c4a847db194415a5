## make train              trains an agent on CartPole-v1 through real services; ARGS='--seed 1' for options
## make test               runs the tests
##
## The targets first install what they need into .venv. All others are for development.
##
## make install            installs Penstock and its development tools into .venv
## make check              checks formatting, lint and types
## make format             formats the code and applies safe lint fixes
## make docs               builds the documentation site into build/docs
## make e2e                starts, scales, kills and pauses the stack of docker-compose.yml, and reports; needs Docker
## make clean              deletes .venv, caches, build and runs, with all trained runs in it
##
## Generated files:
## make proto              generates the Python code of the contract from proto
## make dashboards         generates the Grafana dashboards
## make compose-settings   generates the settings that Docker Compose reads from the shell
## make lock               resolves the dependencies into requirements.lock
##
## Benchmarks (docs/BENCHMARKS.md), with results in build/bench:
## make bench-loop         compares whole runs with other libraries
## make bench-replay       compares the replay service with Reverb
## make bench-sum-tree     compares the sum tree with cpprb
## make bench-degrees      measures the wall time to the threshold by off-policy degree
## make actor-process      measures the memory and the start of an actor
## make torture            kills the replay service, learners and actors under load for 1,000 s; ARGS='--seconds 60' for less
## make learner-kills      kills the learner of a run 100 times; ARGS='--kills 6' for fewer
## make odd-environments   trains with every kind of misbehaving environment
## make attacks            attacks the replay service beside a healthy actor and learner
## make hostile            sends malformed requests to the replay service
## make priority-updates   checks that priorities reach the right segments while the store turns over
## make snapshot-latency   measures the learner's wait for batches during a snapshot
## make soak               checks the memory of the replay service over half an hour of full load

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
ARGS ?=
# Overrides the shell, because otherwise each of some hundred processes of a test would compile all sources.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install train test e2e check docs format proto dashboards compose-settings lock clean bench-replay bench-sum-tree bench-degrees bench-loop actor-process torture learner-kills hostile attacks odd-environments soak priority-updates snapshot-latency

help:
	@sed -n 's/^## \{0,1\}//p' Makefile

install: .venv/.installed

.venv/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Penstock needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'import penstock.replay.buffer' # compiles the sum tree once, into its cache
	@touch $@

train: install
	@$(BIN)/penstock train $(ARGS)

# Each worker runs whole files, in collection order, so that the long files do not run last.
test: install
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

e2e: install
	@PYTHONPATH=tests $(BIN)/python -m e2e.drill $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Warnings are errors. The build needs no network.
docs: install
	$(BIN)/python -m sphinx -q -W --keep-going docs build/docs
	@echo build/docs/index.html

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The generated Python code is committed. A test checks that it is current.
proto: install
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=services --pyi_out=services proto/penstock/v1/*.proto

# The generated dashboards are committed. A test checks that they are current.
dashboards: install
	$(BIN)/python deploy/grafana/dashboards.py

# The generated settings are committed. A test checks that they are current.
compose-settings: install
	$(BIN)/python deploy/compose/settings.py

# The lock omits torch's local version (+cpu), so that a GPU machine can install the CUDA build of the same release.
lock: install
	$(BIN)/pip-compile --quiet --extra dev --extra gpu --allow-unsafe --strip-extras --no-annotate --no-header --no-emit-index-url \
		--no-emit-find-links --no-emit-trusted-host --output-file requirements.lock pyproject.toml
	sed -i -E -e 's/^(torch==[0-9.]+)\+.*/\1/' -e '/^(pip==|#|$$)/d' requirements.lock

# The first run installs each peer into its own environment in build/peers.
bench-replay: install
	@$(BIN)/python benchmarks/replay.py $(ARGS)

bench-sum-tree: install
	@$(BIN)/python benchmarks/sum_tree.py $(ARGS)

bench-degrees: install
	@$(BIN)/python benchmarks/degrees.py $(ARGS)

bench-loop: install
	@$(BIN)/python benchmarks/loop.py $(ARGS)

actor-process: install
	@$(BIN)/python benchmarks/actor_process.py $(ARGS)

torture: install
	@$(BIN)/python benchmarks/torture.py $(ARGS)

odd-environments: install
	@$(BIN)/python benchmarks/odd_environments.py $(ARGS)

learner-kills: install
	@$(BIN)/python benchmarks/learner_kills.py $(ARGS)

hostile: install
	@$(BIN)/python benchmarks/hostile.py $(ARGS)

attacks: install
	@$(BIN)/python benchmarks/attacks.py $(ARGS)

soak: install
	@$(BIN)/python benchmarks/soak.py $(ARGS)

priority-updates: install
	@$(BIN)/python benchmarks/priority_updates.py $(ARGS)

snapshot-latency: install
	@$(BIN)/python benchmarks/snapshot_latency.py $(ARGS)

clean:
	rm -rf .venv build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
