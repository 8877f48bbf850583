// Programs and structures that are not in the catalogue, as subjects of the crash explorer.
//
//   class Counter : public RootProgram<CounterRoot> { ... };    // compiled observed
//   ProgramSubject subject("counter", [] { return std::make_unique<Counter>(); });
//   Verdicts verdicts;
//   Exploration result = explore(subject.record({}), subject, {}, verdicts);
//
// There is no model of what the program should do: after a crash, recovery must give what it gives
// of the memory as it was just before or just after the operation in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lab/crash/subject.h"

namespace perdure::lab::crash {

// A program over one region of persistent memory. What it keeps in its own members is volatile:
// every recovery is done by a new object, as in a new process, at another address.
class Program {
 public:
  virtual ~Program() = default;

  virtual uint64_t region_bytes() const = 0;

  // Sets the region up, which is all zero. Everything it stores counts as durable.
  virtual void create(void* base) = 0;

  // The operations 0, 1, ... of the workload, each durable on return. Those from operation_count()
  // on are carried out after recoveries, to see that they work: whatever they find wrong they
  // throw.
  virtual uint32_t operation_count() const = 0;
  virtual uint32_t further_count() const { return 0; }
  // How many more, with other numbers each time, are carried out between a recovery and the next
  // crash.
  virtual uint32_t work_count() const { return 0; }
  virtual void operate(void* base, uint32_t number) = 0;
  // In words: "insert(17)". What comes before the parenthesis is the operation's type.
  virtual std::string operation_text(uint32_t number) const;

  // Recovers the region in place, whether it was left in order or not, and returns everything that
  // a user would then see. Throws if it is damaged.
  virtual std::string recover(void* base) = 0;
};

using ProgramFactory = std::function<std::unique_ptr<Program>()>;

// A program whose region begins with a Root.
template <typename Root>
class RootProgram : public Program {
 public:
  uint64_t region_bytes() const override {
    return (sizeof(Root) + kImagePageBytes - 1) / kImagePageBytes * kImagePageBytes;
  }
  void create(void* base) final { set_up(*static_cast<Root*>(base)); }
  void operate(void* base, uint32_t number) final { perform(*static_cast<Root*>(base), number); }
  std::string recover(void* base) final { return restore(*static_cast<Root*>(base)); }

 protected:
  virtual void set_up(Root& /*root*/) {}
  virtual void perform(Root& root, uint32_t number) = 0;
  virtual std::string restore(Root& root) = 0;
};

class ProgramSubject : public Subject {
 public:
  ProgramSubject(std::string name, ProgramFactory factory, Domain domain = Domain::kLine);

  std::string name() const override { return name_; }
  Domain domain() const override { return domain_; }
  Run record(const std::vector<uint32_t>& only) override;
  uint32_t operation_count() const override;
  Observation observe(const std::string& path, bool with_contents) override;
  Run record_recovery(const std::string& path, const Work& work) override;

 private:
  std::string name_;
  ProgramFactory factory_;
  Domain domain_;
};

}  // namespace perdure::lab::crash
