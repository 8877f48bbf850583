// Places in a program, by the addresses that events carry: file, line and function.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace perdure::lab::crash {
struct Trace;
}

namespace perdure::lab {

struct Frame {
  std::string function;
  std::string file;  // as the compiler saw it
  unsigned line;
};

// Asks addr2line (of binutils), which it keeps running. Without it, and without debug information,
// places are numbers. Not thread-safe.
class Symbols {
 public:
  // A program (or "" for this one) and the address it was loaded at.
  Symbols(std::string program, uint64_t load_address);
  ~Symbols();
  Symbols(const Symbols&) = delete;
  Symbols& operator=(const Symbols&) = delete;

  // The inlined functions at a return address, innermost first. Empty if unknown.
  const std::vector<Frame>& frames(uint64_t pc);

  // "write.cc:123": the innermost place that is not one of the persistence primitives themselves.
  // One of the fences of Heap::Txn::commit() is "write.cc:123/announce", the other one
  // "write.cc:123/conclude".
  std::string place(uint64_t pc);
  // The same with the function: "write.cc:123 append_record".
  std::string place_and_function(uint64_t pc);
  // That place itself; null if unknown. Valid as long as this object.
  const Frame* site_of(uint64_t pc);
  // Whether that place is in a function of its own that only carries out persistence primitives:
  // who called it says more.
  bool is_primitive(uint64_t pc);
  // "append_record"; empty if unknown.
  std::string function(uint64_t pc);
  // From now on the function, as function() calls it, is taken for a persistence primitive.
  void pass_over(const std::string& function) { passed_over_.insert(function); }

 private:
  bool start();
  bool passes_over(const Frame& frame) const;
  std::vector<Frame> ask(uint64_t address);

  std::string program_;
  uint64_t load_address_;
  bool tried_ = false;
  pid_t process_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
  std::map<uint64_t, std::vector<Frame>> known_;
  std::set<std::string> passed_over_;
};

}  // namespace perdure::lab

namespace perdure::lab::crash {

// Of the program that made a trace; for this process, which keeps them. Not thread-safe.
Symbols& symbols_of(const Trace& trace);

// Names for the places of one trace.
class SiteNames {
 public:
  explicit SiteNames(const Trace& trace);
  std::string of(uint64_t pc) const { return symbols_->place_and_function(pc); }
  std::string place(uint64_t pc) const { return symbols_->place(pc); }

 private:
  Symbols* symbols_;
};

}  // namespace perdure::lab::crash
