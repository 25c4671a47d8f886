#!/bin/sh
# link TARGET NAME: gives a device the name that the pod has for it.
link() {
    if [ -e "$2" ] && [ ! -L "$2" ]; then
        echo "vmlet: $2 exists already: find the device as $1" >&2
    elif ! { mkdir -p "$(dirname "$2")" && ln -sfn "$1" "$2"; }; then
        echo "vmlet: no link $2 to $1" >&2
    fi
}
