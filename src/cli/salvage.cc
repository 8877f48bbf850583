#include "cli/salvage.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "buffer/engine.h"
#include "cli/database_writer.h"
#include "perdure/block_cache.h"
#include "perdure/catalog.h"
#include "perdure/database.h"
#include "perdure/error.h"
#include "perdure/files.h"
#include "pm/layout.h"
#include "pm/pool_impl.h"

namespace perdure::cli {
namespace {

constexpr size_t kExamples = 5;
constexpr uint64_t kPieceBytes = uint64_t{4} << 20;  // of a file

// What a child tells, in frames: a letter, two lengths, and as many bytes.
constexpr char kStructure = 's';  // name and type; then kinds
constexpr char kRecord = 'r';     // key, value
constexpr char kFolder = 'f';     // path
constexpr char kFile = 'n';       // path; its content follows
constexpr char kPiece = 'p';      // of the content
constexpr char kFileEnd = 'w';    // the file is whole
constexpr char kDatabase = 'b';   // its options
constexpr char kTree = 't';       // name; its records follow
constexpr char kOwner = 'o';      // a PageFileOwner, of each page file that was given
constexpr char kLost = 'l';       // a sentence: one record cannot be read
constexpr char kLostMany = 'm';   // a sentence: of how many is not known
constexpr char kStopped = 'e';  // a sentence, the number of an ErrorCode or none: there may be more
constexpr char kAlive = 'a';    // nothing: work goes on
constexpr char kEnd = 'd';

struct FrameHead {
  char what;
  uint64_t first_bytes;
  uint64_t second_bytes;
};

struct Frame {
  char what = 0;
  std::string first;
  std::string second;
};

// In the child.
class Teller {
 public:
  explicit Teller(int descriptor) : descriptor_(descriptor) {}

  void tell(char what, std::string_view first = {}, std::string_view second = {}) {
    const FrameHead head{what, first.size(), second.size()};
    append({reinterpret_cast<const char*>(&head), sizeof head});
    append(first);
    append(second);
    if (what != kRecord || buffer_.size() > kFlushBytes) flush();
  }
  void tell_record(Datum key, Datum value) {
    const uint64_t words[] = {key.word(), value.word()};
    const auto bytes_of = [](const Datum& datum, const uint64_t& word) {
      return datum.kind() == Kind::kU64
                 ? std::string_view(reinterpret_cast<const char*>(&word), sizeof word)
                 : datum.bytes();
    };
    tell(kRecord, bytes_of(key, words[0]), bytes_of(value, words[1]));
  }

 private:
  static constexpr size_t kFlushBytes = 60 << 10;

  void append(std::string_view bytes) { buffer_ += bytes; }
  void flush() {
    for (size_t at = 0; at < buffer_.size();) {
      const ssize_t wrote = ::write(descriptor_, buffer_.data() + at, buffer_.size() - at);
      if (wrote < 0 && errno != EINTR) ::_exit(1);  // nobody listens
      if (wrote > 0) at += static_cast<size_t>(wrote);
    }
    buffer_.clear();
  }

