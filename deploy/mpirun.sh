#!/usr/bin/env bash
# millrace-train by Open MPI, one rank for each slot.
#
#   HOSTS=host0:8,host1:8 deploy/mpirun.sh --shards '/data/train-{000000..000099}.tar' --checkpoint-dir /shared/ck --epochs 90
#
# Everything is for millrace-train. HOSTS: hosts with their slots, rank 0's first (localhost with as many slots as RANKS, 1); the others must
# reach the first one by that name: else set MASTER_ADDR. RESTARTS: how often to start again after a failure that another attempt may survive
# (3). TRAIN: the program (millrace-train). MPIRUN: (mpirun), with options of your own.
#
# SIGTERM and Ctrl-C save and end: Open MPI itself would give its ranks one second. SIGUSR1 saves and goes on, SIGUSR2 saves and ends.
set -u
if [ $# -eq 0 ]; then
  echo "usage: HOSTS=host0:8,host1:8 $0 --shards '/data/train-{000000..000099}.tar' --checkpoint-dir /shared/ck --epochs 90" >&2
  echo "Its arguments are millrace-train's (millrace-train --help); the variables HOSTS, RANKS, RESTARTS, TRAIN and MPIRUN are at its top." >&2
  exit 2
fi
hosts=${HOSTS:-localhost:${RANKS:-1}}
first=${hosts%%,*}
read -ra mpirun <<<"${MPIRUN:-mpirun}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
place=(-x OMP_NUM_THREADS)
# On one host Open MPI says that all are there.
case $hosts in *,*) export MASTER_ADDR=${MASTER_ADDR:-${first%%:*}} && place+=(-x MASTER_ADDR) ;; esac

asked=
for ((restart = 0; ; ++restart)); do
  # setsid: Ctrl-C is for this script.
  setsid "${mpirun[@]}" --host "$hosts" "${place[@]}" "${TRAIN:-millrace-train}" "$@" --resume auto &
  job=$!
  trap 'asked=yes; kill -s USR2 $job' TERM INT HUP USR2
  trap 'kill -s USR1 $job' USR1
  while wait $job; code=$?; kill -0 $job 2>/dev/null; do :; done
  case $code in 4 | 6 | 134 | 135 | 137 | 139) ;; *) break ;; esac
  if [ -n "$asked" ] || [ $restart -ge "${RESTARTS:-3}" ]; then break; fi
  echo "ended with exit code $code: restart $((restart + 1)) of ${RESTARTS:-3}" >&2
done
exit "$code"
