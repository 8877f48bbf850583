#!/bin/bash
# Installs the Debian packages in a clean place, and builds and runs the examples there, linked with the shared
# library, as a user of the packages would.
#
#   install_packages.sh FOLDER_OF_DEBS          in an empty folder: dpkg checks the dependencies against what this
#                                               machine has installed, and unpacks there
#   install_packages.sh FOLDER_OF_DEBS ROOT     as root, in a Debian system of its own, which the packages stay in:
#       mmdebstrap --variant=apt --include=cmake,ninja-build,g++,pkg-config bookworm ROOT
set -euo pipefail

debs=$(cd "${1:?usage: install_packages.sh FOLDER_OF_DEBS [ROOT]}" && pwd)
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A text is looked at whole (`grep -q` on a pipe ends what writes it, and with it, now and then, this script).
fail() {
  echo "install_packages: $*" >&2
  exit 1
}

# What a package must say and have, wherever it is installed.
check_packages() {
  local library file soname stray deb
  library=$(basename "$debs"/libperdure0*_*.deb | sed 's/_.*//')
  for name in "$library" libperdure-dev perdure-tools; do
    ls "$debs/${name}"_*.deb >/dev/null || fail "no package $name in $debs"
  done
  grep -q 'libc6 (>=' <<<"$(dpkg-deb -f "$debs/$library"_*.deb Depends)" ||
    fail "$library does not depend on what it is linked with"
  grep -q "$library (= " <<<"$(dpkg-deb -f "$debs"/libperdure-dev_*.deb Depends)" ||
    fail "libperdure-dev does not depend on its own $library"
  # The package is named for the soname.
  dpkg-deb -x "$debs/$library"_*.deb "$work/library"
  file=$(find "$work/library" -name 'libperdure.so.*' -type f)
  soname=$(readelf -d "$file" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
  [[ $soname == "libperdure.so.${library#libperdure}" ]] || fail "$library holds $soname"
  # It exports what the headers declare, and nothing of what is behind them or was linked into it.
  stray=$(nm -DC --defined-only "$file" | sed -E 's/^[0-9a-f]* . //; s/^(typeinfo|typeinfo name|vtable) for //' |
    grep -vE '^(PERDURE_|perdure_[a-z]|perdure::([A-Z]|to_string|parse_|catalog|create_|open_|drop_|transact))' || true)
  [[ -z $stray ]] || fail "the library exports: $stray"
  ! grep -q '\.debug_info' <<<"$(readelf -S "$file")" || fail "$file is not stripped"
  echo "== $(nm -D --defined-only "$file" | wc -l) exported symbols"
  printf '%-40s %10s %14s\n' package bytes 'KiB installed'
  for deb in "$debs"/*.deb; do
    printf '%-40s %10s %14s\n' "$(basename "$deb")" "$(stat -c %s "$deb")" "$(dpkg-deb -f "$deb" Installed-Size)"
  done
}

# The examples as a project of their own, built with what is below $1 (such as /usr), and run.
cat >"$work/use.sh" <<'USE'
set -euo pipefail
usr=$1 examples=$2 out=$3 run_tutorial=$4 tutorial=$5
mkdir -p "$out"
echo "== examples, with CMake"
cmake -S "$examples" -B "$out/build" -G Ninja -DCMAKE_PREFIX_PATH="$usr" >"$out/log" || { cat "$out/log"; exit 1; }
cmake --build "$out/build" >"$out/log" || { cat "$out/log"; exit 1; }
cd "$out/build"
for program in dictionary high_scores bank words; do
  grep -q 'NEEDED.*libperdure\.so\.[0-9]' <<<"$(readelf -d "$program")" ||
    { echo "$program is not linked with the shared library"; exit 1; }
done
./dictionary words.pool perdure "to last"
[[ $(./dictionary words.pool perdure) == "to last" ]]
./high_scores scores.pool perdure -3
[[ $(./high_scores scores.pool per) == "perdure: -3" ]]
./words words-of-c.pool perdure "to last"
[[ $(./words words-of-c.pool perdure) == "to last" ]]
echo "== one with pkg-config"
g++ -std=c++20 "$examples/dictionary.cc" $(pkg-config --cflags --libs perdure) -o dictionary-of-pkg-config
[[ $(./dictionary-of-pkg-config words.pool perdure) == "to last" ]]
echo "== the command"
"$usr/bin/perdure" --version
[[ $("$usr/bin/perdure" get --name words words.pool perdure) == "to last" ]]
"$usr/bin/perdure" pool check words.pool
grep -q '^.SH perdure serve' <<<"$(zcat "$usr/share/man/man1/perdure.1.gz")"
bash -c "source '$usr/share/bash-completion/completions/perdure' && complete -p perdure"
sed "s,/var/lib/perdure,$out," "$usr/share/doc/perdure-tools/examples/perdure.conf" >perdure.conf
grep -q '^capacity = 10737418240' <<<"$("$usr/bin/perdure" serve --config perdure.conf --check-config)"
for store in leveldb lmdb rocksdb; do
  [[ -e $usr/libexec/perdure/perdure-read-$store ]] || continue
  echo "== the reader of $store"
  mkdir -p "no-$store"
  refused=$("$usr/bin/perdure" convert --from "$store:no-$store" converted.pool 2>&1) && exit 1
  [[ $refused == *"no database, for there is no file"* ]]
done
if [[ -e $usr/libexec/perdure/perdure-lab ]]; then
  echo "== the instruments"
  grep -q 'per insert' <<<"$("$usr/bin/perdure" amp plush --records 1k --folder "$out")"
  "$usr/bin/perdure-c++" -std=c++20 -O2 "$examples/observed-table/table.cc" "$examples/observed-table/main.cc" \
    -o observed
fi
echo "== the tutorial"
PATH=$usr/bin:$PATH bash "$run_tutorial" "$tutorial" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
if [[ -e $usr/lib/python3/dist-packages/perdure ]]; then
  echo "== the Python module"
  PYTHONPATH=${usr%/usr}/usr/lib/python3/dist-packages /usr/bin/python3 - words.pool <<'PYTHON'
import sys, perdure
with perdure.Pool.open(sys.argv[1]) as pool:
    assert pool.open_index("words", str, str)["perdure"] == "to last"
print("perdure", perdure.__version__)
PYTHON
fi
USE

# An empty folder. dpkg takes its data base from this machine, so that it refuses a package whose dependencies are
# not here; nothing of this machine changes.
in_a_folder() {
  local root=$work/root
  mkdir -p "$root/var/lib" "$root/etc"
  cp /etc/passwd /etc/group "$root/etc/"
  cp -a /var/lib/dpkg "$root/var/lib/dpkg"
  dpkg --root="$root" --force-not-root --force-script-chrootless --no-triggers --log=/dev/null \
    -i "$debs"/*.deb >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; fail "dpkg refuses the packages"; }
  local libraries
  libraries=$(dirname "$(find "$root/usr" -name 'libperdure.so')")
  PKG_CONFIG_PATH=$libraries/pkgconfig LD_LIBRARY_PATH=$libraries \
    bash "$work/use.sh" "$root/usr" "$source_dir/examples" "$work/out" \
      "$source_dir/tests/package/run_tutorial.sh" "$source_dir/docs/tutorial.md"
}

# A whole system: apt brings what the packages depend on, and everything is found where it should be.
in_a_system() {
  system=$1
  local root=$1
  mkdir -p "$root/tmp/perdure"
  cp -r "$debs" "$source_dir/examples" "$source_dir/docs/tutorial.md" "$source_dir/tests/package/run_tutorial.sh" \
    "$work/use.sh" "$root/tmp/perdure/"
  mount --rbind /proc "$root/proc"
  trap 'umount -l "$system/proc"; rm -rf "$system/tmp/perdure" "$work"' EXIT
  # What this machine's environment says, such as of compilers, is not so there.
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    chroot "$root" /bin/bash -euo pipefail -c 'apt-get -qq update
    apt-get -qq install -y --no-install-recommends /tmp/perdure/'"$(basename "$debs")"'/*.deb >/tmp/perdure/log 2>&1 ||
      { cat /tmp/perdure/log; exit 1; }
    bash /tmp/perdure/use.sh /usr /tmp/perdure/examples /tmp/perdure/out /tmp/perdure/run_tutorial.sh \
      /tmp/perdure/tutorial.md'
}

check_packages
if (($# > 1)); then
  in_a_system "$2"
else
  in_a_folder
fi
echo "== the packages install, and what they hold works"
