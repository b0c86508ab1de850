#!/usr/bin/env bash
# Makes a pool in parts as an array of Slurm jobs, one part each. Submit it from the repository's root:
#
#   sbatch --array=1-8 examples/recipes/slurm.sh /shared/juliet.pool 8 --prompt-len 64 --tokens 40
#
# A part that failed is made again alone:
#
#   sbatch --array=3 examples/recipes/slurm.sh /shared/juliet.pool 8 --prompt-len 64 --tokens 40
#
# Submitted from elsewhere, it finds the other recipes by WAGGLE_RECIPES, their folder.
# The number of parts is an argument, because the size of the array changes when one part is made again.
#SBATCH --job-name=waggle-pool
#SBATCH --cpus-per-task=2
#SBATCH --output=waggle-pool-%a.log
set -euo pipefail
if [[ $# -lt 2 || -z ${SLURM_ARRAY_TASK_ID:-} ]]; then
    echo "usage: sbatch --array=1-N examples/recipes/slurm.sh POOL N OPTIONS..." >&2
    exit 2
fi
pool=$1 of=$2
shift 2
# Slurm runs a copy of this file, from another place.
recipes=${WAGGLE_RECIPES:-${SLURM_SUBMIT_DIR:-.}/examples/recipes}
exec "$recipes/part" "$pool" "$SLURM_ARRAY_TASK_ID/$of" "$@"
