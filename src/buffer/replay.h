// What a log record does with its page: the same function carries out a change and repeats it.
#pragma once

#include <cstdint>

#include "buffer/log.h"
#include "buffer/page.h"

namespace perdure::buffer {

// Applies a record to its page, whose LSN it sets. Returns the parts whose checksums have to be
// computed: those that were touched, and the first one, which has the LSN; or none, if they were
// kept. `undo`, if it is not null, gets what it was. Throws kCorrupt if the record does not fit the
// page: then it is not the page's next one.
PartMask apply_record(const PageFormat& format, char* page, uint64_t lsn, const LogRecord& record,
                      Checksums checksums, PageUndo* undo = nullptr);

// Whether what a page says of itself lies in it, so that it may be read. Its checksums do not tell:
// they fit whatever was written with them.
bool is_well_formed(const PageFormat& format, const char* page);

}  // namespace perdure::buffer
