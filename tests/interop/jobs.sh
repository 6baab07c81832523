#!/bin/bash
# Runs the job scripts of docs/checkpoints.md on a real Slurm and with the real GNU parallel, and compares every byte of the
# results with those of a single run.
#
#   tests/interop/jobs.sh      less than a minute; needs Linux, slurmctld, slurmd, sbatch, munged and parallel:
#                              apt-get install --no-install-recommends slurm-wlm munge parallel
#
# TCAST=/path/to/tcast tests that binary instead of building one. The script starts a Slurm of one node in a temporary
# folder, with its own key, ports and state, and stops it at the end. A Slurm that is installed already is not touched.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD

for tool in slurmctld slurmd sbatch squeue munged parallel; do
    command -v "$tool" >/dev/null || { echo "$0: $tool is not installed" >&2; exit 2; }
done
parallel --version 2>/dev/null | head -1 | grep -q '^GNU parallel' || { echo "$0: parallel is not GNU parallel" >&2; exit 2; }

if [ -z "${TCAST-}" ]; then
    cargo build --release --quiet
    TCAST=${CARGO_TARGET_DIR:-target}/release/tcast
fi

work=$(mktemp -d)
daemons=()
stop() {
    status=$?
    [ "$status" = 0 ] || tail -n 20 "$work"/slurm/*.log "$work"/run/slurm-*.out >&2 || true
    # The newest first: the daemons of Slurm need munged until they end.
    for ((at = ${#daemons[@]} - 1; at >= 0; at--)); do
        kill "${daemons[at]}" && wait "${daemons[at]}" || true
    done 2>/dev/null
    rm -rf "$work"
    exit "$status"
}
trap stop EXIT

mkdir "$work/bin" "$work/slurm" "$work/run"
ln -s "$(realpath "$TCAST")" "$work/bin/tcast"
cp -R fixtures/checkpoints/llama-tiny-bf16 "$work/run/llama"
export PATH=$work/bin:/usr/sbin:$PATH

# The code block number $1 of the section "$2" of docs/checkpoints.md.
block() {
    awk -v wanted="$1" -v section="## $2" '
        /^## / { inside = $0 == section }
        inside && /^```[a-z]/ { number++; printing = number == wanted; next }
        /^```/ { printing = 0 }
        printing' "$root/docs/checkpoints.md"
}

start() {
    "$@" >"$work/slurm/$(basename "$1").log" 2>&1 &
    daemons+=($!)
}

wait_until() {
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "$0: timeout: $*" >&2
    return 1
}

chmod 755 "$work"
dd if=/dev/urandom of="$work/slurm/key" bs=128 count=1 status=none
chmod 400 "$work/slurm/key"
start munged --foreground --force --key-file="$work/slurm/key" --socket="$work/slurm/munge" --seed-file="$work/slurm/seed" \
    --pid-file="$work/slurm/munged.pid"
user=$(id -un)
# Two free ports. The node has more processors than the machine may have, so that all tasks of the array run at once.
read -r port node_port < <(python3 -c '
import socket
sockets = [socket.create_server(("", 0)) for _ in range(2)]
print(*(socket.getsockname()[1] for socket in sockets))')
export SLURM_CONF=$work/slurm/slurm.conf
cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$(hostname -s)(localhost)
SlurmctldPort=$port
SlurmdPort=$node_port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$work/slurm/munge
CredType=cred/munge
StateSaveLocation=$work/slurm/state
SlurmdSpoolDir=$work/slurm/spool
SlurmctldPidFile=$work/slurm/slurmctld.pid
SlurmdPidFile=$work/slurm/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
NodeName=node NodeHostname=$(hostname -s) NodeAddr=localhost CPUs=32 RealMemory=65536
PartitionName=all Nodes=node Default=YES State=UP
END
mkdir "$work/slurm/state" "$work/slurm/spool"
wait_until test -S "$work/slurm/munge"
start slurmctld -D
start slurmd -D -N node
wait_until sh -c 'sinfo -h -o %T | grep -q idle'

cd "$work/run"
block 1 "Slurm" >cast.sh
block 2 "Slurm" >submit.sh
grep -q '^#SBATCH --array=1-8 ' cast.sh
bash -e submit.sh
wait_until sh -c '[ -z "$(squeue -h)" ]'
tcast cast llama --to float8e4m3fn --protect -o whole-fp8 -q
diff -r llama-fp8 whole-fp8
echo "Slurm $(sbatch --version | cut -d' ' -f2): an array of $(ls slurm-*_*.out | wc -l) tasks writes the bytes of one run"

block 1 "GNU parallel" >parallel.sh
bash -e parallel.sh
tcast cast llama --to f16 -o whole-f16 -q
diff -r llama-f16 whole-f16
echo "$(parallel --version | head -1): parts that run at once write the bytes of one run"
