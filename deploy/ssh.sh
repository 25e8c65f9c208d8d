#!/usr/bin/env bash
# millrace-train on several hosts by ssh: one process on each, which starts that host's ranks.
#
#   deploy/ssh.sh host0 host1 -- --nproc 8 --restarts 20 --checkpoint-dir /shared/ck --resume auto --shards '/data/train-{000000..000099}.tar'
#
# Hosts are named as for ssh (USER@HOST too); the first one has rank 0, and the others must reach it by that name: else set MASTER_ADDR.
# What follows -- is for millrace-train, the same on all hosts. Log in without a password, and have the program, the shards and (for the
# first host) --checkpoint-dir at the same paths. Signals of this script go to all hosts: SIGTERM and Ctrl-C save and end, SIGUSR1 saves. A host
# whose connection is cut saves and ends too. If one host fails, the others are asked to end; the exit code is that of the first to fail.
#
# MASTER_PORT (29500): a free port of the first host. DIR: the folder to start in. TRAIN: the program (millrace-train).
# SSH: the command (ssh -o BatchMode=yes -o ServerAliveInterval=10, which notices within 30 s that a host is gone).
# PASS: names of other variables to pass on (MILLRACE_CPU_THREADS OMP_NUM_THREADS).
set -u

hosts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do hosts+=("$1"); shift; done
if [ ${#hosts[@]} -eq 0 ] || [ $# -lt 2 ]; then sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
shift
read -ra ssh <<<"${SSH:-ssh -o BatchMode=yes -o ServerAliveInterval=10}"

# Words for any shell, whatever is in them.
quoted() { for word; do printf "'%s' " "${word//\'/\'\\\'\'}"; done; }

# On each host: names of signals come by stdin, whose end means that the connection is cut.
# shellcheck disable=SC2016  # expanded there
there='cd "$1" || exit 2; shift; exec 3<&0
"$@" </dev/null 3<&- & ranks=$!
{ while read -r -u 3 name; do kill -s "$name" $ranks; done; kill -s TERM $ranks; } 2>/dev/null & reader=$!
wait $ranks; code=$?; kill $reader 2>/dev/null; exit $code'

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
left=() inputs=()
for i in "${!hosts[@]}"; do
  place=(env "RANK=$i" "WORLD_SIZE=${#hosts[@]}" "MASTER_ADDR=${MASTER_ADDR:-${hosts[0]#*@}}" "MASTER_PORT=${MASTER_PORT:-29500}")
  for name in ${PASS:-MILLRACE_CPU_THREADS OMP_NUM_THREADS}; do [ -z "${!name+x}" ] || place+=("$name=${!name}"); done
  mkfifo "$folder/$i"
  # setsid: Ctrl-C is for this script, which passes it on.
  setsid "${ssh[@]}" "${hosts[i]}" "exec bash -c $(quoted "$there" millrace "${DIR:-.}" "${place[@]}" "${TRAIN:-millrace-train}" "$@")" \
    <"$folder/$i" &
  left+=($!)
done
# After all have been started: none holds the input of another open.
for i in "${!hosts[@]}"; do exec {input}>"$folder/$i"; inputs+=("$input"); done

tell() { for input in "${inputs[@]}"; do echo "$1" >&"$input"; done 2>/dev/null; }
trap '' PIPE
trap 'tell TERM' TERM HUP
trap 'tell INT' INT
trap 'tell USR1' USR1
trap 'tell USR2' USR2

first=0
while [ ${#left[@]} -gt 0 ]; do
  wait -n -p ended "${left[@]}"
  code=$?
  [ -n "${ended:-}" ] || continue  # it was a signal
  alive=()
  for pid in "${left[@]}"; do [ "$pid" = "$ended" ] || alive+=("$pid"); done
  left=(${alive[@]+"${alive[@]}"})
  if [ $code -ne 0 ] && [ $first -eq 0 ]; then
    first=$code
    tell TERM
  fi
done
exit $first
