// Backups that another process asks for: who is answered, what is refused, and that nobody who asks
// can hurt the writer.
#include "pm/live.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/store.h"
#include "pm/pool_impl.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

constexpr uint64_t kRecords = 3000;

// The end of an asker, by hand.
class RawAsker {
 public:
  explicit RawAsker(const std::string& pool)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)),
        pool_(::open(pool.c_str(), O_RDONLY | O_CLOEXEC)) {
    const auto [name, bytes] = address_of(pool);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&name), bytes) == 0;
  }
  ~RawAsker() {
    ::close(socket_);
    ::close(pool_);
  }
  RawAsker(const RawAsker&) = delete;
  RawAsker& operator=(const RawAsker&) = delete;

  static std::pair<sockaddr_un, socklen_t> address_of(const std::string& pool) {
    struct stat file{};
    EXPECT_EQ(::stat(pool.c_str(), &file), 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string text =
        fmt::format("perdure/{:x}/{:x}", uint64_t{file.st_dev}, uint64_t{file.st_ino});
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    return {name, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
  }
  static std::string request(const std::vector<std::string>& fields) {
    std::string text = "perdure live 2";
    for (const std::string& field : fields) (text += '\0') += field;
    return text;
  }

  bool connected() const { return connected_; }
  // With the pool's file before others, or with exactly these.
  void send(const std::string& text, std::vector<int> files = {}) const {
    if (!files.empty()) files.insert(files.begin(), pool_);
    send_exactly(text, files);
  }
  void send_exactly(const std::string& text, const std::vector<int>& files) const {
    iovec part{const_cast<char*>(text.data()), text.size()};
    std::vector<char> control(CMSG_SPACE(8 * sizeof(int)));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!files.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
      std::memcpy(CMSG_DATA(head), files.data(), files.size() * sizeof(int));
    }
    ::sendmsg(socket_, &message, MSG_NOSIGNAL);
  }
  // The last packet before the other side closes.
  std::string answer() const {
    std::string last;
    std::array<char, 65536> packet;
    for (;;) {
      pollfd waiting{socket_, POLLIN, 0};
      if (::poll(&waiting, 1, 30'000) <= 0) return "nothing for half a minute";
      const ssize_t got = ::recv(socket_, packet.data(), packet.size(), 0);
      if (got < 0 && errno == ECONNRESET) continue;  // what was sent before that is still there
      if (got <= 0) return last;
      last.assign(packet.data(), static_cast<size_t>(got));
    }
  }

 private:
  int socket_;
  int pool_;
  bool connected_ = false;
};

size_t open_files() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

class LiveBackup : public testing::Test {
 protected:
  void open(uint64_t filler_bytes = 0) {
    pool_.emplace(
        Pool::create(path(), {.capacity_bytes = uint64_t{128} << 20, .serve_backups = true}));
    index_ = create_index(*pool_, "index", "plush", Kind::kU64, Kind::kU64);
    for (uint64_t i = 0; i < kRecords; ++i) index_->upsert(i, i);
    if (filler_bytes == 0) return;
    const auto filler = create_index(*pool_, "filler", "wbtree", Kind::kU64, Kind::kBytes);
    const std::string value(60'000, 'x');
    for (uint64_t i = 0; i < filler_bytes / value.size(); ++i) filler->upsert(i, value);
  }
  void open_again() {
    pool_.emplace(Pool::open(path(), {.serve_backups = true}));
    index_ = open_index(*pool_, "index");
  }
  void close() {
    index_.reset();
    pool_->close();
    pool_.reset();
  }
  std::string path() const { return dir_.file("pool"); }
  std::string file(const std::string& name) const { return dir_.file(name); }
  int new_file(const std::string& name) const {
    return ::open(file(name).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  }
  void expect_sound(const std::string& backup) const {
    PoolOptions options;
    options.read_only = true;
    options.verify = true;
    Pool copy = Pool::open(backup, options);
    const auto index = open_index(copy, "index");
    Value value;
    for (uint64_t i = 0; i < kRecords; ++i) {
      ASSERT_TRUE(index->lookup(i, value)) << i;
      ASSERT_EQ(value.word(), i);
    }
  }
  std::vector<std::string> unfinished() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      if (entry.path().extension() == ".unfinished") found.push_back(entry.path().filename());
    }
    return found;
  }

  TempDir dir_;
  std::optional<Pool> pool_;
  std::unique_ptr<AnyIndex> index_;
};

TEST_F(LiveBackup, IsMadeByWhoHasThePoolOpen) {
  open();
  EXPECT_TRUE(pool_->info().serves_backups);
  uint64_t done = 0;
  uint64_t total = 0;
  const BackupReport full =
      Pool::backup_live(path(), file("full"), {.progress = [&](uint64_t d, uint64_t t) {
                          done = d;
                          total = t;
                        }});
  EXPECT_LE(done, total);
  EXPECT_GT(full.copied_bytes, 0U);
  EXPECT_GT(full.elapsed_ns, 0U);
  EXPECT_EQ(full.written_bytes, std::filesystem::file_size(file("full")));
  expect_sound(file("full"));
  // And what differs.
  index_->upsert(kRecords, 1);
  const BackupReport next =
      Pool::backup_live(path(), file("next"), {.base = file("full"), .progress = {}});
  EXPECT_LT(next.written_bytes, full.written_bytes);
  expect_sound(file("next"));
  // Replaces an earlier backup, no other file, and none that it rests on.
  Pool::backup_live(path(), file("next"), {.base = file("full"), .progress = {}});
  write_file(file("other"), "something");
  EXPECT_TRUE(fails_with(ErrorCode::kExists, [&] { Pool::backup_live(path(), file("other")); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] {
    Pool::backup_live(path(), file("full"), {.base = file("full"), .progress = {}});
  }));
  // An error of the writer, in its words.
  Pool other = Pool::create(file("another pool"), {.capacity_bytes = uint64_t{4} << 20});
  other.backup(file("of another"));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "of another pool", [&] {
    Pool::backup_live(path(), file("x"), {.base = file("of another"), .progress = {}});
  }));
  EXPECT_EQ(unfinished(), std::vector<std::string>());
  EXPECT_FALSE(std::filesystem::exists(file("x")));
}

