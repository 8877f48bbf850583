#!/bin/bash
# Runs what docs/tutorial.md tells the reader to run: its sh blocks in order, in an empty folder, after writing the
# files whose names stand before their blocks.
#
#   run_tutorial.sh [TUTORIAL.MD]     with perdure in PATH, and the library where pkg-config finds it
set -euo pipefail

page=$(realpath "${1:-$(dirname "$0")/../../docs/tutorial.md}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

awk '
  /^<!-- file: .* -->$/ { file = $3; next }
  /^```sh$/ { out = "tutorial.sh"; next }
  /^```[a-z]+$/ { out = file; file = ""; next }
  /^```$/ { out = ""; next }
  out != "" { print > out }
' "$page"
[[ -s tutorial.sh && -s count.cc ]] || { echo "$page has no commands" >&2; exit 1; }
command -v perdure-c++ >/dev/null || sed -i '/^perdure \(crash\|amp\)/d' tutorial.sh  # the instruments are a package
bash -euxo pipefail tutorial.sh
echo "== the tutorial runs"
