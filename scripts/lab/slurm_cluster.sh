# A real Slurm of four nodes on this machine that are said to have eight GPUs each, to be sourced: `work` is the folder
# that gets Debian's packages, unpacked there and not installed, and all files of the daemons, which end with the script
# that sources this. Needs root, for slurmd, and apt-get download.
root=$work/root
rm -rf "$work"/{db,run,spool,state,log}
mkdir -p "$root" "$work"/{etc,db,run,spool,state,log}

packages="slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin munge libmunge2
    mariadb-server-core mariadb-common libmariadb3 mysql-common libhwloc15 libaio1 liburing2 libjwt0 libb64-0d
    liblua5.1-0"
if [ ! -x "$root/usr/sbin/slurmdbd" ]; then
    (cd "$work" && apt-get download $packages >&2 && for each in *.deb; do dpkg -x "$each" "$root"; done)
fi
for each in slurmctld slurmd slurmstepd; do  # daemons know by their names what they are
    ln -sf $each-wlm "$root/usr/sbin/$each"
done
libraries=$root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$libraries:$libraries/slurm-wlm
export PATH=$root/usr/bin:$root/usr/sbin:$PATH
export SLURM_CONF=$work/etc/slurm.conf

cat >"$work/etc/slurm.conf" <<END
ClusterName=fake
SlurmctldHost=$(hostname)
SlurmUser=root
SlurmctldPort=16817
SlurmctldPidFile=$work/run/slurmctld.pid
SlurmdPidFile=$work/run/slurmd-%n.pid
SlurmdSpoolDir=$work/spool/%n
StateSaveLocation=$work/state
SlurmctldLogFile=$work/log/slurmctld
SlurmdLogFile=$work/log/slurmd-%n
PluginDir=$libraries/slurm-wlm
AuthType=auth/munge
AuthInfo=socket=$work/run/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=1
MinJobAge=300
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=16819
AccountingStoragePass=$work/run/munge.socket
AccountingStorageTRES=gres/gpu,gres/gpu:a100
KillWait=2
NodeName=n[1-4] NodeHostname=$(hostname) Port=[17001-17004] CPUs=64 RealMemory=1000 Gres=gpu:a100:8 State=UNKNOWN
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
END
touch "$work"/run/gpu{0..7}  # devices that are only counted
echo "NodeName=n[1-4] Name=gpu Type=a100 File=$work/run/gpu[0-7]" >"$work/etc/gres.conf"
cat >"$work/etc/slurmdbd.conf" <<END
AuthType=auth/munge
AuthInfo=socket=$work/run/munge.socket
DbdHost=localhost
DbdPort=16819
SlurmUser=root
LogFile=$work/log/slurmdbd
PidFile=$work/run/slurmdbd.pid
PluginDir=$libraries/slurm-wlm
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=13306
StorageUser=root
StorageLoc=slurm
END
chmod 600 "$work/etc/slurmdbd.conf"

started=()
finish() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
}
trap finish EXIT
start() { "$@" >>"$work/log/out" 2>&1 & started+=($!); }
until_works() { for _ in $(seq 60); do "$@" >/dev/null 2>&1 && return; sleep 1; done; echo "failed: $*" >&2; exit 1; }

tables=$root/usr/share/mysql
database="mariadbd --no-defaults --datadir=$work/db --lc-messages-dir=$tables --user=root"
if [ ! -d "$work/db/mysql" ]; then
    { printf "create database mysql;\nuse mysql;\n"; cat "$tables"/mysql_system_tables.sql "$tables"/mysql_system_tables_data.sql; } |
        $database --bootstrap >>"$work/log/out" 2>&1
fi
start $database --skip-grant-tables --bind-address=127.0.0.1 --port=13306 --socket="$work/run/db.socket" \
    --innodb-buffer-pool-size=128M --innodb-lock-wait-timeout=900 --plugin-dir="$work/none"
[ -s "$work/etc/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom >"$work/etc/munge.key")
start munged --foreground --force --key-file="$work/etc/munge.key" --socket="$work/run/munge.socket" \
    --pid-file="$work/run/munged.pid" --log-file="$work/log/munged" --seed-file="$work/run/munged.seed"
sleep 4
start slurmdbd -D
until_works sacctmgr -i show cluster
sacctmgr -i add cluster fake >&2 || true
start slurmctld -D -f "$SLURM_CONF"
for node in 1 2 3 4; do start slurmd -D -N n$node -f "$SLURM_CONF" -d "$root/usr/sbin/slurmstepd"; done
until_works sh -c 'sinfo -h -o %T | grep -q idle'
sleep 3

