// A structure of the catalogue under a random workload, for the explorer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lab/crash/oracle.h"
#include "lab/crash/subject.h"
#include "perdure/catalog.h"

namespace perdure::lab::crash {

struct IndexWorkload {
  std::string structure;
  Kind key_kind = Kind::kU64;
  Kind value_kind = Kind::kU64;
  OptionMap options;                            // of the structure; empty: as small as it can be
  uint64_t capacity_bytes = uint64_t{8} << 20;  // of the pool
  uint32_t prepared = 900;                      // operations before those that are explored
  uint32_t operations = 300;                    // explored, of all threads together
  uint32_t keys = 600;                          // how many different ones
  uint32_t threads = 1;
  uint32_t batch =
      1;  // explored operations in one call, where there are batched calls; see kInFlightMax
  uint64_t seed = 1;
  uint64_t schedule = 1;  // the seed of the threads' order
  Domain domain = Domain::kLine;
  bool life_cycle = true;  // also explore making and closing the structure
  uint32_t further = 300;  // operations after a recovery, before the next crash, at most
  bool bulk = false;  // write half of the records by bulk_upsert(), with checkpoints in between
  uint32_t reopen_each =
      0;  // close and open it before each so many explored operations, of one thread
  uint64_t room_bytes = 0;  // of the pool that are left when it is made, about; 0: all of them
};

// Crashes in a row, at most.
inline constexpr uint32_t kCrashesMax = 5;

// Threads times batch, at most: for each operation in flight there are twice as many possible
// outcomes.
inline constexpr uint32_t kInFlightMax = 12;

// Keys and values of both kinds by number, and back.
class Dictionary {
 public:
  Dictionary(Kind kind, uint32_t count, uint64_t salt);
  Datum operator[](uint32_t number) const;
  // The number, or kUnknown for what no operation wrote.
  uint32_t number_of(const Datum& datum) const;
  static constexpr uint32_t kUnknown = ~uint32_t{0};

 private:
  Kind kind_;
  std::vector<uint64_t> words_;
  std::vector<std::string> strings_;
  std::unordered_map<uint64_t, uint32_t> by_word_;
  std::unordered_map<std::string, uint32_t> by_string_;
};

class IndexSubject : public Subject {
 public:
  // Throws Error(kInvalidArgument) if too much would be in flight.
  explicit IndexSubject(const IndexWorkload& workload);

  std::string name() const override { return workload_.structure; }
  Domain domain() const override { return workload_.domain; }
  Run record(const std::vector<uint32_t>& only) override;
  uint32_t operation_count() const override { return workload_.operations; }
  Observation observe(const std::string& path, bool with_contents) override;
  Run record_recovery(const std::string& path, const Work& work) override;

 private:
  using Contents = std::map<uint32_t, uint32_t>;
  // An operation with the events at which it began and had returned.
  struct LoggedStep {
    uint32_t begin;
    uint32_t end;
    uint32_t lane;  // the thread, or of a batch each record's own
    Step step;
    Answer answer;
    uint32_t after;                 // the lane of the record of the same key before it
    std::set<Oracle::Held> others;  // found: what a crash may bring instead
  };
  class Recording;

  PoolOptions pool_options() const;
  OptionMap opening_options() const;
  class Random;
  using Shares = unsigned[5];  // of the kinds of operation, in percent
  Step make_step(Random& random, const Shares& shares, uint32_t value) const;
  std::vector<Step> make_steps() const;
  uint64_t bytes_of_others(Pool& pool);
  void fill(Pool& pool) const;
  void soil(Pool& pool, const OptionMap& options);
  void run_threads(Recording& recording, AnyIndex& index, const std::vector<Step>& steps,
                   const std::vector<uint32_t>& only) const;
  void run_reopening(Recording& recording, Pool& pool, std::unique_ptr<AnyIndex>& index,
                     const std::vector<Step>& steps, const std::vector<uint32_t>& only) const;
  void run_steps(Recording& recording, AnyIndex& index, std::vector<Step> steps) const;
  Answer perform(AnyIndex& index, const Step& step) const;
  // Steps of one verb: insert, upsert or lookup.
  std::vector<Answer> perform_batch(AnyIndex& index, std::span<const Step> steps) const;
  // Verifies an open pool and index; what they hold. Throws Error(kCorrupt) with what is wrong.
  Contents inspect(const Pool& pool, AnyIndex& index) const;
  void check_lookups(AnyIndex& index, const Contents& contents) const;
  void check_scan(const AnyIndex& index, const Contents& contents) const;
  // Uses an index whose contents are known, and verifies what it answers.
  void use(AnyIndex& index, Contents& contents) const;
  // The first few operations after a recovery, with values from a number on.
  std::vector<Step> further_steps(const Contents& contents, uint32_t value) const;
  uint32_t first_value_of_work(uint32_t crashes) const;
  std::vector<Step> work_steps(const Work& work) const;
  void observe_again(const std::string& path);
  void check_heap(const Pool& pool, AnyIndex* index, uint64_t others) const;
  std::string text_of(const Step& step) const;
  static Oracle oracle_at(const std::vector<LoggedStep>& log, uint32_t event);
  // What is wrong with contents that a crash before `event` left, in words.
  std::string explain(const std::vector<LoggedStep>& log, uint32_t event,
                      const std::string& contents) const;

  IndexWorkload workload_;
  Dictionary keys_;
  Dictionary values_;
  uint64_t other_bytes_ = 0;  // of the heap, in the pool's other structures
  uint64_t ballast_bytes_ = 0;
  Contents used_;  // what the image observed last held when it was closed
};

}  // namespace perdure::lab::crash
