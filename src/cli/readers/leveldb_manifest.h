// What the files of a LevelDB database say of each other, before LevelDB itself opens it.
//
// The MANIFEST tells which tables belong to the database, and from which log on records are in logs
// only. LevelDB takes one that was cut short as it is: it reads up to the cut, as after a crash,
// and removes the tables that it does not find there. So a copy would have fewer records than the
// database, without a word, and the records would be gone.
//
// What can be seen of that: a table that the MANIFEST does not name has records that are newer than
// all that it speaks of, and that no log has. A compaction that was interrupted leaves tables, too,
// of older records; and one of a log's records that was interrupted leaves the log.
#pragma once

#include <string>

namespace perdure::readers {

// Reads only. Throws Failure if records seem to be lost. Returns what else the user should know, in
// a sentence, or nothing. What cannot be read is left to LevelDB to complain of.
std::string check_leveldb_files(const std::string& folder);

}  // namespace perdure::readers
