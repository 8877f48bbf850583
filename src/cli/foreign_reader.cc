#include "cli/foreign_reader.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "perdure/error.h"

namespace perdure::cli {
namespace {

constexpr std::array<const char*, 3> kStores = {"leveldb", "lmdb", "rocksdb"};
constexpr int kRecordPipeBytes = 1 << 20;

// Beside the command in a build, in libexec when installed, or where PERDURE_READERS says.
std::vector<std::string> reader_folders() {
  if (const char* named = std::getenv("PERDURE_READERS")) return {named};
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  std::string folder = length <= 0 ? "." : std::string(path.data(), static_cast<size_t>(length));
  folder.erase(std::min(folder.rfind('/'), folder.size()));
  return {folder + "/readers", folder + "/" PERDURE_READER_FOLDER};
}

std::string reader_of(const std::string& store) {
  for (const std::string& folder : reader_folders()) {
    const std::string path = fmt::format("{}/perdure-read-{}", folder, store);
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  throw Error(ErrorCode::kNotFound,
              fmt::format("there is no reader of {0} databases here: install lib{0}-dev and build "
                          "Perdure again, or install the package perdure-read-{0}",
                          store));
}

// "leveldb:/var/db" as its two parts.
std::pair<std::string, std::string> parse_from(const std::string& from) {
  const size_t colon = from.find(':');
  const std::string store = from.substr(0, colon);
  const bool known = std::find(kStores.begin(), kStores.end(), store) != kStores.end();
  if (!known || colon == std::string::npos || colon + 1 == from.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--from {}: give leveldb:FOLDER, lmdb:PATH or rocksdb:FOLDER", from));
  }
  return {store, from.substr(colon + 1)};
}

std::string text_of(int file) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got;
       (got = pread(file, buffer.data(), buffer.size(), static_cast<off_t>(text.size()))) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  return text;
}

// Takes the last line from the end of a text.
std::string take_last_line(std::string& text) {
  while (text.ends_with('\n')) text.pop_back();
  const size_t newline = text.rfind('\n');
  const size_t begin = newline == std::string::npos ? 0 : newline + 1;
  std::string line = text.substr(begin);
  text.erase(begin);
  return line;
}

}  // namespace

ForeignReader::ForeignReader(const ForeignSource& source, const std::atomic<bool>& stop)
    : name_(source.from) {
  const auto [store, path] = parse_from(source.from);
  if (access(path.c_str(), F_OK) != 0) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  std::vector<std::string> arguments = {reader_of(store)};
  const auto add = [&arguments](const char* option, const std::string& value) {
    if (!value.empty()) arguments.push_back(std::string(option) + "=" + value);
  };
  add("--database", source.database);
  add("--key-words", source.key_words);
  add("--value-words", source.value_words);
  arguments.insert(arguments.end(), {"--", path});
  errors_ = memfd_create("errors", MFD_CLOEXEC);
  reader_.emplace(arguments, STDOUT_FILENO, kRecordPipeBytes, errors_);
  lines_.emplace(reader_->pipe(), name_, "record", &stop);
  if (lines_->peek() < 0 && !stop) finish();
}

ForeignReader::~ForeignReader() {
  if (errors_ >= 0) close(errors_);
}

uint64_t ForeignReader::finish() {
  const int code = reader_->wait();
  std::string words = text_of(errors_);
  const std::string last = take_last_line(words);
  if (code < 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: its reader was ended by signal {} ({}), as happens where files of "
                            "the database are damaged or cut short{}{}",
                            name_, -code, strsignal(-code), last.empty() ? "" : ": ", last));
  }
  uint64_t records = 0;
  const std::from_chars_result end =
      std::from_chars(last.data(), last.data() + last.size(), records);
  if (code != 0 || std::string_view(end.ptr) != " records") {
    throw Error(ErrorCode::kIo, fmt::format("{} cannot be read: {}", name_, last));
  }
  if (!words.empty()) fmt::print(stderr, "perdure: {}: {}", name_, words);
  return records;
}

}  // namespace perdure::cli
