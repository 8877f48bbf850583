#include "lab/serve/clients.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <ctime>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/ticks.h"
#include "lab/serve/connection.h"
#include "perdure/error.h"

namespace perdure::lab::serve {
namespace {

constexpr std::string_view kSortedKey = "perdure-bench:sorted";
constexpr double kSilenceS = 30;
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr uint64_t kCheckedEffects = 20'000;
constexpr size_t kCheckedAtOnce = 64;
// A score is a double: so many bits of the key are it, exactly.
constexpr unsigned kScoreShift = 64 - 53;
// Places under way whose ends are remembered, where later ones wait for them; more than the lag of
// those.
constexpr uint64_t kRememberedPlaces = 16'384;

// What the threads of a run share.
struct Shared {
  Shared(const OperationPlan& the_plan, const ClientsOptions& the_options,
         const std::atomic<bool>& the_stop)
      : plan(the_plan),
        options(the_options),
        stop(the_stop),
        ready(the_options.threads + 1),
        low(the_options.threads) {}

  // All operations before this place are done.
  uint64_t done_before() const {
    uint64_t least = ~uint64_t{0};
    for (const auto& each : low) least = std::min(least, each.load(std::memory_order_acquire));
    return least;
  }

  const OperationPlan& plan;
  const ClientsOptions& options;
  const std::atomic<bool>& stop;
  std::barrier<> ready;
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> done{0};
  uint64_t start_ticks = 0;                // of arrivals
  std::vector<std::atomic<uint64_t>> low;  // of each thread: its least place that is not done
};

struct Pending {
  Operation operation;
  uint64_t turn;           // of the thread
  uint64_t start;          // ticks
  bool is_second = false;  // the write of a read-modify-write
};

struct Line {
  int fd = -1;
  std::string out;
  size_t sent = 0;
  std::vector<char> in = std::vector<char>(kReadBytes);
  size_t in_begin = 0;
  size_t in_end = 0;
  std::deque<Pending> pending;
  bool waits_to_write = false;
};

class ClientThread {
 public:
  ClientThread(Shared& shared, unsigned number)
      : shared_(shared),
        options_(shared.options),
        plan_(shared.plan),
        number_(number),
        clock_(TickClock::get()),
        records_(options_.form),
        parser_(options_.address.protocol) {}
  ~ClientThread() {
    for (const Line& line : lines_) ::close(line.fd);
    if (epoll_ >= 0) ::close(epoll_);
  }
  ClientThread(const ClientThread&) = delete;
  ClientThread& operator=(const ClientThread&) = delete;

  void run();
  std::exception_ptr error;
  PhaseResult result;
  double cpu_s = 0;
  std::string first_error;
  uint64_t first_ticks = ~uint64_t{0};  // the first measured operation's start
  uint64_t last_ticks = 0;              // the last one's end
  uint64_t fingerprints = 0;
  std::vector<uint64_t> windows;

 private:
  void connect();
  void loop();
  uint64_t place_of(uint64_t turn) const {
    return (turn / OperationPlan::kBlock * options_.threads + number_) * OperationPlan::kBlock +
           turn % OperationPlan::kBlock;
  }
  bool may_issue() const;
  void issue(Line& line, uint64_t start);
  void issue_what_is_due(uint64_t now);
  void refill(Line& line, uint64_t now);
  void write(Line& line);
  void receive(Line& line);
  void answered(Line& line, const ServerReply& reply, uint64_t now);
  void finish(const Pending& pending, uint64_t now);
  bool is_right(const Pending& pending, const ServerReply& reply);
  bool is_right_scan(const Operation& operation, const ServerReply& reply);
  void request(Line& line, const Operation& operation, bool is_second);
  void request_sorted(RequestWriter& writer, const Operation& operation);
  int wait_ms(uint64_t now) const;
  uint64_t ticks_of(double ns) const { return static_cast<uint64_t>(ns / clock_.ns_per_tick()); }

