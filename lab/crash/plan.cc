#include "lab/crash/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace perdure::lab::crash {
namespace {

// When a structure grows.
struct Growth {
  std::string_view prefix;  // of the structure's name
  uint32_t prepared;        // operations after which its first growth is near; others: none
  OptionMap options;        // empty: as small as the catalogue says
};

const std::vector<Growth>& growths() {
  static const std::vector<Growth> all = {
      {"plush", 3000, {}},           // its entries of level 1 are full, and are drained
      {"p-clht+fc+ve+xs", 150, {}},  // its buckets hold five times as much as the others'
      {"cceh", 60, {{"initial_depth", "1"}, {"segment_buckets", "16"}}},
  };
  return all;
}

class Planner {
 public:
  Planner(const IndexWorkload& base, const std::vector<std::pair<Kind, Kind>>& kinds)
      : base_(base), kinds_(kinds) {}

  void add(const std::string& title, const IndexWorkload& workload) {
    for (const auto& [key, value] : kinds_) {
      runs_.push_back({title, workload});
      runs_.back().workload.key_kind = key;
      runs_.back().workload.value_kind = value;
    }
  }

  // Many keys, present and absent: everything that happens in a structure of some size.
  void add_many_keys() { add("1 thread", base_); }

  // From few records to many.
  void add_growing() {
    IndexWorkload growing = base_;
    growing.prepared = 0;
    for (const Growth& growth : growths()) {
      if (!base_.structure.starts_with(growth.prefix)) continue;
      growing.prepared = growth.prepared;
      growing.options = growth.options;
      break;
    }
    growing.operations = 2 * base_.operations;
    growing.keys = std::max(2000U, 6 * growing.prepared);
    add("growing", growing);
  }

  // Closed and opened again and again: what a clean close leaves is used and taken away, and what
  // opening begins anew does not come to its end.
  void add_reopening() {
    IndexWorkload reopening = base_;
    reopening.prepared = 40;
    reopening.keys = 2000;
    reopening.reopen_each = 2;
    add("opened again and again", reopening);
  }

  // Few keys, for conflicts.
  void add_threads(unsigned schedules) {
    IndexWorkload conflicts = base_;
    conflicts.threads = 2;
    conflicts.keys = 12;
    conflicts.prepared = 300;
    for (conflicts.schedule = 1; conflicts.schedule <= schedules; ++conflicts.schedule) {
      add(fmt::format("2 threads, order {}", conflicts.schedule), conflicts);
    }
  }

  // Batches that go to several partitions at once.
  void add_batches_over_partitions() {
    IndexWorkload batches = base_;
    batches.options = {{"partitions", "3"}, {"block_bytes", "1024"}, {"garbage_percent", "10"}};
    batches.batch = 6;
    add("batches over 3 partitions", batches);
  }

  // What only some structures have: others loop over their single calls, and log everything.
  void add_batches_and_bulk() {
    IndexWorkload batches = base_;
    batches.batch = 10;
    add("batches of 10", batches);
    IndexWorkload bulk = base_;
    bulk.bulk = true;
    bulk.keys = 60;
    bulk.prepared = 200;
    add("bulk writes", bulk);
    // A log of three short chunks, which batches leave at different places: what a crash left
    // behind the last record of one is met again when the work after it has gone round.
    IndexWorkload ring = base_;
    ring.options = {
        {"directory_bits", "1"}, {"directory_bits_max", "1"}, {"fanout", "2"}, {"partitions", "1"}};
    ring.batch = 4;
    ring.keys = 40;
    ring.prepared = 100;
    ring.operations = 3 * base_.operations;
    add("a short log", ring);
  }

  // A pool with next to no room, of which most is another structure's, so that few records fill it.
  void add_little_room() {
    IndexWorkload little = base_;
    little.capacity_bytes = Pool::kMinCapacityBytes;
    little.room_bytes = uint64_t{128} << 10;
    little.keys = 4000;
    little.prepared = 3000;
    add("little room", little);
  }

  // A pool in which there is no room: records move, and garbage is collected. Of words it would
  // take too many to fill the smallest pool.
  void add_full_pool() {
    if (std::ranges::find(kinds_, std::pair(Kind::kBytes, Kind::kBytes)) == kinds_.end()) return;
    IndexWorkload full = base_;
    full.key_kind = full.value_kind = Kind::kBytes;
    full.capacity_bytes = Pool::kMinCapacityBytes;
    full.keys = 72000;
    full.prepared = 12000;
    runs_.push_back({"full pool", full});
  }

  std::vector<PlannedRun> runs() { return std::move(runs_); }

 private:
  IndexWorkload base_;
  std::vector<std::pair<Kind, Kind>> kinds_;
  std::vector<PlannedRun> runs_;
};

}  // namespace

std::vector<PlannedRun> default_plan(const IndexWorkload& base,
                                     const std::vector<std::pair<Kind, Kind>>& kinds,
                                     unsigned schedules) {
  Planner planner(base, kinds);
  planner.add_many_keys();
  planner.add_growing();
  if (catalog_entry(base.structure).traits.concurrent) planner.add_threads(schedules);
  planner.add_reopening();
  if (base.structure.starts_with("plush")) planner.add_batches_and_bulk();
  if (base.structure.starts_with("rstore")) planner.add_batches_over_partitions();
  planner.add_little_room();
  planner.add_full_pool();
  return planner.runs();
}

}  // namespace perdure::lab::crash
