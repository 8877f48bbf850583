// For processes that recover crash images: whatever they do to files that they map stays theirs.
#pragma once

namespace perdure::lab {

// From now on, in this process: shared mappings of files become private copies, locks on files are
// always granted, and files keep their size. There is no way back.
void make_files_private();

}  // namespace perdure::lab
