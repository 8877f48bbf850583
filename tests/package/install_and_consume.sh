#!/bin/bash
# Installs the build into a fresh folder and builds and runs a program against it: with CMake's
# find_package and with pkg-config, each with the shared and the static library.
#
#   install_and_consume.sh BUILD_DIR [CMAKE [CXX]]
#
# And a program in C against the C API, with pkg-config.
set -euo pipefail

source_dir=$(cd "$(dirname "$0")" && pwd)
build_dir=$(cd "${1:?usage: install_and_consume.sh BUILD_DIR [CMAKE [CXX]]}" && pwd)
cmake=${2:-cmake}
cxx=${3:-g++}

work_dir=$build_dir/package-test
rm -rf "$work_dir"
mkdir -p "$work_dir/installed"
"$cmake" --install "$build_dir" --prefix "$work_dir/installed" >"$work_dir/install.log"
# An installed tree may be moved: nothing in it may name the folder it was installed to.
prefix=$work_dir/moved
mv "$work_dir/installed" "$prefix"

echo "== what is there"
(cd "$prefix" && find . \( -type f -o -type l \) | sort)
lib_dir=$(dirname "$(find "$prefix" -name libperdure.a)")
for file in bin/perdure include/perdure/perdure.h share/bash-completion/completions/perdure; do
  [[ -e $prefix/$file ]] || { echo "missing: $file" >&2; exit 1; }
done
"$prefix/bin/perdure" --version
if [[ -e $prefix/bin/perdure-c++ ]]; then
  grep -q 'per insert' <<<"$("$prefix/bin/perdure" amp plush --records 1k --folder "$work_dir")" ||
    { echo "perdure amp does not run" >&2; exit 1; }
fi
if grep -rIl -e "$build_dir" -e "$work_dir" "$prefix"; then
  echo "the files above name the build tree" >&2
  exit 1
fi

# What it exports is what the headers declare: nothing of the layers behind them.
library=$lib_dir/libperdure.so
exported=$(nm -DC --defined-only "$library" | sed 's/^[0-9a-f]* . //')
echo "== $(wc -l <<<"$exported") exported symbols, $(grep -c '^perdure_' <<<"$exported") of them of the C API"
if grep -E '^(typeinfo .*|vtable .*)?perdure::(pm|index|store|capi)::' <<<"$exported"; then
  echo "the symbols above are internal" >&2
  exit 1
fi
grep -q '^perdure_pool_open@@PERDURE_C_1$' <<<"$exported" ||
  { echo "the C API has no version" >&2; exit 1; }

plugin=$lib_dir/perdure/pibench/libperdure_pibench_plush.so
[[ -e $plugin ]] || { echo "missing: $plugin" >&2; exit 1; }

run() {
  echo "== $*"
  "$@"
}

consume_with_cmake() {
  "$cmake" -S "$source_dir/consumer" -B "$work_dir/cmake" -G Ninja \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" >"$work_dir/configure.log"
  "$cmake" --build "$work_dir/cmake"
  run "$work_dir/cmake/consumer_shared"
  run "$work_dir/cmake/consumer_static"
}

consume_with_pkg_config() {
  export PKG_CONFIG_PATH=$lib_dir/pkgconfig
  local -a cflags shared static
  read -ra cflags <<<"$(pkg-config --cflags perdure)"
  read -ra shared <<<"$(pkg-config --libs perdure)"
  read -ra static <<<"$(pkg-config --libs --static perdure)"
  local -a compile=("$cxx" -std=c++20 -Wall -Wextra -Werror "${cflags[@]}" "$source_dir/consumer.cc")
  run "${compile[@]}" -o "$work_dir/pc_shared" "${shared[@]}"
  run env LD_LIBRARY_PATH="$lib_dir" "$work_dir/pc_shared"
  # Fully static: the archive needs nothing but the C++ run-time library.
  run "${compile[@]}" -static -o "$work_dir/pc_static" "${static[@]}"
  run "$work_dir/pc_static"
}

consume_from_c() {
  local -a cflags libs
  read -ra cflags <<<"$(pkg-config --cflags perdure)"
  read -ra libs <<<"$(pkg-config --libs perdure)"
  run cc -std=c11 -Wall -Wextra -Werror "${cflags[@]}" "$source_dir/../../examples/words.c" \
    -o "$work_dir/words" "${libs[@]}"
  run env LD_LIBRARY_PATH="$lib_dir" "$work_dir/words" "$work_dir/words.pool" perdure "to last"
  [[ $(LD_LIBRARY_PATH=$lib_dir "$work_dir/words" "$work_dir/words.pool" perdure) == "to last" ]]
}

# The benchmark that was installed with them loads the same libraries.
load_as_benchmark() {
  "$prefix/bin/perdure" bench --plugin "$plugin" --records 1k --operations 1k --repeats 1 \
    --folder "$work_dir" --json >"$work_dir/bench.json" ||
    { echo "perdure bench does not load $plugin" >&2; exit 1; }
  grep -q '"kind": "plugin"' "$work_dir/bench.json"
}

# A program of PiBench's kind finds the library's own libraries beside it.
load_as_pibench() {
  local host=$work_dir/pibench_host
  "$cxx" -std=c++20 "$source_dir/../../lab/tests/pibench/host_2019.cc" -o "$host" -ldl
  run "$host" "$plugin" 8 8 "$work_dir/pibench.pool" 2>/dev/null
}

consume_with_cmake
consume_with_pkg_config
consume_from_c
load_as_pibench
load_as_benchmark
echo "== all six programs ran"
