#!/bin/sh
# Stands in for QEMU: prints its arguments, its variables and its descriptors.
for a in "$@"; do echo "arg $a"; done
env | sed 's/^/env /'
for f in /proc/$$/fd/*; do echo "fd ${f##*/} $(readlink "$f")"; done