  Shared& shared_;
  const ClientsOptions& options_;
  const OperationPlan& plan_;
  const unsigned number_;
  const TickClock& clock_;
  RecordBytes records_;
  ReplyParser parser_;
  int epoll_ = -1;
  std::vector<Line> lines_;
  std::optional<ArrivalClock> arrivals_;
  std::deque<Line*> free_;  // of an open loop: a line for each request that may be sent
  uint64_t turn_ = 0;       // the next operation of this thread
  uint64_t under_way_ = 0;
  bool ending_ = false;
  bool has_idle_lines_ =
      true;  // of a closed loop: lines that are to be given something, if there is anything
  uint64_t limit_ticks_ = ~uint64_t{0};
  uint64_t window_ticks_ = 0;
  uint64_t silent_since_ = 0;
  uint64_t low_turn_ = 0;  // its first that is not done, where others wait for it
  std::vector<bool> done_;
};

void ClientThread::connect() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  const unsigned count = std::max(options_.connections / options_.threads +
                                      (number_ < options_.connections % options_.threads ? 1 : 0),
                                  1U);
  lines_.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    ServerConnection connection(options_.address);
    Line& line = lines_.emplace_back();
    line.fd = connection.release();
    ::fcntl(line.fd, F_SETFL, ::fcntl(line.fd, F_GETFL) | O_NONBLOCK);
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, line.fd, &event) != 0) {
      throw Error(ErrorCode::kIo,
                  fmt::format("cannot wait for connections: {}", std::strerror(errno)));
    }
  }
}

void ClientThread::run() {
  if (!options_.processors.empty()) {
    run_on_processors({options_.processors[number_ % options_.processors.size()]});
  }
  try {
    connect();
  } catch (...) {
    error = std::current_exception();
    shared_.failed = true;
  }
  shared_.ready.arrive_and_wait();  // all are connected
  shared_.ready.arrive_and_wait();  // and the clock is set
  if (shared_.failed) return;
  try {
    loop();
  } catch (...) {
    error = std::current_exception();
    shared_.failed = true;
  }
}

double thread_cpu_s() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void ClientThread::loop() {
  window_ticks_ = std::max<uint64_t>(ticks_of(options_.window_s * 1e9), 1);
  if (plan_.has_dependences()) done_.resize(kRememberedPlaces);
  shared_.low[number_] = place_of(0);
  if (options_.rate > 0) {
    arrivals_.emplace(options_.rate / options_.threads, options_.arrivals, options_.seed + number_);
    for (unsigned i = 0; i < options_.pipeline; ++i) {
      for (Line& line : lines_) free_.push_back(&line);
    }
  }
  const double cpu_before_s = thread_cpu_s();
  std::array<epoll_event, 256> events;
  silent_since_ = clock_.now();
  for (;;) {
    const uint64_t now = clock_.now();
    if (shared_.stop || shared_.failed || now >= limit_ticks_) ending_ = true;
    if (arrivals_) {
      issue_what_is_due(now);
    } else if (has_idle_lines_) {
      has_idle_lines_ = false;
      for (Line& line : lines_) {
        refill(line, now);
        write(line);
      }
    }
    if (under_way_ == 0 && (ending_ || place_of(turn_) >= plan_.operations())) break;
    const int count = ::epoll_wait(epoll_, events.data(), events.size(), wait_ms(now));
    for (int i = 0; i < count; ++i) {
      Line& line = lines_[events[static_cast<size_t>(i)].data.u64];
      if ((events[static_cast<size_t>(i)].events & EPOLLOUT) != 0) write(line);
      if ((events[static_cast<size_t>(i)].events & ~uint32_t{EPOLLOUT}) != 0) receive(line);
    }
    const double silence_s = static_cast<double>(now - silent_since_) * clock_.ns_per_tick() * 1e-9;
    if (count <= 0 && under_way_ > 0 && now > silent_since_ && silence_s > kSilenceS) {
      throw_server_gone(options_.address, "has not answered for 30 s");
    }
  }
  cpu_s = thread_cpu_s() - cpu_before_s;
}

// An open loop looks at the clock all the time, unless nothing is due for long: to be woken up
// takes as long as an answer.
int ClientThread::wait_ms(uint64_t now) const {
  constexpr double kLongNs = 2e6;
  if (!arrivals_) return shared_.plan.has_dependences() ? 1 : 100;
  const double since_ns =
      static_cast<double>(now - std::min(now, shared_.start_ticks)) * clock_.ns_per_tick();
  return under_way_ == 0 && !ending_ && arrivals_->due_ns() - since_ns > kLongNs ? 1 : 0;
}

bool ClientThread::may_issue() const {
  if (ending_) return false;
  const uint64_t place = place_of(turn_);
  if (place >= plan_.operations()) return false;
  return !plan_.has_dependences() || plan_.dependence(place) <= shared_.done_before();
}

void ClientThread::issue_what_is_due(uint64_t now) {
  while (!free_.empty() && may_issue()) {
    const uint64_t due = shared_.start_ticks + ticks_of(arrivals_->due_ns());
    if (due > now) return;
    Line& line = *free_.front();
    free_.pop_front();
    issue(line, due);
    write(line);
    arrivals_->advance();
  }
}

