#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks the layout of all tracked C files with clang-format; --fix changes them. 77 (skipped) without the tool.
set -u
cd "$(dirname "$0")/.." || exit 1
if ! command -v clang-format >/dev/null; then
        echo "format: skipped: no clang-format (Debian: apt-get install clang-format)"
        exit 77
fi
# clang-format's output changes between versions, and 14 (Debian 12) is the one that counts.
version=$(clang-format --version | grep -oE '[0-9]+' | head -n 1)
if [ "$version" != 14 ] && [ "${1:-}" != --fix ]; then
        echo "format: skipped: clang-format $version, the layout is checked with 14"
        exit 77
fi
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        mapfile -d '' -t files < <(git ls-files -z --cached --others --exclude-standard -- '*.c' '*.h')
else
        mapfile -d '' -t files < <(find common proto kernels server client cli bench tests -name '*.[ch]' -print0)
fi
existing=()
for f in "${files[@]}"; do
        [ -f "$f" ] && existing+=("$f")
done
if [ ${#existing[@]} = 0 ]; then
        echo "format: no files found"
        exit 1
fi
if [ "${1:-}" = --fix ]; then
        exec clang-format -i "${existing[@]}"
fi
clang-format --dry-run -Werror "${existing[@]}" || { echo "format: run ./dev format"; exit 1; }
echo "format: ${#existing[@]} files"
