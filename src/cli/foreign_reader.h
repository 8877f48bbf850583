// Databases of other stores, read by programs of their own (cli/readers): one for each store whose
// library there was when Perdure was built. They write the records as TSV to a pipe, and on
// standard error how many there were.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/record_source.h"
#include "cli/subprocess.h"

namespace perdure::cli {

struct ForeignSource {
  std::string from;       // "rocksdb:/var/lib/events": store and path
  std::string database;   // a part of it, by name; empty: none
  std::string key_words;  // how words are written: digits, little or big; empty: digits
  std::string value_words;
};

class ForeignReader {
 public:
  // Starts the reader, and waits until it has opened the database. `stop` as of LineSource. Errors:
  // kInvalidArgument (no such store), kNotFound (path or reader), kIo with the store's own words.
  ForeignReader(const ForeignSource& source, const std::atomic<bool>& stop);

  ~ForeignReader();
  ForeignReader(const ForeignReader&) = delete;
  ForeignReader& operator=(const ForeignReader&) = delete;

  LineSource& lines() { return *lines_; }

  // Once all lines are read: how many records the database has. Throws kIo, with the store's own
  // words, if the reader did not come to its end.
  uint64_t finish();

 private:
  std::string name_;
  int errors_ = -1;  // the file that its standard error is, without a name
  std::optional<Subprocess> reader_;
  std::optional<LineSource> lines_;
};

}  // namespace perdure::cli
