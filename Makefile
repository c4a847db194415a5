# make train    trains an agent on CartPole-v1 through real services; ARGS='--seed 1' are options of `penstock train`
# make test     runs the tests
# Both install what they need into .venv first. The rest is for whoever changes the code.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
ARGS ?=
# Compiled files are kept even if the shell forbids it: each of some hundred processes of a test would compile all sources.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install train test e2e check docs format proto dashboards compose-settings lock clean bench-replay bench-sum-tree bench-degrees bench-loop actor-process torture learner-kills hostile attacks odd-environments soak priority-updates snapshot-latency

help:
	@sed -n 's/^# //p' Makefile
	@echo "make e2e          runs the stack of docker-compose.yml, breaks it, and says what became of it; needs Docker"
	@echo "make install | check | docs | format | proto | dashboards | compose-settings | lock | clean"
	@echo "make bench-loop | bench-replay | bench-sum-tree     beside the peers, into build/bench (docs/BENCHMARKS.md)"
	@echo "make actor-process     memory and start of an actor (docs/BENCHMARKS.md)"
	@echo "make bench-degrees     wall time to the threshold by off-policy degree (docs/BENCHMARKS.md)"
	@echo "make torture      kills the replay service under load; ARGS='--seconds 60' for less than 1,000 s"
	@echo "make odd-environments     trains with every kind of misbehaving environment"
	@echo "make learner-kills     kills the learner of a whole run 100 times; ARGS='--kills 6' for fewer"
	@echo "make attacks      attacks the replay service and says what a healthy actor and learner lose by it"
	@echo "make hostile | soak | priority-updates | snapshot-latency     the replay service's other promises (docs/BENCHMARKS.md)"

install: .venv/.installed

.venv/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Penstock needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'import penstock.replay.buffer' # so that the sum tree is compiled once, into its cache
	@touch $@

train: install
	@$(BIN)/penstock train $(ARGS)

# Several processes take whole files, in their order: the long ones are not the last.
test: install
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

e2e: install
	@PYTHONPATH=tests $(BIN)/python -m e2e.drill $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Warnings are errors; needs no network.
docs: install
	$(BIN)/python -m sphinx -q -W --keep-going docs build/docs
	@echo build/docs/index.html

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The Python of the contract is committed; a test checks that it is current.
proto: install
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=services --pyi_out=services proto/penstock/v1/*.proto

# So are Grafana's dashboards.
dashboards: install
	$(BIN)/python deploy/grafana/dashboards.py

# And the settings that compose takes from the shell.
compose-settings: install
	$(BIN)/python deploy/compose/settings.py

# torch's local version (+cpu) is left out of the lock, so that a GPU machine may take the CUDA build of the same release.
lock: install
	$(BIN)/pip-compile --quiet --extra dev --extra gpu --allow-unsafe --strip-extras --no-annotate --no-header --no-emit-index-url \
		--no-emit-find-links --no-emit-trusted-host --output-file requirements.lock pyproject.toml
	sed -i -E -e 's/^(torch==[0-9.]+)\+.*/\1/' -e '/^(pip==|#|$$)/d' requirements.lock

# Each peer is installed into an environment of its own, in build/peers, the first time.
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
