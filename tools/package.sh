#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packages of this tree, built from a copy of it in a temporary folder; ./dev package installs what it needs first.
#   package.sh deb --out DIR [--cuda] [--check] [--next VERSION]
#       Debian packages. --cuda: mfl-client-cuda, too; --check: runs the unit tests; --next: once more, from the same objects,
#       as VERSION, into DIR/VERSION (for tests of an upgrade).
#   package.sh tar --out DIR
#       mfl-VERSION-linux-ARCH.tar.xz, which runs wherever it is unpacked.
set -euo pipefail
top=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
kind=${1:?deb or tar}
shift
out=$PWD cuda=0 check=0 next=
while [ $# -gt 0 ]; do
        case $1 in
        --out | --next)
                [ $# -ge 2 ] || { echo "package: $1 needs a value" >&2; exit 2; }
                case $1 in --out) out=$2 ;; --next) next=$2 ;; esac
                shift
                ;;
        --cuda) cuda=1 ;;
        --check) check=1 ;;
        *)
                echo "package: unknown option $1" >&2
                exit 2
                ;;
        esac
        shift
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The tree as it is, changes that are not committed included, without what git ignores.
copy_tree()
{
        mkdir "$1"
        if git -C "$top" rev-parse --git-dir >/dev/null 2>&1; then
                (cd "$top" && git ls-files -z --cached --others --exclude-standard |
                        while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
                        tar --null -T - -cf -) | tar -xf - -C "$1"
        else
                tar -C "$top" --exclude='./build*' --exclude=./.git -cf - . | tar -xf - -C "$1"
        fi
}

# quiet LOG COMMAND...: its output only when it fails.
quiet()
{
        local log=$1
        shift
        if ! "$@" >"$log" 2>&1 </dev/null; then
                cat "$log" >&2
                exit 1
        fi
}

build_deb()
{
        local options=() profiles=()
        [ "$check" = 1 ] || options+=(nocheck)
        [ "$cuda" = 0 ] || profiles=(--build-profiles=pkg.mfl.cuda)
        copy_tree "$work/mfl"
        cd "$work/mfl"
        DEB_BUILD_OPTIONS="${options[*]} ${DEB_BUILD_OPTIONS:-}" \
                quiet "$work/log" dpkg-buildpackage -b -us -uc "${profiles[@]}" "$@"
        mv "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$out"
        [ -n "$next" ] || return 0
        local entry
        entry=$(sed "1s/([^)]*)/($next)/" debian/changelog)
        printf '%s\n\n%s\n' "$entry" "$(cat debian/changelog)" >debian/changelog.new
        mv debian/changelog.new debian/changelog
        # What was compiled stays (-nc); installing and packing is done anew.
        DEB_BUILD_OPTIONS="${options[*]} ${DEB_BUILD_OPTIONS:-}" \
                quiet "$work/log" dpkg-buildpackage -b -us -uc -nc "${profiles[@]}" "$@"
        mkdir -p "$out/$next"
        mv "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$out/$next"
}

case $kind in
deb) build_deb ;;
tar)
        copy_tree "$work/mfl"
        /usr/bin/python3 "$top/tools/package_tar.py" "$work/mfl" "$out"
        ;;
*)
        echo "package: deb or tar, not $kind" >&2
        exit 2
        ;;
esac
