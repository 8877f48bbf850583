// A server that is still opening its store: what is ready is answered, the rest is said to be
// loading.
#include <atomic>
#include <exception>
#include <thread>

#include "perdure/error.h"
#include "server/fixture.h"
#include "store/store_impl.h"

namespace perdure::test {
namespace {

constexpr int kKeys = 200;
constexpr uint32_t kHeldBack = 5;  // the partition that is opened last

std::atomic<bool> is_held{false};

class Loading : public ServerTest {
 protected:
  Loading() {
    config.capacity_bytes = uint64_t{256} << 20;  // 16 partitions
    start();
    RespClient c = resp();
    for (int i = 0; i < kKeys; ++i) c({"SET", "k" + std::to_string(i), std::to_string(i)});
    c({"HSET", "hash", "f", "v"});
    c({"SELECT", "1"});
    c({"SET", "other", "database"});
    stop();
    is_held = true;
    store::StoreImpl::before_recovery = [](uint32_t number) {
      if (number == kHeldBack) is_held.wait(true);
    };
  }
  ~Loading() override {
    let_go();
    stop();
    store::StoreImpl::before_recovery = nullptr;
  }

  // Starts it again; it serves all partitions but one on return.
  void start_again() {
    addresses.clear();
    running = std::make_unique<server::Server>(config);
    std::atomic<int> told{0};
    starting_ = std::thread([this, &told] {
      try {
        running->start([&](const std::string& line) {
          const size_t blank = line.find(' ');
          addresses[line.substr(0, blank)] = line.substr(blank + 1);
          told.fetch_add(1);
          told.notify_all();
        });
      } catch (const std::exception&) {
        failed_ = true;
      }
    });
    for (int seen = 0; (seen = told.load()) < 2;) told.wait(seen);
    RespClient c = resp();
    while (figure(c, "loading_partitions_ready") != "15") std::this_thread::yield();
  }
  void let_go() {
    is_held = false;
    is_held.notify_all();
    if (starting_.joinable()) starting_.join();
  }
  static std::string figure(RespClient& c, const std::string& name) {
    const std::string info = c.call({"INFO", "persistence"}).text;
    const size_t at = info.find("\n" + name + ":");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 2;
    return info.substr(begin, info.find('\r', begin) - begin);
  }
  static bool is_loading(const std::string& reply) {
    return reply.find("LOADING ") != std::string::npos;
  }

  std::thread starting_;
  bool failed_ = false;
};

TEST_F(Loading, AnswersWhatIsReady) {
  start_again();
  RespClient c = resp();
  EXPECT_EQ(figure(c, "loading"), "1");
  EXPECT_EQ(figure(c, "loading_partitions"), "16");
  EXPECT_EQ(c({"PING"}), "PONG");
  int answered = 0;
  int loading = 0;
  std::string late;  // a key of the partition that is held back
  std::string early;
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = "k" + std::to_string(i);
    const std::string reply = c({"GET", key});
    if (is_loading(reply)) {
      ++loading;
      late = key;
      EXPECT_TRUE(is_loading(c({"SET", key, "new"})));
      EXPECT_TRUE(is_loading(c({"DEL", key})));
    } else {
      ++answered;
      early = key;
      EXPECT_EQ(reply, std::to_string(i));
      EXPECT_EQ(c({"SET", key, "new"}), "OK");
      EXPECT_EQ(c({"GET", key}), "new");
    }
  }
  EXPECT_GT(answered, kKeys / 2);
  EXPECT_GT(loading, 0);
  // What needs several keys, or all of them.
  EXPECT_TRUE(is_loading(c({"MGET", early, late})));
  EXPECT_TRUE(is_loading(c({"MSET", early, "half", late, "half"})));
  for (const char* one : {"DBSIZE", "RANDOMKEY", "FLUSHALL", "FLUSHDB"}) {
    EXPECT_TRUE(is_loading(c({one}))) << one;
  }
  EXPECT_TRUE(is_loading(c({"KEYS", "*"})));
  EXPECT_TRUE(is_loading(c({"SCAN", "0"})));
  // A transaction is whole or is not, and ends either way.
  c({"MULTI"});
  c({"SET", early, "half"});
  c({"SET", late, "half"});
  EXPECT_NE(c({"EXEC"}).find("EXECABORT"), std::string::npos);
  EXPECT_EQ(c({"GET", early}), "new");
  EXPECT_NE(c({"EXEC"}).find("EXEC without MULTI"), std::string::npos);
  EXPECT_TRUE(is_loading(c({"WATCH", late})));

  Socket m = memcached();
  m.send("get " + late + "\r\nset " + late + " 0 0 1\r\nx\r\nget " + early + "\r\nstats\r\n");
  EXPECT_EQ(m.read_line(), "SERVER_ERROR loading");
  EXPECT_EQ(m.read_line(), "SERVER_ERROR loading");
  EXPECT_EQ(m.read_line(), "VALUE " + early + " 0 3");
  EXPECT_EQ(m.read_line(), "new");
  EXPECT_EQ(m.read_line(), "END");
  EXPECT_TRUE(m.read_line().starts_with("STAT "));

  let_go();
  EXPECT_FALSE(failed_);
  EXPECT_EQ(figure(c, "loading"), "0");
  EXPECT_EQ(c({"GET", late}), late.substr(1));
  EXPECT_EQ(c({"SET", late, "new"}), "OK");
  EXPECT_EQ(c({"DBSIZE"}), std::to_string(kKeys + 1));
  EXPECT_EQ(c({"HGETALL", "hash"}), "[f v]");
  c({"SELECT", "1"});
  EXPECT_EQ(c({"DBSIZE"}), "1");
}

TEST_F(Loading, APartitionThatCannotBeReadLeavesTheOthers) {
  store::StoreImpl::before_recovery = [](uint32_t number) {
    if (number == kHeldBack) throw Error(ErrorCode::kCorrupt, "of the test");
  };
  for (const char* index : {"ordered", "hash"}) {
    config.index = index;
    start();
    RespClient c = resp();
    EXPECT_EQ(figure(c, "loading"), "0");
    EXPECT_EQ(figure(c, "failed_partitions"), "1");
    int answered = 0;
    for (int i = 0; i < kKeys; ++i) {
      const std::string reply = c({"GET", "k" + std::to_string(i)});
      if (reply == std::to_string(i)) {
        ++answered;
      } else {
        EXPECT_EQ(reply, "-CORRUPT of the test");
      }
    }
    EXPECT_GT(answered, kKeys / 2);
    EXPECT_LT(answered, kKeys);
    EXPECT_EQ(c({"DBSIZE"}), "-CORRUPT of the test");
    EXPECT_EQ(c({"SCAN", "0"}), "-CORRUPT of the test");
    stop();
  }
  // One of one partition is not served.
  store::StoreImpl::before_recovery = [](uint32_t) {
    throw Error(ErrorCode::kCorrupt, "of the test");
  };
  EXPECT_THROW(start(), Error);
}

}  // namespace
}  // namespace perdure::test
