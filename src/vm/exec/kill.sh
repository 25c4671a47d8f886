# Kills what run.sh started: sh -c THIS NAME PID STEM
# That is process PID, its session, and all descendants, unless PID is another process by now.
first=$1 stem=$2
rm -f "$stem.1" "$stem.2"
if [ -e "/proc/$first/cmdline" ]; then
    case $(tr '\000' ' ' 2>/dev/null <"/proc/$first/cmdline") in
    *"$stem"*) ;;
    *) exit 0 ;;
    esac
fi
newline='
'
for round in 1 2 3 4 5; do
    # One look at all processes: to read their files one by one takes the shell a system call for each byte.
    set +f
    all=$(cat /proc/[0-9]*/stat)
    set -f
    victims=' '
    grown=yes
    while [ -n "$grown" ]; do
        grown=
        IFS=$newline
        for line in $all; do
            IFS=' '
            # The name, in parentheses, may hold anything but a newline.
            set -- "${line%% *}" ${line##*) }
            case "$victims" in *" $1 "*) continue ;; esac
            case "$2" in Z | X) continue ;; esac
            if [ "$1" = "$first" ] || [ "$5" = "$first" ]; then
                victims="$victims$1 "
                grown=yes
                continue
            fi
            case "$victims" in *" $3 "*)
                victims="$victims$1 "
                grown=yes
                ;;
            esac
        done
    done
    [ "$victims" = ' ' ] && exit 0
    IFS=' '
    kill -9 $victims
done 2>/dev/null