TEST_F(LiveBackup, OfWhoDoesNotServeIsRefusedWithWhatToDo) {
  Pool pool = Pool::create(path(), {.capacity_bytes = uint64_t{4} << 20});
  EXPECT_FALSE(pool.info().serves_backups);
  EXPECT_TRUE(fails_with(ErrorCode::kLocked, "serve_backups",
                         [&] { Pool::backup_live(path(), file("x")); }));
  EXPECT_TRUE(
      fails_with(ErrorCode::kNotFound, [&] { Pool::backup_live(file("nothing"), file("x")); }));
  pool.close();
  PoolOptions options;
  options.read_only = true;
  options.serve_backups = true;
  EXPECT_FALSE(Pool::open(path(), options).info().serves_backups);
  EXPECT_EQ(unfinished(), std::vector<std::string>());
}

// Who is there first has the name: the pool opens all the same.
TEST_F(LiveBackup, ANameThatIsTakenIsTold) {
  Pool::create(path(), {.capacity_bytes = uint64_t{4} << 20}).close();
  const int squatter = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const auto [name, bytes] = RawAsker::address_of(path());
  ASSERT_EQ(::bind(squatter, reinterpret_cast<const sockaddr*>(&name), bytes), 0);
  EXPECT_FALSE(Pool::open(path(), {.serve_backups = true}).info().serves_backups);
  ::close(squatter);
  EXPECT_TRUE(Pool::open(path(), {.serve_backups = true}).info().serves_backups);
}

