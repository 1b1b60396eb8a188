#!/bin/bash
# Submits what `ddlprof recommend --emit slurm` writes to a real Slurm: four nodes on this machine that are said to have
# eight GPUs each. `sbatch --test-only` has to take every file, and examples/digits.py trains on two ranks on each of two
# nodes (gloo), once to the end, and once so that it is requeued: three runs of four ranks are there in the end.
#
#     scripts/lab/slurm_submits.sh FOLDER
#
# FOLDER is as in slurm_history.sh. Run it in the environment that has ddlprof and torch. Takes two minutes.
set -eu
if [ -z "${IN_ITS_OWN:-}" ]; then  # nodes find each other by names that only these processes know
    export IN_ITS_OWN=1
    exec unshare --mount "$0" "$@"
fi
work=$(realpath "$1")
here=$(cd "$(dirname "$0")/../.." && pwd)
{ cat /etc/hosts; echo "127.0.0.1 n1 n2 n3 n4"; } >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
. "$here/scripts/lab/slurm_cluster.sh"

cd "$here"
env -u LD_LIBRARY_PATH python -m scripts.lab.emitted_files --slurm "$work/files"
cd "$work"
rm -rf ddlprof-runs
for file in files/*.sbatch.sh; do sbatch --test-only "$file"; done
if sed 's/--gres=gpu:8/--gres=gpu:9/' files/two.sbatch.sh | sbatch --test-only 2>/dev/null; then
    echo "a machine with nine GPUs was promised" >&2
    exit 1
fi
export OMP_NUM_THREADS=1
sbatch --wait files/trained.sbatch.sh || { cat slurm-*.out; exit 1; }
job=$(sbatch --parsable files/interrupted.sbatch.sh)
until_works ls ddlprof-runs/interrupted-"$job"-0/attempt-0/rank-3.jsonl  # it trains
scontrol requeue "$job"
for _ in $(seq 240); do sleep 1; [ -z "$(squeue -h -j "$job")" ] && break; done
cat slurm-*.out
ls -d ddlprof-runs/{trained-*-0,interrupted-*-0,interrupted-*-1}/attempt-0/rank-3.jsonl
