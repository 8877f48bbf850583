// For processes that recover crash images: whatever they do to files that they map stays theirs.
#pragma once

namespace perdure::lab {

// From now on, in this process: shared mappings of files become private copies, locks on files are
// always granted, and files keep their size. There is no way back. What was written to a private
// copy is found again where the file is mapped or read (pread) once more.
void make_files_private();
// The files are again what the others see of them. Nothing of theirs may be mapped.
void forget_private_files();

}  // namespace perdure::lab