  int descriptor_;
  std::string buffer_;
};

// A child that works on the damaged pool, and what it tells.
class Reader {
 public:
  Reader(const std::function<void(Teller&)>& work, unsigned silence_s) : silence_s_(silence_s) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw Error(ErrorCode::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    }
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ == 0) {
      // One that is lost in a loop writes nothing, so that nothing else ends it, and it holds both
      // pools' locks.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::close(ends[0]);
      run(work, ends[1]);
    }
    const int reason = errno;
    ::close(ends[1]);
    in_ = ends[0];
    if (child_ < 0) {
      ::close(in_);
      throw Error(ErrorCode::kIo, fmt::format("cannot fork: {}", std::strerror(reason)));
    }
  }
  ~Reader() {
    ::close(in_);
    ::kill(child_, SIGKILL);
    if (!waited_) wait();
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // False when the child has ended or fallen silent; how_it_ended() says how.
  bool next(Frame& frame) {
    FrameHead head;
    constexpr uint64_t kBytesMax = uint64_t{1} << 32;  // more than a key or value may have
    if (!read(&head, sizeof head)) return false;
    if (head.first_bytes > kBytesMax || head.second_bytes > kBytesMax) {
      astray_ = true;
      return false;
    }
    frame.what = head.what;
    frame.first.resize(head.first_bytes);
    frame.second.resize(head.second_bytes);
    return read(frame.first.data(), frame.first.size()) &&
           read(frame.second.data(), frame.second.size());
  }

  std::string how_it_ended() {
    if (silent_) return fmt::format("reading it came to no end within {} s", silence_s_);
    // One that has ended keeps what it ended with; one that has not may wait for ever to be read
    // from.
    ::kill(child_, SIGKILL);
    const int status = wait();
    if (astray_) return "what reading it told makes no sense";
    if (WIFSIGNALED(status)) {
      return fmt::format("reading it ended in a fault ({})", ::strsignal(WTERMSIG(status)));
    }
    return "reading it ended without words";
  }

 private:
  [[noreturn]] static void run(const std::function<void(Teller&)>& work, int out) {
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL})
      std::signal(signal, SIG_DFL);
    const rlimit no_core{};
    ::setrlimit(RLIMIT_CORE, &no_core);
    Teller teller(out);
    try {
      work(teller);
    } catch (const Error& error) {
      teller.tell(kStopped, error.what(), std::to_string(static_cast<int>(error.code())));
    } catch (const std::exception& error) {
      teller.tell(kStopped, error.what());
    }
    teller.tell(kEnd);
    ::_exit(0);
  }

  bool read(void* to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      pollfd waiting{in_, POLLIN, 0};
      const int ready = ::poll(&waiting, 1, static_cast<int>(silence_s_ * 1000));
      if (ready < 0 && errno == EINTR) continue;
      if (ready == 0) {
        silent_ = true;
        return false;
      }
      const ssize_t got = ::read(in_, static_cast<char*>(to) + done, bytes - done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      done += static_cast<size_t>(got);
    }
    return true;
  }
  int wait() {
    int status = 0;
    while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    waited_ = true;
    return status;
  }

  unsigned silence_s_;
  pid_t child_ = -1;
  int in_ = -1;
  bool silent_ = false;
  bool astray_ = false;  // of what it told
  bool waited_ = false;
};

PoolOptions lenient_options(bool verify_payload) {
  PoolOptions options;
  options.read_only = true;
  options.lenient = true;
  options.verify_payload = verify_payload;
  return options;
}

// ---- what children do

void tell_structures(const std::string& path, Teller& teller) {
  const Pool pool = Pool::open(path, lenient_options(true));
  for (const StructureInfo& info : pool.structures()) {
    teller.tell(kStructure, info.name + '\0' + info.type, info.key_kind + '\0' + info.value_kind);
  }
}

void tell_faults(const std::string& path, Teller& teller) {
  const Pool pool = Pool::open(path, lenient_options(true));
  pool.check([&](const std::string& sentence) { teller.tell(kLost, sentence); });
}

