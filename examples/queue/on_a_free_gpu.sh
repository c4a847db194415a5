#!/bin/sh
# Runs a command on a GPU that no other command of this script uses: `GPUS="0 1" sh on_a_free_gpu.sh COMMAND...`.
# It waits for one. The lock ends with the command's last process.
set -eu
while :; do
  for gpu in ${GPUS:-0}; do
    exec 9> "${LOCKS:-/tmp}/gpu-$gpu.lock"
    if flock --nonblock 9; then CUDA_VISIBLE_DEVICES=$gpu exec "$@"; fi
  done
  sleep 1
done
