#!/bin/bash
# Installs what building and testing need, on Debian 12 and its relatives, asking nothing.
#
#   tools/install-deps.sh            what `make quickstart` and `make test` need
#   tools/install-deps.sh base lint  also what `make lint`, `make test-asan`, `make fuzz` and the preset `clang` need
#   tools/install-deps.sh base python  also what `make test-python` and `pip install ./python` need
#   tools/install-deps.sh docs       what `make docs` needs besides PyPI
#   tools/install-deps.sh base packages  also what `make packages` needs
#   tools/install-deps.sh base peers also the stores that `perdure bench` can compare with, and whose databases
#                                    `perdure convert --from` reads (50 MB)
#   tools/install-deps.sh base servers
#                                    also the servers that `perdure bench --server` can start
#
# Does nothing, quickly and without network, when all is there. PERDURE_NO_INSTALL=1 skips it: for
# machines where these come from elsewhere than apt.
set -euo pipefail

base=(cmake ninja-build make g++ pkg-config
  libfmt-dev libxxhash-dev libcli11-dev nlohmann-json3-dev
  libgtest-dev librapidcheck-dev libbenchmark-dev
  liburing-dev libssl-dev wordnet-base)
lint=(clang-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev)
python=(python3 python3-dev python3-venv)
packages=(dpkg-dev file python3-dev python3-cffi)
docs=(python3-venv doxygen)
peers=(librocksdb-dev libleveldb-dev liblmdb-dev libabsl-dev rocksdb-tools)
servers=(redis-server memcached)

die() {
  echo "install-deps: $*" >&2
  exit 1
}

wanted=()
for group in "${@:-base}"; do
  case $group in
    base) wanted+=("${base[@]}") ;;
    lint) wanted+=("${lint[@]}") ;;
    python) wanted+=("${python[@]}") ;;
    docs) wanted+=("${docs[@]}") ;;
    packages) wanted+=("${packages[@]}") ;;
    peers) wanted+=("${peers[@]}") ;;
    servers) wanted+=("${servers[@]}") ;;
    *) die "no group \"$group\"; there are: base, lint, python, docs, packages, peers, servers" ;;
  esac
done

if [[ ${PERDURE_NO_INSTALL:-} == 1 ]]; then
  exit 0
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install-deps: this is not a Debian system; the build needs what Debian calls" >&2
  echo "  ${wanted[*]}" >&2
  echo "Install these by other means and set PERDURE_NO_INSTALL=1." >&2
  exit 1
fi

missing=()
there=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "${wanted[@]}" 2>/dev/null || true) "
for package in "${wanted[@]}"; do
  [[ $there == *" installed:$package "* ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null ||
    die "these packages are missing, and only root can install them: ${missing[*]}"
  as_root=(sudo)
fi
echo "install-deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"
}
apt_get update || die "apt-get update failed; is there a network?"
apt_get install -y --no-install-recommends "${missing[@]}" >/dev/null ||
  die "apt-get could not install: ${missing[*]}"
