#!/usr/bin/env bash
# A real SLURM on one machine: a controller and 4 nodes (n0-n3) of 4 CPUs and 2 pretend GPUs each. Needs root.
#   cluster.sh up     installs what is missing (Debian), starts it; does nothing where one answers already
#   cluster.sh down   stops what `up` started, by process id
set -euo pipefail
state=${SLURM_TEST_STATE:-/tmp/espnet3-rules-slurm}
host=$(hostname -s)
nodes=4

down() {
  for file in "$state"/*.pid; do
    [ -f "$file" ] && kill "$(cat "$file")" 2>/dev/null || true
  done
}

installed() { command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null; }

install() {
  installed && return
  command -v apt-get >/dev/null || { echo "no SLURM here, and no apt-get to install it with" >&2; exit 77; }
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y slurm-wlm munge; } >/dev/null 2>&1 || true
  installed || { echo "SLURM could not be installed" >&2; exit 77; }
}

start_munge() {
  mkdir -p /run/munge
  chown munge:munge /run/munge
  if [ ! -f /etc/munge/munge.key ]; then
    (umask 077 && head -c 1024 /dev/urandom >/etc/munge/munge.key)
    chown munge:munge /etc/munge/munge.key
  fi
  pgrep -x munged >/dev/null || su -s /bin/sh munge -c /usr/sbin/munged
}

configure() {
  mkdir -p /etc/slurm "$state/state" "$state/log"
  # the executor plugin takes SLURM_CONF away from jobs: only the default place is seen by everyone
  cat >/etc/slurm/slurm.conf <<CONF
ClusterName=espnet3-rules
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
AuthType=auth/munge
StateSaveLocation=$state/state
SlurmdSpoolDir=$state/spool-%n
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd-%n.pid
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MinJobAge=300
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[0-$((nodes - 1))] NodeHostname=$host NodeAddr=127.0.0.1 Port=[17000-$((17000 + nodes - 1))] CPUs=4 RealMemory=6000 Gres=gpu:2 State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 State=UP
CONF
  echo "NodeName=n[0-$((nodes - 1))] Name=gpu File=$state/nvidia[0-1]" >/etc/slurm/gres.conf
  for number in 0 1; do
    # a GPU must be a character device, or slurmd does not count it
    [ -e "$state/nvidia$number" ] || mknod "$state/nvidia$number" c 1 3
  done
  for number in $(seq 0 $((nodes - 1))); do
    mkdir -p "$state/spool-n$number"
    # ranks find each other by the node's name
    getent hosts "n$number" >/dev/null || echo "127.0.0.1 n$number" >>/etc/hosts
  done
}

idle_nodes() { sinfo -h -N -t idle,mixed,allocated -o %N 2>/dev/null | sort -u | wc -l; }

up() {
  if command -v scontrol >/dev/null && timeout 10 scontrol ping 2>/dev/null | grep -q UP && [ "$(idle_nodes)" -ge 1 ]; then
    sinfo
    return
  fi
  [ "$(id -u)" = 0 ] || { echo "starting a SLURM needs root" >&2; exit 77; }
  install
  start_munge
  configure
  slurmctld
  for number in $(seq 0 $((nodes - 1))); do slurmd -N "n$number"; done
  for _ in $(seq 60); do
    [ "$(idle_nodes)" = "$nodes" ] && break
    sleep 0.5
  done
  sinfo
}

"${1:-up}"