void ClientThread::refill(Line& line, uint64_t now) {
  if (!line.pending.empty()) return;
  for (unsigned i = 0; i < options_.pipeline && may_issue(); ++i) issue(line, now);
  if (line.pending.empty()) has_idle_lines_ = true;
}

void ClientThread::issue(Line& line, uint64_t start) {
  const uint64_t place = place_of(turn_);
  const Operation operation = plan_.at(place);
  fingerprints += OperationPlan::fingerprint(place, operation);
  if (place >= options_.warmup && first_ticks == ~uint64_t{0}) {
    first_ticks = start;
    if (options_.time_limit_s > 0) limit_ticks_ = start + ticks_of(options_.time_limit_s * 1e9);
  }
  if (under_way_ == 0) silent_since_ = clock_.now();
  line.pending.push_back({operation, turn_, start});
  request(line, operation, false);
  ++turn_;
  ++under_way_;
}

void ClientThread::request(Line& line, const Operation& operation, bool is_second) {
  RequestWriter writer(options_.address.protocol, line.out);
  if (options_.sorted) {
    request_sorted(writer, operation);
    return;
  }
  const uint64_t word = plan_.key_of(operation.record);
  const std::string_view key = records_.key(word);
  switch (operation.type) {
    case OperationType::kInsert:
      writer.set(key, records_.value(word));
      return;
    case OperationType::kUpdate:
    case OperationType::kUpsert:
      writer.set(key, records_.value(word + 1));
      return;
    case OperationType::kReadModifyWrite:
      if (is_second) {
        writer.set(key, records_.value(word + 1));
      } else {
        writer.get(key);
      }
      return;
    case OperationType::kRemove:
      writer.remove(key);
      return;
    default:
      writer.get(key);
  }
}

// A member is the key and the value; its score orders it as the key does.
void ClientThread::request_sorted(RequestWriter& writer, const Operation& operation) {
  const uint64_t word = plan_.key_of(operation.record);
  std::array<char, 24> digits;
  const auto text = [&](uint64_t number) {
    const char* end = std::to_chars(digits.begin(), digits.end(), number).ptr;
    return std::string_view(digits.data(), static_cast<size_t>(end - digits.data()));
  };
  if (operation.type == OperationType::kInsert) {
    std::string member(records_.key(word));
    member += records_.value(word);
    writer.command({"ZADD", kSortedKey, text(word >> kScoreShift), member});
    return;
  }
  const std::string score(text(word >> kScoreShift));
  const bool back = operation.type == OperationType::kScanBack;
  writer.command({back ? "ZREVRANGEBYSCORE" : "ZRANGEBYSCORE", kSortedKey, score,
                  back ? "-inf" : "+inf", "LIMIT", "0", text(operation.length)});
}

void ClientThread::write(Line& line) {
  while (line.sent < line.out.size()) {
    const ssize_t put =
        ::send(line.fd, line.out.data() + line.sent, line.out.size() - line.sent, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno != EAGAIN) {
      throw_server_gone(options_.address, std::string("is gone: ") + std::strerror(errno));
    }
    if (put < 0) break;
    line.sent += static_cast<size_t>(put);
  }
  const bool waits = line.sent < line.out.size();
  if (!waits) {
    line.out.clear();
    line.sent = 0;
  }
  if (waits == line.waits_to_write) return;
  line.waits_to_write = waits;
  epoll_event event{.events = EPOLLIN | (waits ? uint32_t{EPOLLOUT} : 0),
                    .data = {.u64 = static_cast<uint64_t>(&line - lines_.data())}};
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, line.fd, &event);
}

void ClientThread::receive(Line& line) {
  const ssize_t got =
      ::recv(line.fd, line.in.data() + line.in_end, line.in.size() - line.in_end, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got < 0) throw_server_gone(options_.address, std::string("is gone: ") + std::strerror(errno));
  if (got == 0) throw_server_gone(options_.address, "has closed a connection");
  line.in_end += static_cast<size_t>(got);
  const uint64_t now = clock_.now();
  silent_since_ = now;
  while (line.in_begin < line.in_end) {
    size_t consumed = 0;
    const ReplyParser::Result found = parser_.parse(
        std::string_view(line.in.data() + line.in_begin, line.in_end - line.in_begin), consumed);
    if (found == ReplyParser::Result::kNeedMore) break;
    if (found == ReplyParser::Result::kBroken || line.pending.empty()) {
      throw_server_gone(options_.address, "does not talk the protocol of this address");
    }
    answered(line, parser_.reply(), now);
    line.in_begin += consumed;
  }
  if (line.in_begin == line.in_end) {
    line.in_begin = line.in_end = 0;
  } else if (line.in_end == line.in.size()) {
    std::memmove(line.in.data(), line.in.data() + line.in_begin, line.in_end - line.in_begin);
    line.in_end -= line.in_begin;
    line.in_begin = 0;
    if (line.in_end > line.in.size() / 2) line.in.resize(2 * line.in.size());
  }
  if (!arrivals_) refill(line, now);
  write(line);
}

