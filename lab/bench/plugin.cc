#include "lab/bench/plugin.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "lab/plugin_index.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

namespace fs = std::filesystem;

uint64_t occupied_bytes(const fs::path& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_blocks) * 512 : 0;
}

// A library's index, and what its file or folder takes on the medium: the library itself tells
// nothing.
class PluginStore final : public BenchStore {
 public:
  PluginStore(std::unique_ptr<AnyIndex> index, std::string path)
      : index_(std::move(index)), path_(std::move(path)) {}

  AnyIndex& index() override { return *index_; }
  uint64_t stored_bytes() const override {
    std::error_code error;
    if (!fs::is_directory(path_, error)) return occupied_bytes(path_);
    uint64_t bytes = 0;
    for (const auto& file : fs::recursive_directory_iterator(path_, error)) {
      bytes += occupied_bytes(file.path());
    }
    return bytes;
  }

 private:
  std::unique_ptr<AnyIndex> index_;
  std::string path_;
};

// Perdure's own libraries make pools as well: in the domain of the other pools of the run, which
// the interface has no word for. Nothing else in this process opens a pool meanwhile.
class DomainOfPlugins {
 public:
  explicit DomainOfPlugins(const PoolOptions& options) : set_(options.force_domain) {
    if (set_) setenv(kVariable, to_string(options.domain), 1);
  }
  ~DomainOfPlugins() {
    if (set_) unsetenv(kVariable);
  }
  DomainOfPlugins(const DomainOfPlugins&) = delete;
  DomainOfPlugins& operator=(const DomainOfPlugins&) = delete;

 private:
  static constexpr char kVariable[] = "PERDURE_DOMAIN";
  const bool set_;
};

}  // namespace

bool is_plugin(const std::string& name) {
  return fs::path(name).filename().string().find(".so") != std::string::npos;
}

Contender plugin_contender(const std::string& library) {
  std::error_code error;
  if (!fs::exists(library, error)) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: there is no such file", library));
  }
  Contender contender;
  contender.name = fs::path(library).filename();
  contender.kind = "plugin";
  contender.durability = "what the library promises";
  contender.create = [library](const std::string& path, const StoreOptions& options) {
    const DomainOfPlugins domain(options.pool);
    return std::make_unique<PluginStore>(load_plugin({.library = library,
                                                      .key_kind = options.key_kind,
                                                      .value_kind = options.value_kind,
                                                      .key_bytes = options.key_bytes,
                                                      .value_bytes = options.value_bytes,
                                                      .pool_path = path,
                                                      .pool_bytes = options.pool.capacity_bytes,
                                                      .threads = options.threads}),
                                         path);
  };
  return contender;
}

}  // namespace perdure::lab
