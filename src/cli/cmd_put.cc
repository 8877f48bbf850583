// perdure put: store one record.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/open_index.h"
#include "cli/text.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct PutOptions {
  Target target;
  Creation creation;
  std::string key;
  std::string value;
  bool insert = false;
  bool update = false;
};

// The kinds that this call will meet, told before any file is made, so that a key that is no number
// leaves none behind.
void check_against_new_kinds(const PutOptions& options) {
  Value unused;
  if (options.creation.key_kind == "u64") parse_datum(options.key, Kind::kU64, unused);
  if (options.creation.value_kind == "u64") parse_datum(options.value, Kind::kU64, unused);
}

int run_put(const PutOptions& options) {
  check_against_new_kinds(options);
  const std::unique_ptr<OpenIndex> opened =
      options.update ? OpenIndex::open_to_write(options.target)
                     : OpenIndex::open_or_create(options.target, options.creation);
  AnyIndex& index = opened->index();
  Value key;
  Value value;
  parse_datum(options.key, index.key_kind(), key);
  parse_datum(options.value, index.value_kind(), value);
  bool stored = true;
  if (options.insert) {
    stored = index.insert(key.datum(), value.datum());
  } else if (options.update) {
    stored = index.update(key.datum(), value.datum());
  } else {
    index.upsert(key.datum(), value.datum());
  }
  opened->close();
  if (options.target.json) {
    nlohmann::json object = {{"stored", stored}};
    set_json(object, "key", key.datum());
    fmt::print("{}\n", object.dump());
  } else if (!stored) {
    fmt::print(stderr, "perdure: key \"{}\" is {}\n", options.key,
               options.insert ? "present already" : "absent");
  }
  return stored ? kExitOk : kExitAbsent;
}

}  // namespace

void add_put(CLI::App& app, Action& action) {
  auto options = std::make_shared<PutOptions>();
  CLI::App* command = add_command(
      app, "put", "Store a value under a key, durably; makes pool and structure if missing",
      "  perdure put words.pool perdure 'to last'\n"
      "  perdure put --insert words.pool perdure 'to endure'   # exit 1: present\n"
      "  perdure put --key-kind u64 --value-kind u64 numbers.pool 7 49\n");
  add_target_options(*command, options->target);
  command->add_option("KEY", options->key, "The key")->required();
  command->add_option("VALUE", options->value, "The value")->required();
  CLI::Option* insert =
      command->add_flag("--insert", options->insert, "Fail (exit 1) if the key is present");
  command
      ->add_flag("--update", options->update,
                 "Fail (exit 1) if the key is absent; makes no pool and no structure")
      ->excludes(insert);
  add_creation_options(*command, options->creation);
  command->callback([options, &action] { action = [options] { return run_put(*options); }; });
}

}  // namespace perdure::cli