void ClientThread::answered(Line& line, const ServerReply& reply, uint64_t now) {
  Pending pending = line.pending.front();
  line.pending.pop_front();
  const bool right = is_right(pending, reply);
  if (!right) ++result.failed;
  if (!right && first_error.empty() && reply.kind == ServerReply::Kind::kError) {
    first_error = reply.text;
  }
  if (right && pending.operation.type == OperationType::kReadModifyWrite && !pending.is_second) {
    pending.is_second = true;
    request(line, pending.operation, true);
    line.pending.push_back(pending);
    return;
  }
  if (arrivals_) free_.push_back(&line);
  finish(pending, now);
}

void ClientThread::finish(const Pending& pending, uint64_t now) {
  --under_way_;
  const uint64_t place = place_of(pending.turn);
  if (!done_.empty()) {
    done_[pending.turn % kRememberedPlaces] = true;
    while (low_turn_ < turn_ && done_[low_turn_ % kRememberedPlaces]) {
      done_[low_turn_++ % kRememberedPlaces] = false;
    }
    shared_.low[number_].store(place_of(low_turn_), std::memory_order_release);
  }
  shared_.done.fetch_add(1, std::memory_order_relaxed);
  if (place < options_.warmup) return;
  TypeResult& type = result.by_type[static_cast<size_t>(pending.operation.type)];
  ++type.operations;
  type.latency_ticks.record(now - std::min(now, pending.start));
  ++result.operations;
  last_ticks = std::max(last_ticks, now);
  const uint64_t window = (now - std::min(now, first_ticks)) / window_ticks_;
  if (window >= windows.size()) windows.resize(window + 1);
  ++windows[window];
}

bool ClientThread::is_right(const Pending& pending, const ServerReply& reply) {
  using ReplyKind = ServerReply::Kind;
  const OperationType type = pending.operation.type;
  if (is_scan(type)) return is_right_scan(pending.operation, reply);
  if (type == OperationType::kInsert && options_.sorted) return reply.kind == ReplyKind::kNumber;
  if (type == OperationType::kRemove) {
    return reply.kind == ReplyKind::kDone ||
           (reply.kind == ReplyKind::kNumber && reply.number == 1);
  }
  const bool reads = type == OperationType::kLookup ||
                     (type == OperationType::kReadModifyWrite && !pending.is_second);
  if (!reads) return reply.kind == ReplyKind::kDone;
  return reply.kind == ReplyKind::kValue &&
         records_.is_of(plan_.key_of(pending.operation.record), reply.text);
}

bool ClientThread::is_right_scan(const Operation& operation, const ServerReply& reply) {
  if (reply.kind != ServerReply::Kind::kList || reply.elements.empty()) return false;
  if (reply.elements.size() > operation.length) return false;
  result.scanned += reply.elements.size();
  uint64_t last = plan_.key_of(operation.record) >> kScoreShift;
  const bool back = operation.type == OperationType::kScanBack;
  for (const std::string_view member : reply.elements) {
    if (member.size() < records_.key_bytes()) return false;
    const uint64_t word = records_.word_of(member.substr(0, records_.key_bytes()));
    const uint64_t score = word >> kScoreShift;
    // The first is the one that was asked for, and the others come in order.
    if (member.data() == reply.elements[0].data() ? score != last
        : back                                    ? score > last
                                                  : score < last)
      return false;
    if (!records_.is_of(word, member.substr(records_.key_bytes()))) return false;
    last = score;
  }
  return true;
}

