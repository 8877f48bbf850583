// Backups of a server that goes on serving: made by it, and compared through servers on what is
// made of them.
#include <array>
#include <atomic>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "perdure/pool.h"
#include "perdure/store.h"
#include "server/fixture.h"
#include "support/errors.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

constexpr int kClients = 2;
constexpr int kKeysOfEach = 6;

// Clients each write, in one transaction, the same number to all of their keys, to a field of a
// hash and to a list.
class LiveServer : public ServerTest {
 protected:
  ~LiveServer() override { stop_writers(); }

  bool has_collections() const { return std::string(GetParam()) == "ordered"; }
  void start_writers() {
    for (int w = 0; w < kClients; ++w) {
      writers_.emplace_back([this, w] {
        RespClient client = resp();
        for (uint64_t n = acknowledged_[w] + 1; !stop_; ++n) {
          const std::string number = std::to_string(n);
          client({"MULTI"});
          for (int k = 0; k < kKeysOfEach; ++k) client({"SET", key(w, k), number});
          if (has_collections()) client({"HSET", "hash " + std::to_string(w), "field", number});
          ASSERT_EQ(client.call({"EXEC"}).kind, '*');
          acknowledged_[w] = n;
          client({"SET", "filler " + std::to_string(n % 500), std::string(n % 3000, 'x')});
        }
      });
    }
  }
  void stop_writers() {
    stop_ = true;
    for (std::thread& writer : writers_) writer.join();
    writers_.clear();
    stop_ = false;
  }
  std::array<uint64_t, kClients> progress() const {
    std::array<uint64_t, kClients> now{};
    for (int w = 0; w < kClients; ++w) now[w] = acknowledged_[w];
    return now;
  }
  static std::string key(int writer, int number) {
    return std::to_string(writer) + ":" + std::to_string(number);
  }

  // What a server on this pool says.
  void judge(const std::string& pool, const std::array<uint64_t, kClients>& before,
             const std::array<uint64_t, kClients>& after) {
    server::Config other = config;
    other.pool = pool;
    other.create = false;
    std::string address;
    server::Server copy(other);
    copy.start([&](const std::string& line) {
      if (line.starts_with("resp ")) address = line.substr(5);
    });
    RespClient client(address);
    for (int w = 0; w < kClients; ++w) {
      const std::string first = client({"GET", key(w, 0)});
      const uint64_t number = first == "(nil)" ? 0 : std::stoull(first);
      ASSERT_GE(number, before[w]);
      ASSERT_LE(number, after[w] + 1);
      for (int k = 0; k < kKeysOfEach; ++k) ASSERT_EQ(client({"GET", key(w, k)}), first);
      if (has_collections()) {
        ASSERT_EQ(client({"HGET", "hash " + std::to_string(w), "field"}), first);
      }
    }
  }
  // All that a server has, of strings.
  static std::map<std::string, std::string> content(RespClient client) {
    std::map<std::string, std::string> all;
    for (const Reply& key : client.call({"KEYS", "*"}).elements) {
      all[key.text] = client({"TYPE", key.text}) == "string" ? client({"GET", key.text})
                                                             : client({"HGETALL", key.text});
    }
    return all;
  }

 private:
  std::array<std::atomic<uint64_t>, kClients> acknowledged_{};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> writers_;
};
INSTANTIATE_TEST_SUITE_P(Indexes, LiveServer, testing::Values("ordered", "hash"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(LiveServer, IsBackedUpWhileClientsWrite) {
  config.index = GetParam();
  config.threads = 2;
  start();
  start_writers();
  while (progress()[0] < 50) std::this_thread::yield();
  std::vector<std::string> since;
  std::string base;
  for (uint64_t i = 0; i < std::max<uint64_t>(4, scaled(6)) && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    auto before = progress();
    const std::string changes = folder.file("changes" + std::to_string(i));
    Store::backup_live(config.pool, config.name, changes, since.empty() ? "" : since.back(),
                       "nightly");
    auto after = progress();
    since.push_back(changes);
    const std::string restored = folder.file("restored");
    {
      Pool pool = Pool::create(restored, {.capacity_bytes = uint64_t{64} << 20});
      Store::restore(pool, config.name, since);
      pool.close();
    }
    ASSERT_NO_FATAL_FAILURE(judge(restored, before, after));
    std::filesystem::remove(restored);
    // And of the pool, with all that is in it.
    before = progress();
    const std::string file = folder.file("backup" + std::to_string(i));
    Pool::backup_live(config.pool, file, {.base = base, .progress = {}});
    after = progress();
    base = file;
    Pool::restore(file, restored);
    ASSERT_NO_FATAL_FAILURE(judge(restored, before, after));
    std::filesystem::remove(restored);
    while (progress()[0] < after[0] + 20) std::this_thread::yield();  // they go on
  }
  // When nothing is written, it is what the server has.
  stop_writers();
  const std::string last = folder.file("last");
  Store::backup_live(config.pool, config.name, last, since.back(), "nightly");
  since.push_back(last);
  const auto there = content(resp());
  EXPECT_GT(there.size(), 100U);
  stop();
  Pool pool = Pool::create(folder.file("restored"), {.capacity_bytes = uint64_t{64} << 20});
  Store::restore(pool, config.name, since);
  pool.close();
  config.pool = folder.file("restored");
  start();
  EXPECT_EQ(content(resp()), there);
}

// The pool that a backup is restored to counts its openings anew; what is made there must not be
// taken for what was.
TEST_P(LiveServer, CollectionsOfARestoredStoreAreTheirOwn) {
  if (!has_collections()) GTEST_SKIP() << "a hash index has no collections";
  config.index = GetParam();
  for (int i = 0; i < 2; ++i) {
    start();
    resp()({"HSET", "old " + std::to_string(i), "field", "old"});
    stop();
  }
  start();
  resp()({"HSET", "old 2", "field", "old"});
  Store::backup_live(config.pool, config.name, folder.file("backup"));
  stop();
  config.pool = folder.file("restored");
  {
    Pool pool = Pool::create(config.pool, {.capacity_bytes = uint64_t{64} << 20});
    Store::restore(pool, config.name, std::vector<std::string>{folder.file("backup")});
    pool.close();
  }
  for (int i = 0; i < 3; ++i) {
    start();
    RespClient c = resp();
    c({"HSET", "new " + std::to_string(i), "other", "new"});
    for (int k = 0; k < 3; ++k)
      EXPECT_EQ(c({"HGETALL", "old " + std::to_string(k)}), "[field old]");
    for (int k = 0; k <= i; ++k)
      EXPECT_EQ(c({"HGETALL", "new " + std::to_string(k)}), "[other new]");
    stop();
  }
}

TEST_P(LiveServer, TellsWhatItCannotBackUp) {
  config.index = GetParam();
  start();
  RespClient c = resp();
  c({"SET", "a", "b"});
  EXPECT_TRUE(fails_with(ErrorCode::kNoSuchName, "'other'",
                         [&] { Store::backup_live(config.pool, "other", folder.file("x")); }));
  Store::backup_live(config.pool, config.name, folder.file("whole"));
  c({"SET", "a", "c"});
  // Nobody has asked for the log to be kept, so it may go on from there or not; if not, it says so.
  try {
    Store::backup_live(config.pool, config.name, folder.file("next"), folder.file("whole"));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
  }
  EXPECT_EQ(c({"GET", "a"}), "c");
}

}  // namespace
}  // namespace perdure::test
