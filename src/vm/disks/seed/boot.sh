#!/bin/sh
# Runs at each boot of the guest. The argument is where the cloud-init disk is mounted.
seed=$1
# For the agent of the guest: the path of each directory that this boot could not mount, and of each
# file that it could not write.
failed=/run/vmlet/not-mounted
rm -f "$failed"

# missing REASON PATH
missing() {
    echo "vmlet: $1: $2" >&2
    mkdir -p "${failed%/*}" && printf '%s\n' "$2" >>"$failed"
}

# put NUMBER MODE PATH: writes a file of the disk to its place.
put() {
    new=$3.vmlet-new
    if [ ! -d "$3" ] && mkdir -p "$(dirname "$3")" &&
        (umask 077 && cp "$seed/vmlet/files/$1" "$new") && chmod "$2" "$new" && mv -f "$new" "$3"; then
        ! command -v restorecon >/dev/null || restorecon "$3"
    else
        missing 'file not written' "$3"
    fi
}

# share TAG OPTIONS PATH [9p]: mounts a directory of the pod.
share() {
    type=${4:-virtiofs}
    # The kernel names a mount by its path without links, as /run for /var/run, with blanks as octal.
    place=$(mkdir -p "$3" && cd "$3" && pwd -P | sed 's/ /\\040/g')
    if [ -n "$place" ] && grep -qF " $place $type " /proc/mounts; then
        return
    fi
    # Linux before 5.16 does not load it by itself.
    [ "$type" != 9p ] || ! command -v modprobe >/dev/null || modprobe -q 9pnet_virtio || true
    if [ -z "$place" ] || ! mount -t "$type" -o "$2" "$1" "$3"; then
        missing "not mounted by $type, see vmlet.dev/shares" "$3"
    fi
}

. "$seed/vmlet/shares.sh"
. "$seed/vmlet/files.sh"
[ ! -e "$seed/vmlet-guest" ] || sh -c "$(cat "$seed/vmlet/install-agent.sh")" install-agent.sh "$seed"
