#include "lab/study/buffer/ycsb.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>

#include "common/permutation.h"
#include "lab/bench/distribution.h"

namespace perdure::lab::study::buffer_pool {
namespace {

// Records that lie side by side are asked for alike: about those of a page.
constexpr uint64_t kAlike = 32;

class RecordKey {
 public:
  explicit RecordKey(uint64_t record) : word_(__builtin_bswap64(record)) {}
  operator std::string_view() const {
    return {reinterpret_cast<const char*>(&word_), sizeof word_};
  }

 private:
  uint64_t word_;
};

// The record's number, and what was written last.
void fill_value(std::string& value, uint64_t record, uint64_t version) {
  for (size_t i = 8; i < value.size(); ++i) value[i] = static_cast<char>(version >> i % 8 * 8);
  std::memcpy(value.data(), &record, std::min(value.size(), sizeof record));
}

uint64_t capacity_of(const BufferStudyOptions& options, uint64_t pm_bytes) {
  return 2 * pm_bytes + 2 * options.log_bytes + (uint64_t{64} << 20);
}

}  // namespace

uint32_t read_percent_of(const std::string& mix) {
  if (mix == "a") return 50;
  if (mix == "b") return 95;
  if (mix == "c") return 100;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("the mix is a, b or c, not '{}'", mix));
}

uint64_t load_records(const Course& course) {
  const BufferStudyOptions& options = course.options;
  course.tell("load", 0);
  const std::string path = course.folder + "/loaded";
  std::filesystem::remove_all(path);
  const json pages = in_a_process(course, [&] {
    DatabaseOptions database;
    database.pm_frames = false;
    database.log_bytes = options.log_bytes;
    database.dram_bytes = 3 * options.records * (options.value_bytes + 32) + (8 << 20);
    // Its capacity stays: with room for the frames of any share, before and after they change.
    DatabaseStore store(path, database, 1, capacity_of(options, database.dram_bytes));
    std::string value(options.value_bytes, '\0');
    for (uint64_t record = 0; record < options.records;) {
      const uint64_t end = std::min(options.records, record + 100);
      store.write([&](TransactionalStore::Transaction& one) {
        for (uint64_t i = record; i < end; ++i) {
          fill_value(value, i, 0);
          one.put(0, RecordKey(i), value);
        }
      });
      record = end;
    }
    for (const Statistic& each : store.database().statistics()) {
      if (each.name == "pages") return json(static_cast<uint64_t>(each.value));
    }
    return json();
  });
  return pages.is_null() ? 0 : pages.get<uint64_t>();
}

MemoryShare share_of(const BufferStudyOptions& options, uint64_t pages, double dram_percent) {
  const double all =
      static_cast<double>(std::max<uint64_t>(pages, 64)) * options.pool_percent / 100;
  const auto dram = static_cast<uint64_t>(std::llround(all * dram_percent / 100));
  const auto whole = std::max<uint64_t>(static_cast<uint64_t>(std::llround(all)), 64);
  return {dram * 4096, (whole - std::min(whole, dram)) * 4096};
}

RunSetup copy_of_loaded(const Course& course, const MemoryShare& share) {
  RunSetup setup;
  setup.path = course.folder + "/run";
  std::filesystem::remove_all(setup.path);
  std::filesystem::copy(course.folder + "/loaded", setup.path);
  setup.database.dram_bytes = share.dram_bytes;
  setup.database.pm_bytes = share.pm_bytes;
  setup.database.pm_frames = share.pm_bytes != 0;
  setup.threads = course.options.threads;
  return setup;
}

DatabaseRun::Work ycsb(const BufferStudyOptions& options, uint64_t seed, bool fill) {
  return [&options, seed, fill](DatabaseStore& store, unsigned thread, Gauge& gauge) {
    const uint64_t groups = std::max<uint64_t>(1, options.records / kAlike);
    const Distribution distribution = Distribution::parse(options.distribution);
    const RankSampler ranks =
        distribution.is_ranked() ? RankSampler(distribution, groups) : RankSampler();
    const Permutation places(groups, options.seed);
    std::string value(options.value_bytes, '\0');
    std::string found;
    for (uint64_t group = thread; fill && group < groups && !gauge.stop; group += options.threads) {
      store.read([&](TransactionalStore::Transaction& one) {
        one.get(0, RecordKey(group * kAlike), found);
      });
    }
    ++gauge.filled;
    uint64_t word = mix_word(seed * 1000 + thread);
    for (uint64_t i = 1; !gauge.stop.load(std::memory_order_relaxed); ++i) {
      word = mix_word(word + i);
      const uint64_t rank = distribution.is_ranked() ? ranks.draw(word) : word % groups;
      const uint64_t random = mix_word(~word);
      const uint64_t record =
          std::min(places.at(rank) * kAlike + random % kAlike, options.records - 1);
      if ((random >> 32) % 100 < gauge.read_percent.load(std::memory_order_relaxed)) {
        store.read([&](TransactionalStore::Transaction& one) {
          uint64_t number = ~record;
          if (one.get(0, RecordKey(record), found)) std::memcpy(&number, found.data(), 8);
          if (number != record)
            throw Error(ErrorCode::kCorrupt, fmt::format("record {} has a wrong value", record));
        });
      } else {
        fill_value(value, record, word);
        store.write(
            [&](TransactionalStore::Transaction& one) { one.put(0, RecordKey(record), value); });
      }
      gauge.count(thread, i);
    }
  };
}

std::unique_ptr<DatabaseRun> warm_run(const Course& course, const RunSetup& setup, uint64_t seed,
                                      const std::string& mix) {
  const BufferStudyOptions& options = course.options;
  auto run = std::make_unique<DatabaseRun>(options, setup, ycsb(options, seed, true));
  run->gauge().slow = false;
  run->gauge().read_percent = read_percent_of(mix);
  run->wait_until(course, [&](const Gauge& gauge) { return gauge.filled >= options.threads; });
  run->watch(course, options.before_s / 2, DatabaseRun::From::kNow);
  run->gauge().slow = true;
  return run;
}

size_t stretch_of(const BufferStudyOptions& options) {
  return std::max<size_t>(1,
                          static_cast<size_t>(std::lround(options.sustained_s / options.window_s)));
}

json return_of(const BufferStudyOptions& options, const DatabaseRun& run,
               const std::vector<Window>& after, double peak_per_s) {
  const size_t stretch = stretch_of(options);
  const Gauge& gauge = run.gauge();
  return {{"opening_s", or_null(run.seconds_to(gauge.opened_at))},
          {"first_transaction_s", or_null(run.seconds_to(gauge.first_at))},
          {"first_per_s", mean_of(after, 0, std::min(stretch, after.size()), &Window::per_s)},
          {"to_95_percent_s",
           or_null(first_time(after, stretch, &Window::per_s, 0.95 * peak_per_s, true))},
          {"to_50_percent_s",
           or_null(first_time(after, stretch, &Window::per_s, 0.5 * peak_per_s, true))},
          {"mended",
           {{"right", gauge.right.load()},
            {"older", gauge.older.load()},
            {"newer", gauge.newer.load()},
            {"corrupted", gauge.corrupted.load()},
            {"fetched", gauge.fetched.load()}}}};
}

}  // namespace perdure::lab::study::buffer_pool