// Keys are told one by one where records out of place are not verified: a damaged one is still a
// key to look for.
void tell_readable_keys(const std::string& path, const std::string& name, Teller& teller) {
  std::vector<Value> keys;
  std::string stopped;
  {
    Pool pool = Pool::open(path, lenient_options(false));
    const std::unique_ptr<AnyIndex> index = open_index(pool, name);
    try {
      index->for_each([&](Datum key, Datum) {
        Value& own = keys.emplace_back();
        if (key.kind() == Kind::kU64) {
          own.set(key.word());
        } else {
          own.set_bytes().assign(key.bytes());
        }
        if (keys.size() % 100'000 == 0) teller.tell(kAlive);
      });
    } catch (const Error& error) {
      stopped = error.what();
    }
  }
  Pool pool = Pool::open(path, lenient_options(true));
  const std::unique_ptr<AnyIndex> index = open_index(pool, name);
  Value value;
  for (const Value& key : keys) {
    try {
      if (index->lookup(key.datum(), value)) {
        teller.tell_record(key.datum(), value.datum());
      } else {
        teller.tell(kLost, "a key that is damaged itself leads to no record");
      }
    } catch (const Error& error) {
      teller.tell(kLost, error.what());
    }
  }
  if (!stopped.empty()) teller.tell(kStopped, stopped);
}

void tell_records(const std::string& path, const std::string& name, Teller& teller) {
  Pool pool = Pool::open(path, lenient_options(true));
  const std::unique_ptr<AnyIndex> index = open_index(pool, name);
  index->for_each([&](Datum key, Datum value) { teller.tell_record(key, value); });
}

void tell_file(const Files& files, const std::string& path, Teller& teller) {
  const FileReader reader = files.open_file(path);
  teller.tell(kFile, path);
  std::string scratch;
  const uint64_t bytes = reader.size();
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t wanted = std::min(kPieceBytes, bytes - at);
    scratch.resize(wanted);
    const std::string_view piece = reader.read(at, wanted, scratch.data());
    if (piece.empty()) {
      throw Error(ErrorCode::kCorrupt, fmt::format("ends at byte {} of {}", at, bytes));
    }
    teller.tell(kPiece, piece);
    at += piece.size();
  }
  teller.tell(kFileEnd, path);
}

// Of one folder, and those in it. What cannot be read is lost alone.
void tell_folder(const Files& files, const std::string& folder, Teller& teller) {
  std::vector<FileInfo> content;
  try {
    content = files.list(folder);
  } catch (const std::exception& error) {
    teller.tell(kLostMany, fmt::format("{}: {}", folder, error.what()));
  }
  for (const FileInfo& info : content) {
    const std::string path = (folder == "/" ? "" : folder) + "/" + info.name;
    if (info.directory) {
      teller.tell(kFolder, path);
      tell_folder(files, path, teller);
      continue;
    }
    try {
      tell_file(files, path, teller);
    } catch (const std::exception& error) {
      teller.tell(kLost, fmt::format("{}: {}", path, error.what()));
    }
  }
}

void tell_files(const std::string& path, const std::string& name, Teller& teller) {
  Pool pool = Pool::open(path, lenient_options(true));
  const Files files = Files::open(pool, name);
  tell_folder(files, "/", teller);
}

DatabaseShape tell_shape(pm::PoolImpl& pool, const std::string& name, Teller& teller) {
  const DatabaseShape shape = shape_of(buffer::Engine::options_of(pool, name));
  teller.tell(kDatabase, {reinterpret_cast<const char*>(&shape), sizeof shape});
  return shape;
}

// Whose the page files are that were given. Nothing if the database has its pages in the pool. A
// log file that cannot be read at all is an error here, too.
void tell_owners(const std::string& path, const std::string& name, const DatabaseFiles& files,
                 Teller& teller) {
  Pool pool = Pool::open(path, lenient_options(true));
  pm::PoolImpl& impl = pm::impl_of(pool);
  const DatabaseShape shape = tell_shape(impl, name, teller);
  for (const std::string& file : files.log_files) {
    try {
      if (shape.has_log_file != 0) buffer::LogFile::salt_of(file);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kIo) throw;
    }
  }
  if (shape.has_page_file == 0) return;
  for (const std::string& file : files.page_files) {
    const auto owner = static_cast<char>(buffer::Engine::owner_of_page_file(impl, name, file));
    teller.tell(kOwner, {&owner, 1});
  }
}

// `page_file`: empty if its pages are in the pool.
void tell_database(const std::string& path, const std::string& name, const std::string& page_file,
                   const std::vector<std::string>& log_files, Teller& teller) {
  Pool pool = Pool::open(path, lenient_options(true));
  pm::PoolImpl& impl = pm::impl_of(pool);
  const std::unique_ptr<buffer::Engine> engine =
      buffer::Engine::open_damaged(impl, name, page_file, log_files);
  tell_shape(impl, name, teller);
  engine->salvage(
      [&](std::string_view tree) { teller.tell(kTree, tree); },
      [&](std::string_view key, std::string_view value) { teller.tell(kRecord, key, value); },
      [&](buffer::Loss loss, const std::string& sentence) {
        teller.tell(loss == buffer::Loss::kValue ? kLost : kLostMany, sentence);
      });
}

