// Stores that a user might take instead, and the volatile bounds, in the same run.
//
// Each package that they need makes one module, loaded when one of its stores is named: the command
// itself depends on none of them. A module defines
//
//   extern "C" void perdure_bench_peers(std::vector<Contender>& peers)
//
// and is built where its package was found when the build was configured (lab/peers).
#pragma once

#include <string>
#include <vector>

#include "lab/bench/contender.h"

namespace perdure::lab {

bool is_peer(const std::string& name);
std::vector<std::string> peer_names();

// Throws Error(kNotFound), naming the package, if this build has no such module.
Contender load_peer(const std::string& name);

// A function that a module defines, by its name. Throws Error(kNotFound), naming the package, if
// this build has no such module: then `what` cannot be measured.
void* find_in_peer(const std::string& module, const char* symbol, const std::string& what);

// What modules define.
using PeerModule = void(std::vector<Contender>& peers);
inline constexpr char kPeerModuleSymbol[] = "perdure_bench_peers";

}  // namespace perdure::lab
