#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packages of this tree, built from a copy of it in a temporary folder; ./dev package installs what it needs first.
#   package.sh deb --out DIR [--cuda] [--check] [--next VERSION]
#       Debian packages. --cuda: mfl-client-cuda, too; --check: runs the unit tests; --next: once more, from the same objects,
#       as VERSION, into DIR/VERSION (for tests of an upgrade).
#   package.sh tar --out DIR
#       mfl-VERSION-linux-ARCH.tar.xz, which runs wherever it is unpacked.
#   package.sh wheel --out DIR
#       mfl-VERSION-py3-none-any.whl, the Python package, with setuptools and wheel that are installed.
set -euo pipefail
top=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
kind=${1:?deb, tar or wheel}
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

# The C library's own, and what belongs to the machine's driver: never carried along.
stays='^(linux-vdso|ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libcuda|libnvidia-.*)\.so'

# carry ROOT: copies the libraries that its programs and modules need into ROOT/lib, with their licences.
carry()
{
        local root=$1 name path package
        for path in "$root"/bin/* "$root"/lib/mfl/*.so; do
                LC_ALL=C ldd "$path"
        done | sed -n 's/^[[:space:]]*\([^ ]*\) => \(\/[^ ]*\) (.*/\1 \2/p' | sort -u | while read -r name path; do
                [[ $name =~ $stays ]] && continue
                install -m 644 "$path" "$root/lib/$name"
                path=$(readlink -f "$path")
                package=$(dpkg-query -S "$path" "${path#/usr}" 2>/dev/null | head -n 1) || true
                package=${package%%:*}
                [ -f "/usr/share/doc/$package/copyright" ] || continue
                install -D -m 644 "/usr/share/doc/$package/copyright" "$root/share/doc/mfl/libraries/$package"
        done
}

write_readme()
{
        local version=$1 root=$2 glibc
        # The newest symbol version of the C library that anything in here asks for.
        glibc=$(for path in "$root"/bin/* "$root"/lib/*.so* "$root"/lib/mfl/*.so; do
                LC_ALL=C objdump -T "$path" | grep -o 'GLIBC_2\.[0-9]*' || true
        done | sort -Vu | tail -n 1)
        cat <<TEXT
mfl $version, for Linux on $arch with a C library (glibc) of version ${glibc#GLIBC_} or newer.

Unpack it anywhere and run bin/mfl, bin/mfl-server, bin/mfl-client; the folder may be moved. All they need besides the C library
is in lib/: no package is to be installed. (Debian 12 has glibc 2.36, Ubuntu 24.04 has 2.39. Not for musl, as in Alpine.)

    bin/mfl run share/doc/mfl/examples/demo.yaml --daemons 2 --data fashion-mnist=idx:DIR     # DIR: the four files of Fashion-MNIST
    bin/mfl-server --state-dir DIR &
    bin/mfl-client --name site-a --data mine=idx:DIR &
    bin/mfl submit job.yaml --watch

It trains on the CPU. lib/mfl holds the backends; libmfl_cuda.so of a build with CUDA may be put beside.
The libraries in lib/ are copies from the system it was built on, and no update of your system reaches them: where packages
can be installed, take Debian's (share/doc/mfl/install.md). Their licences are in share/doc/mfl/libraries.
TEXT
}

build_tar()
{
        local version name root link
        arch=$(uname -m)
        copy_tree "$work/mfl"
        version=$(sed -n "s/^  version: '\(.*\)',/\1/p" "$work/mfl/meson.build")
        name=mfl-$version-linux-$arch root=$work/$name
        # As DT_RPATH, which holds for what libraries need, too, and not DT_RUNPATH, which does not.
        # shellcheck disable=SC2016
        link='-Wl,--disable-new-dtags,-rpath,$ORIGIN/../lib'
        quiet "$work/log" meson setup "$work/build" "$work/mfl" --buildtype=release --prefix=/opt/mfl --libdir=lib \
                -Dtests=disabled -Dbench=disabled -Dcuda=disabled -Donednn=enabled -Dhttp=enabled -Dsystemd-units=none \
                "-Dc_args=-ffile-prefix-map=$work=." "-Dc_link_args=$link" ${MFL_SETUP:-}
        quiet "$work/log" ninja -C "$work/build"
        quiet "$work/log" meson install -C "$work/build" --no-rebuild --strip --destdir "$work/dest"
        mv "$work/dest/opt/mfl" "$root"
        carry "$root"
        write_readme "$version" "$root" >"$root/README"
        # One order, one owner, one time: the same tree gives the same file.
        local when
        when=$(date -u -d "$(sed -n 's/^ -- .*>  //p' "$work/mfl/debian/changelog" | head -n 1)" +%s)
        tar -C "$work" --sort=name --mtime="@$when" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
                -cf - "$name" | xz -T 2 >"$out/$name.tar.xz"
        echo "$out/$name.tar.xz"
}

build_wheel()
{
        copy_tree "$work/mfl"
        # The same tree gives the same file.
        SOURCE_DATE_EPOCH=$(date -u -d "$(sed -n 's/^ -- .*>  //p' "$work/mfl/debian/changelog" | head -n 1)" +%s) \
                quiet "$work/log" /usr/bin/python3 -m pip wheel --no-deps --no-build-isolation --no-index \
                --wheel-dir "$work/wheels" "$work/mfl/python"
        mv "$work"/wheels/*.whl "$out"
        ls "$out"/mfl-*.whl
}

case $kind in
deb) build_deb ;;
tar) build_tar ;;
wheel) build_wheel ;;
*)
        echo "package: deb, tar or wheel, not $kind" >&2
        exit 2
        ;;
esac
