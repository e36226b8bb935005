#!/bin/sh
# Finds a Python for Potluck's installer and runs it: the node that invited this machine sends both.
# Everything is in functions, so that nothing runs of a script that was cut off.
set -eu

program='@PROGRAM@'

is_usable() {
    "$1" -c 'import ssl, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

say_how() {
    echo 'error: there is no Python here, and Potluck needs 3.11 or newer' >&2
    id=
    if [ -r /etc/os-release ]; then id=$(. /etc/os-release && echo "${ID:-} ${ID_LIKE:-}"); fi
    case " $id " in
    *' debian '* | *' ubuntu '*) hint='sudo apt install python3-venv' ;;
    *' fedora '* | *' rhel '*) hint='sudo dnf install python3.11' ;;
    *' suse '* | *' opensuse '*) hint='sudo zypper install python311' ;;
    *' alpine '*) hint='sudo apk add python3' ;;
    *' arch '*) hint='sudo pacman -S python' ;;
    *) hint='install Python 3.11 or newer' ;;
    esac
    echo "hint: $hint, then type the same line again" >&2
    exit 1
}

main() {
    for each in python3 python3.13 python3.12 python3.11 python3.14; do
        if is_usable "$each"; then exec "$each" -c "$program" "$@"; fi
    done
    # An older one says what is missing.
    if command -v python3 >/dev/null; then exec python3 -c "$program" "$@"; fi
    say_how
}

main "$@"
