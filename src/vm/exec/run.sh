# Runs a command below the QEMU guest agent: sh -c THIS NAME STEM COMMAND [ARGUMENT...]
# The first MiB of each stream goes to our own, for the agent's answer; the next 15 to STEM.1 and STEM.2; the rest
# nowhere. Exits with the command's code, or 128 and the number of its signal; SIGUSR1 kills it when there is no such
# command.
stem=$1
shift
found() {
    case $1 in
    */*) [ -f "$1" ] && [ -x "$1" ]; return ;;
    esac
    IFS=:
    for folder in $PATH; do
        [ -f "${folder:-.}/$1" ] && [ -x "${folder:-.}/$1" ] && return
    done
    return 1
}
keep() {
    case $(LC_ALL=C dd bs=1048576 count=1 iflag=fullblock 2>&1 >&"$1") in
    1+0\ *)
        umask 077
        dd bs=65536 count=240 iflag=fullblock of="$2"
        cat >/dev/null
        ;;
    esac 2>/dev/null
}
(found "$1") || kill -s USR1 $$
exec 3>&1 4>&2
code=$(
    exec 5>&1
    {
        exec 2>&1 >/dev/null
        {
            exec 6>&2 2>/dev/null
            (exec "$@" 2>&6 3>&- 4>&- 5>&- 6>&-)
            echo $? >&5
        } | keep 3 "$stem.1"
    } | keep 4 "$stem.2"
)
exit "${code:-137}"
