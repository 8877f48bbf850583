// Where in a table of LevelDB the data blocks end.
#pragma once

#include <cstdint>

#include "perdure/files.h"

namespace perdure::lsm {

// The offset from which on a table has no data blocks, but filters, index blocks and a footer; of a
// file that is no table its end.
uint64_t index_begin(const FileReader& table);

}  // namespace perdure::lsm
