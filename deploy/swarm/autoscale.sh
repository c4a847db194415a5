#!/bin/sh
# Follows the number of actors that the learner can use: `sh deploy/swarm/autoscale.sh STACK [SECONDS]`, on a manager.
#
# It asks every so many seconds, 30 by default, until the run ends or it is stopped. It uses the image of the stack's
# actors and the operator's certificate in PENSTOCK_CERTIFICATES, and needs nothing else. The number stays as it is while
# the learner gives no answer, or has not judged yet (0).
set -eu

stack=${1:?name the stack, and optionally the seconds between two looks}
operator=${PENSTOCK_CERTIFICATES:?set it as certificates.sh prints it}/operator
image=$(docker service inspect --format '{{.Spec.TaskTemplate.ContainerSpec.Image}}' "${stack}_actor")

while docker service ps --filter desired-state=running --format '{{.Name}}' "${stack}_learner" | grep -q .; do
  status=$(docker run --rm --network "${stack}_run" --user "$(id -u):$(id -g)" --volume "$operator:/etc/penstock:ro" \
    --env PENSTOCK__SECURITY__CERTIFICATE=/etc/penstock/certificate.pem "$image" status learner:7432 --json) || status=
  wanted=$(printf '%s' "$status" | sed -n 's/.*"wanted_actors": \([1-9][0-9]*\).*/\1/p')
  [ -z "$wanted" ] || docker service scale --detach "${stack}_actor=$wanted"
  sleep "${2:-30}"
done
echo "the run of $stack has ended"
