#!/bin/sh
# Runs a command in a root, for which it makes a view of its own (a mount namespace):
#   enter.sh ROOT [NAME=PATH …] -- COMMAND …
# The machine's /dev, /proc and /sys are there, and PATH as /mnt/NAME; a PATH of the name cpuinfo is
# /proc/cpuinfo instead. Nothing stays mounted.
set -eu
root=$1
shift
for folder in dev proc sys; do
    mount --rbind "/$folder" "$root/$folder"
done
mount -t tmpfs none "$root/tmp"
mount -t tmpfs none "$root/mnt"
while [ "$1" != -- ]; do
    path=${1#*=}
    if [ "${1%%=*}" = cpuinfo ]; then
        mount --bind "$path" "$root/proc/cpuinfo"
        shift
        continue
    fi
    target=$root/mnt/${1%%=*}
    if [ -d "$path" ]; then mkdir "$target"; else : >"$target"; fi
    mount --bind "$path" "$target"
    shift
done
shift
exec chroot "$root" "$@"
