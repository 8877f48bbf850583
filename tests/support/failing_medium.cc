#include "support/failing_medium.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "perdure/error.h"
#include "pm/memory.h"
#include "support/child.h"
#include "support/scale.h"

namespace perdure::test {

namespace {

constexpr unsigned kHangs_s = kUnderThreadSanitizer || kUnderAddressSanitizer ? 60 : 10;
constexpr char kAt = '\x01';  // begins a line of what a child does, in what it reports
constexpr uint64_t kFindingsMax = 8;
constexpr size_t kUnit = 64;  // what a mixed image takes from the one side or the other

FailingMedium* in_use = nullptr;

std::atomic<uintptr_t> refused_address{0};

constexpr size_t kLine = 64;

struct MappedRange {
  uintptr_t begin;
  uintptr_t end;
  uint64_t offset;  // in the file
};

// Where this process has mapped the file.
std::vector<MappedRange> ranges_of(const std::string& path) {
  std::vector<MappedRange> ranges;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    unsigned long offset = 0;
    if (line.ends_with(path) &&
        std::sscanf(line.c_str(), "%lx-%lx %*s %lx", &begin, &end, &offset) == 3) {
      ranges.push_back({begin, end, offset});
    }
  }
  return ranges;
}

// What this thread wrote back and did not fence yet, in domain `line`.
struct Written {
  uintptr_t address;
  std::vector<char> bytes;
  uint64_t sequence;
};
thread_local std::vector<Written> written;
// Which begin() of a medium that was since: threads outlive their pool, and what they had not
// fenced then is nothing of the next one's.
thread_local uint64_t written_since = 0;
uint64_t begun_last = 0;

[[noreturn]] void fail(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

void write_at(int fd, const char* bytes, size_t count, uint64_t offset) {
  while (count > 0) {
    const ssize_t n = ::pwrite(fd, bytes, count, static_cast<off_t>(offset));
    if (n <= 0) fail("pwrite");
    bytes += n;
    offset += static_cast<uint64_t>(n);
    count -= static_cast<size_t>(n);
  }
}

// Calls use(bytes, count, offset) for every part of a file that is not a hole. Returns the file's
// length.
template <typename Use>
uint64_t read_parts(const std::string& path, Use&& use) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  struct stat status{};
  if (::fstat(fd, &status) != 0) fail("fstat");
  static char part[uint64_t{256} << 10];
  for (off_t at = 0; (at = ::lseek(fd, at, SEEK_DATA)) >= 0;) {
    const off_t end = ::lseek(fd, at, SEEK_HOLE);
    while (at < end) {
      const ssize_t n = ::pread(fd, part, std::min(sizeof part, static_cast<size_t>(end - at)), at);
      if (n <= 0) fail("pread");
      use(part, static_cast<size_t>(n), static_cast<uint64_t>(at));
      at += n;
    }
  }
  ::close(fd);
  return static_cast<uint64_t>(status.st_size);
}

// The content of a file, its holes as zeros.
std::vector<char> content_of(const std::string& path) {
  std::vector<char> bytes;
  const uint64_t length = read_parts(path, [&](const char* part, size_t count, uint64_t offset) {
    bytes.resize(offset);
    bytes.insert(bytes.end(), part, part + count);
  });
  bytes.resize(length);
  return bytes;
}

// A file as long as another and with its content, its holes too. Returns it, open.
int copy_of(const std::string& from, const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) fail("open");
  const uint64_t length = read_parts(from, [&](const char* part, size_t count, uint64_t offset) {
    write_at(fd, part, count, offset);
  });
  if (::ftruncate(fd, static_cast<off_t>(length)) != 0) fail("ftruncate");
  return fd;
}

// A file of these bytes; pages of zeros become holes. Returns it, open.
int file_of(const std::string& path, const std::vector<char>& bytes) {
  static constexpr size_t kPage = 4096;
  static const char zeros[kPage] = {};
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) fail("open");
  if (::ftruncate(fd, static_cast<off_t>(bytes.size())) != 0) fail("ftruncate");
  const auto empty = [&](size_t at) {
    return std::memcmp(bytes.data() + at, zeros, std::min(kPage, bytes.size() - at)) == 0;
  };
  for (size_t at = 0; at < bytes.size();) {
    if (empty(at)) {
      at += kPage;
      continue;
    }
    size_t end = at + kPage;
    while (end < bytes.size() && !empty(end)) end += kPage;
    end = std::min(end, bytes.size());
    write_at(fd, bytes.data() + at, end - at, at);
    at = end;
  }
  return fd;
}

}  // namespace