// What one thread measured, to what all did.
void add_thread(const ClientThread& thread, ClientsResult& all, std::vector<uint64_t>& windows) {
  PhaseResult& phase = all.phase;
  phase.operations += thread.result.operations;
  phase.failed += thread.result.failed;
  phase.scanned += thread.result.scanned;
  for (size_t type = 0; type < kOperationTypes; ++type) {
    phase.by_type[type].operations += thread.result.by_type[type].operations;
    phase.by_type[type].latency_ticks.merge(thread.result.by_type[type].latency_ticks);
  }
  all.client_cpu_s += thread.cpu_s;
  if (all.first_error.empty()) all.first_error = thread.first_error;
  windows.resize(std::max(windows.size(), thread.windows.size()));
  for (size_t i = 0; i < thread.windows.size(); ++i) windows[i] += thread.windows[i];
}

ClientsResult gather(const Shared& shared,
                     const std::vector<std::unique_ptr<ClientThread>>& threads) {
  ClientsResult all;
  std::vector<uint64_t> windows;
  uint64_t first = ~uint64_t{0};
  uint64_t last = 0;
  uint64_t fingerprints = 0;
  for (const auto& thread : threads) {
    add_thread(*thread, all, windows);
    first = std::min(first, thread->first_ticks);
    last = std::max(last, thread->last_ticks);
    fingerprints += thread->fingerprints;
  }
  if (last > first) {
    all.phase.seconds = static_cast<double>(last - first) * TickClock::get().ns_per_tick() * 1e-9;
  }
  all.phase.stream_hash = shared.plan.stream_hash(fingerprints);
  all.phase.complete = shared.done == shared.plan.operations();
  const auto whole = static_cast<size_t>(all.phase.seconds / shared.options.window_s);
  for (size_t i = 0; i < std::min(whole, windows.size()); ++i) {
    all.phase.window_mops.push_back(static_cast<double>(windows[i]) / shared.options.window_s /
                                    1e6);
  }
  return all;
}

void show_progress(const Shared& shared, double start_s, const ProgressSink& progress) {
  if (!progress) return;
  const ClientsOptions& options = shared.options;
  const uint64_t done = shared.done;
  double fraction = static_cast<double>(done) /
                    static_cast<double>(std::max<uint64_t>(shared.plan.operations(), 1));
  if (options.time_limit_s > 0) {
    fraction =
        std::max(fraction, std::min((steady_seconds() - start_s) / options.time_limit_s, 1.0));
  }
  progress({options.name, done, fraction});
}

}  // namespace

ClientsResult run_clients(const OperationPlan& plan, const ClientsOptions& options,
                          const ProgressSink& progress, const std::atomic<bool>& stop) {
  Shared shared(plan, options, stop);
  std::vector<std::unique_ptr<ClientThread>> clients;
  std::vector<std::thread> threads;
  std::atomic<unsigned> running{options.threads};
  for (unsigned i = 0; i < options.threads; ++i) {
    clients.push_back(std::make_unique<ClientThread>(shared, i));
    threads.emplace_back([client = clients.back().get(), &running] {
      client->run();
      --running;
    });
  }
  shared.ready.arrive_and_wait();
  shared.start_ticks = TickClock::get().now();
  shared.ready.arrive_and_wait();
  const double start_s = steady_seconds();
  while (running > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(progress ? 100 : 5));
    show_progress(shared, start_s, progress);
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& client : clients) {
    if (client->error) std::rethrow_exception(client->error);
  }
  return gather(shared, clients);
}

uint64_t count_missing_effects(const OperationPlan& plan, const ClientsOptions& options) {
  ServerConnection connection(options.address);
  RecordBytes records(options.form);
  const uint64_t step = std::max<uint64_t>(plan.operations() / kCheckedEffects, 1);
  uint64_t missing = 0;
  std::vector<Operation> asked;
  const auto check = [&] {
    connection.send();
    for (const Operation& operation : asked) {
      const ServerReply& reply = connection.read();
      const uint64_t word = plan.key_of(operation.record);
      const bool there = reply.kind == ServerReply::Kind::kValue;
      // What was inserted may have been updated; what was updated never goes back.
      const bool right = operation.type == OperationType::kRemove
                             ? reply.kind == ServerReply::Kind::kAbsent
                             : there && records.is_of(word, reply.text) &&
                                   (operation.type == OperationType::kInsert ||
                                    records.is_updated(word, reply.text));
      missing += right ? 0 : 1;
    }
    asked.clear();
  };
  for (uint64_t place = 0; place < plan.operations(); place += step) {
    const Operation operation = plan.at(place);
    if (operation.type == OperationType::kLookup || is_scan(operation.type)) continue;
    connection.requests().get(records.key(plan.key_of(operation.record)));
    asked.push_back(operation);
    if (asked.size() == kCheckedAtOnce) check();
  }
  check();
  return missing;
}

}  // namespace perdure::lab::serve
