// Power failures, one after the other: each session opens the store, finds what was acknowledged,
// works on, and ends at a persist that never comes, in the opening or later, now and then by a
// close. What the caches held then is on the medium in part. Or it was the process that died, and
// the caches go on to the next session, until they are lost with what that one leaves in them.
// Small full pools and long values, so that sessions end in the middle of compaction. A replica
// that outlives them all follows the changes.
//
// PERDURE_POWER_SESSIONS: how many for each store, 400 without.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "perdure/store.h"
#include "store/fixture.h"
#include "store/replica.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

using Model = std::map<std::string, std::string>;

struct PowerCase {
  std::string name;
  StoreOptions options;
  bool full;  // values so long that the pool is mostly full
};

void PrintTo(const PowerCase& one, std::ostream* out) { *out << one.name; }

class StorePowerTest : public testing::TestWithParam<PowerCase> {
 protected:
  static PoolOptions pool_options() {
    PoolOptions options;
    options.capacity_bytes = uint64_t{2} << 20;
    options.growth_bytes = uint64_t{64} << 10;
    options.force_domain = true;
    options.domain = Domain::kLine;
    return options;
  }
  StoreOptions options() {
    StoreOptions options = GetParam().options;
    options.block_bytes = 1024;
    options.recovery_threads = 1;
    options.garbage_percent = static_cast<uint32_t>(5 + random_.below(40));
    constexpr uint64_t kChanges[] = {0, 0, 20'000, ~uint64_t{0}};
    options.changes_bytes = kChanges[random_.below(4)];
    constexpr uint32_t kPercents[] = {5, 5, 25, 100, 0};
    options.index_snapshot_percent = kPercents[random_.below(5)];
    return options;
  }
  std::string path() const { return folder_.file("pool"); }

  std::string key() {
    switch (random_.below(4)) {
      case 0:
        return "hot" + std::to_string(random_.below(6));
      case 1:
        return std::to_string(random_.below(5)) + std::string(90, 'k');  // stands outside
      default:
        return "k" + std::to_string(random_.below(150));
    }
  }
  std::string value() {
    std::string text = std::to_string(++stamp_) + ".";
    uint64_t bytes = random_.below(50);
    if (random_.below(GetParam().full ? 3 : 12) == 0) {
      bytes = 65 + random_.below(GetParam().full ? 20000 : 1500);
    }
    text.resize(std::max<uint64_t>(text.size(), bytes), static_cast<char>('a' + stamp_ % 26));
    return text;
  }

  // What the store has, in words where it is not what it must be.
  static std::string differences(const Store& store, const Model& model) {
    Model there;
    std::string wrong;
    store.for_each([&](std::string_view key, std::string_view value) {
      if (!there.emplace(key, value).second) wrong += "twice: " + std::string(key) + "\n";
    });
    for (const auto& [key, value] : model) {
      const auto found = there.find(key);
      if (found == there.end()) {
        wrong += "lost: " + key + "\n";
      } else if (found->second != value || store.get(key) != value) {
        wrong += "another value: " + key + "\n";
      }
    }
    for (const auto& [key, value] : there) {
      if (!model.contains(key)) wrong += "came back: " + key + "\n";
    }
    return wrong;
  }

  void open_and_judge(Store& store) {
    const std::string wrong = differences(store, model_);
    if (!wrong.empty()) {
      ASSERT_TRUE(next_) << wrong;
      ASSERT_EQ(differences(store, *next_), "") << "nor, without the last write:\n" << wrong;
      model_ = *next_;
    }
    next_.reset();
    store.check([](const std::string& sentence) { ADD_FAILURE() << sentence; });
    follow(store);
    ASSERT_EQ(replica_.content(), model_);
  }

  // What the replica was told is so, whatever crash comes, and nothing is missing: unless the store
  // had no room to keep it.
  void follow(Store& store) {
    if (!replica_.follow(store)) {
      ++fell_behind_;
      replica_.begin(store);
    }
    if (random_.chance(50)) return;
    for (uint32_t i = 0; i < store.partitions(); ++i) {
      store.acknowledge("replica", i,
                        std::max(replica_.position(i), store.consumer_position("replica", i)));
    }
  }

  std::string prefix() {
    switch (random_.below(GetParam().full ? 300 : 12)) {
      case 0:
        return "";
      case 1:
        return "k";
      case 2:
        return "hot";
      case 3:
        return std::to_string(random_.below(5)) + std::string(80, 'k');
      default:
        return "k" + std::to_string(random_.below(150));
    }
  }

  // Takes snapshots, and looks whether they stay as they are.
  void judge_snapshot(const Store& store) {
    if (snapshot_) {
      Model there;
      snapshot_->for_each([&](std::string_view key, std::string_view value) {
        EXPECT_TRUE(there.emplace(key, value).second) << "twice: " << key;
      });
      ASSERT_EQ(there, snapshot_model_);
      const std::string key = this->key();
      const auto found = snapshot_model_.find(key);
      ASSERT_EQ(snapshot_->get(key),
                found == snapshot_model_.end() ? std::nullopt : std::optional(found->second));
      store.check([](const std::string& sentence) { ADD_FAILURE() << sentence; });
    }
    if (random_.chance(50)) return;
    snapshot_.reset();
    if (random_.chance(50)) return;
    snapshot_.emplace(store.snapshot());
    snapshot_model_ = model_;
  }

  // One write; until it returns it may be there or not.
  void write(Store& store) {
    next_ = model_;
    const uint64_t choice = random_.below(100);
    const std::string key = this->key();
    bool removal = false;
    try {
      if (choice < 55) {
        const std::string value = this->value();
        next_->insert_or_assign(key, value);
        store.put(key, value);
      } else if (choice < 60) {  // has expired as it comes
        next_->erase(key);
        store.put(key, value(), std::chrono::system_clock::now() - std::chrono::hours(1));
      } else if (choice < 63) {
        removal = true;
        const std::string prefix = this->prefix();
        const uint64_t removed =
            std::erase_if(*next_, [&](const auto& one) { return one.first.starts_with(prefix); });
        EXPECT_EQ(store.remove_prefix(prefix), removed);
      } else if (choice < 80) {
        removal = true;
        next_->erase(key);
        EXPECT_EQ(store.remove(key), model_.contains(key));
      } else {
        Store::Batch batch;
        for (uint64_t i = 1 + random_.below(7); i > 0; --i) {
          const std::string one = this->key();
          if (random_.below(3) == 0) {
            batch.remove(one);
            next_->erase(one);
          } else {
            const std::string value = this->value();
            batch.put(one, value);
            next_->insert_or_assign(one, value);
          }
        }
        store.apply(batch);
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kIo) throw;
      next_.reset();
      if (error.code() == ErrorCode::kTooLarge) return;
      ASSERT_TRUE(error.code() == ErrorCode::kPoolFull || error.code() == ErrorCode::kNoSpace)
          << error.what();
      // What a snapshot reads cannot make room.
      ASSERT_FALSE(removal && !snapshot_) << error.what();
      snapshot_.reset();
      const auto found = model_.find(key);
      ASSERT_EQ(store.get(key),
                found == model_.end() ? std::nullopt : std::optional(found->second));
      ++refused_;
      return;
    }
    model_ = std::move(*next_);
    next_.reset();
  }

  void session() {
    if (!medium_) {
      medium_.emplace(path(), Domain::kLine);
      medium_->begin();
    }
    FailingMedium& medium = *medium_;
    const bool closes = random_.below(10) == 0;
    constexpr uint64_t kSoon[] = {25, 120, 500};
    const uint64_t persists = random_.below(kSoon[random_.below(3)]);
    medium.refuse_here(closes ? ~uint64_t{0} : medium.persists() + persists, true);
    try {
      Pool pool = Pool::open(path(), pool_options());
      Store store = Store::open(pool, "s", options());
      const Ending ending{*this};
      from_snapshots_ += static_cast<uint64_t>(figure(store, "index_snapshots_read"));
      open_and_judge(store);
      const uint64_t writes = closes ? random_.below(150) : 100'000;
      for (uint64_t i = 0; i < writes && !HasFatalFailure(); ++i) {
        write(store);
        if (random_.below(20) == 0) judge_snapshot(store);
        if (random_.below(20) == 0) follow(store);
      }
      snapshot_.reset();
    } catch (const Error& error) {
      ASSERT_TRUE(medium.refused()) << error.what();
    }
    // After a close the caches stay as they are, and after the death of the process: the next one
    // finds all that it has stored. A power failure takes what neither has fenced.
    if (!medium.refused() || random_.below(3) == 0) return;
    using Image = FailingMedium::Image;
    const Image image = random_.below(4) == 0 ? Image::kLeast : Image::kMixed;
    std::filesystem::rename(medium.make_image(image, random_.next()), path());
    medium_.reset();
  }

  struct Ending {
    ~Ending() { test.snapshot_.reset(); }
    StorePowerTest& test;
  };

  TempDir folder_;
  std::optional<FailingMedium> medium_;  // since the last power failure
  Random random_{base_seed()};
  Model model_;
  std::optional<Model> next_;  // with the write that was under way
  std::optional<Store::Snapshot> snapshot_;
  Model snapshot_model_;
  uint64_t stamp_ = 0;
  uint64_t refused_ = 0;         // for want of room
  uint64_t from_snapshots_ = 0;  // partitions that were not read wholly
  Replica replica_;
  uint64_t fell_behind_ = 0;
};

TEST_P(StorePowerTest, NothingIsLostAndNothingComesBack) {
  {
    Pool pool = Pool::create(path(), pool_options());
    Store store = Store::create(pool, "s", options());
    store.add_consumer("replica");
    replica_.begin(store);
  }
  const char* text = std::getenv("PERDURE_POWER_SESSIONS");
  const uint64_t sessions = text != nullptr ? std::strtoull(text, nullptr, 0) : scaled(400);
  for (uint64_t i = 0; i < sessions && !HasFailure(); ++i) {
    SCOPED_TRACE("session " + std::to_string(i));
    session();
  }
  EXPECT_GT(replica_.changes(), 0U);
  RecordProperty("from_snapshots", std::to_string(from_snapshots_));
  if (GetParam().options.index == StoreIndex::kAsCreated && sessions >= 400) {
    EXPECT_GT(from_snapshots_, sessions / 10);
  }
  if (!GetParam().full) {
    EXPECT_EQ(fell_behind_, 0U);
  }
  if (GetParam().full && text == nullptr && scaled(400) == 400) {
    EXPECT_GT(refused_, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StorePowerTest,
    testing::Values(PowerCase{"OnePartition", {.partitions = 1}, false},
                    PowerCase{"Partitions", {.partitions = 4}, false},
                    PowerCase{"Full", {.partitions = 2}, true},
                    PowerCase{"Pm",
                              {.index = StoreIndex::kPm,
                               .index_structure = "cceh:segment_buckets=16,initial_depth=1",
                               .partitions = 2},
                              false},
                    PowerCase{"PmFull",
                              {.index = StoreIndex::kPm,
                               .index_structure = "cceh:segment_buckets=16,initial_depth=1",
                               .partitions = 2},
                              true},
                    PowerCase{"Ordered",
                              {.index = StoreIndex::kOrdered, .boundaries = {"hot3", "k2", "k7"}},
                              false}),
    [](const testing::TestParamInfo<PowerCase>& one) { return one.param.name; });

}  // namespace
}  // namespace perdure::test
