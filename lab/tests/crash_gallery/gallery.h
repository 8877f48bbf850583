// Small programs with one classic fault of persistent memory each, and their repaired twins. The
// crash explorer must find every fault, and nothing in the twins.
//
// Each file has one kind of fault. A program is a template: Program<false> has the fault,
// Program<true> is the twin. A comment marks the line that a finding must name:
//
//   // lost in NAME     this store had not reached memory
//   // crash in NAME    the crash came just before this flush, fence or streamed store
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "lab/crash/keyed_subject.h"
#include "lab/crash/program_subject.h"
#include "perdure/error.h"
#include "pm/memory.h"

namespace perdure::crash_gallery {

struct Entry {
  std::string name;
  std::string file;  // with the marks
  // The program with its fault or the twin. Those of several threads run in another order for each
  // schedule, of which there are so many, from 1.
  std::function<std::unique_ptr<lab::crash::Subject>(bool repaired, uint64_t schedule)> make;
  uint64_t schedules = 1;
  uint32_t crashes = 1;  // in a row, that its loss takes
};

// For messages of tests.
inline void PrintTo(const Entry& entry, std::ostream* out) { *out << entry.name; }

// All of them, in the order of the files.
std::vector<Entry> gallery();

// What follows is for the files of the gallery.

template <typename Root>
using RootProgram = lab::crash::RootProgram<Root>;

inline const pm::Memory memory(Domain::kLine);

template <template <bool> class Program>
Entry make_entry(const std::string& name, std::string file, Domain domain = Domain::kLine) {
  const auto make = [name, domain](bool repaired, uint64_t) {
    lab::crash::ProgramFactory factory = [] { return std::make_unique<Program<false>>(); };
    if (repaired) factory = [] { return std::make_unique<Program<true>>(); };
    return std::make_unique<lab::crash::ProgramSubject>(name, std::move(factory), domain);
  };
  return {name, std::move(file), make};
}

template <template <bool> class Program>
Entry make_threaded_entry(const std::string& name, std::string file) {
  const auto make = [name](bool repaired, uint64_t schedule) {
    lab::crash::KeyedProgramFactory factory = [] { return std::make_unique<Program<false>>(); };
    if (repaired) factory = [] { return std::make_unique<Program<true>>(); };
    return std::make_unique<lab::crash::KeyedSubject>(name, std::move(factory), schedule);
  };
  return {name, std::move(file), make, 12};
}

[[noreturn]] inline void damaged(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, what);
}

void add_atomicity(std::vector<Entry>& entries);
void add_directory(std::vector<Entry>& entries);
void add_fences(std::vector<Entry>& entries);
void add_flushes(std::vector<Entry>& entries);
void add_hash_tables(std::vector<Entry>& entries);
void add_heap(std::vector<Entry>& entries);
void add_journals(std::vector<Entry>& entries);
void add_order(std::vector<Entry>& entries);
void add_pages(std::vector<Entry>& entries);
void add_reader(std::vector<Entry>& entries);
void add_recovery(std::vector<Entry>& entries);
void add_stale(std::vector<Entry>& entries);
void add_table(std::vector<Entry>& entries);
void add_tree(std::vector<Entry>& entries);
void add_tries(std::vector<Entry>& entries);

}  // namespace perdure::crash_gallery
