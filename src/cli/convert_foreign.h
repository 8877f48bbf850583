// `perdure convert --from`: the records of another store's database in a structure of a pool.
#pragma once

#include "cli/command.h"
#include "cli/foreign_reader.h"

namespace perdure::cli {

struct ForeignConversion {
  ForeignSource source;
  Target target;  // a pool, which is made if it is missing, and the structure to make
  Creation creation;
  unsigned threads = 1;
};

// Returns the exit code. The structure has its name only when all records are in it, and durable;
// else pool and file system are as they were. Errors: those of ForeignReader, kNameExists, BadLine,
// and what the structure throws.
int convert_foreign(const ForeignConversion& conversion);

}  // namespace perdure::cli
