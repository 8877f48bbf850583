#include "cli/record_source.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/text.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;

ErrorCode code_of(int error) {
  if (error == ENOENT || error == ENOTDIR) return ErrorCode::kNotFound;
  if (error == EACCES) return ErrorCode::kPermission;
  if (error == EISDIR) return ErrorCode::kNotAFile;
  return ErrorCode::kIo;
}

[[noreturn]] void fail(const std::string& name, int error) {
  throw Error(code_of(error), fmt::format("cannot read {}: {}", name, std::strerror(error)));
}

std::string absolute_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr),
                                                         &std::free);
  return real == nullptr ? path : std::string(real.get());
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

void parse_tsv(std::string_view line, Kind key_kind, Kind value_kind, Value& key, Value& value) {
  const size_t tab = line.find('\t');
  if (tab == std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument, "there is no tab between a key and a value");
  }
  const std::string_view value_text = line.substr(tab + 1);
  if (value_text.find('\t') != std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                "there is more than one tab; write a tab inside a key or value as \\t");
  }
  const auto parse = [](std::string_view text, Kind kind, Value& out) {
    if (kind == Kind::kU64) return parse_datum(text, kind, out);
    std::string& bytes = out.set_bytes();
    bytes.clear();
    append_tsv_unescaped(text, bytes);
  };
  parse(line.substr(0, tab), key_kind, key);
  parse(value_text, value_kind, value);
}

// Takes a field of RFC 4180 from the front of `line`, with the comma behind it. Returns whether
// there was one.
bool take_csv_field(std::string_view& line, std::string& out) {
  out.clear();
  if (!line.starts_with('"')) {
    const size_t end = std::min(line.find(','), line.size());
    const std::string_view field = line.substr(0, end);
    if (field.find('"') != std::string_view::npos) {
      throw Error(ErrorCode::kInvalidArgument,
                  "there is a quote within a field that does not begin with one; put the field in "
                  "quotes, and write the quote twice");
    }
    out = field;
    const bool comma = end < line.size();
    line.remove_prefix(end + (comma ? 1 : 0));
    return comma;
  }
  for (size_t at = 1;;) {
    const size_t quote = line.find('"', at);
    if (quote == std::string_view::npos) {
      throw Error(ErrorCode::kInvalidArgument, "a field in quotes does not end");
    }
    out.append(line.substr(at, quote - at));
    at = quote + 1;
    if (at < line.size() && line[at] == '"') {
      out += '"';
      ++at;
      continue;
    }
    const bool comma = at < line.size() && line[at] == ',';
    if (!comma && at < line.size()) {
      throw Error(ErrorCode::kInvalidArgument, "there is more behind a field in quotes");
    }
    line.remove_prefix(at + (comma ? 1 : 0));
    return comma;
  }
}

void parse_csv(std::string_view line, Kind key_kind, Kind value_kind, Value& key, Value& value) {
  // Of an end of line of two bytes.
  if (line.ends_with('\r')) line.remove_suffix(1);
  std::string field;
  if (!take_csv_field(line, field)) {
    throw Error(ErrorCode::kInvalidArgument, "there is no comma between a key and a value");
  }
  parse_datum(field, key_kind, key);
  if (take_csv_field(line, field)) {
    throw Error(ErrorCode::kInvalidArgument,
                "there are more than two fields; put a key or value with a comma in quotes");
  }
  parse_datum(field, value_kind, value);
}

void parse_json_line(std::string_view line, Kind key_kind, Kind value_kind, Value& key,
                     Value& value) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    // Behind the library's own name of the error: "[json.exception...] parse error at ...: why".
    const std::string_view what = error.what();
    const size_t bracket = what.find("] ");
    throw Error(ErrorCode::kInvalidArgument,
                std::string(bracket == std::string_view::npos ? what : what.substr(bracket + 2)));
  }
  if (!object.is_object()) {
    throw Error(ErrorCode::kInvalidArgument, "not an object {\"key\": ..., \"value\": ...}");
  }
  get_json(object, "key", key_kind, key);
  get_json(object, "value", value_kind, value);
}

}  // namespace

