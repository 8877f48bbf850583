// perdure dump: every record as text that `perdure load` reads back.

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/store.h"
#include "cli/text.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct DumpOptions {
  Target target;
  std::string format = "tsv";
  std::string output;  // empty: standard output
};

// A stream of lines that notices when they cannot be written.
class Output {
 public:
  explicit Output(const std::string& path) : name_(path.empty() ? "standard output" : path) {
    file_ = path.empty() ? stdout : std::fopen(path.c_str(), "wb");
    if (file_ != nullptr) return;
    if (errno != EACCES) throw_cannot_write(name_, errno);
    throw Error(ErrorCode::kPermission,
                fmt::format("cannot write to {}: {}", name_, std::strerror(errno)));
  }
  ~Output() {
    if (file_ != nullptr && file_ != stdout) std::fclose(file_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(const std::string& line) {
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size()) {
      throw_cannot_write(name_, errno);
    }
  }
  void close() {
    std::FILE* file = std::exchange(file_, nullptr);
    const int failed = file == stdout ? std::fflush(file) : std::fclose(file);
    if (failed != 0) throw_cannot_write(name_, errno);
  }

 private:
  std::string name_;
  std::FILE* file_;
};

void append_tsv(Datum datum, std::string& line) {
  if (datum.kind() == Kind::kU64) {
    fmt::format_to(std::back_inserter(line), "{}", datum.word());
  } else {
    append_tsv_escaped(datum.bytes(), line);
  }
}

int run_dump(const DumpOptions& options) {
  const std::unique_ptr<Store> store = Store::open_to_read(options.target);
  Output output(options.output);
  const bool json = options.target.json || options.format == "jsonl";
  std::string line;
  store->index().for_each([&](Datum key, Datum value) {
    line.clear();
    if (json) {
      nlohmann::json object = nlohmann::json::object();
      set_json(object, "key", key);
      set_json(object, "value", value);
      line = object.dump();
    } else {
      append_tsv(key, line);
      line += '\t';
      append_tsv(value, line);
    }
    line += '\n';
    output.write(line);
  });
  output.close();
  return kExitOk;
}

}  // namespace

void add_dump(CLI::App& app, Action& action) {
  auto options = std::make_shared<DumpOptions>();
  CLI::App* command = add_command(
      app, "dump", "Print every record, in a form that `perdure load` reads back",
      "  perdure dump words.pool > words.tsv\n"
      "  perdure dump --format jsonl words.pool | jq .key\n"
      "  perdure dump words.pool | perdure load --capacity 10G bigger.pool -\n"
      "\nTSV: key, tab, value. Tab, newline, carriage return and backslash are written\n"
      "\\t \\n \\r \\\\, other control characters and bytes that are not UTF-8 \\xNN.\n"
      "JSON lines: {\"key\": ..., \"value\": ...}; what is not UTF-8 is base64, in\n"
      "\"key_base64\" and \"value_base64\". Records come in no particular order.\n");
  add_target_options(*command, options->target);
  command->add_option("--format", options->format, "tsv or jsonl (--json means jsonl)")
      ->check(CLI::IsMember({"tsv", "jsonl"}))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "Write to this file");
  command->callback([options, &action] { action = [options] { return run_dump(*options); }; });
}

}  // namespace perdure::cli
