// A program of somebody else, for the explorer: run once and recorded, and then its own recovery
// run on each crash image.
//
//   ExternalSubject subject({.run = command_words("table {} run 100"),
//                            .check = command_words("table {} list")});
//   Verdicts verdicts;
//   Exploration result = explore(subject.record({}), subject, {}, verdicts);
//
// The program is built with perdure-c++, says with <perdure/lab.h> where its persistent memory is,
// and marks its operations. The check command recovers an image and prints everything that a user
// would see: after a crash that must be what it prints of the file as it was just before or just
// after the operation in flight (outputs.h). An exit code other than 0, a signal and a hang are
// findings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "lab/crash/check_server.h"
#include "lab/crash/command.h"
#include "lab/crash/scratch_folder.h"
#include "lab/crash/subject.h"

namespace perdure::lab::crash {

struct ExternalProgram {
  // Words of the commands. `{}` in them stands for the path of the file: in `run` of a new one that
  // does not exist yet, in `check` of the image.
  std::vector<std::string> run;
  std::vector<std::string> check;
  Domain domain = Domain::kLine;
  unsigned run_seconds = 120;
  // Shorter than WorkerLimits::seconds, so that a check that hangs is stopped and reported here.
  unsigned check_seconds = 10;
  // Whether crashes of recovery are explored as well: if the check command is an observed program
  // too, and does nothing else than recover and print.
  bool recoveries = true;
  // Whether the check is started once and forks for each image, where it can, and not started for
  // each.
  bool serve = true;
};

class ExternalSubject : public Subject {
 public:
  // Throws Error(kInvalidArgument) if a command is missing or the check does not name the image.
  explicit ExternalSubject(ExternalProgram program);

  std::string name() const override { return program_.run.front(); }
  Domain domain() const override { return program_.domain; }

  // Always the whole run: nobody knows which of its operations could be left out. Throws Error if
  // the program fails, or leaves no trace.
  Run record(const std::vector<uint32_t>& only) override;
  uint32_t operation_count() const override { return operations_; }
  bool can_leave_out() const override { return false; }
  Observation observe(const std::string& path, bool with_contents) override;
  Run record_recovery(const std::string& path, const Work& work) override;

 private:
  // A file of this process, which is to hold what an image holds.
  std::string copy_file() const;
  std::string trace_file() const;
  // The check on this process's copy, recorded or not: in a child of the server, or by a process of
  // its own.
  CommandResult run_check(bool record);
  CommandResult start_check(bool record) const;
  void start_server();
  // What the check prints of the file that a check has left. Most images are recovered to one of a
  // few states, each of which is checked once.
  uint64_t digest_of_recovered();

  ExternalProgram program_;
  ScratchFolder folder_;
  uint32_t operations_ = 0;

  enum class Serving { kUntried, kTrusted, kImpossible };
  Serving serving_ = Serving::kUntried;
  pid_t serving_in_ = -1;  // the process whose server it is
  std::unique_ptr<CheckServer> server_;
  std::unordered_map<uint64_t, uint64_t>
      recovered_;  // what the check prints, by content of the file
};

// Makes the file `to` hold what `from` holds, writing only pages that differ. Both sparse files
// stay so.
void update_copy(const std::string& from, const std::string& to);

}  // namespace perdure::lab::crash