// ---- what the parent makes of it

// A damaged pool may tell of names, keys and paths that no pool has.
bool is_of_what_was_read(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kTooLarge:
    case ErrorCode::kWrongType:
    case ErrorCode::kNameExists:
    case ErrorCode::kExists:
    case ErrorCode::kNotFound:
    case ErrorCode::kNotAFile:
      return true;
    default:
      return false;
  }
}

Datum datum_of(const std::string& bytes, Kind kind, uint64_t& word) {
  if (kind == Kind::kBytes) return Datum(bytes);
  word = 0;
  std::memcpy(&word, bytes.data(), std::min(bytes.size(), sizeof word));
  return Datum(word);
}

class Salvage {
 public:
  Salvage(const std::string& from, Pool& to, const DatabaseFiles& files,
          const ProgressSink& progress, unsigned silence_s)
      : from_(from), to_(to), files_(files), progress_(progress), silence_s_(silence_s) {}

  SalvageReport run() {
    list();
    look_at_page_files();
    for (size_t i = 0; i < report_.structures.size(); ++i) {
      SalvagedStructure& one = report_.structures[i];
      if (one.info.type == Files::kTypeName) {
        copy_files(one);
      } else if (one.info.type == BlockCache::kTypeName) {
        one.complete = true;  // what it had is elsewhere; who used it makes it again
      } else if (one.info.type == Database::kTypeName) {
        copy_database(one, pages_[i]);
      } else {
        copy_records(one);
      }
    }
    check();
    finished_ = true;
    return std::move(report_);
  }
  // What nobody will have a pool for goes.
  ~Salvage() {
    if (finished_) return;
    for (const SalvagedStructure& one : report_.structures) {
      if (!one.page_file.empty()) ::unlink(one.page_file.c_str());
      if (!one.log_file.empty()) ::unlink(one.log_file.c_str());
    }
  }
  Salvage(const Salvage&) = delete;
  Salvage& operator=(const Salvage&) = delete;

 private:
  void list() {
    Reader reader([this](Teller& teller) { tell_structures(from_, teller); }, silence_s_);
    Frame frame;
    bool ended = false;
    while (!ended && reader.next(frame)) {
      if (frame.what == kStructure) {
        SalvagedStructure& one = report_.structures.emplace_back();
        const auto split = [](const std::string& text) {
          const size_t nul = text.find('\0');
          return std::pair(text.substr(0, nul), text.substr(nul + 1));
        };
        std::tie(one.info.name, one.info.type) = split(frame.first);
        std::tie(one.info.key_kind, one.info.value_kind) = split(frame.second);
      }
      if (frame.what == kStopped && !frame.second.empty()) {
        // What is no pool, or cannot be reached, is no damaged one.
        const auto code = static_cast<ErrorCode>(std::atoi(frame.second.c_str()));
        if (code != ErrorCode::kCorrupt && code != ErrorCode::kTruncated) {
          throw Error(code, frame.first);
        }
      }
      if (frame.what == kStopped) report_.problems.push_back(frame.first);
      ended = frame.what == kEnd;
    }
    if (!ended) report_.problems.push_back(reader.how_it_ended());
  }

  // Where the pages of a database are, and where they go.
  struct Pages {
    bool is_known = false;  // the database says where they are
    bool in_file = false;
    std::vector<buffer::PageFileOwner> owners;  // of each page file that was given
    std::string from;                           // its own; empty: none of them
    bool is_guess = false;                      // nothing in that file says whose it is
    std::string to;
    bool has_log_file = false;
    std::string log_to;
  };

