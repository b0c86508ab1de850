#!/usr/bin/env bash
# Makes a pool in parts, one in each process of an MPI job:
#
#   MPIRUN_ARGS='--hostfile hosts' examples/recipes/mpirun.sh 8 /shared/juliet.pool --prompt-len 64 --tokens 40
#
# Called again, it makes the parts that are missing, and no others.
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")

# A process of the job. Open MPI, then those that speak PMI.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}}
if [[ ${WAGGLE_MPI_PARTS:-} && $rank ]]; then
    pool=$1
    shift
    # `mpirun` would end all other processes if one failed.
    "${self%/*}/part" "$pool" "$((rank + 1))/$WAGGLE_MPI_PARTS" "$@" || echo "part $((rank + 1)) failed" >&2
    exit 0
fi

if [[ $# -lt 2 || ! $1 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: examples/recipes/mpirun.sh N POOL OPTIONS..." >&2
    exit 2
fi
of=$1 pool=$2
shift 2
export WAGGLE_MPI_PARTS=$of
read -ra extra <<<"${MPIRUN_ARGS:-}"
mpirun -n "$of" -x WAGGLE_MPI_PARTS "${extra[@]}" "$self" "$pool" "$@"

missing=()
for ((number = 1; number <= of; number++)); do
    [[ $of == 1 || -e $pool.$number-of-$of ]] || missing+=("$number")
done
if [[ ${#missing[@]} -gt 0 ]]; then
    echo "parts that are missing: ${missing[*]}; call it again to make them" >&2
    exit 1
fi
