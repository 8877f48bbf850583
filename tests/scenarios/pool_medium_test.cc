// What a pool lives on: media that are full, read-only, or weaker than asked for.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "support/child.h"
#include "support/errors.h"
#include "support/scale.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

PoolOptions read_only() {
  PoolOptions options;
  options.read_only = true;
  return options;
}

// Sets PERDURE_DOMAIN while it lives.
class DomainVariable {
 public:
  explicit DomainVariable(const char* value) {
    const char* before = std::getenv(kName);
    if (before != nullptr) before_ = before;
    if (value == nullptr) {
      ::unsetenv(kName);
    } else {
      ::setenv(kName, value, 1);
    }
  }
  ~DomainVariable() {
    if (before_) {
      ::setenv(kName, before_->c_str(), 1);
    } else {
      ::unsetenv(kName);
    }
  }
  DomainVariable(const DomainVariable&) = delete;
  DomainVariable& operator=(const DomainVariable&) = delete;

 private:
  static constexpr char kName[] = "PERDURE_DOMAIN";
  std::optional<std::string> before_;
};

class FullMedium : public ScenarioTest {
 protected:
  // Far more than the medium has.
  PoolOptions large() const {
    PoolOptions options = pool_options(MiB(256));
    options.growth_bytes = MiB(1);
    return options;
  }

  // Inserts until the medium is full; the insert that fails must leave no trace. Returns how many
  // were inserted.
  uint64_t fill(TypedIndex index) {
    for (const uint64_t first = next_key_;;) {
      const uint64_t key = next_key_++;
      try {
        EXPECT_TRUE(index.insert(key, key));
        model_[key] = key;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kNoSpace) << error.what();
        EXPECT_EQ(index.lookup(key), std::nullopt);
        return key - first;
      }
    }
  }

  Model model_;
  uint64_t next_key_ = 0;
};

