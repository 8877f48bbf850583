#include "pm/live.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "pm/backup.h"
#include "pm/pool_impl.h"
#include "pm/system_error.h"
#include "pm/thread.h"

namespace perdure::pm {

namespace {

constexpr std::string_view kGreeting = "perdure live 2";
constexpr size_t kRequestBytesMax = 16 << 10;
constexpr size_t kAnswerBytesMax = 16 << 10;
constexpr size_t kWordsMax = 8 << 10;  // of a message
constexpr size_t kFiles = 3;           // the pool's, one, and a base
constexpr size_t kWaitingMax = 16;
constexpr std::chrono::seconds kRequestTime{2};
constexpr int kAnswerMs = 10'000;
constexpr int kUnreadBytesMax = 16 << 10;  // of progress, that the asker has not taken
constexpr std::chrono::milliseconds kLookEvery{20};

constexpr std::string_view kClosing =
    "what is to be copied is being closed by the process that had it open; ask again";

using Clock = std::chrono::steady_clock;

// Closes itself.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

struct Address {
  sockaddr_un name;
  socklen_t bytes;
};

// The name is the pool's as long as the file is there; another file may have its inode later.
Address address_of(const struct stat& file) {
  Address address{};
  address.name.sun_family = AF_UNIX;
  const std::string text =
      fmt::format("perdure/{:x}/{:x}", uint64_t{file.st_dev}, uint64_t{file.st_ino});
  std::memcpy(address.name.sun_path + 1, text.data(), text.size());  // behind a zero: abstract
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

Descriptor make_socket() {
  return Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Who made the other end. Its process may be gone.
std::optional<ucred> peer_of(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return std::nullopt;
  return peer;
}

// Whom a user namespace has no number for has this one, whoever that is.
uid_t overflow_uid() {
  uid_t uid = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> uid;
  return uid;
}

// Whether all users of the system have a number here: then none looks like another.
bool all_uids_are_mapped() {
  constexpr uint64_t kAll = 0xffffffff;
  uint64_t first = 0;
  uint64_t outside = 0;
  uint64_t count = 0;
  std::ifstream map("/proc/self/uid_map");
  return (map >> first >> outside >> count) && count == kAll;
}

// Whether two processes of these users are of one. Of the overflow id nobody can say, unless it is
// somebody's own.
bool is_one_user(uid_t other, uid_t own) {
  return other == own && (other != overflow_uid() || all_uids_are_mapped());
}

bool ready(int descriptor, int timeout_ms) {
  pollfd waiting{descriptor, POLLIN, 0};
  int result = 0;
  do {
    result = ::poll(&waiting, 1, timeout_ms);
  } while (result < 0 && errno == EINTR);
  return result > 0;
}

// One packet, or nothing if there is none or it does not fit; `end` if there will be no other.
struct Packet {
  std::string text;
  std::vector<Descriptor> files;
  bool whole = false;
  bool end = false;
};

Packet receive(int socket, size_t bytes_max) {
  Packet packet;
  packet.text.resize(bytes_max);
  iovec part{packet.text.data(), packet.text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFiles * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // Reset: the other side has closed without reading all. What it has sent before is still there.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0) {
    packet.end = errno != EAGAIN;
    packet.text.clear();
    return packet;
  }
  packet.end =
      got == 0;  // or an empty packet, of which nothing is made, but which may bring descriptors
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
      packet.files.emplace_back(descriptor);
    }
  }
  packet.whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  packet.text.resize(static_cast<size_t>(got));
  return packet;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> fields;
  for (size_t at = 0;;) {
    const size_t nul = text.find('\0', at);
    fields.emplace_back(text.substr(at, nul - at));
    if (nul == std::string_view::npos) return fields;
    at = nul + 1;
  }
}

std::string join(const std::vector<std::string_view>& fields) {
  std::string text;
  for (const std::string_view field : fields) {
    if (!text.empty()) text += '\0';
    text += field;
  }
  return text;
}

std::optional<uint64_t> number_in(std::string_view text) {
  uint64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void refuse(const char* words) { throw Error(ErrorCode::kInvalidArgument, words); }

// A file that the asker may use in this way, and that no write or read waits for but for its
// medium.
void require_usable_file(int file, bool writes) {
  struct stat status{};
  const int flags = ::fcntl(file, F_GETFL);
  if (flags < 0 || ::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    refuse("what was passed is no regular file");
  }
  // Whoever serves such a file system decides how long a write to it takes.
  struct statfs system{};
  if (::fstatfs(file, &system) != 0 || static_cast<uint64_t>(system.f_type) == FUSE_SUPER_MAGIC) {
    refuse(
        "the file is on a file system of some program (FUSE), which the writer of a pool must not "
        "wait for; make the backup elsewhere, and copy it there");
  }
  const int access = flags & O_ACCMODE;
  if (!writes) {
    if (access == O_WRONLY || (flags & O_PATH) != 0) refuse("the file is not open to read");
    return;
  }
  if (access == O_RDONLY || (flags & (O_APPEND | O_PATH)) != 0 || status.st_size != 0) {
    refuse("the file to write is not open to write, or not empty");
  }
}

// That the asker may read the pool: it has opened its file.
void require_pool(int file, uint64_t device, uint64_t inode) {
  struct stat status{};
  const int flags = ::fcntl(file, F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_WRONLY ||
      ::fstat(file, &status) != 0 || uint64_t{status.st_dev} != device ||
      uint64_t{status.st_ino} != inode) {
    throw Error(ErrorCode::kPermission,
                "who asks for a backup passes the pool's file, open to read, which this is not");
  }
}

// What a packet asks for. The descriptors stay the packet's. Throws kInvalidArgument, kPermission.
LiveRequest parse(const Packet& packet, uint64_t device, uint64_t inode) {
  const std::vector<std::string> fields = split(packet.text);
  constexpr size_t kFields = 6;
  if (!packet.whole || fields.size() != kFields || fields[0] != kGreeting) {
    refuse("what was asked makes no sense; both sides must be of one version");
  }
  LiveRequest request{.what = fields[1],
                      .structure = fields[2],
                      .option = fields[3],
                      .file_name = fields[4],
                      .base_name = fields[5]};
  const size_t files = packet.files.size();
  if (files < 2 || files > kFiles || (files == kFiles) != !request.base_name.empty()) {
    refuse("what was asked needs the pool's file, and one more, or two");
  }
  require_pool(packet.files[0].get(), device, inode);
  request.file = packet.files[1].get();
  require_usable_file(request.file, request.what != kLiveKeep);
  if (files == kFiles) {
    request.base = packet.files[2].get();
    require_usable_file(request.base, false);
  }
  return request;
}

}  // namespace

// ---- the writer

// An asker.
class LiveService::Connection {
 public:
  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}