FailingMedium::FailingMedium(std::string path, Domain domain)
    : path_(std::move(path)), domain_(domain) {
  in_use = this;
  if (domain != Domain::kPage) pm::emulate_media(this);
}

FailingMedium::~FailingMedium() {
  pm::emulate_media(nullptr);
  in_use = nullptr;
}

void FailingMedium::begin() {
  durable_ = content_of(path_);
  base_ = 0;
  begun_ = ++begun_last;
  counting_ = true;
}

void FailingMedium::refuse(std::function<bool(uint64_t)> chosen,
                           std::function<bool(uint64_t)> for_good) {
  chosen_ = std::move(chosen);
  chosen_for_good_ = std::move(for_good);
}

void FailingMedium::refuse_here(uint64_t n, bool for_good) {
  here_ = n;
  for_good_ = for_good;
  refused_ = false;
  base_ = 0;  // the pool may be opened anew
}

void FailingMedium::mend() {
  counting_ = false;
  chosen_ = nullptr;
  for_good_ = false;
}

bool FailingMedium::persist() {
  if (refused_) return !for_good_;
  const uint64_t n = persists_++;
  if (n == here_) {
    refused_ = true;
    refused_number_ = n;
    return false;
  }
  if (finding_count_ >= kFindingsMax) return true;
  if (!chosen_ || !chosen_(n) || !fork_child()) return true;
  refused_ = true;
  refused_number_ = n;
  for_good_ = chosen_for_good_(n);
  return false;
}

// Returns true in the child, and false in the parent once the child has ended.
bool FailingMedium::fork_child() {
  int ends[2];
  if (::pipe(ends) != 0) fail("pipe");
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(2);
    ::close(ends[0]);
    out_ = ends[1];
    ::alarm(kHangs_s);
    work_on_copy();
    return true;
  }
  ::close(ends[1]);
  ++children_;
  read_report(ends[0], child);
  ::close(ends[0]);
  return false;
}

void FailingMedium::read_report(int in, int child) {
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(in, buffer, sizeof buffer)) != 0;) {
    if (n < 0 && errno != EINTR) fail("read from a child");
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
  std::string at;  // the child's last words of what it does
  for (size_t begin = 0; (begin = text.find(kAt)) != std::string::npos;) {
    const size_t end = text.find('\n', begin);
    at = ", then " + text.substr(begin + 1, end - begin - 1);
    text.erase(begin, end - begin + 1);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    text += "during " + at_ + at +
            (WTERMSIG(status) == SIGALRM
                 ? ": it hangs\n"
                 : ": signal " + std::to_string(WTERMSIG(status)) + " ends the process\n");
  } else if (WEXITSTATUS(status) != 0) {
    text += "during " + at_ + at + ": exit code " + std::to_string(WEXITSTATUS(status)) + "\n";
  }
  if (text.empty()) return;
  ++finding_count_;
  findings_ += "persist " + std::to_string(persists_ - 1) + " refused" +
               (chosen_for_good_(persists_ - 1) ? " for good: " : " once: ") + text;
}

bool FailingMedium::has_fenced_all() {
  return written.empty() || in_use == nullptr || written_since != in_use->begun_;
}

void FailingMedium::at(const std::string& what) {
  if (out_ < 0) {
    at_ = what;
    return;
  }
  const std::string line = kAt + what + '\n';
  send(out_, line.data(), line.size());
}

void FailingMedium::report(const std::string& text) {
  send(out_, text.data(), text.size());
  ::_exit(0);
}

std::string FailingMedium::findings() const {
  if (finding_count_ == 0) return {};
  return findings_ + std::to_string(finding_count_) + " of " + std::to_string(children_) +
         " refused persists do harm\n";
}

// Where the pool is mapped, if that is around `address`.
bool FailingMedium::find_mapping(uintptr_t address) {
  if (base_ != 0 && address >= base_ && address < end_) return true;
  for (const MappedRange& range : ranges_of(path_)) {
    if (address < range.begin || address >= range.end) continue;
    base_ = range.begin - range.offset;
    end_ = range.end;
    return true;
  }
  return false;
}

