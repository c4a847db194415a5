#!/bin/sh
# Queues the runs of a host, in this order. After a reboot, start it again: runs that had begun are resumed, and those that
# had ended say so in one line.
set -eu
queue() {
  name=$1
  shift
  if [ -e "runs/$name/config.toml" ]; then set -- --resume "runs/$name"; else set -- --run-dir "runs/$name" "$@"; fi
  tsp -L "$name" penstock train "$@"
}
queue lander-1 --preset lunar_lander --run.seed 1
queue lander-2 --preset lunar_lander --run.seed 2
