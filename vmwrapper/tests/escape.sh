#!/bin/bash
# Stands in for a QEMU that its guest has taken over: tries to reach what is not its own.
try() {
    if (eval "$2") 2>/dev/null; then echo "$1 reached"; else echo "$1 refused"; fi
}
try own-file 'cat "$OWN" >/dev/null && echo x >>"$OWN"'
try layer 'echo x >>"$LAYERS/1.qcow2"'
try new-layer 'echo x >"$LAYERS/2.qcow2"'
try other-file 'cat "$OTHER" >/dev/null'
try overwrite 'echo x >"$OTHER"'
try create 'echo x >"$OTHER.new"'
try directory '[ "$(ls -A "${OTHER%/*}")" ]'
try processes 'cat /proc/1/cmdline >/dev/null'
try tcp ': >/dev/tcp/127.0.0.1/"$PORT"'
try signal 'kill -0 "$PPID"'
# Names in its own directory that lead a program of root elsewhere.
folder=${OWN%/*}
try link 'ln -s /etc/passwd "$folder/link"'
try hard-link 'ln "$OWN" "$folder/hard"'
try rename 'mv "$OWN" "$folder/moved"'
try pipe 'mkfifo "$folder/pipe"'
