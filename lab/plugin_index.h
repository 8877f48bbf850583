// An index in a library that was built for PiBench (perdure/pibench.h), behind AnyIndex.
//
//   auto index = lab::load_plugin({.library = "./libfptree.so", .pool_path = "/dev/shm/pool"});
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "perdure/index.h"

namespace perdure::lab {

// Which of PiBench's two interfaces a library was built with (perdure::pibench::Tree, Tree2019).
// They differ in the place of every call, so that the wrong one calls another function.
enum class PluginInterface : uint8_t { k2019, kBulkLoad };

const char* to_string(PluginInterface interface) noexcept;  // "2019" or "bulk_load"
// Throws Error(kInvalidArgument).
PluginInterface parse_plugin_interface(std::string_view text);

struct PluginOptions {
  std::string library;  // the file's path
  Kind key_kind = Kind::kU64;
  Kind value_kind = Kind::kU64;
  uint64_t key_bytes = 16;  // of byte strings: every key and value has this length
  uint64_t value_bytes = 64;
  std::string pool_path = {};
  uint64_t pool_bytes = 0;
  unsigned threads = 1;
  // Without: what PERDURE_PIBENCH_INTERFACE says; without that, what the library's symbols show.
  std::optional<PluginInterface> interface = {};
};

// Loads the library and makes an index. The index is destroyed with the object; the library stays
// loaded, because some leave threads behind. Words are passed as 8 bytes in the machine's order.
// Beside the conditions of the library itself:
// - upsert is update and, if that fails, insert: not atomic;
// - scan is passed on, in parts of 1000 records; for_each is a scan from the least key. A library
//   may answer that there are no records, where it cannot scan, or tell how many there are and give
//   none: then each is visited as the key where the scan begins with a value of zeros, 1000 at
//   most;
// - check knows nothing, and all statistics are 0.
// Throws Error: kNotFound (no such file), kInvalidArgument (no shared library, none for PiBench, of
// an interface that its symbols do not tell, or it refuses the sizes).
std::unique_ptr<AnyIndex> load_plugin(const PluginOptions& options);

}  // namespace perdure::lab
