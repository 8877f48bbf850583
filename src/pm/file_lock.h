// Who has a file open: one writer, or readers.
//
// Nobody who may only read a pool takes a lock that keeps its writer out, as with flock() or a
// shared lock he would. A write lock of fcntl() needs a file that is open for writing. A writer has
// write locks on all of a region far behind the end of any file; a reader has one on a byte of it,
// of a file that it opens for writing and does not write to. Who may only read has no lock at all:
// what he reads may change (Mapping::freeze).
//
// A stranger's read lock on that region keeps every write lock away, and takes read permission
// only: the system knows no lock that is better. A writer is then refused, in words of its own, and
// never let in without a lock.
//
// Locks belong to the open file, under whatever name: they end with it, with the process at the
// latest, and children share them.
#pragma once

#include <string>

namespace perdure::pm {

// Keeps everybody else out until `file`, which is open for writing, is closed. `what` it is, for
// messages. Throws kLocked, kIo.
void lock_for_writer(int file, const std::string& path, const char* what);
// Keeps writers out. False: locks of who may only read are in the way. `file` is open for writing.
// Throws kLocked, kIo.
bool lock_for_reader(int file, const std::string& path, const char* what);
// Whether a writer has the file open.
bool has_writer(int file, const std::string& path);

}  // namespace perdure::pm
