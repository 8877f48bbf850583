// Programs of several threads that keep values under keys, as subjects of the crash explorer. The
// oracle is durable linearizability (oracle.h): what returned is there, and what a reader was told
// stays.
//
//   KeyedSubject subject("map", [] { return std::make_unique<Map>(); }, schedule);
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lab/crash/oracle.h"
#include "lab/crash/subject.h"

namespace perdure::lab::crash {

// Keys and values are small numbers. As with Program, members are volatile.
class KeyedProgram {
 public:
  using Contents = std::map<uint32_t, uint32_t>;

  virtual ~KeyedProgram() = default;

  virtual uint64_t region_bytes() const = 0;
  // Sets the region up, which is all zero. Nothing is in it then. Everything it stores is durable.
  virtual void create(void* base) = 0;
  // The workload: of each thread its operations.
  virtual std::vector<std::vector<Step>> steps() const = 0;
  // What is done after a recovery, before the next crash, of which there were so many.
  virtual std::vector<Step> work_steps(uint32_t /*crashes*/) const { return {}; }
  // Thread-safe; durable on return.
  virtual Answer perform(void* base, const Step& step) = 0;
  // Recovers in place and returns what is there. Throws if the region is damaged.
  virtual Contents recover(void* base) = 0;
};

using KeyedProgramFactory = std::function<std::unique_ptr<KeyedProgram>()>;

class KeyedSubject : public Subject {
 public:
  // The threads run one at a time; `schedule` decides when they take turns (seam/schedule.h).
  KeyedSubject(std::string name, KeyedProgramFactory factory, uint64_t schedule,
               Domain domain = Domain::kLine);

  std::string name() const override { return name_; }
  Domain domain() const override { return domain_; }
  Run record(const std::vector<uint32_t>& only) override;
  uint32_t operation_count() const override;
  Observation observe(const std::string& path, bool with_contents) override;
  Run record_recovery(const std::string& path, const Work& work) override;

 private:
  std::string name_;
  KeyedProgramFactory factory_;
  uint64_t schedule_;
  Domain domain_;
};

}  // namespace perdure::lab::crash
