#!/bin/sh
# Stands in for QEMU: uses the directories that it is to serve.
try() {
    what=$1
    shift
    if "$@" >/dev/null 2>&1; then echo "$access $what reached"; else echo "$access $what refused"; fi
}
change() {
    echo new >"$1/new" && mkdir "$1/folder" && mv "$1/new" "$1/folder/moved" && rm "$1/folder/moved"
}
for argument in "$@"; do
    case $argument in local,*) ;; *) continue ;; esac
    path=${argument#*path=}
    path=${path%%,*}
    access=${argument##*readonly=}
    try read cat "$path/old"
    try write change "$path"
    try beside ls "$path/.."
done