TEST_P(FullMedium, FailsTheInsertThatGrowsAndNothingElse) {
  const SmallTmpfs medium(MiB(8));
  if (!medium.mounted()) GTEST_SKIP() << "this user may not mount a small tmpfs";
  const std::string path = medium.file("pool");
  write_file(medium.file("ballast"), std::string(MiB(2), 'b'));
  Store store = create_store(path, large(), GetParam(), small_options(GetParam().structure));
  ASSERT_GT(fill(store.typed()), 100U);
  for (uint64_t i = 0; i < rounds(5); ++i) fill(store.typed());
  EXPECT_EQ(difference(store.typed(), model_, next_key_), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");

  // Removing needs no space and makes room.
  uint64_t removed = 0;
  for (auto record = model_.begin(); record != model_.end(); ++removed) {
    ASSERT_TRUE(store.typed().remove(record->first)) << "key " << record->first;
    record = model_.erase(record);
    if (record != model_.end()) ++record;
  }
  EXPECT_GE(fill(store.typed()), removed * 45 / 100);
  EXPECT_EQ(difference(store.typed(), model_, next_key_), "");

  // The pool opens and closes on the full medium, and grows when there is space again.
  store.close();
  store = open_store(path, large());
  EXPECT_EQ(difference(store.typed(), model_, next_key_), "");
  EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
  const uint64_t size_bytes = store.pool.info().size_bytes;
  fill(store.typed());
  std::filesystem::remove(medium.file("ballast"));
  EXPECT_GT(fill(store.typed()), 100U);
  EXPECT_GT(store.pool.info().size_bytes, size_bytes);
  EXPECT_EQ(difference(store.typed(), model_, next_key_), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
  store.close();
}

TEST_P(FullMedium, FailsACreationAndLeavesNothingOfIt) {
  const SmallTmpfs medium(MiB(4));
  if (!medium.mounted()) GTEST_SKIP() << "this user may not mount a small tmpfs";
  const std::string path = medium.file("pool");
  const std::string ballast = medium.file("ballast");
  const auto& [structure, key, value] = GetParam();
  const auto create = [&, &s = structure, &k = key, &v = value](Pool& pool) {
    return create_index(pool, kIndexName, s, k, v, small_options(s));
  };
  // There is no room for a pool; then for a pool, but not for a structure; then for both.
  write_file(ballast, std::string(MiB(4) - 65536, 'b'));
  EXPECT_TRUE(fails_with(ErrorCode::kNoSpace, path, [&] { Pool::create(path, large()); }));
  EXPECT_FALSE(std::filesystem::exists(path));
  std::filesystem::remove(ballast);
  {
    Pool pool = Pool::create(path, large());
    const uint64_t left = MiB(4) - pool.info().size_bytes;
    write_file(ballast, std::string(left / 4096 * 4096 - 8192, 'b'));
    EXPECT_TRUE(fails_with(ErrorCode::kNoSpace, path, [&] { create(pool); }));
    EXPECT_TRUE(pool.structures().empty());
    EXPECT_EQ(faults_and_leaks(pool, {}), "");
  }
  std::filesystem::remove(ballast);
  Pool pool = Pool::open(path, large());
  EXPECT_EQ(faults_and_leaks(pool, {}), "");
  const auto index = create(pool);
  EXPECT_TRUE(TypedIndex(*index).insert(1, 1));
  EXPECT_EQ(faults(pool, {index.get()}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, FullMedium, wanted(all_cases()), by_turns());

class ReadOnly : public ScenarioTest {
 protected:
  static constexpr uint64_t kKeys = 1000;

  void expect_writes_refused(Store& store) const {
    const TypedIndex index = store.typed();
    const auto refused = [](const std::function<void()>& call) {
      return fails_with(ErrorCode::kReadOnly, call);
    };
    EXPECT_TRUE(refused([&] { index.insert(kKeys + 1, 1); }));
    EXPECT_TRUE(refused([&] { index.update(1, 1); }));
    EXPECT_TRUE(refused([&] { index.upsert(1, 1); }));
    EXPECT_TRUE(refused([&] { index.remove(1); }));
    EXPECT_TRUE(refused([&] {
      create_index(store.pool, "another", GetParam().structure, GetParam().key, GetParam().value,
                   small_options(GetParam().structure));
    }));
    EXPECT_EQ(store.pool.structures().size(), 1U);
    EXPECT_TRUE(store.pool.info().read_only);
  }

  // Fills the pool at `path` in a process that dies before it closes it.
  void crash(const std::string& path) {
    ASSERT_EQ(in_crashing_child([&]() -> std::string {
                const auto* store = new Store(open_store(path, pool_options(MiB(64))));
                for (uint64_t key = 0; key < kKeys; ++key) store->typed().upsert(key, key + 7);
                return {};
              }),
              "");
    for (uint64_t key = 0; key < kKeys; ++key) model_[key] = key + 7;
  }

  Model model_;
};

TEST_P(ReadOnly, OpeningReadsEverythingAndWritesNothing) {
  create_small(MiB(64)).close();
  for (const bool crashed : {false, true}) {
    SCOPED_TRACE(crashed ? "after a crash" : "after a clean close");
    ASSERT_NO_FATAL_FAILURE(crash(pool_path()));
    if (!crashed) reopen().close();
    const std::string before = read_file(pool_path());
    for (int round = 0; round < 2; ++round) {
      Store store = open_store(pool_path(), read_only());
      EXPECT_EQ(difference(store.typed(), model_, kKeys + 10), "");
      expect_writes_refused(store);
      EXPECT_EQ(difference(store.typed(), model_, kKeys + 10), "");
      EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
      store.close();
      ASSERT_TRUE(read_file(pool_path()) == before) << "the file was modified";
    }
    Store store = reopen();
    EXPECT_EQ(store.pool.info().clean, !crashed);
    EXPECT_EQ(difference(store.typed(), model_, kKeys + 10), "");
    EXPECT_TRUE(store.typed().insert(kKeys, 1));
    EXPECT_TRUE(store.typed().remove(kKeys));
    store.close();
  }
}

TEST_P(ReadOnly, AReadOnlyMediumIsReadAndNeverWritten) {
  const SmallTmpfs medium(MiB(32));
  if (!medium.mounted()) GTEST_SKIP() << "this user may not mount a small tmpfs";
  const std::string path = medium.file("pool");
  create_store(path, pool_options(MiB(16)), GetParam(), small_options(GetParam().structure))
      .close();
  ASSERT_NO_FATAL_FAILURE(crash(path));
  const std::string before = read_file(path);
  medium.set_read_only(true);
  EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, path, [&] { Pool::open(path); }));
  EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, medium.file(""),
                         [&] { Pool::create(medium.file("new"), pool_options(MiB(16))); }));
  {
    Store store = open_store(path, read_only());
    EXPECT_EQ(difference(store.typed(), model_, kKeys + 10), "");
    expect_writes_refused(store);
  }
  medium.set_read_only(false);
  EXPECT_TRUE(read_file(path) == before);
  EXPECT_FALSE(std::filesystem::exists(medium.file("new")));
  Store store = open_store(path, pool_options(MiB(16)));
  EXPECT_EQ(difference(store.typed(), model_, kKeys + 10), "");
}

