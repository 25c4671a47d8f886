#cloud-boothook
#!/bin/sh
# Runs what Vmlet has put on the cloud-init disk for each boot: files of the pod, and the agent.
set -eu
seed=/run/vmlet-seed
disk=/dev/disk/by-id/virtio-vmlet-seed
[ -e "$disk" ] || disk=$(findfs LABEL=LABEL_OF_VOLUME)
mkdir -p "$seed"
mount -t iso9660 -o ro "$disk" "$seed"
# Nothing that runs on keeps a file of the disk open.
sh -c "$(cat "$seed/vmlet/boot.sh")" boot.sh "$seed" || true
umount "$seed"
rmdir "$seed"
