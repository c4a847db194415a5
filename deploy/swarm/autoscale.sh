#!/bin/sh
# Follows the number of actors that the learner wants: the program of the service in autoscale.yml. Its variables are
# STACK, the name of the stack, and AUTOSCALE_SECONDS between two looks, 30 by default.
#
# It reads the learner's metrics, and scales the service of the actors: up at once, and down after four looks, because a
# learner that has just started again does not judge yet. The number stays as it is while the learner gives no answer, or
# has not judged (0). When the run has ended, it removes all actors.
set -eu

actors=${STACK:?name the stack}_actor
fewer=0
while :; do
  # The newest task comes first.
  state=$(docker service ps --format '{{.CurrentState}}' "${STACK}_learner" | head -n 1)
  metrics=$(wget -q -T 10 -O - http://learner:9432/metrics) || metrics=
  wanted=$(printf '%s\n' "$metrics" | sed -n 's/^penstock_learner_wanted_actors \([1-9][0-9]\{0,3\}\)\.0$/\1/p')
  case $state in Complete*) wanted=0 fewer=4 ;; esac
  there=$(docker service inspect --format '{{.Spec.Mode.Replicated.Replicas}}' "$actors")
  if [ "${wanted:-$there}" -lt "$there" ]; then fewer=$((fewer + 1)); else fewer=0; fi
  if [ "${wanted:-$there}" -gt "$there" ] || [ "$fewer" -ge 4 ]; then
    docker service scale --detach "$actors=$wanted"
    fewer=0
  fi
  sleep "${AUTOSCALE_SECONDS:-30}"
done
