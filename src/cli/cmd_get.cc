// perdure get: print one value.

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/open_index.h"
#include "cli/text.h"

namespace perdure::cli {
namespace {

struct GetOptions {
  Target target;
  std::string key;
  bool raw = false;
};

int run_get(const GetOptions& options) {
  const std::unique_ptr<OpenIndex> opened = OpenIndex::open_to_read(options.target);
  Value key;
  Value value;
  parse_datum(options.key, opened->index().key_kind(), key);
  const bool found = opened->index().lookup(key.datum(), value);
  if (options.target.json) {
    nlohmann::json object = {{"found", found}};
    set_json(object, "key", key.datum());
    if (found) set_json(object, "value", value.datum());
    fmt::print("{}\n", object.dump());
  } else if (found) {
    const std::string text = to_text(value.datum());
    std::fwrite(text.data(), 1, text.size(), stdout);
    if (!options.raw) std::fputc('\n', stdout);
  }
  return found ? kExitOk : kExitAbsent;
}

}  // namespace

void add_get(CLI::App& app, Action& action) {
  auto options = std::make_shared<GetOptions>();
  CLI::App* command = add_command(app, "get", "Print the value of a key",
                                  "  perdure get words.pool perdure\n"
                                  "  perdure get --raw images.pool logo > logo.png\n"
                                  "  perdure get --json words.pool perdure\n"
                                  "  perdure get --live served.pool perdure\n");
  add_target_options(*command, options->target);
  add_reading_options(*command, options->target);
  command->add_option("KEY", options->key, "The key")->required();
  command->add_flag("--raw", options->raw, "Print the value without a newline behind it");
  command->callback([options, &action] { action = [options] { return run_get(*options); }; });
}

}  // namespace perdure::cli
