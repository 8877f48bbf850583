// The root of a table: its parameters, which never change, and where its first blocks are.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <string>

#include "index/plush/layout.h"
#include "perdure/index.h"
#include "perdure/plush.h"
#include "pm/pool_impl.h"

namespace perdure::index::plush {

// Makes the root, the blocks that a table begins with, and its name; all are there after a crash,
// or none. Throws kInvalidArgument, kNameExists, kWrongType, kPoolFull, kNoSpace, kReadOnly.
Root& make_table(pm::PoolImpl& pool, const std::string& name, Kind key_kind, Kind value_kind,
                 const PlushOptions& options);

// The root of a table that was made with these kinds and, where they are given, these options.
// Throws kNoSuchName, kWrongType, kInvalidArgument, kCorrupt.
Root& find_table(pm::PoolImpl& pool, const std::string& name, Kind key_kind, Kind value_kind,
                 const PlushOptions& options);

// Gives a table with byte strings what it needs of a pool whose capacity has been raised since. The
// caller has it open, and is the only one to change the links to its pages of places; who looks for
// these holds `places` shared. Durable on return. If there is no room, the table stays as it is.
// Throws kIo, kCorrupt.
void extend_places(pm::PoolImpl& pool, Root& root, std::shared_mutex& places);

// The first level that its partitions may grow to.
uint32_t top_max_of(const Root& root);

}  // namespace perdure::index::plush
