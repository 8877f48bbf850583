#include "cli/open_index.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "common/units.h"
#include "perdure/catalog.h"
#include "perdure/error.h"
#include "pm/backup.h"
#include "pm/copy_limit.h"
#include "pm/system_error.h"

namespace perdure::cli {
namespace {

// Behind the name of a structure that does not have all of its records yet.
constexpr std::string_view kConverting = ".converting";

void require_same(const std::string& name, const char* what, const std::string& wanted,
                  const std::string& found) {
  if (wanted.empty() || wanted == found) return;
  throw Error(ErrorCode::kWrongType,
              fmt::format("structure \"{}\" has {} {}, not {}; leave the option out, or use "
                          "another --name",
                          name, what, found, wanted));
}

std::string or_default(const std::string& text, const char* otherwise) {
  return text.empty() ? otherwise : text;
}

// Says what of the command line is for new pools only, and so has no effect.
void tell_ignored(const Pool& pool, const Creation& creation) {
  const PoolInfo info = pool.info();
  constexpr uint64_t kStep = uint64_t{64} << 10;  // capacities are multiples of it
  if (!creation.capacity_given ||
      parse_bytes(creation.capacity) / kStep * kStep == info.capacity_bytes) {
    return;
  }
  fmt::print(stderr,
             "perdure: {} is there already, with a capacity of {}; --capacity {} is for new pools "
             "and has no effect: `perdure pool grow` raises the capacity of one\n",
             info.path, format_bytes(info.capacity_bytes), creation.capacity);
}

bool file_exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

Pool open_live_copy(const Target& target, const PoolOptions& options) {
  const PoolInfo info = Pool::inspect(target.pool).info;
  pm::require_memory_for_copy(info.high_water_bytes, options.copy_bytes_max, target.pool);
  // Open as long as its mapping is there.
  const int file = ::memfd_create("perdure-live", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) pm::throw_errno("memfd_create", target.pool, errno);
  try {
    // Pages count as those of the process, and of its limits, that writes to them first: not the
    // other one. If they are not to be had the copy says so.
    static_cast<void>(
        !::fallocate(file, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(info.high_water_bytes)));
    pm::ask_for_copy(target.pool, {file, "the copy in memory", nullptr, {}}, nullptr);
    // From now on nobody writes to it, nor who has made it.
    constexpr int kSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
    if (::fcntl(file, F_ADD_SEALS, kSeals) != 0) pm::throw_errno("fcntl", target.pool, errno);
    Pool pool = Pool::open(fmt::format("/proc/self/fd/{}", file), options);
    ::close(file);
    return pool;
  } catch (...) {
    ::close(file);
    throw;
  }
}

}  // namespace

Pool open_pool_to_read(const Target& target) {
  const PoolOptions options = reading_options_for(target);
  try {
    return Pool::open(target.pool, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kLocked) throw;
    if (!target.live) {
      throw Error(
          ErrorCode::kLocked,
          fmt::format("{}; or read a copy, which that process makes, with --live", error.what()));
    }
  }
  return open_live_copy(target, options);
}

std::optional<StructureInfo> find_structure(const Pool& pool, const std::string& name) {
  for (const StructureInfo& structure : pool.structures()) {
    if (structure.name == name) return structure;
  }
  return std::nullopt;
}

std::unique_ptr<OpenIndex> OpenIndex::open_to_read(const Target& target) {
  std::unique_ptr<OpenIndex> opened(new OpenIndex(target.name));
  opened->pool_.emplace(open_pool_to_read(target));
  opened->index_ = open_index(*opened->pool_, target.name);
  return opened;
}

std::unique_ptr<OpenIndex> OpenIndex::open_to_write(const Target& target) {
  std::unique_ptr<OpenIndex> opened(new OpenIndex(target.name));
  opened->pool_.emplace(Pool::open(target.pool, pool_options_for(target, {})));
  opened->index_ = open_index(*opened->pool_, target.name);
  return opened;
}

void OpenIndex::open_or_create_pool(const Target& target, const Creation& creation) {
  const PoolOptions options = pool_options_for(target, creation);
  const bool is_new = !file_exists(target.pool);
  pool_.emplace(is_new ? Pool::create(target.pool, options) : Pool::open(target.pool, options));
  if (is_new) {
    new_pool_ = target.pool;
  } else {
    tell_ignored(*pool_, creation);
  }
}

std::unique_ptr<OpenIndex> OpenIndex::open_or_create(const Target& target,
                                                     const Creation& creation) {
  std::unique_ptr<OpenIndex> opened(new OpenIndex(target.name));
  opened->open_or_create_pool(target, creation);
  try {
    opened->open_or_create_index(creation);
  } catch (...) {
    if (!opened->new_pool_.empty()) unlink(target.pool.c_str());
    throw;
  }
  return opened;
}

std::unique_ptr<OpenIndex> OpenIndex::create_converting(const Target& target,
                                                        const Creation& creation) {
  std::unique_ptr<OpenIndex> opened(new OpenIndex(target.name + std::string(kConverting)));
  opened->open_or_create_pool(target, creation);
  if (find_structure(*opened->pool_, target.name)) {
    throw Error(ErrorCode::kNameExists,
                fmt::format("{}: there is a structure \"{}\" already; choose another --name",
                            target.pool, target.name));
  }
  try {
    if (find_structure(*opened->pool_, opened->name_)) {
      drop_structure(*opened->pool_, opened->name_);
    }
    opened->open_or_create_index(creation);
  } catch (...) {
    opened->discard();
    throw;
  }
  return opened;
}

void OpenIndex::open_or_create_index(const Creation& creation) {
  const std::optional<StructureInfo> found = find_structure(*pool_, name_);
  if (found) {
    if (!creation.structure.empty()) {
      require_same(name_, "type", catalog_entry(creation.structure).name, found->type);
    }
    require_same(name_, "key kind", creation.key_kind, found->key_kind);
    require_same(name_, "value kind", creation.value_kind, found->value_kind);
    if (!creation.options.empty()) {
      fmt::print(stderr,
                 "perdure: structure \"{}\" is there already; --option is for new ones and has no "
                 "effect\n",
                 name_);
    }
    index_ = open_index(*pool_, name_);
    return;
  }
  const Kind key = parse_kind(or_default(creation.key_kind, "bytes"));
  const Kind value = parse_kind(or_default(creation.value_kind, "bytes"));
  const bool of_bytes = key == Kind::kBytes && value == Kind::kBytes;
  index_ =
      create_index(*pool_, name_, or_default(creation.structure, of_bytes ? "rstore" : "plush"),
                   key, value, parse_structure_options(creation.options));
}

StructureInfo OpenIndex::structure() const { return find_structure(*pool_, name_).value(); }

void OpenIndex::close() {
  index_.reset();
  if (pool_) pool_->close();
  pool_.reset();
}

void OpenIndex::keep() {
  index_.reset();
  pool_->rename(name_, name_.substr(0, name_.size() - kConverting.size()));
  close();
}

void OpenIndex::discard() noexcept {
  try {
    index_.reset();
    if (new_pool_.empty() && find_structure(*pool_, name_)) drop_structure(*pool_, name_);
    close();
  } catch (const std::exception&) {  // the next conversion to this name does it
  }
  if (!new_pool_.empty()) unlink(new_pool_.c_str());
}

}  // namespace perdure::cli
