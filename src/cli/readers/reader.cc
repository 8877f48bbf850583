#include "cli/readers/reader.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <map>

#include "cli/text.h"

namespace perdure::readers {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;
constexpr size_t kWordBytes = 8;

void append(std::string_view bytes, Words words, const char* what, std::string& out) {
  if (words == Words::kDigits) return cli::append_tsv_escaped(bytes, out);
  if (bytes.empty() || bytes.size() > kWordBytes) {
    std::string shown;
    cli::append_tsv_escaped(bytes.substr(0, 40), shown);
    throw Failure(fmt::format("a {} of {} bytes, '{}', is no word of 1 to {} bytes", what,
                              bytes.size(), shown, kWordBytes));
  }
  uint64_t word = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char byte = bytes[words == Words::kBig ? i : bytes.size() - 1 - i];
    word = word << 8 | static_cast<unsigned char>(byte);
  }
  out += std::to_string(word);
}

}  // namespace

void Output::record(std::string_view key, std::string_view value) {
  append(key, keys_, "key", buffer_);
  buffer_ += '\t';
  append(value, values_, "value", buffer_);
  buffer_ += '\n';
  ++records_;
  if (buffer_.size() >= kBufferBytes) flush();
}

void Output::flush() {
  for (size_t at = 0; at < buffer_.size();) {
    const ssize_t wrote = write(STDOUT_FILENO, buffer_.data() + at, buffer_.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      throw Failure(fmt::format("cannot write standard output: {}", std::strerror(errno)));
    }
    at += static_cast<size_t>(wrote);
  }
  buffer_.clear();
}

int run_reader(int argc, char** argv, const char* store, const char* about_database,
               void (*read)(const Request& request, Output& output)) {
  const std::map<std::string, Words> ways = {
      {"digits", Words::kDigits}, {"little", Words::kLittle}, {"big", Words::kBig}};
  CLI::App app(
      fmt::format("Writes all records of a {} database as TSV that `perdure load` reads.", store));
  Request request;
  Words keys = Words::kDigits;
  Words values = Words::kDigits;
  app.add_option("PATH", request.path, "The database")->required();
  app.add_option("--database", request.database, about_database);
  for (const auto& [name, words] : {std::pair("--key-words", &keys), {"--value-words", &values}}) {
    app.add_option(name, *words, "digits (as it is), little or big: 1 to 8 bytes in this order")
        ->transform(CLI::CheckedTransformer(ways));
  }
  CLI11_PARSE(app, argc, argv);
  try {
    Output output(keys, values);
    read(request, output);
    output.flush();
    fmt::print(stderr, "{} records\n", output.records());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", store, error.what());
    return 4;
  }
}

}  // namespace perdure::readers
