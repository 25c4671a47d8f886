# Puts libvirtd into a mount namespace of its own, with all its state below the directory $1.
# A private /dev without kvm keeps libvirt's capability cache valid where /dev/kvm cannot run guests.
set -eu
dir=$1
mkdir -p "$dir/run" "$dir/lib" "$dir/cache" "$dir/log" "$dir/sock" "$dir/dev"

mount -t tmpfs -o mode=0755 tmpfs "$dir/dev"
mkdir "$dir/dev/pts" "$dir/dev/shm" "$dir/dev/net"
chmod 1777 "$dir/dev/shm"
mknod -m 0666 "$dir/dev/null" c 1 3
mknod -m 0666 "$dir/dev/zero" c 1 5
mknod -m 0666 "$dir/dev/full" c 1 7
mknod -m 0666 "$dir/dev/random" c 1 8
mknod -m 0666 "$dir/dev/urandom" c 1 9
mknod -m 0666 "$dir/dev/tty" c 5 0
mknod -m 0666 "$dir/dev/net/tun" c 10 200
ln -s /proc/self/fd "$dir/dev/fd"
ln -s pts/ptmx "$dir/dev/ptmx"
mount --bind /dev/pts "$dir/dev/pts"

mount --bind "$dir/etc" /etc/libvirt
mount --bind "$dir/lib" /var/lib/libvirt
mount --bind "$dir/cache" /var/cache/libvirt
mount --bind "$dir/run" /run
mount --rbind "$dir/dev" /dev

exec libvirtd -f "$dir/etc/libvirtd.conf" -p "$dir/run/libvirtd.pid" >>"$dir/log/stderr" 2>&1
