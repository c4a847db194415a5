#!/bin/sh
# Starts the stack of a run with Docker Compose, waits for the end of its learner and removes the containers, so that GPU
# and ports are free: `PENSTOCK_RUN=NAME sh compose_run.sh NAME`. The volumes stay. It ends with the learner's exit code.
set -eu
project() { docker compose --project-name "$name" "$@"; }
learner_is() { docker inspect --format "{{.$1}}" "$learner"; }
name=$1
project up --detach
learner=$(project ps --all --quiet learner)
# Compose starts a learner that fails again and again.
until [ "$(learner_is State.Status)" = exited ] || [ "$(learner_is RestartCount)" -gt 20 ]; do sleep 10; done
code=$(learner_is State.ExitCode)
project logs --no-log-prefix --tail 5 learner
project down
exit "$code"
