#!/bin/sh
# Makes the certificates of a run in FOLDER/certificates, or renews them, and prints what `docker stack deploy` needs:
#
#   eval "$(sh deploy/swarm/certificates.sh FOLDER [OPTION...])"
#
# Options are those of `penstock certificates`, such as --renew. It keeps what has more than a third of its life left, so
# it can precede each deployment. It uses the image of the actors, and needs nothing else. All files belong to the user
# who runs it. Give the folder to no one: the key of the authority is in it, too.
set -eu

folder=${1:?name the folder of the certificates, and optionally options of penstock certificates}
shift
(umask 077 && mkdir -p "$folder")
folder=$(cd "$folder" && pwd)
run=/runs/$(basename "$folder")
said=$(docker run --rm --network none --cap-drop ALL --user "$(id -u):$(id -g)" --volume "$folder:$run" \
  "${PENSTOCK_REGISTRY:-}penstock-actor:${PENSTOCK_TAG:-latest}" certificates "$run" "$@")
printf '%s\n' "$said" | sed -n 's/ UTC  .*/ UTC/p' >&2
# Swarm can't change a secret, so each has the version of all certificates in its name.
version=$(cat "$folder"/certificates/*/certificate.pem "$folder/certificates/authority.pem" | sha256sum | cut -c 1-12)
echo "export PENSTOCK_CERTIFICATES='$folder/certificates' PENSTOCK_CERTIFICATES_VERSION=$version"
