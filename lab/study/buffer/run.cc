#include "lab/study/buffer/run.h"

#include <fmt/core.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <thread>

#include "buffer/page_store.h"
#include "buffer/pool.h"
#include "common/ticks.h"
#include "lab/bench/emulated_medium.h"
#include "lab/study/slow_medium.h"
#include "lab/study/workers.h"
#include "pm/emulated_media.h"
#include "pm/system_error.h"

namespace perdure::lab::study::buffer_pool {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

Clock::duration microseconds(double us) {
  return std::chrono::nanoseconds(static_cast<int64_t>(us * 1000));
}

// A page file on an SSD.
class SlowPages final : public buffer::PageFaults {
 public:
  SlowPages(const BufferStudyOptions& options, Gauge& gauge)
      : gauge_(gauge),
        read_(microseconds(options.latency_us)),
        write_(microseconds(options.write_latency_us)) {
    buffer::inject_page_faults(this);
  }
  ~SlowPages() override { buffer::inject_page_faults(nullptr); }

  void read(uint64_t, char*, uint32_t) override {
    gauge_.medium_reads.fetch_add(1, std::memory_order_relaxed);
    const Clock::duration taken = wait(read_);
    gauge_.medium_ns.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(taken).count()),
                               std::memory_order_relaxed);
  }
  // Side by side, as an SSD does.
  void read_all(std::span<const buffer::PageStore::PageRead> pages, uint32_t) override {
    gauge_.medium_reads.fetch_add(pages.size(), std::memory_order_relaxed);
    const Clock::duration taken = wait(read_);
    gauge_.medium_ns.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(taken).count()),
                               std::memory_order_relaxed);
  }
  uint32_t write(uint64_t, uint32_t bytes) override {
    wait(write_);
    return bytes;
  }
  uint32_t write_beside(uint64_t, uint32_t bytes, size_t place) override {
    if (place == 0) wait(write_);
    return bytes;
  }
  void sync() override { wait(write_); }

 private:
  Clock::duration wait(Clock::duration latency) const {
    if (!gauge_.slow.load(std::memory_order_relaxed)) return {};
    return take_until(Clock::now(), latency);
  }
  Gauge& gauge_;
  Clock::duration read_;
  Clock::duration write_;
};

// What a page in PM takes longer than one in DRAM; of this process.
uint64_t pm_ticks = 0;

void use_pm_frame() {
  const TickClock& clock = TickClock::get();
  const uint64_t until = clock.now() + pm_ticks;
  while (clock.now() < until) _mm_pause();
}

// Null: none is wanted.
std::unique_ptr<EmulatedMedium> slow_medium_of(const BufferStudyOptions& options) {
  if (options.medium.empty()) return nullptr;
  const std::string name = options.medium == "optane" ? "optane-100" : options.medium;
  return std::make_unique<EmulatedMedium>(load_profile(name));
}

// By the process of the database.
void use_slow_medium(const BufferStudyOptions& options, EmulatedMedium* medium) {
  if (options.pm_ns > 0) {
    pm_ticks = static_cast<uint64_t>(options.pm_ns / TickClock::get().ns_per_tick());
    buffer::tell_of_pm_frames(use_pm_frame);
  }
  if (medium != nullptr) pm::emulate_media(medium);
}

}  // namespace

uint64_t Gauge::operations() const {
  uint64_t sum = 0;
  for (const Count& each : threads) sum += each.operations.load(std::memory_order_relaxed);
  return sum;
}

void Gauge::count(unsigned thread, uint64_t done) {
  threads[thread].operations.store(done, std::memory_order_release);
  if (done != 1) return;
  int64_t none = 0;
  first_at.compare_exchange_strong(none, now_ns());
}

