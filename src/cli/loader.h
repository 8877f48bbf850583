// Loading records from text with several threads, durably and resumably.
//
// One thread reads and parses; each record goes to the worker that its key hashes to. So all
// records of one key are stored by one worker in the order of the source: of a repeated key the
// last line wins, whatever the number of threads.
//
// How far a load came is itself durable: the pool has a second structure, "<name>.progress", from
// the identity of a source to two counts of its lines: as many leading ones are all acknowledged
// ("done"), and none behind so many has been given to a worker ("begun"). Workers acknowledge lines
// between the two in any order. A load that resumes must not store such a line of a key again on
// the way to a later one: were it killed there, the key would hold an older line than one that was
// acknowledged. So it reads all lines between the two first and stores the last one of each key.
// Any line of that key which was acknowledged is this one or before it; so whatever sequence of
// loads is killed where, a key never goes back behind an acknowledged line. A load from the start
// does go back: it begins a new count.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/record_source.h"
#include "common/progress.h"
#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure::cli {

struct LoadOptions {
  unsigned threads = 1;
  bool resume = false;    // leave out what an earlier load of this source acknowledged
  bool skip_bad = false;  // count bad lines and go on
  bool header = false;    // the first line names the fields
  // Records are durable only at checkpoints, which are made now and then and at the end.
  bool bulk = false;
  // If not negative: a file descriptor that gets the number of each line, as a line of text, once
  // its record is durable.
  int acknowledge_fd = -1;
};

struct LoadReport {
  uint64_t lines = 0;          // of the source, as far as it was read
  uint64_t acknowledged = 0;   // records stored by this load
  uint64_t bad = 0;            // lines left out
  uint64_t resumed_after = 0;  // leading lines that an earlier load had acknowledged
  double seconds = 0;
  bool interrupted = false;
  std::vector<std::string> bad_examples;  // the first few, each naming file and line
};

// A line of the source is no record.
class BadLine : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The durable record of how far loads came.
class LoadProgress {
 public:
  // Opens the progress structure of the structure `name`, or makes it.
  LoadProgress(Pool& pool, const std::string& name);
  // None: of a load that is begun anew if it does not come to its end.
  LoadProgress() = default;

  // Whether there is a record.
  bool kept() const { return index_ != nullptr; }

  // Leading lines of this source that are all acknowledged; 0 if it was never loaded.
  uint64_t lines_done(const std::string& identity) const;
  void set_lines_done(const std::string& identity, uint64_t lines);

  // Lines of this source behind which none was stored one by one; 0 if it was never loaded so.
  uint64_t lines_begun(const std::string& identity) const;
  void set_lines_begun(const std::string& identity, uint64_t lines);

  // Forgets both: a load from the start.
  void restart(const std::string& identity);

 private:
  uint64_t count_of(const std::string& key) const;

  std::unique_ptr<AnyIndex> index_;
};

// Loads until the source ends or `stop` is set. Throws BadLine, and Error with what the structure
// threw; either message tells how much was stored.
LoadReport load_records(AnyIndex& index, LoadProgress& durable_progress, LineSource& source,
                        TextFormat format, const LoadOptions& options, const ProgressSink& progress,
                        const std::atomic<bool>& stop);

}  // namespace perdure::cli