  // Before anything is copied: which file is whose can only be told from all of them. Throws
  // kExists if a file that is to be made is there.
  void look_at_page_files() {
    pages_.resize(report_.structures.size());
    std::vector<Pages*> databases;
    for (size_t i = 0; i < pages_.size(); ++i) {
      if (report_.structures[i].info.type != Database::kTypeName) continue;
      pages_[i] = find_owners(report_.structures[i].info.name);
      if (pages_[i].in_file || !pages_[i].is_known) databases.push_back(&pages_[i]);
    }
    match(databases);
    std::set<std::string> names;
    for (size_t i = 0; i < pages_.size(); ++i) {
      Pages& one = pages_[i];
      const std::string& name = report_.structures[i].info.name;
      if (!one.from.empty()) one.to = choose_file(names, name, "pages");
      if (one.has_log_file) one.log_to = choose_file(names, name, "log");
    }
  }
  std::string choose_file(std::set<std::string>& names, const std::string& name,
                          const char* kind) const {
    std::string file;
    unsigned number = 1;
    do {
      file = files_.new_file(name, number++, kind);
    } while (!names.insert(file).second);
    if (std::filesystem::exists(std::filesystem::symlink_status(file))) {
      throw Error(ErrorCode::kExists,
                  fmt::format("{} is there already, where the {} of '{}' is to go; if a salvage "
                              "that was killed has left it, remove it",
                              file, std::strcmp(kind, "log") == 0 ? "log" : "page file", name));
    }
    return file;
  }
  static std::optional<DatabaseShape> shape_in(const Frame& frame) {
    if (frame.what != kDatabase || frame.first.size() != sizeof(DatabaseShape)) return std::nullopt;
    DatabaseShape shape;
    std::memcpy(&shape, frame.first.data(), sizeof shape);
    return shape;
  }
  Pages find_owners(const std::string& name) const {
    Pages pages;
    Reader reader([&](Teller& teller) { tell_owners(from_, name, files_, teller); }, silence_s_);
    Frame frame;
    while (reader.next(frame)) {
      if (const auto shape = shape_in(frame)) {
        pages.is_known = true;
        pages.in_file = shape->has_page_file != 0;
        pages.has_log_file = shape->has_log_file != 0;
      }
      if (frame.what == kOwner && frame.first.size() == 1)
        pages.owners.push_back(static_cast<buffer::PageFileOwner>(frame.first[0]));
      if (frame.what == kStopped && !frame.second.empty()) {
        const auto code = static_cast<ErrorCode>(std::atoi(frame.second.c_str()));
        const bool of_a_file = code == ErrorCode::kNotFound || code == ErrorCode::kPermission ||
                               code == ErrorCode::kLocked;
        if (of_a_file) throw Error(code, frame.first);
      }
      if (frame.what == kEnd) break;
    }
    pages.owners.resize(files_.page_files.size(), buffer::PageFileOwner::kOther);
    return pages;
  }
  // Each database gets the file that says that it is its own. The only file that says nothing is
  // taken for the only database that is left.
  void match(const std::vector<Pages*>& databases) const {
    const std::vector<std::string>& files = files_.page_files;
    std::vector<bool> is_taken(files.size());
    std::vector<Pages*> left;
    for (Pages* one : databases) {
      for (size_t i = 0; i < files.size(); ++i) {
        if (one->owners[i] != buffer::PageFileOwner::kThis) continue;
        is_taken[i] = true;
        if (one->from.empty()) one->from = files[i];
      }
      if (one->from.empty()) left.push_back(one);
    }
    if (left.size() != 1 || !left[0]->in_file) return;
    std::vector<size_t> unknown;
    for (size_t i = 0; i < files.size(); ++i) {
      if (!is_taken[i] && left[0]->owners[i] == buffer::PageFileOwner::kUnknown)
        unknown.push_back(i);
    }
    if (unknown.size() != 1) return;
    left[0]->from = files[unknown[0]];
    left[0]->is_guess = true;
  }

  // What is wrong with the pool as a whole. After everything is saved: it reads all of the file,
  // and may fail. It says nothing while it does, so it has the longer the larger the file is.
  void check() {
    constexpr uint64_t kBytesPerSecond = uint64_t{20} << 20;
    constexpr uint64_t kSilenceMaxSeconds = 1'000'000;  // in milliseconds it is an int
    std::error_code failed;
    const uint64_t file_bytes = std::filesystem::file_size(from_, failed);
    const uint64_t more_s = failed ? 0 : file_bytes / kBytesPerSecond;
    Reader reader([this](Teller& teller) { tell_faults(from_, teller); },
                  static_cast<unsigned>(std::min(silence_s_ + more_s, kSilenceMaxSeconds)));
    Frame frame;
    while (reader.next(frame)) {
      if (frame.what == kEnd) return;
      const bool is_problem = frame.what == kLost || frame.what == kStopped;
      if (is_problem && std::ranges::find(report_.problems, frame.first) == report_.problems.end())
        report_.problems.push_back(frame.first);
    }
    report_.problems.push_back("it could not be checked: " + reader.how_it_ended());
  }