  int get() const { return socket_.get(); }
  bool may_ask() const {
    const std::optional<ucred> peer = peer_of(get());
    return peer && (is_one_user(peer->uid, ::geteuid()) || peer->uid == 0);
  }
  // Never waits; what finds no room is not sent.
  void send(const std::string& text) const {
    ::send(get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  void send_error(ErrorCode code, std::string_view words) const {
    send(join({"error", std::to_string(static_cast<int>(code)), words.substr(0, kWordsMax)}));
  }
  // So that there is room for the answer.
  bool takes_progress() const {
    int unread = 0;
    return ::ioctl(get(), SIOCOUTQ, &unread) == 0 && unread < kUnreadBytesMax;
  }
  bool is_gone() const {
    pollfd waiting{get(), POLLRDHUP, 0};
    return ::poll(&waiting, 1, 0) > 0;
  }

  Clock::time_point came = Clock::now();
  Clock::time_point looked_up{};

 private:
  Descriptor socket_;
};

LiveService::LiveService(const PoolImpl& pool, int file) : pool_(pool), process_(::getpid()) {
  struct stat status{};
  if (::fstat(file, &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  const Address address = address_of(status);
  Descriptor listener = make_socket();
  Descriptor stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (listener.get() < 0 || stop.get() < 0 ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes) !=
          0 ||
      ::listen(listener.get(), kWaitingMax) != 0) {
    return;
  }
  listener_ = ::fcntl(listener.get(), F_DUPFD_CLOEXEC, 0);
  stop_fd_ = ::fcntl(stop.get(), F_DUPFD_CLOEXEC, 0);
  sigset_t blocked;
  sigset_t before;
  ::sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS})
    ::sigdelset(&blocked, fault);
  ::pthread_sigmask(SIG_SETMASK, &blocked, &before);
  try {
    if (listener_ >= 0 && stop_fd_ >= 0) {
      thread_ = start_thread("perdure live", [this] { run(); });
    }
  } catch (const Error&) {  // no thread to be had: nobody answers
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (thread_.joinable()) return;
  stopped_ = true;
}

LiveService::~LiveService() {
  stop();
  if (listener_ >= 0) ::close(listener_);
  if (stop_fd_ >= 0) ::close(stop_fd_);
}

void LiveService::stop() {
  stopped_ = true;
  if (!thread_.joinable()) return;
  if (process_ != ::getpid()) {
    // A child that was forked: the thread is its parent's, and so is what tells it to stop.
    static_cast<void>(new std::thread(std::move(thread_)));
    return;
  }
  const uint64_t one = 1;
  static_cast<void>(!::write(stop_fd_, &one, sizeof one));
  thread_.join();
  // A child that was forked may have a copy of it: nobody waits there.
  ::shutdown(listener_, SHUT_RDWR);
  ::close(std::exchange(listener_, -1));
}

void LiveService::add(const std::string& structure, Answer answer) {
  // In a child that was forked nobody answers, and the mutex may be held by a thread that is not
  // there.
  if (process_ != ::getpid()) return;
  const std::lock_guard lock(mutex_);
  answers_[structure] = std::move(answer);
}

void LiveService::remove(const std::string& structure) {
  if (process_ != ::getpid()) return;  // as in add()
  std::unique_lock lock(mutex_);
  answers_.erase(structure);
  if (busy_ != structure) return;
  give_up_ = true;  // until it has: what is asked of another one next goes on
  const uint64_t before = answered_;
  idle_.wait(lock, [&] { return answered_ != before; });
}

// The first in line that has asked for something, or has gone. Who asks for nothing holds up
// nobody, and not for long.
std::optional<size_t> LiveService::next_asker() {
  std::vector<pollfd> places{{stop_fd_, POLLIN, 0}, {listener_, POLLIN, 0}};
  const Clock::time_point now = Clock::now();
  Clock::duration wait = kRequestTime;
  for (const Connection& asker : waiting_) {
    places.push_back({asker.get(), POLLIN, 0});
    wait =
        std::clamp<Clock::duration>(asker.came + kRequestTime - now, Clock::duration::zero(), wait);
  }
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  if (::poll(places.data(), places.size(), waiting_.empty() ? -1 : static_cast<int>(ms)) < 0)
    return std::nullopt;
  if (stopped_) return std::nullopt;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (places[i + 2].revents != 0) return i;
  }
  std::erase_if(waiting_, [](const Connection& asker) {
    if (Clock::now() - asker.came < kRequestTime) return false;
    asker.send_error(ErrorCode::kInvalidArgument, "nothing was asked for");
    return true;
  });
  if (places[1].revents != 0) accept_others();
  return std::nullopt;
}

void LiveService::run() {
  // Where memory is short the asker goes, not the process: that one has a pool open.
  while (!stopped_) {
    try {
      serve_next();
    } catch (const std::exception&) {
      ready(stop_fd_, 100);
    }
  }
  for (const Connection& asker : waiting_) {
    try {
      asker.send_error(ErrorCode::kInUse, kClosing);
    } catch (const std::exception&) {  // it sees the end
    }
  }
  waiting_.clear();
}

void LiveService::serve_next() {
  const std::optional<size_t> next = next_asker();
  if (!next) return;
  Connection asker = std::move(waiting_[*next]);
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(*next));
  serve(asker);
}

void LiveService::accept_others() {
  for (;;) {
    Descriptor socket(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      // Out of descriptors: what waits stays, and the thread does not turn in a circle meanwhile.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) ready(stop_fd_, 100);
      return;
    }
    Connection asker(std::move(socket));
    if (waiting_.size() >= kWaitingMax)
      std::erase_if(waiting_, [](const Connection& other) { return other.is_gone(); });
    if (!asker.may_ask()) {
      asker.send_error(ErrorCode::kPermission,
                       "the process that has the pool open answers its own user, and root");
    } else if (waiting_.size() >= kWaitingMax) {
      asker.send_error(ErrorCode::kInUse, "too many ask for backups at a time; ask again later");
    } else {
      asker.send("wait");
      waiting_.push_back(std::move(asker));
    }
  }
}

void LiveService::serve(Connection& asker) try {
  const Packet packet = receive(asker.get(), kRequestBytesMax);
  if (packet.text.empty()) return;
  const LiveRequest request = parse(packet, device_, inode_);
  std::string answer = "done";
  for (const uint64_t number :
       carry_out(request, [&](uint64_t done, uint64_t total) { look_up(asker, done, total); })) {
    answer += '\0';
    answer += std::to_string(number);
  }
  asker.send(answer);
} catch (const Abandoned&) {
  asker.send_error(ErrorCode::kInUse, kClosing);
} catch (const Error& error) {
  asker.send_error(error.code(), error.what());
} catch (const std::exception& error) {
  asker.send_error(ErrorCode::kIo, error.what());
}

std::vector<uint64_t> LiveService::carry_out(const LiveRequest& request,
                                             const LiveProgress& progress) {
  if (request.what == kLivePool && request.structure.empty())
    return answer_for_copy(pool_, request, progress);
  Answer answer;
  {
    const std::lock_guard lock(mutex_);
    const auto found = answers_.find(request.structure);
    if (found != answers_.end()) answer = found->second;
    if (answer) busy_ = request.structure;
  }
  if (!answer) {
    throw Error(ErrorCode::kNoSuchName,
                fmt::format("{}: there is no structure '{}' open that makes backups of itself",
                            pool_.mapping().path(), request.structure));
  }
  const auto end = [&] {
    const std::lock_guard lock(mutex_);
    busy_.clear();
    give_up_ = false;
    ++answered_;
    idle_.notify_all();
  };
  try {
    std::vector<uint64_t> numbers = answer(request, progress);
    end();
    return numbers;
  } catch (...) {
    end();
    throw;
  }
}

// Now and then, in the middle of the work.
void LiveService::look_up(Connection& asker, uint64_t done, uint64_t total) {
  if (stopped_ || give_up_) throw Abandoned{};
  const Clock::time_point now = Clock::now();
  if (now - asker.looked_up < kLookEvery) return;
  asker.looked_up = now;
  if (asker.is_gone()) throw Abandoned{};
  if (asker.takes_progress())
    asker.send(join({"progress", std::to_string(done), std::to_string(total)}));
  if (ready(listener_, 0)) accept_others();
}

// ---- the asker

namespace {

[[noreturn]] void throw_nobody(const std::string& pool) {
  throw Error(
      ErrorCode::kLocked,
      fmt::format(
          "{}: the process that has the pool open to write makes no backups for others: have it "
          "open the pool with PoolOptions::serve_backups (serve_backups in C and Python; commands "
          "of perdure that write do so), let it call Pool::backup() itself, or close it there",
          pool));
}

// Who answers, and what tells of its end.
struct Writer {
  Descriptor socket;
  Descriptor
      process;  // -1: the system has no such descriptors, or the process is of another name space
  Descriptor pool;  // its file, open to read
  pid_t pid = 0;
  bool of_own_user = false;
};

[[noreturn]] void throw_ended(const std::string& pool) {
  throw Error(ErrorCode::kIo,
              fmt::format("{}: the process that has the pool open has ended, or given up, before "
                          "it was done; try again",
                          pool));
}

Writer connect_to(const std::string& pool) {
  Writer writer;
  writer.pool = Descriptor(::open(pool.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat file{};
  if (writer.pool.get() < 0) throw_errno("open", pool, errno);
  if (::fstat(writer.pool.get(), &file) != 0) throw_errno("fstat", pool, errno);
  const Address address = address_of(file);
  writer.socket = make_socket();
  if (writer.socket.get() < 0) throw_errno("socket", pool, errno);
  if (::connect(writer.socket.get(), reinterpret_cast<const sockaddr*>(&address.name),
                address.bytes) != 0) {
    if (errno == ECONNREFUSED || errno == ENOENT) throw_nobody(pool);
    if (errno == EAGAIN) {
      throw Error(ErrorCode::kInUse,
                  fmt::format("{}: too many ask its writer for backups; ask again later", pool));
    }
    throw_errno("connect", pool, errno);
  }
  const std::optional<ucred> peer = peer_of(writer.socket.get());
  const uid_t own = ::geteuid();
  writer.of_own_user = peer && is_one_user(peer->uid, own);
  if (!peer || !(writer.of_own_user || peer->uid == 0 ||
                 (own == 0 && is_one_user(peer->uid, file.st_uid)))) {
    throw Error(ErrorCode::kPermission,
                fmt::format("{}: who answers for it is process {} of user {}, to whom no file is "
                            "handed; ask as that user, or as root if it owns the pool",
                            pool, peer ? peer->pid : 0, peer ? peer->uid : 0));
  }
  writer.pid = peer->pid;
  if (writer.pid > 0) {
    // A child of it may have the socket, too, so that its end does not show there.
    writer.process = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, writer.pid, 0)));
    if (writer.process.get() < 0 && errno == ESRCH) throw_ended(pool);
  }
  return writer;
}

// Whether it was told to stop, and does nothing until it is told to go on.
bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() &&
         (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
}

// Until the writer has said something, however long it takes: but it must be there, and run.
void wait_for(const Writer& writer, const std::string& pool, bool has_answered) {
  for (;;) {
    std::array<pollfd, 2> places{
        {{writer.socket.get(), POLLIN, 0}, {writer.process.get(), POLLIN, 0}}};
    const int result = ::poll(places.data(), places.size(), kAnswerMs);
    if (result < 0 && errno == EINTR) continue;
    if (places[0].revents != 0) return;  // first what it has said before its end
    if (places[1].revents != 0) throw_ended(pool);
    if (!has_answered || is_stopped(writer.pid)) {
      throw Error(ErrorCode::kLocked,
                  fmt::format("{}: the process that has the pool open does not answer; it may be "
                              "stopped, or a child of it may be left",
                              pool));
    }
  }
}

void send_request(const Writer& writer, const std::string& pool, const LiveRequest& request) {
  const std::string text = join({kGreeting, request.what, request.structure, request.option,
                                 request.file_name, request.base_name});
  if (text.size() > kRequestBytesMax ||
      std::ranges::count(text, '\0') != 5) {  // NOLINT(readability-magic-numbers)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: names for its writer are too long, or have zero bytes", pool));
  }
  iovec part{const_cast<char*>(text.data()), text.size()};
  const std::array<int, kFiles> files{writer.pool.get(), request.file, request.base};
  const size_t count = request.base >= 0 ? kFiles : kFiles - 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFiles * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(head), files.data(), count * sizeof(int));
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(writer.socket.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  // If it is gone it may have said why.
  if (sent < 0 && errno != EPIPE && errno != ECONNRESET) throw_errno("sendmsg", pool, errno);
}

}  // namespace

