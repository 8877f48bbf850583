#include "buffer/engine.h"

#include <fmt/core.h>
#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <random>
#include <unordered_map>

#include "buffer/btree/tree.h"
#include "pm/checksum.h"
#include "pm/drop.h"
#include "pm/pause.h"
#include "pm/thread.h"

namespace perdure::buffer {

namespace {

// One for each thread that waits: an exception that several handle at once would be freed by
// whichever of them is the last.
std::exception_ptr copy_of_current_error() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    try {
      return std::make_exception_ptr(Error(error.code(), error.what()));
    } catch (...) {
      return std::current_exception();  // memory is short
    }
  } catch (...) {
    return std::current_exception();
  }
}

constexpr uint64_t kLogBytesMin = uint64_t{1} << 20;
constexpr uint64_t kLogBytesMax = uint64_t{16} << 30;
static_assert(kLogBytesMax / 4 - Log::kAlign <= ~uint32_t{0});
constexpr uint64_t kFramesMin = 16;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

void check_options(const DatabaseOptions& options) {
  if (!std::has_single_bit(options.page_bytes) || options.page_bytes < kPageBytesMin ||
      options.page_bytes > kPageBytesMax) {
    refuse(fmt::format("page_bytes is {}; it must be a power of two from {} to {}",
                       options.page_bytes, kPageBytesMin, kPageBytesMax));
  }
  if (!std::has_single_bit(options.checksums) || options.checksums > kPartsMax) {
    refuse(fmt::format("checksums is {}; it must be a power of two from 1 to {}", options.checksums,
                       kPartsMax));
  }
  if (options.log_bytes < kLogBytesMin) {
    refuse(fmt::format("log_bytes is {}; it must be at least {}", options.log_bytes, kLogBytesMin));
  }
  if (options.log_bytes > kLogBytesMax) {
    refuse(
        fmt::format("log_bytes is {}; it must be at most {}, as an entry, of which a quarter is "
                    "the most, has its length in 32 bits",
                    options.log_bytes, kLogBytesMax));
  }
}

uint64_t wanted_frames(const pm::PoolImpl& pool, const DatabaseOptions& options,
                       uint32_t page_bytes) {
  if (!options.pm_frames) return 0;
  const uint64_t bytes = options.pm_bytes != 0 ? options.pm_bytes : pool.capacity_bytes() / 8;
  return bytes / page_bytes;
}

void check_frames(uint64_t dram, uint64_t pm) {
  if (dram + pm >= kFramesMin) return;
  refuse(fmt::format("dram_bytes and pm_bytes hold {} pages; a database needs {}", dram + pm,
                     kFramesMin));
}

// Its sizes are such as create() takes: what is computed from them neither overflows nor leaves the
// pool.
uint64_t find_root(pm::PoolImpl& pool, const std::string& name) {
  const uint64_t block = index::find_structure(pool, name, Database::kTypeName, Kind::kBytes,
                                               Kind::kBytes, sizeof(Root));
  const bool in_file = pool.at<Root>(block)->seal.magic == kRootMagicLogFile;
  const uint64_t at =
      index::find_structure(pool, name, Database::kTypeName, Kind::kBytes, Kind::kBytes,
                            in_file ? kRootMagicLogFile : kRootMagic, sizeof(Root), kSealedBytes);
  const Root& root = *pool.at<Root>(at);
  const uint64_t log_align = in_file ? LogFile::kBlock : Log::kAlign;
  const uint64_t pages_max = pool.capacity_bytes() / kPageBytesMin;
  const bool fits = std::has_single_bit(root.page_bytes) && root.page_bytes >= kPageBytesMin &&
                    root.page_bytes <= kPageBytesMax && std::has_single_bit(root.parts) &&
                    root.parts <= kPartsMax && root.log_bytes >= kLogBytesMin &&
                    root.log_bytes % log_align == 0 && root.store_pages <= pages_max &&
                    root.log_in_file == (in_file ? 1 : 0);
  if (!fits) pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  return at;
}

uint64_t frame_count_of(pm::PoolImpl& pool, const Root& root, const std::string& name) {
  uint64_t frames = 0;
  if (!pm::unseal_word(root.frame_count, kCountSalt, frames) ||
      frames > pool.capacity_bytes() / kPageBytesMin) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  return frames;
}

uint64_t table_bytes_of(const Root& root, uint64_t frames) {
  return frames * sizeof(uint64_t) * ((root.extras & kHasHints) != 0 ? 2 : 1);
}

// Where its end is kept in the block that the root leads to: behind the ring, if that is there.
uint64_t log_end_at(const Root& root) { return root.log_in_file != 0 ? 0 : root.log_bytes; }

bool has_log_end(const Root& root) {
  return root.log_in_file != 0 || (root.extras & kHasLogEnd) != 0;
}

uint64_t log_block_bytes_of(const Root& root) {
  return log_end_at(root) + (has_log_end(root) ? pm::kLineBytes : 0);
}

Log open_log(const pm::PoolImpl& pool, const Root& root, std::unique_ptr<LogFile> file) {
  char* block = pool.follow<char>(root.log, log_block_bytes_of(root));
  auto* end = has_log_end(root) ? reinterpret_cast<uint64_t*>(block + log_end_at(root)) : nullptr;
  if (!file) return Log(pool.memory(), block, end, root.log_bytes, root.salt, pool.read_only());
  return Log(pool.memory(), std::move(file), end, root.log_bytes, root.salt);
}

