# A comment after ## describes a target in `make`, one after ### in `make help-all`. The targets bench-* and stress-* run
# the programs of benchmarks/ and stress/ whose docstrings begin with the name of their target.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
ARGS ?=
# Overrides the shell, because otherwise each of some hundred processes of a test would compile all sources.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help help-all install train test test-all nightly simulate mutation test-oldest test-newest all-environments package check format docs pictures gallery e2e e2e-presets e2e-week e2e-nodes e2e-slurm e2e-swarm clean proto dashboards compose-settings swarm-configs kubernetes-rules lock torture

TABLE := awk -F '|' '{ printf "%-28s %s\n", $$1, $$2 }'

help: ## list the most common targets
	@sed -n -E 's/^([a-z0-9-]+):[^#]*## +(.*)/make \1|\2/p' Makefile | $(TABLE)
	@echo "ARGS passes options, for example: make train ARGS='--seed 1'"

help-all: help ## list all targets, including benchmarks and stress tests
	@sed -n -E 's/^([a-z0-9-]+):[^#]*### +(.*)/make \1|\2/p' Makefile | $(TABLE)
	@sed -n -s -E '1s/^"""`(make [a-z-]+)`: ([^"]*)\.("""|$$)/\1|\2/p' benchmarks/*.py benchmarks/*/__main__.py stress/*.py | $(TABLE)

install: .venv/.installed ## install Penstock and its development tools into .venv

.venv/.installed: pyproject.toml requirements.lock requirements-torch.lock
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Penstock needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "installing into .venv: about 2.8 GB (6 GB if torch includes CUDA), 1 to 5 minutes, once"
	"$(PYTHON)" -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-torch.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'import penstock.replay.buffer, penstock.learning.step.learner' # compiles their loops once, into a cache
	@touch $@

train: install ## train an agent on CartPole-v1 through real services
	@$(BIN)/penstock train $(ARGS)

# Each worker runs whole files, in collection order, so that the long files do not run last. A fault that breaks everything
# ends the run early, because each of its tests may wait for minutes.
PYTEST := $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder --maxfail=20
OF_GATE := -m "not long and not nightly"
STATIC := tests/architecture tests/docs tests/deploy

test: install ## run the tests, except the static rules of make check
	@echo "the tests take 8 to 15 minutes on two cores"
	@$(PYTEST) $(OF_GATE) $(addprefix --ignore=,$(STATIC)) $(ARGS)

test-all: install ## run all tests
	@$(PYTEST) $(ARGS)

nightly: test-all test-oldest test-newest all-environments mutation e2e e2e-nodes torture ### run what takes too long for every change; needs what these need

simulate: install ### simulate whole runs with faults in virtual time, one for each of the --seeds, until one breaks a guarantee
	@$(BIN)/python -m tests.simulation $(ARGS)

mutation: install ### change the package in 60 places, one at a time, and report which changes no test notices
	@$(BIN)/python -m tests.mutation $(ARGS)

test-oldest: install ### run unit and contract tests with the oldest release of each dependency; takes 8 GB
	@$(BIN)/python -m tests.package.range_of_versions oldest $(ARGS)

test-newest: install ### run unit and contract tests with the newest release of each dependency, without the locks
	@$(BIN)/python -m tests.package.range_of_versions newest $(ARGS)

all-environments: install ### train on every environment of Gymnasium, ALE, MiniGrid, highway-env and dm_control; check those of EnvPool where it is installed
	@$(BIN)/python -m tests.environments.all_environments $(ARGS)
	@$(BIN)/python -m tests.environments.envpool_tasks

e2e: install ## test the stack of docker-compose.yml; needs Docker
	@$(BIN)/python -m tests.e2e.drill $(ARGS)

e2e-presets: install ### watch Prometheus' alerts while each preset trains for 20 minutes; needs Docker
	@$(BIN)/python -m tests.e2e.presets $(ARGS)

e2e-week: install ### train a week in 20 minutes, and measure what grows; needs Docker and root
	@$(BIN)/python -m tests.e2e.week $(ARGS)

e2e-nodes: e2e-slurm e2e-swarm ### test three nodes of each engine; needs what both need

e2e-slurm: install ### test three nodes of Slurm; needs root and slurm-host
	@$(BIN)/python -m tests.e2e.nodes.slurm $(ARGS)

e2e-swarm: install ### test three nodes of Docker Swarm; needs root, Docker and swarm-host
	@$(BIN)/python -m tests.e2e.nodes.swarm $(ARGS)

package: install ## build sdist and wheel, install the wheel into an empty environment, and train there
	@$(BIN)/python -m tests.package.first_installation $(ARGS)

check: install ## check formatting, lint, types and static rules, and build the documentation
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint types types-macos static docs

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

types-macos: install
	$(BIN)/mypy --platform darwin --no-warn-unreachable --cache-dir .mypy_cache/darwin services/penstock

static: install
	$(PYTEST) $(OF_GATE) $(STATIC)

# Warnings are errors. The build needs no network.
docs: install ## build the documentation site into build/docs
	$(BIN)/python -m sphinx -q -W --keep-going docs build/docs
	@echo build/docs/index.html

# The recorded run is of LunarLander, whose environment needs penstock[box2d] in .venv.
pictures: install ### record the terminal and the film of README.md, and draw the curve of docs/getting-started.md
	$(BIN)/python docs/images/first_screen.py
	rm -rf build/picture
	for seed in 1 2 3; do $(BIN)/penstock train CartPole-v1 --seed $$seed --run-dir build/picture/$$seed || exit 1; done
	$(BIN)/penstock plot build/picture/* --output docs/images/cartpole.png

# The films need the extras box2d and mujoco, and a library of OpenGL without a display: libegl1 or libosmesa6.
gallery: install ### train and film every preset for docs/gallery.md
	$(BIN)/python -m benchmarks.gallery $(ARGS)

format: install ## format the code and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The generated Python code is committed. A test checks that it is current. Its compiler is the oldest whose code runs with
# the newest protobuf, and needs an environment of its own.
proto: install ### generate the Python code of the contract from proto
	"$(PYTHON)" -m venv build/proto && build/proto/bin/pip install --quiet grpcio-tools==1.76.0 "setuptools<81"
	build/proto/bin/python -m grpc_tools.protoc -Iproto --python_out=services --pyi_out=services proto/penstock/v1/*.proto

# The generated dashboards are committed. A test checks that they are current.
dashboards: install ### generate the Grafana dashboards
	$(BIN)/python deploy/grafana/dashboards.py
	$(BIN)/python deploy/swarm/configs.py

# The generated settings are committed. A test checks that they are current.
compose-settings: install ### generate the settings that Docker Compose reads from the shell
	$(BIN)/python deploy/compose/settings.py

# The names are committed. A test checks that they are current.
swarm-configs: install ### name the configurations of the Swarm stack after their contents
	$(BIN)/python deploy/swarm/configs.py

# The generated rules are committed. A test checks that they are current.
kubernetes-rules: install ### generate the rules of Prometheus for Kubernetes
	$(BIN)/python deploy/kubernetes/rules.py

COMPILE = $(BIN)/pip-compile --quiet --strip-extras --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
	--no-emit-trusted-host
HASHED = $(COMPILE) --generate-hashes --constraint requirements-torch.lock --unsafe-package torch --unsafe-package pip

# torch has a lock of its own, without hashes and without its local version (+cpu), because each index has its own builds
# of a release. An image has a lock with its own extra alone; it begins as a copy, so that both have the same versions.
lock: install ### resolve the dependencies into requirements*.lock
	$(COMPILE) --allow-unsafe --output-file requirements-torch.lock pyproject.toml
	sed -n -i -E 's/^(torch==[0-9.]+).*/\1/p' requirements-torch.lock
	$(HASHED) --extra dev --output-file requirements.lock pyproject.toml
	for image in actor:atari learner:gpu; do \
		cp requirements.lock "requirements-$${image%:*}.lock" && \
		$(HASHED) --extra "$${image#*:}" --output-file "requirements-$${image%:*}.lock" pyproject.toml || exit 1; \
	done
	sed -i -E '/^(penstock @|#|$$)/d' requirements.lock requirements-actor.lock requirements-learner.lock

# The first run of a comparison installs each peer into an environment in build/peers.
bench-%: install
	@$(BIN)/python -m benchmarks.$(subst -,_,$*) $(ARGS)

stress-%: install
	@$(BIN)/python -m stress.$(subst -,_,$*) $(ARGS)

torture: stress-torture

clean: ## delete .venv, caches, build and runs, including all trained runs
	rm -rf .venv build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