DatabaseRun::DatabaseRun(const BufferStudyOptions& options, const RunSetup& setup,
                         const Work& work) {
  void* shared =
      ::mmap(nullptr, sizeof(Gauge), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::bad_alloc();
  gauge_ = new (shared) Gauge;
  // Measures this machine for some milliseconds, which are not the database's.
  const std::unique_ptr<EmulatedMedium> medium = slow_medium_of(options);
  begun_ = Clock::now();
  pid_ = ::fork();
  if (pid_ == 0) work_in_child(options, setup, work, medium.get());
  if (pid_ < 0) {
    ::munmap(gauge_, sizeof(Gauge));
    pm::throw_errno("fork", "the study", errno);
  }
}

DatabaseRun::~DatabaseRun() {
  kill();
  ::munmap(gauge_, sizeof(Gauge));
}

void DatabaseRun::work_in_child(const BufferStudyOptions& options, const RunSetup& setup,
                                const Work& work, EmulatedMedium* medium) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Gauge& gauge = *gauge_;
  const auto fail_with = [&](const char* what) {
    std::strncpy(gauge.error.data(), what, gauge.error.size() - 1);
    ::_exit(1);
  };
  try {
    use_slow_medium(options, medium);
    SlowPages pages(options, gauge);
    DatabaseStore store(setup.path, setup.database, setup.tables, setup.capacity_bytes);
    if (setup.mend_first) store.database().recover();
    gauge.opened_at = now_ns();
    const auto publish = [&] {
      const RecoveryProgress progress = store.database().recovery();
      gauge.right = progress.right;
      gauge.older = progress.older;
      gauge.newer = progress.newer;
      gauge.corrupted = progress.corrupted;
      gauge.fetched = progress.fetched;
    };
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < setup.threads; ++thread) {
      threads.emplace_back([&, thread] {
        try {
          work(store, thread, gauge);
        } catch (const std::exception& error) {
          fail_with(error.what());
        }
      });
    }
    while (!gauge.stop) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      publish();
    }
    for (std::thread& thread : threads) thread.join();
    publish();
  } catch (const std::exception& error) {
    fail_with(error.what());
  }
  ::_exit(0);
}

std::optional<double> DatabaseRun::seconds_to(const std::atomic<int64_t>& moment) const {
  const int64_t at = moment.load();
  if (at == 0) return std::nullopt;
  return std::chrono::duration<double>(std::chrono::nanoseconds(at) - begun_.time_since_epoch())
      .count();
}

void DatabaseRun::fail() const {
  throw Error(ErrorCode::kIo, fmt::format("the database of the study: {}",
                                          gauge_->error[0] != '\0' ? gauge_->error.data()
                                                                   : "its process has died"));
}

void DatabaseRun::require_alive() {
  if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == 0) return;
  pid_ = -1;
  fail();
}

void DatabaseRun::wait_until(const Course& course, const std::function<bool(const Gauge&)>& holds) {
  while (!holds(*gauge_) && !course.stop) {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    require_alive();
  }
}

void DatabaseRun::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  pid_ = -1;
}

void DatabaseRun::close() {
  gauge_->slow = false;
  gauge_->stop = true;
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  pid_ = -1;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail();
}

std::vector<Window> DatabaseRun::watch(const Course& course, double seconds, From from) {
  std::vector<Window> windows;
  const auto since = [&] { return std::chrono::duration<double>(Clock::now() - begun_).count(); };
  const bool all = from == From::kBegin;
  uint64_t operations = all ? 0 : gauge_->operations();
  uint64_t reads = all ? 0 : gauge_->medium_reads.load();
  double last = all ? 0 : since();
  const double end = last + seconds;
  while (last < end && !course.stop) {
    std::this_thread::sleep_until(begun_ + microseconds((last + course.options.window_s) * 1e6));
    require_alive();
    const double now = since();
    const uint64_t sum = gauge_->operations();
    const uint64_t medium = gauge_->medium_reads;
    const auto done = static_cast<double>(sum - operations);
    windows.push_back(
        {last, done / (now - last), done > 0 ? static_cast<double>(medium - reads) / done : 0});
    operations = sum;
    reads = medium;
    last = now;
  }
  return windows;
}

json in_a_process(const Course& course, const std::function<json()>& work) {
  json result;
  const Job job{.name = "part", .steps = 1, .work = [&](const auto&, const std::atomic<bool>&) {
                  return work();
                }};
  run_jobs({job}, 1,
           {.ended = [&](const Job&, const json& made) { result = made; },
            .failed = [](const Job&, const Error& error) { throw Error(error); },
            .progress = [](uint64_t, const std::vector<const Job*>&) {}},
           course.stop);
  return result;
}

}  // namespace perdure::lab::study::buffer_pool