// Throws kInvalidArgument if a file is given to a database that has none of this kind, or none to
// one that has.
void require_file(const pm::PoolImpl& pool, const std::string& name, const char* what, bool in_file,
                  const std::string& file) {
  if (in_file != file.empty()) return;
  refuse(fmt::format("{}: the {} of '{}' {} in {}", pool.mapping().path(), what, name,
                     what[std::strlen(what) - 1] == 's' ? "are" : "is",
                     in_file ? "a file: give its name" : "the pool: give no file"));
}

// The one among these that is the database's own, to read; else one without a file. `not_used` gets
// a sentence for each one that may be its own, and is damaged.
std::unique_ptr<LogFile> find_log_file(const Root& root, const std::vector<std::string>& files,
                                       std::vector<std::string>& not_used) {
  for (const std::string& file : files) {
    try {
      const std::optional<uint64_t> salt = LogFile::salt_of(file);
      if (salt == root.salt) {
        return std::make_unique<LogFile>(file, root.salt, root.log_bytes, LogFile::Use::kRead);
      }
      if (!salt)
        not_used.push_back(fmt::format("{} is no log file, or its header is damaged", file));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kIo) throw;
      not_used.emplace_back(error.what());
    }
  }
  return std::make_unique<LogFile>(root.log_bytes);
}

// What there was before a creation or an opening that has failed.
void restore_archive(const std::string& path, Archive::Before before) {
  if (before == Archive::Before::kMissing) ::unlink(path.c_str());
  // Else it would seem to be another database's. If this fails, that is what it does.
  if (before == Archive::Before::kEmpty) static_cast<void>(::truncate(path.c_str(), 0) == 0);
}

// Null: none is wanted.
std::unique_ptr<Archive> open_archive(const Root& root, const DatabaseOptions& options) {
  if (options.archive.empty()) return nullptr;
  return std::make_unique<Archive>(options.archive, root.salt, root.log_bytes, words_of(root).head);
}

// How often pages were met. The memory is for those that were, whatever their numbers.
class PageMarks {
 public:
  uint8_t meet(uint64_t page) {
    uint8_t& times = chunks_[page / kChunk][page % kChunk];
    if (times == 0) ++count_;
    return ++times;
  }
  bool was_met(uint64_t page) const {
    const auto chunk = chunks_.find(page / kChunk);
    return chunk != chunks_.end() && chunk->second[page % kChunk] != 0;
  }
  uint64_t count() const { return count_; }

 private:
  static constexpr uint64_t kChunk = 4096;
  std::unordered_map<uint64_t, std::array<uint8_t, kChunk>> chunks_;
  uint64_t count_ = 0;
};
constexpr uint64_t kNamedLost = 16;

// The salt in page 0; nothing if that is not sound.
std::optional<uint64_t> salt_in(const PageFormat& format, const char* page) {
  if (!format.is_sound(page, 0)) return std::nullopt;
  SpaceBody space;
  std::memcpy(&space, page + format.body(), sizeof space);
  return space.salt;
}

// Whether among the first pages of a file there is one of another format.
bool has_pages_of_another_format(const std::string& page_file, const PageFormat& own) {
  constexpr uint64_t kPagesLookedAt = 64;
  for (uint32_t bytes = kPageBytesMin; bytes <= kPageBytesMax; bytes *= 2) {
    const std::unique_ptr<PageStore> store = open_page_file_to_read(page_file, bytes);
    const AlignedBytes page = aligned_bytes(bytes);
    for (uint64_t id = 0; id < kPagesLookedAt; ++id) {
      try {
        store->read(id, page.get());
      } catch (const Error&) {
        continue;  // a page that cannot be read tells nothing
      }
      const uint32_t parts = header_of(page.get()).parts;
      if (!std::has_single_bit(parts) || parts > kPartsMax) continue;
      if (bytes == own.page_bytes() && parts == own.parts()) continue;
      if (PageFormat(bytes, parts).is_sound(page.get(), id)) return true;
    }
  }
  return false;
}

// A word that leads to a block which may be missing, and its count.
struct FrameWords {
  uint64_t table;
  uint64_t frames;
  uint64_t count;
};
static_assert(offsetof(Root, frame_count) - offsetof(Root, table) == offsetof(FrameWords, count));

