#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a libFuzzer program for 10 seconds on a copy of its corpus, with the same random numbers each time ($MFL_FUZZ_SEED, 0: others),
# so that a change is what makes it fail. A crashing input is left in the folder it ran in.
set -eu
fuzzer=$1 corpus=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$corpus"/* "$work"
"$fuzzer" -seed="${MFL_FUZZ_SEED:-1}" -max_total_time="${MFL_FUZZ_SECONDS:-10}" -rss_limit_mb=2048 -timeout=5 -print_final_stats=1 \
        -artifact_prefix="$(basename "$fuzzer")-" "$work"
