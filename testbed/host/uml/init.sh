#!/bin/sh
# The guest's first process, on the host's own file system: lay memory over it, so that nothing is written to the
# host, and go on in what results. Arguments: the folder that is shared with the host, the Python interpreter, and
# where it finds the package.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t tmpfs -o mode=755 run /run
mkdir /run/memory /run/guest
insmod "/usr/lib/uml/modules/$(uname -r)/kernel/fs/overlayfs/overlay.ko"
mount -t tmpfs -o mode=755 memory /run/memory
mkdir /run/memory/changes /run/memory/work
mount -t overlay -o lowerdir=/,upperdir=/run/memory/changes,workdir=/run/memory/work guest /run/guest
cd /run/guest
mkdir -p dev proc sys run tmp lib/modules
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev
mount -t tmpfs -o mode=755 run run
mkdir -p dev/pts dev/shm run/host run/lock
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs shm dev/shm
mount --bind /usr/lib/uml/modules lib/modules
pivot_root . run/host
umount -l /run/host/proc /run/host/run /run/host/dev
export PYTHONPATH="$3"
exec "$2" -P -m testbed.host.uml.inside "/run/host$1"
