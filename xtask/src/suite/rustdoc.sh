#!/bin/sh
# Stands for rustdoc while cargo runs the examples of a crate: makes its documentation, too, with
# warnings as errors. Both use the crates that tests are built of; `cargo doc` compiles them again.
set -eu
rustdoc "$@"
examples=false
for argument; do
    shift
    case $argument in
    --test) examples=true ;;
    # With their values: of the program that runs the examples.
    --test-run-directory | --test-runtool | --test-runtool-arg | --test-args | --runtool) skipped= ;;
    --test-*=* | --no-run) ;;
    *)
        # A value of one of these is left out, too.
        [ -z "${skipped+set}" ] || { unset skipped; continue; }
        set -- "$@" "$argument"
        ;;
    esac
done
! $examples || exec rustdoc "$@" --document-private-items -A rustdoc::private_intra_doc_links -D warnings --out-dir "${VMLET_RUSTDOC_OUT:?}"
