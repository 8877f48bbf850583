#include "lab/study/state.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "lab/model/model.h"
#include "perdure/error.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "perdure-study-state-1";

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) throw Error(ErrorCode::kIo, fmt::format("{}: cannot read it", path));
  return text;
}

// "records 1000 (now 2000), seed 1 (now 2)".
std::string differences(const json& kept, const json& now) {
  std::string text;
  for (const auto& [name, value] : now.items()) {
    const json before = kept.value(name, json(nullptr));
    if (before == value) continue;
    text += text.empty() ? "" : ", ";
    // Long ones say little to people.
    const bool is_short = value.is_primitive() && name != "build";
    text += is_short ? fmt::format("{} {} (now {})", name, before.dump(), value.dump()) : name;
  }
  return text;
}

uint64_t hash_of_file(const std::string& path) {
  const std::string bytes = read_all(path);
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

StateFile::StateFile(std::string path, const json& parameters) : path_(std::move(path)) {
  if (path_.empty()) return;
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {}", path_, std::strerror(errno)));
  }
  try {
    if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
      throw Error(ErrorCode::kLocked,
                  fmt::format("{}: another run is keeping its results there", path_));
    }
    take_up(read_all(path_), parameters);
  } catch (...) {
    close(file_);
    throw;
  }
}

StateFile::~StateFile() {
  if (file_ >= 0) close(file_);
}

void StateFile::take_up(const std::string& text, const json& parameters) {
  const auto foreign = [this](const char* what) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: {}; name another file with --state", path_, what));
  };
  size_t from = 0;
  json header;
  for (size_t end = 0; (end = text.find('\n', from)) != std::string::npos; from = end + 1) {
    json line = json::parse(text.begin() + static_cast<std::ptrdiff_t>(from),
                            text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (!line.is_object()) throw foreign("this is no state of a study");
    (from == 0 ? header : results_.emplace_back()) = std::move(line);
  }
  if (header.is_null()) {
    // New; or cut short within its first line, which no other kind of file begins with.
    if (!text.starts_with(R"({"parameters":)") && !text.empty()) {
      throw foreign("this is no state of a study");
    }
    if (ftruncate(file_, 0) != 0) throw foreign(std::strerror(errno));
    append({{"schema", kSchema}, {"parameters", parameters}});
    return;
  }
  if (header.value("schema", "") != kSchema) throw foreign("this is no state of a study");
  if (const std::string other = differences(header.at("parameters"), parameters); !other.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: these results are of a run that differs in {}; give the options "
                            "it had, or name another file with --state",
                            path_, other));
  }
  if (from < text.size() && ftruncate(file_, static_cast<off_t>(from)) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {}", path_, std::strerror(errno)));
  }
}

void StateFile::add(const json& result) {
  if (file_ >= 0) append(result);
  results_.push_back(result);
}

void StateFile::append(const json& line) const {
  const std::string text = line.dump() + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(file_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw Error(ErrorCode::kIo, fmt::format("{}: {}", path_, std::strerror(errno)));
    }
    done += static_cast<size_t>(written);
  }
}

std::string build_identity() {
  // The structures are in the executable, the model in a library of its own.
  std::string text = fmt::format("{:016x}", hash_of_file("/proc/self/exe"));
  Dl_info model{};
  const auto* address = reinterpret_cast<const void*>(&builtin_profile_names);
  if (dladdr(address, &model) != 0 && model.dli_fname != nullptr &&
      access(model.dli_fname, R_OK) == 0) {
    text += fmt::format("-{:016x}", hash_of_file(model.dli_fname));
  }
  return text;
}

}  // namespace perdure::lab::study
