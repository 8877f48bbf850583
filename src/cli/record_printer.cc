#include "cli/record_printer.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/command.h"
#include "cli/text.h"
#include "perdure/error.h"

namespace perdure::cli {

namespace {

void append_tsv(Datum datum, std::string& line) {
  if (datum.kind() == Kind::kU64) {
    fmt::format_to(std::back_inserter(line), "{}", datum.word());
  } else {
    append_tsv_escaped(datum.bytes(), line);
  }
}

// Quoted where it has to be, and where white space at an end might be taken for none.
void append_csv(Datum datum, std::string& line) {
  if (datum.kind() == Kind::kU64) return append_tsv(datum, line);
  const std::string_view bytes = datum.bytes();
  const bool plain = bytes.find_first_of("\",\r\n") == std::string_view::npos &&
                     !bytes.starts_with(' ') && !bytes.ends_with(' ') && !bytes.starts_with('\t') &&
                     !bytes.ends_with('\t');
  if (plain) {
    line += bytes;
    return;
  }
  line += '"';
  for (size_t at = 0;;) {
    const size_t quote = bytes.find('"', at);
    line += bytes.substr(at, quote - at);
    if (quote == std::string_view::npos) break;
    line += "\"\"";
    at = quote + 1;
  }
  line += '"';
}

}  // namespace

RecordPrinter::RecordPrinter(const std::string& path, TextFormat format)
    : name_(path.empty() ? "standard output" : path),
      file_(path.empty() ? stdout : std::fopen(path.c_str(), "wb")),
      format_(format) {
  if (file_ != nullptr) return;
  if (errno != EACCES) throw_cannot_write(name_, errno);
  throw Error(ErrorCode::kPermission,
              fmt::format("cannot write to {}: {}", name_, std::strerror(errno)));
}

RecordPrinter::~RecordPrinter() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
}

void RecordPrinter::print(Datum key, Datum value) {
  line_.clear();
  if (format_ == TextFormat::kJsonLines) {
    nlohmann::json object = nlohmann::json::object();
    set_json(object, "key", key);
    set_json(object, "value", value);
    line_ = object.dump();
  } else if (format_ == TextFormat::kCsv) {
    append_csv(key, line_);
    line_ += ',';
    append_csv(value, line_);
  } else {
    append_tsv(key, line_);
    line_ += '\t';
    append_tsv(value, line_);
  }
  line_ += '\n';
  if (std::fwrite(line_.data(), 1, line_.size(), file_) != line_.size()) {
    throw_cannot_write(name_, errno);
  }
}

void RecordPrinter::close() {
  std::FILE* file = std::exchange(file_, nullptr);
  const int failed = file == stdout ? std::fflush(file) : std::fclose(file);
  if (failed != 0) throw_cannot_write(name_, errno);
}

}  // namespace perdure::cli