// Takes back a database that was made and could not be opened. `use`: since before it could be, so
// that nobody else has worked with it. False: it is there, and opens.
bool take_back(pm::PoolImpl& pool, const std::string& name, index::StructureUse use) {
  try {
    pm::Drop drop(pool, name);
    Engine::visit_blocks(pool, name, [&](uint64_t offset, uint64_t) { drop.add(offset); });
    drop.commit();
    use.reset();
    try {
      drop.finish();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the next opening goes on
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

uint32_t Engine::stamp_of(uint64_t root, std::string_view key) {
  return static_cast<uint32_t>(pm::checksum64(key.data(), key.size(), root) % kStamps);
}

uint32_t Engine::stamp_of_page(uint64_t page) {
  return static_cast<uint32_t>(pm::checksum64(&page, sizeof page, 1) % kStamps);
}

std::unique_ptr<Engine> Engine::create(pm::PoolImpl& pool, const std::string& name,
                                       const DatabaseOptions& options) {
  check_options(options);
  pool.require_writable();
  // Before files are made: those of the database that has the name are not left over.
  pool.require_new_name(name);
  const uint64_t page_bytes = options.page_bytes;
  if (options.page_file.empty() && options.pages_max > pool.capacity_bytes() / page_bytes) {
    refuse(fmt::format("pages_max is {}; the pool has room for fewer than {}", options.pages_max,
                       pool.capacity_bytes() / page_bytes));
  }
  const uint64_t frames = wanted_frames(pool, options, options.page_bytes);
  check_frames(options.dram_bytes / page_bytes, frames);
  Root root{};
  const bool log_in_file = !options.log_file.empty();
  root.seal.magic = log_in_file ? kRootMagicLogFile : kRootMagic;
  root.salt = uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  const uint64_t log_align = log_in_file ? LogFile::kBlock : Log::kAlign;
  root.log_bytes = options.log_bytes / log_align * log_align;
  root.log_in_file = log_in_file ? 1 : 0;
  root.page_bytes = options.page_bytes;
  root.parts = options.checksums;
  root.extras = kHasHints | kHasLogEnd;
  root.head = pm::seal_word(Log::kFirst / Log::kAlign, kHeadSalt);
  root.batch = pm::seal_word(0, kBatchSalt);
  root.frame_count = pm::seal_word(frames, kCountSalt);
  const auto nothing = [](char*) {};
  const auto begin_log = [&pool, end_at = log_end_at(root)](char* block) {
    char* const end = block + end_at;
    std::memset(end, 0, pm::kLineBytes);
    const uint64_t first = pm::seal_word(Log::kFirst / Log::kAlign, kLogEndSalt);
    std::memcpy(end, &first, sizeof first);
    pool.memory().flush(end, pm::kLineBytes);
  };
  std::vector<index::NewBlock> blocks = {
      {log_block_bytes_of(root), offsetof(Root, log), begin_log},
      {page_bytes * kStagedMax, offsetof(Root, staging), nothing}};
  if (frames != 0) {
    // An empty table.
    const uint64_t table_bytes = table_bytes_of(root, frames);
    const auto zero = [&pool, table_bytes](char* table) {
      std::memset(table, 0, table_bytes);
      pool.memory().flush(table, table_bytes);
    };
    blocks.push_back({table_bytes, offsetof(Root, table), zero});
    blocks.push_back({frames * page_bytes, offsetof(Root, frames), nothing});
  }
  std::unique_ptr<PageStore> store;
  if (options.page_file.empty()) {
    // One block: in a pool whose capacity was raised what is larger than an extent has no place.
    const uint64_t most = std::min(pool.capacity_bytes() / 2, pool.run_bytes_max() / 4 * 3);
    root.store_pages = options.pages_max != 0 ? options.pages_max : most / page_bytes;
    blocks.push_back({root.store_pages * page_bytes, offsetof(Root, pages), nothing});
  } else {
    store = open_page_file(options.page_file, options.page_bytes, true);
  }
  const bool has_pages = store != nullptr;
  bool has_log = false;
  auto archive_was = Archive::Before::kBegun;
  index::StructureUse use;
  try {
    std::unique_ptr<LogFile> log;
    if (log_in_file) {
      log = std::make_unique<LogFile>(options.log_file, root.salt, root.log_bytes,
                                      LogFile::Use::kCreate);
      has_log = true;
    }
    std::unique_ptr<Archive> archive = open_archive(root, options);
    if (archive) {
      archive_was = archive->before();
      archive->start();
    }
    const uint64_t at =
        index::make_structure(pool, name, Database::kTypeName, Kind::kBytes, Kind::kBytes, &root,
                              sizeof root, kSealedBytes, blocks, &use);
    return std::unique_ptr<Engine>(new Engine(pool, name, at, use, std::move(log), std::move(store),
                                              std::move(archive), options));
  } catch (...) {
    // What cannot be taken back keeps its files: it can be opened.
    if (use && !take_back(pool, name, std::move(use))) throw;
    if (has_pages) ::unlink(options.page_file.c_str());
    if (has_log) ::unlink(options.log_file.c_str());
    restore_archive(options.archive, archive_was);
    throw;
  }
}

std::unique_ptr<Engine> Engine::open(pm::PoolImpl& pool, const std::string& name,
                                     const DatabaseOptions& options) {
  const uint64_t at = find_root(pool, name);
  pool.require_writable();  // recovery writes
  // Before its files, which are locked if it is open already.
  auto use = std::make_shared<const pm::PoolImpl::Use>(pool, name, at);
  const Root& root = *pool.at<Root>(at);
  require_file(pool, name, "pages", root.store_pages == 0, options.page_file);
  require_file(pool, name, "log", root.log_in_file != 0, options.log_file);
  std::unique_ptr<LogFile> log;
  if (root.log_in_file != 0) {
    log =
        std::make_unique<LogFile>(options.log_file, root.salt, root.log_bytes, LogFile::Use::kOpen);
  }
  std::unique_ptr<PageStore> store;
  if (root.store_pages == 0) store = open_page_file(options.page_file, root.page_bytes, false);
  std::unique_ptr<Archive> archive = open_archive(root, options);
  const auto archive_was = archive ? archive->before() : Archive::Before::kBegun;
  try {
    return std::unique_ptr<Engine>(new Engine(pool, name, at, std::move(use), std::move(log),
                                              std::move(store), std::move(archive), options));
  } catch (...) {
    if (!Archive::has_entries(options.archive)) restore_archive(options.archive, archive_was);
    throw;
  }
}

std::unique_ptr<Engine> Engine::open_damaged(pm::PoolImpl& pool, const std::string& name,
                                             const std::string& page_file,
                                             const std::vector<std::string>& log_files) {
  const uint64_t at = find_root(pool, name);
  const Root& root = *pool.at<Root>(at);
  require_file(pool, name, "pages", root.store_pages == 0, page_file);
  DatabaseOptions options;
  options.pm_frames = frame_count_of(pool, root, name) != 0;
  options.background = false;
  std::unique_ptr<PageStore> store;
  if (root.store_pages == 0) store = open_page_file_to_read(page_file, root.page_bytes);
  std::unique_ptr<LogFile> log;
  std::vector<std::string> not_used;
  if (root.log_in_file != 0) log = find_log_file(root, log_files, not_used);
  std::unique_ptr<Engine> engine(
      new Engine(pool, name, at, std::make_shared<const pm::PoolImpl::Use>(pool, name, at),
                 std::move(log), std::move(store), nullptr, options));
  engine->log_files_not_used_ = std::move(not_used);
  engine->buffer_->recovery().keep_newer();
  return engine;
}

PageFileOwner Engine::owner_of_page_file(pm::PoolImpl& pool, const std::string& name,
                                         const std::string& page_file) {
  const Root& root = *pool.at<Root>(find_root(pool, name));
  const PageFormat format(root.page_bytes, root.parts);
  const AlignedBytes page = aligned_bytes(root.page_bytes);
  std::optional<uint64_t> salt;
  const std::unique_ptr<PageStore> store = open_page_file_to_read(page_file, root.page_bytes);
  try {
    store->read(0, page.get());
    salt = salt_in(format, page.get());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
  }
  if (salt) return *salt == root.salt ? PageFileOwner::kThis : PageFileOwner::kOther;
  return has_pages_of_another_format(page_file, format) ? PageFileOwner::kOther
                                                        : PageFileOwner::kUnknown;
}

DatabaseOptions Engine::options_of(pm::PoolImpl& pool, const std::string& name) {
  const Root& root = *pool.at<Root>(find_root(pool, name));
  const uint64_t frames = frame_count_of(pool, root, name);
  DatabaseOptions options;
  options.page_bytes = root.page_bytes;
  options.checksums = root.parts;
  options.log_bytes = root.log_bytes;
  options.pages_max = root.store_pages;
  options.pm_bytes = frames * root.page_bytes;
  options.pm_frames = frames != 0;
  if (root.store_pages == 0) options.page_file = "pages";
  if (root.log_in_file != 0) options.log_file = "log";
  return options;
}

void Engine::salvage(
    const std::function<void(std::string_view name)>& tree,
    const std::function<void(std::string_view key, std::string_view value)>& record,
    const std::function<void(Loss, const std::string&)>& lost) {
  std::vector<std::pair<std::string, uint64_t>> trees;
  bool knows_all_trees = true;
  if (log_.lacks_entries()) {
    for (const std::string& sentence : log_files_not_used_) {
      lost(Loss::kRange, sentence + "; it was not used");
    }
    lost(
        Loss::kRange,
        log_.has_lost_end()
            ? "where the log ends is damaged in the pool: nobody can say whether it has the last "
              "commits"
        : !log_.is_in_file()
            ? "the log in the pool is damaged: what the commits from there on did may be missing, "
              "and there in part"
            : "the log file does not have the last commits, or was not given: what they did may be "
              "missing, and there in part");
  }
  TreeSalvage salvage(*buffer_);
  const auto lost_name = [&](Loss, const std::string& sentence) {
    knows_all_trees = false;
    lost(Loss::kRange, sentence);
  };
  const auto name_of = [&](std::string_view name, std::string_view value) {
    uint64_t root = 0;
    if (value.size() == sizeof root) std::memcpy(&root, value.data(), sizeof root);
    trees.emplace_back(name, root);
  };
  if (!salvage.walk({}, kCatalogueRoot, name_of, lost_name)) knows_all_trees = false;
  for (const auto& [name, root] : trees) {
    tree(name);
    salvage.walk(name, root, record, lost);
  }
  salvage.find_strays(knows_all_trees ? page_count() : 0, tree, record, lost);
  if (const std::set<uint64_t>& newer = buffer_->recovery().kept_newer(); !newer.empty()) {
    lost(Loss::kRange,
         fmt::format(
             "pages that are newer than what the log has were read as they are, {} of them, "
             "the first one page {}: what the same commits did to other pages may be missing",
             newer.size(), *newer.begin()));
  }
}

// As the last commit has left it.
SpaceBody Engine::space() const {
  PageGuard guard(*buffer_, buffer_->pin(0));
  guard.lock_shared();
  SpaceBody space;
  std::memcpy(&space, guard.data() + format_.body(), sizeof space);
  return space;
}

// How many pages there may be.
uint64_t Engine::page_count() const {
  try {
    return std::min(space().pages, store_->capacity());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return root_.store_pages;  // in a file: not known
  }
}

void Engine::visit_blocks(pm::PoolImpl& pool, const std::string& name,
                          const std::function<void(uint64_t offset, uint64_t bytes)>& visit) {
  const uint64_t at = find_root(pool, name);
  const Root& root = *pool.at<Root>(at);
  const uint64_t frames = frame_count_of(pool, root, name);
  const index::VisitBlock block(pool, visit);
  const uint64_t page_bytes = root.page_bytes;
  block(at, sizeof(Root));
  block(root.log, log_block_bytes_of(root));
  block(root.staging, page_bytes * kStagedMax);
  if (root.store_pages != 0) block(root.pages, root.store_pages * page_bytes);
  if (frames == 0) return;
  block(root.table, table_bytes_of(root, frames));
  block(root.frames, frames * page_bytes);
}

Engine::Engine(pm::PoolImpl& pool, const std::string& name, uint64_t root,
               std::shared_ptr<const pm::PoolImpl::Use> use, std::unique_ptr<LogFile> log,
               std::unique_ptr<PageStore> store, std::unique_ptr<Archive> archive,
               const DatabaseOptions& options)
    : pool_(pool),
      use_(std::move(use)),
      name_(name),
      root_(*pool.at<Root>(root)),
      format_(root_.page_bytes, root_.parts),
      log_(open_log(pool, root_, std::move(log))),
      store_(std::move(store)),
      archive_(std::move(archive)),
      stamps_(std::make_unique<std::atomic<uint64_t>[]>(kStamps)),
      versions_(std::make_shared<Versions>(options.snapshot_bytes)) {
  const uint64_t page_bytes = root_.page_bytes;
  if (store_) {
    require_own_file();
  } else {
    store_ = open_page_area(pool.memory(),
                            pool.follow<char>(root_.pages, root_.store_pages * page_bytes),
                            root_.store_pages, root_.page_bytes);
  }
  const uint64_t frames = frame_count_of(pool, root_, name);
  const bool keep = options.pm_frames && options.pm_bytes == 0 && frames != 0;
  const uint64_t wanted = keep ? frames : wanted_frames(pool, options, root_.page_bytes);
  const uint64_t dram = options.dram_bytes / page_bytes;
  check_frames(dram, wanted);
  Areas areas{&root_, nullptr, nullptr, pool.follow<char>(root_.staging, page_bytes * kStagedMax),
              nullptr};
  if (wanted != frames) {
    // Read twice, then: with a log file that is refused, the frames may have what nothing else has.
    log_.analyse(words_of(root_).head, [](uint64_t, uint64_t, const LogRecord&) {});
    resize(wanted);
  }
  if (wanted != 0) {
    areas.table = pool.follow<uint64_t>(root_.table, table_bytes_of(root_, wanted));
    if ((root_.extras & kHasHints) != 0) areas.hints = areas.table + wanted;
    areas.frames = pool.follow<char>(root_.frames, wanted * page_bytes);
  }
  buffer_ = std::make_unique<BufferPool>(format_, pool.memory(), log_, *store_, areas, dram, wanted,
                                         std::max(1U, options.checksum_every));
  if (archive_) {
    buffer_->recovery().set_archive([this](uint64_t id, uint64_t lsn, char* page) {
      return archive_->make_page(format_, log_, id, lsn, page);
    });
    buffer_->on_release([this](uint64_t from, uint64_t to) { archive_->add(log_, from, to); });
  }
  buffer_->recover(pool_.may_be_unflushed());
  if (archive_) archive_->start();
  log_limit_ = log_.bytes() / 4 * (buffer_->recovery().pending() > 0 ? 3 : 2);
  set_moment_to_now();
  if (options.background) buffer_->expect_prefetch();
  format_pages();
  try {
    if (options.background) {
      background_ = pm::start_thread("a database", [this] { work_in_background(); });
    }
  } catch (const Error&) {
    // No thread is to be had: those who ask and commit do it all.
    buffer_->give_up_prefetch();
  }
}

Engine::~Engine() {
  lifetime_.end();
  if (background_.joinable()) {
    {
      const std::lock_guard lock(background_mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    background_.join();
    try {
      buffer_->note_dram_pages();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): hints
    }
  }
  try {
    checkpoint();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the log has everything
  }
}

// Another number of frames in PM: a new table and new frames, and what the old ones held is read
// again.
void Engine::resize(uint64_t frames) {
  const uint64_t table_bytes = table_bytes_of(root_, frames);
  FrameWords words{0, 0, pm::seal_word(frames, kCountSalt)};
  pm::Heap::Txn txn(pool_.heap());
  if (frames != 0) {
    words.table = txn.allocate(table_bytes);
    words.frames = txn.allocate(frames * root_.page_bytes);
    std::memset(pool_.at<char>(words.table), 0, table_bytes);
    pool_.memory().flush(pool_.at<char>(words.table), table_bytes);
    txn.will_link(words.table, &root_.table, pm::Link::kOffset);
    txn.will_link(words.frames, &root_.frames, pm::Link::kOffset);
  }
  if (root_.table != 0) {
    txn.will_unlink(root_.table, &root_.table, pm::Link::kOffset);
    txn.will_unlink(root_.frames, &root_.frames, pm::Link::kOffset);
  }
  txn.redo(&root_.table, &words, sizeof words);
  // The empty table, before the word that leads to it.
  txn.commit([&] { txn.apply(); });
}

// The space page and the catalogue, if they are not there: a crash may have come before.
void Engine::format_pages() {
  Recovery::Expected expected{};
  const bool never = log_.head() == Log::kFirst && !buffer_->recovery().find(0, expected);
  if (never) {
    Commit first;
    first.work = [this](Change& change) {
      const SpaceBody space{1, 0, 0, root_.salt};
      change.format_space({reinterpret_cast<const char*>(&space), sizeof space});
      TreeWriter::create(change);
    };
    commit(first);
    checkpoint();
  }
}

// Before anything is written to it. A page 0 that a crash has torn tells nothing.
void Engine::require_own_file() {
  const AlignedBytes page = aligned_bytes(root_.page_bytes);
  store_->read(0, page.get());
  const std::optional<uint64_t> salt = salt_in(format_, page.get());
  if (salt && *salt != root_.salt) {
    refuse(fmt::format("{}: the page file given for '{}' belongs to another database",
                       pool_.mapping().path(), name_));
  }
}

// Below the next entry's LSN: a commit with that is a conflict for who has read before it.
void Engine::set_moment_to_now() { moment_.store(log_.tail() - 1, std::memory_order_release); }

void Engine::require_running() const {
  if (pool_.failed()) pool_.require_writable();
  log_.require_sound();
  if (!stopped_.load(std::memory_order_relaxed)) return;
  throw Error(
      ErrorCode::kIo,
      fmt::format("'{}': a commit could not be undone; close the database and open it again",
                  name_));
}

void Engine::commit(Commit& request) {
  pool_.require_writable();
  require_running();
  // Who holds commits back must not wait for a leader, who waits for him.
  bool leads = holder_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  {
    std::unique_lock lock(queue_mutex_);
    queue_.insert(request.first ? queue_.begin() : queue_.end(), &request);
    if (!leads) {
      look_for_turn(request, lock);
      turn_.wait(lock, [&] { return request.done || !has_leader_; });
      leads = !request.done;
      if (leads) has_leader_ = true;
    }
  }
  if (leads) {
    const std::lock_guard lock(commit_mutex_);
    if (request.done) {
      give_up_lead({});
    } else {
      run_group();
    }
  }
  if (request.error) std::rethrow_exception(request.error);
}

// To sleep and be woken takes longer than most commits do: one of those that wait looks for about
// as long as a commit takes whether its turn has come. `lock` is on queue_mutex_.
void Engine::look_for_turn(const Commit& request, std::unique_lock<std::mutex>& lock) {
  constexpr int kLooks = 100;
  if (one_looks_ || !has_leader_ || log_.is_in_file()) return;
  one_looks_ = true;
  lock.unlock();
  for (int i = 0; i < kLooks && pm::acquire(has_leader_) && !pm::acquire(request.done); ++i) {
    _mm_pause();
  }
  lock.lock();
  one_looks_ = false;
}

// There may be two leaders, if one has waited for who held commits back. commit_mutex_ lets one at
// a time make a group.
void Engine::give_up_lead(const std::vector<Commit*>& done) {
  {
    const std::lock_guard lock(queue_mutex_);
    for (Commit* one : done) one->done = true;
    has_leader_ = false;
  }
  turn_.notify_all();
}

void Engine::run_group() {
  std::vector<Commit*> group = std::move(group_memory_);
  group.clear();
  {
    const std::lock_guard lock(queue_mutex_);
    group.swap(queue_);
  }
  try {
    run(group);
  } catch (...) {
    set_moment_to_now();
    if (group.size() > 1 && !pool_.failed() && !stopped_.load(std::memory_order_relaxed)) {
      // One of them cannot be done; the others are to have their turn.
      for (Commit* one : group) {
        if (one->error) continue;
        try {
          run({one});
        } catch (...) {
          set_moment_to_now();
          one->error = std::current_exception();
        }
      }
    } else {
      for (Commit* one : group) one->error = copy_of_current_error();
    }
  }
  give_up_lead(group);
  group_memory_ = std::move(group);
}

// Throws if one of them cannot be carried out; then none of them was.
void Engine::run(const std::vector<Commit*>& group) {
  // After a log file has failed nothing may be changed any more, even to be undone: what it has of
  // the commit that failed may be whole, and a page in PM must not bear the same LSN for another
  // change.
  require_running();
  make_room();
  Change change(*buffer_, log_, spare_memory_, store_->capacity());
  uint64_t carried_out = 0;
  try {
    for (Commit* one : group) {
      try {
        if (one->reads != nullptr) validate(*one->reads, one->moment);
      } catch (const Error&) {
        one->error = std::current_exception();
        conflicts_.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      carry_out(*one, change);
      // A commit that has erased what was not there has no LSN that ever becomes the moment.
      if (!change.is_empty()) set_stamps(*one, change);
      ++carried_out;
    }
    if (change.is_empty()) return;
    change.write();
    // The commits' records, before anybody hears of the commits or sees their pages. A crash before
    // that ends the log before the entry, and pages in PM that have changed are newer than it.
    log_.fence();
  } catch (...) {
    try {
      change.rollback();
    } catch (...) {
      stopped_.store(true, std::memory_order_relaxed);
      throw;
    }
    throw;
  }
  // To the end of the entry: LSNs of its records are above its own.
  versions_->publish(moment_, log_.tail() - 1, change.lsn(),
                     [&change](const Versions::Keep& keep) { change.visit_replaced(keep); });
  change.finish();
  commits_.fetch_add(carried_out, std::memory_order_relaxed);
  groups_.fetch_add(1, std::memory_order_relaxed);
  // What was lent after a crash comes back by a quarter of what is committed: to wait for all of it
  // at once would stop commits again.
  const uint64_t half = log_.bytes() / 4 * 2;
  if (log_limit_ > half && buffer_->recovery().pending() == 0) {
    log_limit_ -= std::min(log_limit_ - half, (log_.tail() - change.lsn()) / 4);
  }
}

void Engine::validate(const std::vector<uint32_t>& reads, uint64_t moment) const {
  for (const uint32_t place : reads) {
    if (stamp(place) > moment) {
      throw Error(ErrorCode::kConflict,
                  "another transaction has changed what this one has read; do it again");
    }
  }
}

void Engine::carry_out(const Commit& request, Change& change) {
  if (request.writes != nullptr) {
    for (const auto& [root, writes] : *request.writes) {
      TreeWriter tree(change, root);
      for (const auto& [key, value] : writes) {
        if (value) {
          tree.put(key, *value);
        } else {
          tree.erase(key);
        }
      }
    }
  }
  if (request.work) request.work(change);
}

void Engine::set_stamps(const Commit& request, const Change& change) {
  const auto set = [&](uint32_t place) { pm::publish(stamps_[place], uint64_t{change.lsn()}); };
  if (request.writes != nullptr) {
    for (const auto& [root, writes] : *request.writes) {
      for (const auto& [key, value] : writes) set(stamp_of(root, key));
    }
  }
  change.for_each_edited([&](uint64_t page) { set(stamp_of_page(page)); });
}

// A step towards a shorter log: mends pages that keep it, if any are pending, writes up to `pages`
// of those that do, and moves its head. Returns how many were written.
uint64_t Engine::shorten_log(uint64_t pages) {
  if (buffer_->recovery().pending() > 0) {
    pages = std::min(pages, buffer_->mended_at_once());
    uint64_t mended = 1;
    for (uint64_t n = 0; n < pages && mended > 0; n += mended) {
      mended = buffer_->mend_some(pages - n);
    }
    // The last ones keep the log until those who are at them have read them.
    if (mended == 0) buffer_->await_mending();
  }
  const uint64_t cleaned = buffer_->clean(pages);
  buffer_->truncate();
  return cleaned;
}

// Lets the log have room for an entry as long as entries may be, a quarter of it. A database that
// is at work waits at a half already: so a crash leaves room to commit in while its pages are
// mended.
void Engine::make_room() {
  log_.require_lsns();
  const auto too_full = [&] { return log_.used() > log_.bytes() / 4 * 3; };
  for (int i = 0; log_.used() > log_limit_; ++i) {
    try {
      const uint64_t cleaned = shorten_log(1024);
      const bool held = buffer_->recovery().given_up() != kNoPage;
      if (cleaned == 0 && (held || i > 100)) break;
    } catch (const Error&) {
      if (too_full()) throw;
      return;
    }
  }
  if (too_full()) {
    if (const uint64_t page = buffer_->recovery().given_up(); page != kNoPage) {
      throw Error(ErrorCode::kNoSpace,
                  fmt::format("the log of the database is full: it keeps the records of page {}, "
                              "which is damaged in the page file; nothing was changed; restore the "
                              "page file from a copy",
                              page));
    }
    throw Error(ErrorCode::kNoSpace,
                "the log of the database is full, since pages cannot be written; nothing was "
                "changed");
  }
}

void Engine::work_in_background() {
  constexpr auto kPause = std::chrono::milliseconds(5);
  constexpr uint64_t kJudgedAtOnce = 64;  // pages, before the log is looked at again
  constexpr uint64_t kPrefetchedAtOnce = 1024;
  constexpr uint64_t kWrittenAtOnce = 1024;
  constexpr auto kNotedEach = std::chrono::seconds(1);
  const auto stops = [this] {
    const std::lock_guard lock(background_mutex_);
    return stop_;
  };
  auto noted = std::chrono::steady_clock::now();
  auto pause = kPause;
  for (;;) {
    {
      std::unique_lock lock(background_mutex_);
      if (wake_.wait_for(lock, pause, [&] { return stop_; })) return;
    }
    pause = kPause;
    try {
      // What was in DRAM is asked for most.
      uint64_t prefetched = 0;
      while (buffer_->awaits_prefetch() && prefetched < kPrefetchedAtOnce && !stops()) {
        prefetched += buffer_->prefetch_some(page_count());
      }
      const bool long_log = log_.used() > log_.bytes() / 4;
      if (long_log) shorten_log(kWrittenAtOnce);
      if (long_log) pause = std::chrono::milliseconds(0);
      uint64_t judged = 0;
      for (uint64_t some = 1; some > 0 && judged < kJudgedAtOnce; judged += some) {
        some = buffer_->judge_next(judge_mutex_);
      }
      if (judged >= kJudgedAtOnce || prefetched > 0) pause = std::chrono::milliseconds(0);
      if (const auto now = std::chrono::steady_clock::now(); now - noted >= kNotedEach) {
        buffer_->note_dram_pages();
        noted = now;
      }
    } catch (const std::exception&) {          // no memory, too
      pause = std::chrono::milliseconds(200);  // those who commit hear of it when it matters
    }
  }
}

uint64_t Engine::find_tree(std::string_view name, const Moment* moment) {
  std::string value;
  uint64_t root = 0;
  if (tree_get({*buffer_, moment}, kCatalogueRoot, name, value) && value.size() == sizeof root) {
    std::memcpy(&root, value.data(), sizeof root);
  }
  return root;
}

uint64_t Engine::make_tree(std::string_view name) {
  if (const uint64_t root = find_tree(name)) return root;
  if (name.size() > key_bytes_max(format_)) {
    throw Error(ErrorCode::kTooLarge, fmt::format("the name of a tree has {} bytes; it may have {}",
                                                  name.size(), key_bytes_max(format_)));
  }
  const HeldCommits held(*this);
  if (const uint64_t root = find_tree(name)) return root;
  Commit request;
  request.work = [&](Change& change) {
    const uint64_t root = TreeWriter::create(change);
    {
      // Before anybody finds it. If the commit fails, its LSN will never be given to what follows.
      const std::lock_guard lock(made_mutex_);
      made_[root] = change.lsn();
    }
    TreeWriter(change, kCatalogueRoot)
        .put(name, {reinterpret_cast<const char*>(&root), sizeof root});
  };
  commit(request);
  return find_tree(name);
}

uint64_t Engine::made_at(uint64_t root) const {
  const std::lock_guard lock(made_mutex_);
  const auto found = made_.find(root);
  return found == made_.end() ? 0 : found->second;
}

std::vector<std::string> Engine::trees(const Moment* moment) {
  std::vector<std::string> names;
  LeafCopy leaf;
  do {
    const std::string from = leaf.next;
    tree_read_forward({*buffer_, moment}, kCatalogueRoot, from, leaf);
    for (LeafCopy::Record& record : leaf.records) names.push_back(std::move(record.key));
  } while (!leaf.last);
  return names;
}

void Engine::checkpoint() {
  // What is changed meanwhile is left to the next one.
  const uint64_t until = log_.tail();
  while (buffer_->judge_next(judge_mutex_) > 0) {
  }
  while (buffer_->clean(1024, until) > 0) {
  }
  buffer_->truncate();
}

void Engine::recover(const std::function<void(const RecoveryProgress&)>& told) {
  uint64_t count = 0;
  while (const uint64_t judged = buffer_->judge_next(judge_mutex_)) {
    count += judged;
    if (told && (judged > 1 || count % 64 == 0)) told(recovery());
  }
  if (told) told(recovery());
}

RecoveryProgress Engine::recovery() const {
  const RecoveryCounters& counters = buffer_->recovery().counters();
  return {buffer_->recovery().pending(),
          counters.right,
          counters.older,
          counters.newer,
          counters.corrupted,
          counters.fetched,
          counters.archived};
}

uint64_t Engine::check(const std::function<void(const std::string&)>& report) {
  const HeldCommits held(*this);
  uint64_t problems = 0;
  const std::function<void(const std::string&)> tell = [&](const std::string& sentence) {
    ++problems;
    report(fmt::format("'{}': {}", name_, sentence));
  };
  const SpaceBody space = this->space();
  PageMarks met;
  const std::function<void(uint64_t)> meet = [&](uint64_t page) {
    if (page >= space.pages) {
      throw Error(ErrorCode::kCorrupt, fmt::format("'{}': page {} does not exist", name_, page));
    }
    const uint8_t times = met.meet(page);
    if (times == 2) tell(fmt::format("page {} is used twice", page));
    if (times > 2) {
      throw Error(ErrorCode::kCorrupt, fmt::format("'{}': pages lead in a circle", name_));
    }
  };
  meet(0);
  tree_check(*buffer_, kCatalogueRoot, tell, meet);
  for (const std::string& name : trees()) tree_check(*buffer_, find_tree(name), tell, meet);
  uint64_t free = 0;
  for (uint64_t page = space.free; page != 0; ++free) {
    meet(page);
    const PageGuard guard(*buffer_, buffer_->pin(page));
    if (header_of(guard.data()).type != PageType::kFree) {
      tell(fmt::format("page {} is in the list of free pages, and is not free", page));
    }
    std::memcpy(&page, guard.data() + format_.body(), sizeof page);
  }
  if (free != space.free_count) tell("the number of free pages is wrong");
  uint64_t lost = space.pages - std::min(space.pages, met.count());
  for (uint64_t page = 0, named = 0; lost > 0 && page < space.pages; ++page) {
    if (met.was_met(page)) continue;
    if (++named == kNamedLost && lost > 1) {
      tell(fmt::format("page {} and {} more are lost", page, lost - 1));
      break;
    }
    tell(fmt::format("page {} is lost", page));
    --lost;
  }
  return problems;
}

std::vector<Statistic> Engine::statistics() {
  const SpaceBody space = this->space();
  const BufferPool::Use use = buffer_->use();
  const PoolCounters& counters = buffer_->counters();
  const RecoveryProgress mended = recovery();
  index::StatisticList list;
  list.add("pages", space.pages, "pages");
  list.add("free_pages", space.free_count, "pages");
  list.add("page_bytes", format_.page_bytes(), "bytes");
  list.add("checksums", format_.parts(), "per page");
  list.add("dram_frames", buffer_->dram_frames(), "pages");
  list.add("pm_frames", buffer_->pm_frames(), "pages");
  list.add("dram_pages", use.dram, "pages");
  list.add("pm_pages", use.pm, "pages");
  list.add("changed_pages", use.changed, "pages");
  list.add("log_bytes", log_.bytes(), "bytes");
  list.add("log_files", log_.is_in_file() ? 1 : 0, "files");
  list.add("log_used_bytes", log_.used(), "bytes");
  list.add("commits", commits_, "commits");
  list.add("commit_groups", groups_, "fences");
  list.add("conflicts", conflicts_, "commits");
  list.add("snapshots", versions_->moments(), "snapshots");
  list.add("snapshot_bytes", versions_->bytes(), "bytes");
  list.add("snapshots_given_up", versions_->given_up(), "snapshots");
  list.add("misses", counters.misses, "pages");
  list.add("promotions", counters.promotions, "pages");
  list.add("evictions", counters.evictions, "pages");
  list.add("prefetched", counters.prefetched, "pages");
  list.add("pages_written", counters.written, "pages");
  list.add("page_file_io_uring", store_->has_ring() ? 1 : 0, "rings");
  list.add("recovery_pending", mended.pending, "pages");
  list.add("recovery_right", mended.right, "pages");
  list.add("recovery_older", mended.older, "pages");
  list.add("recovery_newer", mended.newer, "pages");
  list.add("recovery_corrupted", mended.corrupted, "pages");
  list.add("recovery_fetched", mended.fetched, "pages");
  list.add("recovery_archived", mended.archived, "pages");
  list.add("recovery_records", buffer_->recovery().counters().replayed, "records");
  return list.take();
}

}  // namespace perdure::buffer