  // Gives the frames of a child to `take`. Whether it came to its end without a kStopped or
  // kLostMany.
  bool read_all(SalvagedStructure& one, const std::function<void(Teller&)>& work,
                const std::function<void(const Frame&)>& take) {
    Reader reader(work, silence_s_);
    Frame frame;
    bool stopped = false;
    bool lost_many = false;
    while (reader.next(frame)) {
      if (frame.what == kEnd) return !stopped && !lost_many;
      lost_many = lost_many || frame.what == kLostMany;
      if (frame.what == kLost || frame.what == kLostMany) lose(one, frame.first);
      if (frame.what != kStopped) {
        try {
          take(frame);
        } catch (const Error& error) {
          if (!is_of_what_was_read(error)) throw;
          lose(one, error.what());
        }
      } else {
        stopped = true;
        note(one, frame.first);
      }
    }
    note(one, reader.how_it_ended());
    return false;
  }
  static void lose(SalvagedStructure& one, const std::string& sentence) {
    ++one.unreadable;
    note(one, sentence);
  }
  static void note(SalvagedStructure& one, const std::string& sentence) {
    if (one.lost.size() < kExamples && std::ranges::find(one.lost, sentence) == one.lost.end()) {
      one.lost.push_back(sentence);
    }
  }
  void show(const SalvagedStructure& one) const {
    if (progress_ && one.records % 1000 == 0) {
      progress_({.phase = "salvage " + one.info.name,
                 .items = one.records,
                 .fraction = -1,
                 .detail = {}});
    }
  }

  void copy_records(SalvagedStructure& one) {
    std::unique_ptr<AnyIndex> index;
    std::optional<std::pair<Kind, Kind>> kinds;
    try {
      kinds.emplace(parse_kind(one.info.key_kind), parse_kind(one.info.value_kind));
      index = create_index(to_, one.info.name, one.info.type, kinds->first, kinds->second);
    } catch (const Error& error) {
      if (!is_of_what_was_read(error)) throw;
      return note(one, error.what());  // of a type that this build does not know, or of no name
    }
    const auto take = [&](const Frame& frame) {
      if (frame.what != kRecord) return;
      uint64_t key_word = 0;
      uint64_t value_word = 0;
      const Datum key = datum_of(frame.first, kinds->first, key_word);
      const Datum value = datum_of(frame.second, kinds->second, value_word);
      if (index->insert(key, value)) {
        ++one.records;
        show(one);
      }
    };
    one.complete =
        read_all(one, [&](Teller& teller) { tell_records(from_, one.info.name, teller); }, take);
    if (one.complete) return;
    // Once more, record by record.
    one.complete = read_all(
        one, [&](Teller& teller) { tell_readable_keys(from_, one.info.name, teller); }, take);
  }

  void copy_files(SalvagedStructure& one) {
    std::optional<Files> made;
    try {
      made.emplace(Files::create(to_, one.info.name));
    } catch (const Error& error) {
      if (!is_of_what_was_read(error)) throw;
      return note(one, error.what());
    }
    Files& files = *made;
    std::optional<FileWriter> writer;
    std::string path;  // of the file that is being written
    const auto give_up = [&] {
      if (!writer) return;
      writer.reset();
      files.remove(path);
    };
    one.complete = read_all(
        one, [&](Teller& teller) { tell_files(from_, one.info.name, teller); },
        [&](const Frame& frame) {
          if (frame.what == kFolder) files.make_directory(frame.first);
          if (frame.what == kFile) {
            path = frame.first;
            writer.emplace(files.create_file(path));
          }
          if (frame.what == kPiece && writer) writer->append(frame.first);
          if (frame.what == kLost) give_up();  // it was that file
          if (frame.what != kFileEnd || !writer) return;
          writer->sync();
          writer->close();
          writer.reset();
          ++one.records;
          show(one);
        });
    if (!writer) return;
    give_up();
    lose(one, fmt::format("{}: was not read to its end", path));
  }