// Puts a copy of the file where this process has the file itself: mapped, and open.
void FailingMedium::work_on_copy() {
  const std::string copy_path = path_ + ".refused";
  const int copy = copy_of(path_, copy_path);
  for (const MappedRange& range : ranges_of(path_)) {
    if (::mmap(reinterpret_cast<void*>(range.begin), range.end - range.begin,
               PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, copy,
               static_cast<off_t>(range.offset)) == MAP_FAILED) {
      fail("mmap");
    }
  }
  std::vector<int> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    char target[4096];
    const ssize_t n = ::readlink(entry.path().c_str(), target, sizeof target);
    if (n > 0 && std::string_view(target, static_cast<size_t>(n)) == path_) {
      files.push_back(std::stoi(entry.path().filename()));
    }
  }
  for (const int fd : files) {
    if (::dup2(copy, fd) < 0) fail("dup2");
  }
  path_ = copy_path;
}

void FailingMedium::make_durable(uint64_t offset, const char* bytes, size_t count) {
  if (durable_.size() < offset + count) durable_.resize(offset + count);
  std::memcpy(durable_.data() + offset, bytes, count);
}

void FailingMedium::forget_earlier() const {
  if (written_since == begun_) return;
  written.clear();
  written_since = begun_;
}

void FailingMedium::written_back(uintptr_t address, size_t bytes) {
  if (!counting_) return;
  const uintptr_t begin = address & ~uintptr_t{63};
  const uintptr_t end = (address + bytes + 63) & ~uintptr_t{63};
  std::vector<char> lines(end - begin);
  const std::lock_guard lock(mutex_);
  forget_earlier();
  // Other threads may store to other words of these lines meanwhile, such as to the heap's bitmaps.
  for (size_t at = 0; at < lines.size(); at += sizeof(uint64_t)) {
    const uint64_t word = pm::load_relaxed(*reinterpret_cast<const uint64_t*>(begin + at));
    std::memcpy(&lines[at], &word, sizeof word);
  }
  written.push_back({begin, std::move(lines), ++sequence_});
}

void FailingMedium::fenced() {
  const std::lock_guard lock(mutex_);
  if (!counting_) return;
  forget_earlier();
  const bool accepted = persist();
  for (const Written& one : written) {
    if (accepted && find_mapping(one.address)) {
      for (size_t at = 0; at < one.bytes.size(); at += kLine) {
        // Not what another thread has since written back, and made durable, anew.
        const uint64_t offset = one.address - base_ + at;
        uint64_t& durable = durable_sequence_[offset / kLine];
        if (durable > one.sequence) continue;
        durable = one.sequence;
        make_durable(offset, one.bytes.data() + at, kLine);
      }
    }
  }
  written.clear();
  if (!accepted) throw Error(ErrorCode::kIo, path_ + ": the medium refuses to make it durable");
}

bool FailingMedium::synced(uintptr_t address, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!counting_ || !find_mapping(address)) return true;
  if (!persist()) return false;
  make_durable(address - base_, reinterpret_cast<const char*>(address),
               std::min<size_t>(bytes, end_ - address));
  return true;
}

std::string FailingMedium::make_image(Image image, uint64_t seed) {
  const std::string path = path_ + ".image";
  if (image == Image::kAll) {
    ::close(copy_of(path_, path));
    return path;
  }
  std::vector<char> all = content_of(path_);
  std::vector<char> least = durable_;
  // The file's length is none of the lines'.
  least.resize(all.size());
  if (image == Image::kMixed) {
    Random random(seed);
    for (size_t at = 0; at < all.size(); at += kUnit) {
      if (std::memcmp(all.data() + at, least.data() + at, kUnit) == 0) continue;
      if (random.chance(50)) std::memcpy(all.data() + at, least.data() + at, kUnit);
    }
  }
  ::close(file_of(path, image == Image::kLeast ? least : all));
  return path;
}

testing::AssertionResult power_fails(const std::string& path, Domain domain, uint64_t n,
                                     FailingMedium::Image image, uint64_t seed,
                                     const std::function<void(FailingMedium&)>& work) {
  FailingMedium medium(path, domain);
  medium.begin();
  medium.refuse_here(n, true);
  const auto failed = fails_with(ErrorCode::kIo, [&] { work(medium); });
  if (!failed) return failed;
  if (!medium.refused()) return testing::AssertionFailure() << "persist " << n << " was not met";
  std::filesystem::rename(medium.make_image(image, seed), path);
  return testing::AssertionSuccess();
}

void refuse_msync_at(uintptr_t address) { refused_address = address; }

}  // namespace perdure::test

// Takes the place of the C library's: pools in domain `page` persist by it.
extern "C" int msync(void* address, size_t bytes, int flags) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t refused = perdure::test::refused_address;
  if ((refused >= begin && refused < begin + bytes) ||
      (perdure::test::in_use != nullptr && !perdure::test::in_use->synced(begin, bytes))) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_msync, address, bytes, flags));
}