TEST_F(LiveBackup, WhatMakesNoSenseIsRefused) {
  open();
  const size_t files_before = open_files();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const int folder = ::open(dir_.path().c_str(), O_RDONLY | O_CLOEXEC);
  const int good = new_file("good");
  const int full = new_file("full");
  ASSERT_EQ(::write(full, "x", 1), 1);
  const int only_read = ::open(file("good").c_str(), O_RDONLY | O_CLOEXEC);
  const int appends = ::open(file("good").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const int only_path = ::open(file("good").c_str(), O_PATH | O_CLOEXEC);
  const std::string request = RawAsker::request({"pool", "", "", "good", ""});
  const auto is_refused = [&](const std::string& text, const std::vector<int>& files) {
    const RawAsker asker(path());
    asker.send(text, files);
    const std::string answer = asker.answer();
    return answer.starts_with("error") ? testing::AssertionSuccess()
                                       : testing::AssertionFailure() << answer;
  };
  for (const int bad : {pipe[0], pipe[1], folder, full, only_read, appends, only_path})
    EXPECT_TRUE(is_refused(request, {bad})) << bad;
  EXPECT_TRUE(is_refused(request, {}));
  EXPECT_TRUE(is_refused(request, {good, good}));
  EXPECT_TRUE(is_refused(request, {good, good, good, good}));
  EXPECT_TRUE(is_refused(RawAsker::request({"pool", "", "", "good", "base"}), {good}));
  EXPECT_TRUE(is_refused(RawAsker::request({"pool", "", "base", "good", "base"}), {good, pipe[0]}));
  EXPECT_TRUE(is_refused(RawAsker::request({"pool", "", "base", "good", "base"}), {good, full}));
  EXPECT_TRUE(is_refused(RawAsker::request({"pool", "", std::string(300, 'n'), "good", "base"}),
                         {good, full}));
  EXPECT_TRUE(is_refused(RawAsker::request({"nothing", "", "", "good", ""}), {good}));
  EXPECT_TRUE(is_refused(RawAsker::request({"store", "index", "", "good", ""}), {good}));
  EXPECT_TRUE(is_refused(RawAsker::request({"keep", "none", "c", "full", ""}), {full}));
  EXPECT_TRUE(is_refused(RawAsker::request({"pool", "", "", "good"}), {good}));
  EXPECT_TRUE(is_refused(RawAsker::request({"pool", "", "", "good", "", ""}), {good}));
  EXPECT_TRUE(is_refused("perdure live 3" + request.substr(14), {good}));
  EXPECT_TRUE(is_refused(request + std::string(40'000, 'x'), {good}));
  EXPECT_TRUE(is_refused(std::string(1, '\0'), {good}));
  // Who may not read the pool's file, or passes another one.
  const int only_written = ::open(path().c_str(), O_WRONLY | O_CLOEXEC);
  const int only_named = ::open(path().c_str(), O_PATH | O_CLOEXEC);
  const int read = ::open(path().c_str(), O_RDONLY | O_CLOEXEC);
  for (const int pool : {only_written, only_named, full, folder}) {
    const RawAsker asker(path());
    asker.send_exactly(request, {pool, good});
    EXPECT_NE(asker.answer().find("the pool's file"), std::string::npos) << pool;
  }
  {
    const RawAsker asker(path());
    asker.send_exactly(request, {read});
    EXPECT_TRUE(asker.answer().starts_with("error"));
  }
  for (const int one : {only_written, only_named, read}) ::close(one);
  // And whatever comes.
  Random random(base_seed());
  const std::vector<int> some = {pipe[0], folder, full, only_read, appends};
  for (uint64_t i = 0; i < scaled(400); ++i) {
    std::string text = request;
    for (uint64_t change = random.below(4); change < 4; ++change) {
      const size_t at = random.below(text.size() + 1);
      switch (random.below(3)) {
        case 0:
          if (at < text.size()) text[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          text.insert(at, random.below(100), static_cast<char>(random.below(256)));
          break;
        default:
          text.resize(std::max<size_t>(at, 1));
      }
    }
    std::vector<int> files;
    for (uint64_t n = random.below(4); n > 0; --n) files.push_back(some[random.below(some.size())]);
    EXPECT_TRUE(is_refused(text, files));
  }
  for (const int one : {pipe[0], pipe[1], folder, good, full, only_read, appends, only_path})
    ::close(one);
  EXPECT_EQ(std::filesystem::file_size(file("good")), 0U);
  Pool::backup_live(path(), file("backup"));  // the next in line: the service has let all else go
  while (open_files() > files_before) std::this_thread::yield();  // lets the last one go
  expect_sound(file("backup"));
}

TEST_F(LiveBackup, DescriptorsOfAnEmptyPacketAreClosed) {
  open();
  // Counted while nobody is served: the service lets an asker go a moment after its answer.
  const size_t before = open_files();
  const int passed = new_file("passed");
  for (int i = 0; i < 100; ++i) {
    const RawAsker asker(path());
    asker.send_exactly("", {passed, passed});
    EXPECT_EQ(asker.answer(), "wait");
  }
  ::close(passed);
  Pool::backup_live(path(), file("backup"));  // the next in line
  for (int i = 0; i < 5000 && open_files() > before; ++i) ::usleep(1000);
  EXPECT_EQ(open_files(), before);
}

// Somebody who answers in the writer's place, or a writer that is out of its mind.
TEST_F(LiveBackup, WhatIsSaidToBeDoneIsLookedAt) {
  Pool::create(path(), {.capacity_bytes = uint64_t{4} << 20}).backup(file("backup"));
  const std::string good = read_file(file("backup"));
  const int listener = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const auto [name, bytes] = RawAsker::address_of(path());
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&name), bytes), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  std::string answer;
  const auto asked = [&](const std::function<void()>& ask) {
    std::thread answers([&] {
      const int asker = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      ::send(asker, answer.data(), answer.size(), MSG_NOSIGNAL);
      std::array<char, 1024> packet;
      static_cast<void>(!::recv(asker, packet.data(), packet.size(), 0));
      ::close(asker);
    });
    const auto result = fails_with(ErrorCode::kIo, "has not written", ask);
    answers.join();
    return result;
  };
  const auto numbers = [](int count) {
    std::string text = "done";
    for (int i = 0; i < count; ++i) text += std::string("\0", 1) + "0";
    return text;
  };
  for (const int count : {0, 2, 7}) {
    answer = numbers(count);
    EXPECT_TRUE(asked([&] { Pool::backup_live(path(), file("backup")); })) << count;
    EXPECT_TRUE(asked([&] { Store::backup_live(path(), "store", file("store")); })) << count;
  }
  ::close(listener);
  EXPECT_EQ(read_file(file("backup")), good);
  EXPECT_FALSE(std::filesystem::exists(file("store")));
  EXPECT_EQ(unfinished(), std::vector<std::string>());
}

// One that nobody knows of would keep all of the log.
TEST_F(LiveBackup, AConsumerOfABackupThatFailsIsNotMade) {
  open();
  Store store = Store::create(*pool_, "store", {.partitions = 1, .block_bytes = 4096});
  const Store other = Store::create(*pool_, "other");
  other.backup(file("of another"));
  store.put("k", "v");
  store.backup(file("whole"));
  for (int i = 0; i < 20'000; ++i) store.put("k", std::to_string(i));  // not kept since
  for (const char* base : {"of another", "whole"}) {
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] {
      Store::backup_live(path(), "store", file("x"), file(base), "nightly");
    })) << base;
    EXPECT_EQ(store.consumers(), std::vector<std::string>());
  }
  // It is made with a backup that is, and what an older one says does not take it back.
  Store::backup_live(path(), "store", file("a"), "", "nightly");
  store.put("k", "w");
  Store::backup_live(path(), "store", file("b"), file("a"), "nightly");
  const int older = ::open(file("a").c_str(), O_RDONLY | O_CLOEXEC);
  pm::ask_live(path(),
               {.what = pm::kLiveKeep,
                .structure = "store",
                .option = "nightly",
                .file = older,
                .file_name = "a"},
               nullptr);
  ::close(older);
  store.put("k", "x");
  EXPECT_EQ(Store::backup_live(path(), "store", file("c"), file("b"), "nightly").entries, 1U);
}

TEST_F(LiveBackup, IsNoMoreReadableThanThePool) {
  open();
  Store store = Store::create(*pool_, "store");
  store.put("k", "v");
  for (const mode_t mode : {0600, 0640, 0644}) {
    ASSERT_EQ(::chmod(path().c_str(), mode), 0);
    pool_->backup(file("a"));
    Pool::backup_live(path(), file("b"));
    store.backup(file("c"));
    Store::backup_live(path(), "store", file("d"));
    for (const char* name : {"a", "b", "c", "d"}) {
      struct stat status{};
      ASSERT_EQ(::stat(file(name).c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 0777, mode & ~mode_t{0022}) << name;
    }
  }
}

// One that dies, one that is stopped before it has asked or after, one that says more than it
// should.
TEST_F(LiveBackup, NoAskerHoldsUpTheWriter) {
  open(uint64_t{40} << 20);
  const std::string request = RawAsker::request({"pool", "", "", "half", ""});
  for (int round = 0; round < 5; ++round) {
    const int half = new_file("half");
    {
      const RawAsker dies(path());
      dies.send(request, {half});
    }
    ::close(half);
    Pool::backup_live(path(), file("backup"));
  }
  expect_sound(file("backup"));
  const RawAsker silent(path());
  const int half = new_file("half");
  const int another = new_file("another");
  const RawAsker stopped(path());
  stopped.send(request, {half});
  const RawAsker waits(path());
  waits.send(request, {another});
  waits.send("more than that");
  ::close(half);
  ::close(another);
  index_->upsert(kRecords, 7);
  close();  // comes back
  open_again();
  Pool::backup_live(path(), file("backup"));
  expect_sound(file("backup"));
}

TEST_F(LiveBackup, SeveralAskersTakeTurns) {
  open(uint64_t{20} << 20);
  std::vector<std::thread> askers;
  for (int i = 0; i < 6; ++i) {
    askers.emplace_back([this, i] {
      for (int round = 0; round < 3; ++round)
        Pool::backup_live(path(), file("backup" + std::to_string(i)));
    });
  }
  for (uint64_t i = 0; i < 20'000; ++i) index_->upsert(kRecords + i % 100, i);
  for (std::thread& asker : askers) asker.join();
  for (int i = 0; i < 6; ++i) expect_sound(file("backup" + std::to_string(i)));
  // Too many are refused with a message, and in nobody's way afterwards.
  {
    std::vector<std::unique_ptr<RawAsker>> many;
    for (int i = 0; i < 60; ++i) many.push_back(std::make_unique<RawAsker>(path()));
  }
  for (;;) {
    try {
      Pool::backup_live(path(), file("backup0"));
      break;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kInUse);  // those that are gone are not seen to yet
    }
  }
}

TEST_F(LiveBackup, ClosingGivesUpWhatIsBeingMade) {
  for (int round = 0; round < 6; ++round) {
    std::filesystem::remove(path());
    open(uint64_t{40} << 20);
    std::promise<void> begun;
    std::atomic<bool> told{false};
    auto asked = std::async(std::launch::async, [&] {
      try {
        Pool::backup_live(path(), file("backup"), {.progress = [&](uint64_t, uint64_t) {
                            if (!told.exchange(true)) begun.set_value();
                          }});
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kInUse && error.code() != ErrorCode::kIo) throw;
      }
      if (!told.exchange(true)) begun.set_value();
    });
    begun.get_future().wait();
    if (round % 2 == 0) {
      close();
    } else {
      index_.reset();
      pool_.reset();  // the destructor
    }
    asked.get();
    EXPECT_EQ(unfinished(), std::vector<std::string>());
    Pool pool = Pool::open(path());
    EXPECT_TRUE(pool.info().clean);
    EXPECT_EQ(pool.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  }
}

// A pool whose structures are open stays open, and goes on to serve.
TEST_F(LiveBackup, AfterAnOrderToCloseThatWasRefusedItGoesOn) {
  open();
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, [&] { pool_->close(); }));
  Pool::backup_live(path(), file("backup"));
  expect_sound(file("backup"));
}

