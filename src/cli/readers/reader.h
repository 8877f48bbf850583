// What the readers of other stores' databases share. Each is a program that writes all records of a
// database to standard output, as TSV that `perdure load` reads, and says on standard error how
// many there were:
//
//   perdure-read-rocksdb /var/lib/events --database log | perdure load events.pool -
//
// Exit code 0: these were all. Anything else: they may not be, and the last line of standard error
// says why, in the words of the store.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace perdure::readers {

// Why the database cannot be read, or not to its end.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Request {
  std::string path;
  std::string
      database;  // a part of it, by name; empty: the one that the store takes without a name
};

// How the database writes a key or value that is to be a word.
enum class Words { kDigits, kLittle, kBig };

class Output {
 public:
  Output(Words keys, Words values) : keys_(keys), values_(values) {}

  // Throws Failure: standard output cannot be written, or it is no word where words are wanted.
  void record(std::string_view key, std::string_view value);
  void flush();
  uint64_t records() const { return records_; }

 private:
  Words keys_;
  Words values_;
  std::string buffer_;
  uint64_t records_ = 0;
};

// The main program of a reader. `read` gives the records to the output in the order of their keys,
// and throws Failure.
int run_reader(int argc, char** argv, const char* store, const char* about_database,
               void (*read)(const Request& request, Output& output));

}  // namespace perdure::readers