TEST_P(ReadOnly, AFileWithoutWritePermissionCanBeRead) {
  create_small(MiB(64)).close();
  ASSERT_NO_FATAL_FAILURE(crash(pool_path()));
  ASSERT_EQ(::chmod(pool_path().c_str(), 0444), 0);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
  const auto read = [&]() -> std::string {
    const Store store = open_store(pool_path(), read_only());
    return difference(store.typed(), model_, kKeys);
  };
  EXPECT_EQ(::geteuid() == 0 ? in_unprivileged_child(read) : read(), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, ReadOnly, wanted(all_cases()), case_name);

class PoolMedium : public testing::Test {
 protected:
  static PoolOptions asking_for(Durability durability) {
    PoolOptions options;
    options.capacity_bytes = uint64_t{16} << 20;
    options.durability = durability;
    return options;
  }
  static PoolOptions forcing(Domain domain) {
    PoolOptions options = asking_for(Durability::kBest);
    options.force_domain = true;
    options.domain = domain;
    return options;
  }

  TempDir dir_;
  std::string path_ = dir_.file("pool");
  DomainVariable no_variable_{nullptr};
};

TEST_F(PoolMedium, DramSurvivesTheProcessAndIsNotTakenForMore) {
  {
    const Pool pool = Pool::create(path_, asking_for(Durability::kBest));
    if (pool.info().medium != Medium::kTmpfs) GTEST_SKIP() << "there is no /dev/shm";
    EXPECT_EQ(pool.info().durability, Durability::kProcess);
    EXPECT_EQ(pool.info().domain, Domain::kByte);
  }
  const std::string before = read_file(path_);
  EXPECT_TRUE(fails_with(ErrorCode::kDurability, path_,
                         [&] { Pool::open(path_, asking_for(Durability::kPower)); }));
  EXPECT_TRUE(read_file(path_) == before) << "the file was modified";
  const std::string fresh = dir_.file("new");
  EXPECT_TRUE(fails_with(ErrorCode::kDurability, fresh,
                         [&] { Pool::create(fresh, asking_for(Durability::kPower)); }));
  EXPECT_FALSE(std::filesystem::exists(fresh));
  EXPECT_TRUE(Pool::open(path_, asking_for(Durability::kProcess)).info().clean);
}

TEST_F(PoolMedium, AFileSurvivesPowerFailureWithSystemCallsOnly) {
  const TempDir disk(TempDir::Place::kDisk);
  const std::string path = disk.file("pool");
  {
    const Pool pool = Pool::create(path, asking_for(Durability::kBest));
    if (pool.info().medium != Medium::kFile) GTEST_SKIP() << "TMPDIR is not an ordinary disk";
    EXPECT_EQ(pool.info().durability, Durability::kProcess);
  }
  {
    const Pool pool = Pool::open(path, asking_for(Durability::kPower));
    EXPECT_EQ(pool.info().durability, Durability::kPower);
    EXPECT_EQ(pool.info().domain, Domain::kPage);
  }
  // A weaker domain would break the promise.
  for (const Domain weaker : {Domain::kLine, Domain::kByte}) {
    PoolOptions options = forcing(weaker);
    options.durability = Durability::kPower;
    const std::string before = read_file(path);
    EXPECT_TRUE(fails_with(ErrorCode::kDurability, path, [&] { Pool::open(path, options); }));
    EXPECT_TRUE(read_file(path) == before) << "the file was modified";
  }
}

TEST_F(PoolMedium, TheDomainCanBeForcedByOptionAndByEnvironment) {
  Pool::create(path_, asking_for(Durability::kBest)).close();
  for (const Domain domain : {Domain::kPage, Domain::kLine, Domain::kByte}) {
    EXPECT_EQ(Pool::open(path_, forcing(domain)).info().domain, domain);
    const DomainVariable variable(to_string(domain));
    EXPECT_EQ(Pool::open(path_).info().domain, domain);
    for (const Domain option : {Domain::kLine, Domain::kByte}) {
      EXPECT_EQ(Pool::open(path_, forcing(option)).info().domain, option) << "the option wins";
    }
  }
  const std::string before = read_file(path_);
  const DomainVariable nonsense("sideways");
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "sideways", [&] { Pool::open(path_); }));
  EXPECT_TRUE(read_file(path_) == before) << "the file was modified";
}

TEST_F(PoolMedium, AnonymousMemoryHoldsStructuresAndPromisesNothing) {
  EXPECT_TRUE(
      fails_with(ErrorCode::kDurability, [] { Pool::anonymous(asking_for(Durability::kPower)); }));
  Pool first = Pool::anonymous(asking_for(Durability::kBest));
  Pool second = Pool::anonymous(asking_for(Durability::kBest));
  EXPECT_EQ(first.info().medium, Medium::kAnonymous);
  EXPECT_NE(first.info().uuid, second.info().uuid);
  const Case c = all_cases().front();
  const auto make = [&](Pool& pool) {
    return create_index(pool, kIndexName, c.structure, c.key, c.value, small_options(c.structure));
  };
  auto in_first = make(first);
  const auto in_second = make(second);
  for (uint64_t i = 0; i < 2000; ++i) TypedIndex(*in_first).upsert(i % 500, i);
  Model model;
  for (uint64_t i = 1500; i < 2000; ++i) model[i % 500] = i;
  EXPECT_EQ(difference(TypedIndex(*in_first), model, 600), "");
  EXPECT_EQ(difference(TypedIndex(*in_second), {}, 600), "");
  in_first.reset();
  in_first = open_index(first, kIndexName);
  EXPECT_EQ(difference(TypedIndex(*in_first), model, 600), "");
  EXPECT_EQ(faults(first, {in_first.get()}), "");
}

}  // namespace
}  // namespace perdure::test