TEST_F(LiveBackup, AMediumThatIsFullIsTheAskersError) {
  open();
  const SmallTmpfs small(uint64_t{64} << 10);
  if (!small.mounted()) GTEST_SKIP() << "needs the right to mount";
  EXPECT_TRUE(
      fails_with(ErrorCode::kNoSpace, [&] { Pool::backup_live(path(), small.file("backup")); }));
  index_->upsert(kRecords, 1);
  Pool::backup_live(path(), file("backup"));
  expect_sound(file("backup"));
}

// A limit of the writer's process, of which the system tells by a signal that ends one.
TEST_F(LiveBackup, ALimitOfFileSizesIsAnErrorAndNoEndOfTheWriter) {
  open(uint64_t{4} << 20);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { Pool::backup_live(path(), file("backup")); }));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  Pool::backup_live(path(), file("backup"));
  expect_sound(file("backup"));
}

// A child has no thread that serves, and takes nothing of its parent's with it.
TEST_F(LiveBackup, AChildThatWasForkedIsHarmless) {
  open();
  std::atomic<bool> stop{false};
  std::thread backups([&] {
    while (!stop) pool_->backup(file("own"));
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      // In the middle of a backup, too: a store of its own does not wait for a thread that is not
      // there.
      auto* const word =
          reinterpret_cast<volatile uint64_t*>(pm::impl_of(*pool_).base());  // never changes
      *word = *word;
      pm::impl_of(*pool_).live()->stop();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    Pool::backup_live(path(), file("backup"));
  }
  stop = true;
  backups.join();
  expect_sound(file("backup"));
  expect_sound(file("own"));
}

// What a child counts, of what its threads have written.
struct Counts {
  static constexpr int kWriters = 3;
  std::array<std::atomic<uint64_t>, kWriters> acknowledged;
  std::atomic<uint64_t> allowed;  // batches of each: the log is not kept for ever
  std::atomic<bool> ready;
  std::atomic<bool> stop;
};
constexpr uint64_t kBatch = 8;

std::string key_of(int writer, uint64_t i) { return fmt::format("{}/{}", writer, i); }

// Each thread writes batches of records that say the same, and counts them.
void write_batches(const std::string& path, Counts& counts) {
  Pool pool = Pool::create(path, {.capacity_bytes = uint64_t{64} << 20, .serve_backups = true});
  {
    Store store = Store::create(pool, "store", {.partitions = 4});
    store.add_consumer("nightly");
    std::vector<std::thread> threads;
    for (int t = 0; t < Counts::kWriters; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t n = 1; !counts.stop; ++n) {
          while (n > counts.allowed && !counts.stop) std::this_thread::yield();
          Store::Batch batch;
          for (uint64_t i = 0; i < kBatch; ++i) batch.put(key_of(t, i), std::to_string(n));
          store.apply(batch);
          counts.acknowledged[t] = n;
        }
      });
    }
    counts.ready = true;
    for (std::thread& thread : threads) thread.join();
  }
  pool.close();
}