  void copy_database(SalvagedStructure& one, const Pages& pages) {
    if (pages.in_file && pages.from.empty()) {
      return note(one, files_.page_files.empty()
                           ? "its pages are in a file of their own: say which, with --pages"
                           : "its pages are in a file of their own, and no file given with --pages "
                             "is known to be that one: give those of all databases of the pool");
    }
    if (pages.is_guess) {
      note(one,
           fmt::format("{}: page 0 is damaged, which says whose file it is; it was taken since "
                       "no other file and no other database is left",
                       pages.from));
    }
    std::optional<DatabaseWriter> writer;
    const bool all_read = read_all(
        one,
        [&](Teller& teller) {
          tell_database(from_, one.info.name, pages.from, files_.log_files, teller);
        },
        [&](const Frame& frame) {
          if (const auto shape = shape_in(frame)) {
            writer.emplace(to_, one.info.name, *shape, pages.to, pages.log_to);
            one.page_file = pages.to;  // it was made
            one.log_file = pages.log_to;
          }
          if (!writer) return;
          if (frame.what == kTree) writer->begin_tree(frame.first);
          if (frame.what != kRecord) return;
          writer->add(frame.first, frame.second);
          ++one.records;
          show(one);
        });
    if (writer) writer->write();
    one.complete = all_read && !pages.is_guess;
  }

  const std::string& from_;
  Pool& to_;
  const DatabaseFiles& files_;
  const ProgressSink& progress_;
  unsigned silence_s_;
  SalvageReport report_;
  std::vector<Pages> pages_;  // of each structure
  bool finished_ = false;
};

}  // namespace

bool SalvageReport::is_complete() const {
  return problems.empty() && std::ranges::all_of(structures, [](const SalvagedStructure& one) {
           return one.complete && one.unreadable == 0;
         });
}

std::string DatabaseFiles::new_file(const std::string& name, unsigned number,
                                    const char* kind) const {
  std::string plain = name;
  for (char& one : plain) {
    if (std::isalnum(static_cast<unsigned char>(one)) == 0 && one != '-' && one != '_') one = '_';
  }
  if (number > 1) plain += fmt::format(".{}", number);
  return fmt::format("{}.{}.{}", new_pool, plain, kind);
}

SalvageReport salvage_pool(const std::string& from, Pool& to, const DatabaseFiles& files,
                           const ProgressSink& progress, unsigned silence_s) {
  return Salvage(from, to, files, progress, silence_s).run();
}

uint64_t salvage_capacity(const std::string& from) {
  std::error_code failed;
  const uint64_t file_bytes = std::filesystem::file_size(from, failed);
  if (failed) {
    throw Error(ErrorCode::kNotFound, fmt::format("{}: {}", from, failed.message()));
  }
  pm::PoolHeader header{};
  const int file = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    if (::pread(file, &header, sizeof header, 0) != sizeof header) header = {};
    ::close(file);
  }
  uint64_t capacity = header.capacity_bytes;
  uint64_t raised = 0;
  if (header.capacity_word != 0 &&
      pm::unseal_word(header.capacity_word, pm::kCapacitySalt, raised)) {
    capacity = raised * pm::kSegmentBytes;
  }
  const uint64_t fits = std::max<uint64_t>(2 * file_bytes, uint64_t{16} << 20);
  // A header that says a thousand times what the file has may be a damaged one.
  const bool believable = capacity >= file_bytes && capacity <= Pool::kMaxCapacityBytes &&
                          (capacity <= (uint64_t{1} << 34) || capacity / 1024 <= file_bytes);
  return believable ? std::max(capacity, Pool::kMinCapacityBytes) : fits;
}

}  // namespace perdure::cli
