#!/bin/bash
# Makes a history of a real Slurm for the tests of `ddlprof cluster import sacct`: four nodes on this machine that are
# said to have eight GPUs each, jobs of every kind that sleep for some seconds, and what sacct says of them in the end.
#
#     scripts/lab/slurm_history.sh FOLDER > tests/extensions/cluster/history/sacct.txt
#
# FOLDER gets Debian's packages, unpacked there and not installed, and all files of the daemons. Needs root, for
# slurmd, and apt-get download. Takes two minutes.
set -eu
work=$(realpath "$1")
. "$(dirname "$0")/slurm_cluster.sh"

cd "$work"
job() { sbatch --parsable -o /dev/null "$@"; }
job -J bert -N2 --gres=gpu:a100:8 --wrap "srun sleep 9" >&2            # several nodes, with steps
job -J resnet --gres=gpu:a100:8 --wrap "sleep 12" >&2
job -J resnet --gres=gpu:a100:8 --wrap "sleep 7" >&2
job -J sweep --array=1-4%2 --gres=gpu:a100:2 --wrap "sleep 4" >&2      # an array
job -J evaluate --gres=gpu:1 --wrap "sleep 3; exit 1" >&2              # fails, without a type of GPU
job -J data -c4 --wrap "sleep 2" >&2                                   # without GPUs
job -J mixed --gres=gpu:a100:4 : --gres=gpu:a100:2 --wrap "sleep 6" >&2  # heterogeneous
sleep 3
again=$(job -J again --requeue --gres=gpu:a100:4 --wrap "sleep 8")
ended=$(job -J ended --gres=gpu:a100:8 --wrap "sleep 60")
never=$(job -J "never|started" -N4 --gres=gpu:a100:8 --wrap "sleep 60")
job -J "late" --begin=now+600 --gres=gpu:a100:1 --wrap "sleep 1" >&2  # still waits at the end
sleep 12
scontrol requeue "$again" >&2 || true
scancel "$never"
sleep 5
scancel "$ended"
job -J slow -t 1 --gres=gpu:a100:2 --wrap "sleep 200" >&2              # beyond its time limit
for _ in $(seq 90); do sleep 2; [ "$(squeue -h -t R,CG,PD -o %j | grep -vc late)" = 0 ] && break; done
job -J runs --gres=gpu:a100:8 --wrap "sleep 600" >&2                   # still runs at the end
sleep 5
sacct -P -D -a -S now-1hours -o JobID,JobName,User,Submit,Start,End,State,AllocTRES,NNodes
scancel -u root
sleep 4
