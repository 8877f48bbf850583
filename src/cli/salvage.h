// Copying what is readable of a damaged pool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/progress.h"
#include "perdure/pool.h"

namespace perdure::cli {

struct SalvagedStructure {
  StructureInfo info;
  uint64_t records = 0;     // copied; of files, how many
  uint64_t unreadable = 0;  // records, and ranges of them, that are known of and cannot be read
  bool complete = false;    // there is nothing else that is known to be missing
  std::vector<std::string> lost;  // what is missing, or why: the first few
  std::string page_file;          // that was made for a database, if there is one
  std::string log_file;           // the same
};

// Page files and log files of databases.
struct DatabaseFiles {
  std::vector<std::string> page_files;  // of the damaged pool's
  std::vector<std::string> log_files;
  std::string new_pool;  // beside this go those that are made

  // NEW.NAME.pages, where the kind is "pages", with _ for what is neither letter, digit nor -; from
  // number 2 on NEW.NAME.<number>.pages, where names come to the same.
  std::string new_file(const std::string& name, unsigned number, const char* kind) const;
};

struct SalvageReport {
  std::vector<SalvagedStructure> structures;
  std::vector<std::string> problems;  // of the pool as a whole

  bool is_complete() const;
};

// Copies each structure of the pool `from` that can be read to the pool `to`, which must be empty.
// `from` is not modified. What reads it are child processes: one that faults, or says nothing for
// `silence_s` seconds, is the end of one structure. A page file is a database's if its page 0 says
// so; one whose page 0 is damaged is taken if it is the only one left for the only database left,
// and the database is not complete then; nor is one whose log file lacks commits, or is not given.
// Throws what Pool::open throws for a file that is no pool at all, what opening a page file or log
// file does (kNotFound, kPermission, kLocked), kExists (a file that is to be made is there), and
// errors of `to`.
SalvageReport salvage_pool(const std::string& from, Pool& to, const DatabaseFiles& files,
                           const ProgressSink& progress, unsigned silence_s = 60);

// The capacity that a pool's header tells, if that can be believed; else one that its file fits
// into.
uint64_t salvage_capacity(const std::string& from);

}  // namespace perdure::cli