LineSource::LineSource(const std::string& path, const std::atomic<bool>* stop)
    : stop_(stop), name_(path == "-" ? "standard input" : path), buffer_(kReadBytes) {
  file_ = path == "-" ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) fail(name_, errno);
  struct stat status{};
  if (fstat(file_, &status) != 0) fail(name_, errno);
  if (S_ISDIR(status.st_mode)) {
    close(file_);
    fail(name_, EISDIR);
  }
  is_file_ = path != "-" && S_ISREG(status.st_mode);
  if (!is_file_) return;
  size_bytes_ = static_cast<uint64_t>(status.st_size);
  identity_ = fmt::format("{} {} {}.{:09}", absolute_path(path), status.st_size,
                          status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

LineSource::LineSource(int pipe, std::string name, std::string unit, const std::atomic<bool>* stop)
    : stop_(stop),
      name_(std::move(name)),
      unit_(std::move(unit)),
      file_(fcntl(pipe, F_DUPFD_CLOEXEC, 0)),
      buffer_(kReadBytes) {
  if (file_ < 0) fail(name_, errno);
}

LineSource::~LineSource() { close(file_); }

bool LineSource::fill() {
  if (at_end_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    scanned_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) {
    if (buffer_.size() > kMaxLineBytes) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: longer than {} MiB", place(line_number_ + 1), kMaxLineBytes >> 20));
    }
    buffer_.resize(2 * buffer_.size());
  }
  ssize_t got = -1;
  do {
    got = read(file_, buffer_.data() + end_, buffer_.size() - end_);
  } while (got < 0 && errno == EINTR && !stopped());
  if (got < 0 && errno != EINTR) fail(name_, errno);
  if (got < 0) got = 0;
  at_end_ = got == 0;
  end_ += static_cast<size_t>(got);
  return got > 0;
}

const char* LineSource::find_newline(size_t from, In& in) const {
  const char* const begin = buffer_.data() + from;
  const char* const end = buffer_.data() + end_;
  if (!quotes_) {
    return static_cast<const char*>(std::memchr(begin, '\n', end_ - from));
  }
  for (const char* at = begin; at != end; ++at) {
    const bool quote = *at == '"';
    if (in == In::kQuotes) {
      if (quote) in = In::kQuoteInQuotes;
    } else if (quote && in != In::kPlain) {
      in = In::kQuotes;  // the first of a field, or the second of two
    } else if (*at == '\n') {
      in = In::kFieldStart;
      return at;
    } else {
      in = *at == ',' ? In::kFieldStart : In::kPlain;
    }
  }
  return nullptr;
}

std::string LineSource::place(uint64_t line) const {
  return fmt::format("{}, {} {}", name_, unit_, line);
}

bool LineSource::has_buffered_line() const {
  In in = in_;
  return find_newline(scanned_, in) != nullptr;
}

int LineSource::peek() {
  if (begin_ == end_) fill();
  return begin_ == end_ ? -1 : static_cast<unsigned char>(buffer_[begin_]);
}

bool LineSource::next(std::string_view& line) {
  while (!stopped()) {
    const char* newline = find_newline(scanned_, in_);
    if (newline != nullptr || at_end_) {
      const size_t line_end =
          newline == nullptr ? end_ : static_cast<size_t>(newline - buffer_.data());
      if (newline == nullptr && begin_ == end_) return false;
      line = std::string_view(buffer_.data() + begin_, line_end - begin_);
      const size_t next_begin = line_end + (newline == nullptr ? 0 : 1);
      position_bytes_ += next_begin - begin_;
      begin_ = scanned_ = next_begin;
      ++line_number_;
      return true;
    }
    scanned_ = end_;
    fill();
  }
  return false;
}

const char* to_string(TextFormat format) noexcept {
  switch (format) {
    case TextFormat::kTsv:
      return "tsv";
    case TextFormat::kJsonLines:
      return "jsonl";
    case TextFormat::kCsv:
      return "csv";
  }
  return "unknown";
}

TextFormat parse_format(std::string_view name) {
  for (const TextFormat format : {TextFormat::kTsv, TextFormat::kJsonLines, TextFormat::kCsv}) {
    if (name == to_string(format)) return format;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is not a format; use tsv, csv or jsonl", name));
}

TextFormat detect_format(LineSource& source) {
  if (source.is_file()) {
    for (const char* extension : {".tsv", ".txt"}) {
      if (ends_with(source.name(), extension)) return TextFormat::kTsv;
    }
    if (ends_with(source.name(), ".csv")) {
      source.keep_quoted_newlines();
      return TextFormat::kCsv;
    }
    for (const char* extension : {".jsonl", ".ndjson", ".json"}) {
      if (ends_with(source.name(), extension)) return TextFormat::kJsonLines;
    }
  }
  return source.peek() == '{' ? TextFormat::kJsonLines : TextFormat::kTsv;
}

bool is_blank(std::string_view line, TextFormat format) {
  if (format == TextFormat::kCsv) return line.empty() || line == "\r";
  return format == TextFormat::kJsonLines &&
         line.find_first_not_of(" \t\r") == std::string_view::npos;
}

void parse_record(std::string_view line, TextFormat format, Kind key_kind, Kind value_kind,
                  Value& key, Value& value) {
  switch (format) {
    case TextFormat::kTsv:
      return parse_tsv(line, key_kind, value_kind, key, value);
    case TextFormat::kCsv:
      return parse_csv(line, key_kind, value_kind, key, value);
    case TextFormat::kJsonLines:
      return parse_json_line(line, key_kind, value_kind, key, value);
  }
}

}  // namespace perdure::cli
