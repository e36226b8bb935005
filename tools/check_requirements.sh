#!/bin/sh
# Says which of the things that must be on the machine are missing, and how to install them.
# PYTHON names the interpreter (default python3). Exit 1 if something is missing.
python=${PYTHON:-python3}
case ${python##*/} in # python3.12 has packages of its own name
    python3.*) debian=${python##*/} ;;
    *) debian=python3 ;;
esac
missing=''
packages=''

need() { # what it is, the Debian package that has it
    missing="$missing\n  - $1"
    packages="$packages $2"
}

if ! command -v "$python" >/dev/null 2>&1; then
    need "$python (Python 3.11 or newer)" "python3 python3-venv python3-dev"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    need "Python 3.11 or newer ($python is $("$python" -V 2>&1)); name another with make PYTHON=…" \
        "python3 python3-venv python3-dev"
else
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        need "the venv module of $python" "$debian-venv"
    "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        need "the headers of $python (Python.h)" "$debian-dev"
fi
command -v "${CXX:-g++}" >/dev/null 2>&1 || need "a C++17 compiler (g++)" "g++"

if [ -n "$missing" ]; then
    printf 'potluck: this machine lacks:%b\n' "$missing" >&2
    printf 'hint: on Debian or Ubuntu: sudo apt-get install%s\n' "$packages" >&2
    exit 1
fi