class Shared {
 public:
  // Without a limit until one is set.
  Shared()
      : counts_(new(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                           0)) Counts()) {
    counts_->allowed = ~uint64_t{0};
  }
  ~Shared() { ::munmap(counts_, 4096); }
  Counts& operator*() const { return *counts_; }
  std::array<uint64_t, Counts::kWriters> read() const {
    std::array<uint64_t, Counts::kWriters> now{};
    for (int t = 0; t < Counts::kWriters; ++t) now[t] = counts_->acknowledged[t];
    return now;
  }

 private:
  Counts* counts_;
};

// Whether each writer's records are those of one batch, no older than before the backup and no
// newer than after it.
void expect_of_one_moment(const Store& store, const Shared& shared,
                          const std::array<uint64_t, Counts::kWriters>& before) {
  const auto after = shared.read();
  for (int t = 0; t < Counts::kWriters; ++t) {
    std::string first = "0";
    for (uint64_t i = 0; i < kBatch; ++i) {
      const std::string value = store.get(key_of(t, i)).value_or("0");
      if (i == 0) first = value;
      ASSERT_EQ(value, first) << t;
    }
    ASSERT_GE(std::stoull(first), before[t]);
    ASSERT_LE(std::stoull(first), after[t] + 1);
  }
}

TEST(LiveBackups, OfAnotherProcessAreOfOneMomentWhileItsThreadsWrite) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  const Shared shared;
  Child writer([&](int) { write_batches(path, *shared); });
  while (!(*shared).ready) std::this_thread::yield();
  std::string base;
  std::vector<std::string> since;
  for (uint64_t i = 0; i < std::max<uint64_t>(6, scaled(12)); ++i) {
    SCOPED_TRACE(i);
    (*shared).allowed = std::ranges::max(shared.read()) + 3000;
    // A copy of the pool, of which each second one rests on the one before.
    auto before = shared.read();
    const std::string file = dir.file("backup" + std::to_string(i));
    Pool::backup_live(path, file, {.base = i % 3 == 0 ? "" : base, .progress = {}});
    base = file;
    {
      const std::string copy = dir.file("copy");
      Pool::restore(file, copy);
      Pool pool = Pool::open(copy);
      ASSERT_NO_FATAL_FAILURE(expect_of_one_moment(Store::open(pool, "store"), shared, before));
      std::filesystem::remove(copy);
    }
    // One of the store: the first is whole, those behind it go on.
    before = shared.read();
    const std::string changes = dir.file("changes" + std::to_string(i));
    const StoreBackup made =
        Store::backup_live(path, "store", changes, since.empty() ? "" : since.back(), "nightly");
    EXPECT_GT(made.entries, 0U);
    EXPECT_EQ(made.bytes, std::filesystem::file_size(changes));
    since.push_back(changes);
    {
      Pool pool = Pool::create(dir.file("restored"), {.capacity_bytes = uint64_t{64} << 20});
      ASSERT_NO_FATAL_FAILURE(
          expect_of_one_moment(Store::restore(pool, "store", since), shared, before));
    }
    std::filesystem::remove(dir.file("restored"));
  }
  // What is not open there, and what is no backup of it.
  EXPECT_TRUE(fails_with(ErrorCode::kNoSuchName, "another",
                         [&] { Store::backup_live(path, "another", dir.file("x")); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, since[0],
                         [&] { Store::backup_live(path, "store", since[0], since[0]); }));
  (*shared).stop = true;
  EXPECT_EQ(writer.wait(), 0);
  Pool pool = Pool::open(path);
  EXPECT_TRUE(pool.info().clean);
}

