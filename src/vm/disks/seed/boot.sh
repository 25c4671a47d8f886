#!/bin/sh
# Runs at each boot of the guest. The argument is where the cloud-init disk is mounted.
seed=$1

# put NUMBER MODE PATH: writes a file of the disk to its place.
put() {
    new=$3.vmlet-new
    if [ ! -d "$3" ] && mkdir -p "$(dirname "$3")" &&
        (umask 077 && cp "$seed/vmlet/files/$1" "$new") && chmod "$2" "$new" && mv -f "$new" "$3"; then
        ! command -v restorecon >/dev/null || restorecon "$3"
    else
        echo "vmlet: file not written: $3" >&2
    fi
}

# share TAG OPTION PATH: mounts a directory of the pod.
share() {
    if grep -q " $3 virtiofs " /proc/mounts; then
        return
    fi
    mkdir -p "$3" && mount -t virtiofs -o "$2" "$1" "$3" || echo "vmlet: not mounted: $3" >&2
}

. "$seed/vmlet/shares.sh"
. "$seed/vmlet/files.sh"
[ ! -e "$seed/vmlet-guest" ] || sh -c "$(cat "$seed/vmlet/install-agent.sh")" install-agent.sh "$seed"