LiveAnswer ask_live(const std::string& pool, const LiveRequest& request,
                    const LiveProgress& progress) {
  const Writer writer = connect_to(pool);
  send_request(writer, pool, request);
  // What was read says that somebody is there: from then on it takes as long as it takes.
  for (bool is_there = false;; is_there = true) {
    wait_for(writer, pool, is_there);
    const Packet packet = receive(writer.socket.get(), kAnswerBytesMax);
    if (packet.end) throw_ended(pool);
    const std::vector<std::string> fields = split(packet.text);
    if (fields[0] == "progress" && fields.size() == 3) {
      const auto done = number_in(fields[1]);
      const auto total = number_in(fields[2]);
      if (progress && done && total && *total > 0) progress(std::min(*done, *total), *total);
    } else if (fields[0] == "error" && fields.size() == 3) {
      const auto code = number_in(fields[1]);
      throw Error(code && *code <= 64 ? static_cast<ErrorCode>(*code) : ErrorCode::kIo, fields[2]);
    } else if (fields[0] == "done") {
      LiveAnswer answer{.numbers = {}, .of_own_user = writer.of_own_user};
      for (size_t i = 1; i < fields.size(); ++i)
        answer.numbers.push_back(number_in(fields[i]).value_or(0));
      return answer;
    }
  }
}

}  // namespace perdure::pm