TEST(LiveBackups, OfAProcessThatIsKilledAreAnError) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  for (int round = 0; round < 5; ++round) {
    std::filesystem::remove(path);
    const Shared shared;
    Child writer([&](int) { write_batches(path, *shared); });
    while (!(*shared).ready) std::this_thread::yield();
    std::thread kills([&] {
      const auto before = shared.read();
      while (shared.read()[0] < before[0] + 200) std::this_thread::yield();
      writer.kill();
    });
    std::optional<ErrorCode> code;
    while (!code) {
      try {
        Pool::backup_live(path, dir.file("backup"));
      } catch (const Error& error) {
        code = error.code();
      }
    }
    kills.join();
    EXPECT_TRUE(*code == ErrorCode::kIo || *code == ErrorCode::kLocked) << to_string(*code);
    for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
      EXPECT_NE(entry.path().extension(), ".unfinished");
  }
}

// Its child has the socket, so that nothing there tells of the end.
TEST(LiveBackups, EndWithTheirWriterAlthoughAChildOfItGoesOn) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  const Shared shared;
  Counts& counts = *shared;
  Child writer([&](int) {
    Pool pool = Pool::create(path, {.capacity_bytes = uint64_t{4} << 20, .serve_backups = true});
    // Is never done.
    pm::impl_of(pool).live()->add("slow",
                                  [](const pm::LiveRequest&, const pm::LiveProgress& progress) {
                                    for (;;) {
                                      progress(1, 2);
                                      ::usleep(1000);
                                    }
                                    return std::vector<uint64_t>();
                                  });
    counts.ready = true;
    while (!counts.stop) ::usleep(1000);
    const pid_t child = ::fork();
    counts.acknowledged[0] = 1;
    for (int i = 0; child != 0 || (i < 60'000 && counts.allowed != 0); ++i) ::usleep(1000);
    ::_exit(0);
  });
  while (!counts.ready) std::this_thread::yield();
  const int file = ::open(dir.file("out").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  EXPECT_TRUE(fails_with(ErrorCode::kIo, "has ended", [&] {
    pm::ask_live(path, {.what = "any", .structure = "slow", .file = file, .file_name = "out"},
                 [&](uint64_t, uint64_t) {
                   if (counts.stop.exchange(true)) return;
                   while (counts.acknowledged[0] == 0) std::this_thread::yield();
                   writer.kill();
                 });
  }));
  ::close(file);
  counts.allowed = 0;  // the child may go
}

// Root's files, which that user has been passed, and has not after that.
TEST(LiveBackups, OfAnotherUserAreMadeForRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  const TempDir dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0777), 0);
  const std::string path = dir.file("pool");
  const Shared shared;
  Child writer([&](int) {
    if (::setresgid(1234, 1234, 1234) != 0 || ::setresuid(1234, 1234, 1234) != 0) ::_exit(1);
    write_batches(path, *shared);
  });
  while (!(*shared).ready) std::this_thread::yield();
  std::vector<std::string> files;
  for (int i = 0; i < 3; ++i) {
    const auto before = shared.read();
    (*shared).allowed = std::ranges::max(before) + 3000;
    Pool::backup_live(path, dir.file("backup"));
    files.push_back(dir.file("changes" + std::to_string(i)));
    Store::backup_live(path, "store", files.back(), i == 0 ? "" : files[files.size() - 2],
                       "nightly");
    Pool pool = Pool::create(dir.file("restored"), {.capacity_bytes = uint64_t{64} << 20});
    ASSERT_NO_FATAL_FAILURE(
        expect_of_one_moment(Store::restore(pool, "store", files), shared, before));
    std::filesystem::remove(dir.file("restored"));
    PoolOptions options;
    options.read_only = true;
    Pool copy = Pool::open(dir.file("backup"), options);
    ASSERT_NO_FATAL_FAILURE(expect_of_one_moment(Store::open(copy, "store"), shared, before));
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    EXPECT_NE(entry.path().extension(), ".unfinished");
  (*shared).stop = true;
  EXPECT_EQ(writer.wait(), 0);
}

TEST(LiveBackups, AreForTheUserOfTheWriterAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  const TempDir dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0777), 0);
  const std::string path = dir.file("pool");
  const Shared shared;
  Child writer([&](int) { write_batches(path, *shared); });
  while (!(*shared).ready) std::this_thread::yield();
  const std::string answer = in_unprivileged_child([&]() -> std::string {
    try {
      Pool::backup_live(path, dir.file("backup"));
    } catch (const Error& error) {
      return to_string(error.code());
    }
    return "made";
  });
  EXPECT_EQ(answer, "permission");
  Pool::backup_live(path, dir.file("backup"));
  (*shared).stop = true;
  EXPECT_EQ(writer.wait(), 0);
}

}  // namespace
}  // namespace perdure::test
