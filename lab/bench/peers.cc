#include "lab/bench/peers.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>

#include "perdure/error.h"

namespace perdure::lab {
namespace {

struct KnownPeer {
  const char* name;
  const char* module;
  const char* package;  // of Debian; null if it needs none
};
constexpr std::array<KnownPeer, 13> kPeers = {{
    {"database", "database", nullptr},
    {"rocksdb", "rocksdb", "librocksdb-dev"},
    {"rocksdb-nosync", "rocksdb", "librocksdb-dev"},
    {"rocksdb+pool", "rocksdb", "librocksdb-dev"},
    {"rocksdb+pool-nosync", "rocksdb", "librocksdb-dev"},
    {"leveldb", "leveldb", "libleveldb-dev"},
    {"leveldb-nosync", "leveldb", "libleveldb-dev"},
    {"leveldb+pool", "leveldb", "libleveldb-dev"},
    {"leveldb+pool-nosync", "leveldb", "libleveldb-dev"},
    {"lmdb", "lmdb", "liblmdb-dev"},
    {"lmdb-nosync", "lmdb", "liblmdb-dev"},
    {"dram-hash", "dram", "libabsl-dev"},
    {"dram-btree", "dram", "libabsl-dev"},
}};

const KnownPeer* find_peer(const std::string& name) {
  const auto found = std::find_if(kPeers.begin(), kPeers.end(),
                                  [&](const KnownPeer& peer) { return name == peer.name; });
  return found == kPeers.end() ? nullptr : &*found;
}

// Beside the command in a build, in libexec when installed, or where PERDURE_PEERS says.
std::vector<std::string> module_folders() {
  if (const char* named = std::getenv("PERDURE_PEERS")) return {named};
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  std::string folder = length <= 0 ? "." : std::string(path.data(), static_cast<size_t>(length));
  folder.erase(std::min(folder.rfind('/'), folder.size()));
  return {folder + "/peers", folder + "/../peers", folder + "/" PERDURE_PEER_FOLDER};
}

}  // namespace

bool is_peer(const std::string& name) { return find_peer(name) != nullptr; }

std::vector<std::string> peer_names() {
  std::vector<std::string> names;
  for (const KnownPeer& peer : kPeers) names.emplace_back(peer.name);
  return names;
}

void* find_in_peer(const std::string& module, const char* symbol, const std::string& what) {
  std::string reason = "it was not built";
  for (const std::string& folder : module_folders()) {
    const std::string path = fmt::format("{}/perdure-peer-{}.so", folder, module);
    if (access(path.c_str(), R_OK) != 0) continue;
    // Never unloaded: stores may have threads of their own.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* found = library == nullptr ? nullptr : dlsym(library, symbol);
    if (found != nullptr) return found;
    reason = dlerror();
  }
  const auto peer = std::find_if(kPeers.begin(), kPeers.end(),
                                 [&](const KnownPeer& each) { return module == each.module; });
  if (peer->package == nullptr) {
    throw Error(ErrorCode::kNotFound, fmt::format("{} cannot be measured: {}", what, reason));
  }
  throw Error(ErrorCode::kNotFound,
              fmt::format("{} cannot be measured: {}; install {} (`tools/install-deps.sh base "
                          "peers`) and build again",
                          what, reason, peer->package));
}

Contender load_peer(const std::string& name) {
  const KnownPeer& peer = *find_peer(name);
  auto* entry = reinterpret_cast<PeerModule*>(find_in_peer(peer.module, kPeerModuleSymbol, name));
  std::vector<Contender> contenders;
  entry(contenders);
  for (const Contender& contender : contenders) {
    if (contender.name == name) return contender;
  }
  throw Error(ErrorCode::kNotFound,
              fmt::format("{} cannot be measured: its module was built without it", name));
}

}  // namespace perdure::lab
