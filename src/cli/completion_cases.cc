#include "cli/completion_cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>

#include "perdure/catalog.h"

namespace perdure::cli {
namespace {

std::string structure_names() {
  std::string names;
  for (const CatalogEntry& entry : catalog()) {
    names += (names.empty() ? "" : " ") + entry.name;
  }
  return names;
}

// The words that an option takes, where they are few.
const std::map<std::string, std::string>& option_values() {
  static const std::map<std::string, std::string> values = {
      {"--domain", "page line byte"},
      {"--index", "ordered hash"},
      {"--io", "auto uring epoll"},
      {"--log-level", "debug info warning error"},
      {"--durability", "best process power"},
      {"--key-kind", "u64 bytes"},
      {"--value-kind", "u64 bytes"},
      {"--keys", "mixed sequential pibench dense clustered"},
      {"--structure", structure_names()},
      {"--workload", "load a b c load,a,b,c"},
      {"--profile", "optane-100 optane-200 eadr nvdimm cxl"},
      {"--mix", "insert lookup update upsert remove scan rmw scan-back"},
      {"--part", "load uniform self-similar long-keys"},
      {"--distribution", "uniform zipfian selfsimilar sequential latest"},
      {"--emulate", "optane optane-200 cxl 300ns"}};
  return values;
}

std::string values_of(const std::string& path, const std::string& option) {
  if (option == "--workload" && path == "bench") return "a b c d e f";
  if (option == "--format") return path == "load" ? "auto tsv csv jsonl" : "tsv csv jsonl";
  const auto found = option_values().find(option);
  return found == option_values().end() ? "" : found->second;
}

// What may stand where no option does.
std::string positional_words(const std::string& path) {
  constexpr std::array kTakeStructures = {"bench",
                                          "amp",
                                          "crash",
                                          "study write-amplification",
                                          "study range-indexes",
                                          "study radix-trees"};
  if (path == "completion") return "bash ";
  if (std::find(kTakeStructures.begin(), kTakeStructures.end(), path) == kTakeStructures.end()) {
    return "";
  }
  return structure_names() + (path == "bench" ? " null " : " ");
}

}  // namespace

void add_completion_cases(const CLI::App& app, const std::string& path, CompletionCases& cases) {
  // Another executable's: not even --help is here.
  if (app.get_options().empty()) return;
  std::string words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const std::string dashed = "--" + name;
      words += dashed + " ";
      const std::string values = values_of(path, dashed);
      if (values.empty()) continue;
      cases.values += fmt::format("    '{}:{}') values='{}' ;;\n", path, dashed, values);
    }
  }
  words += positional_words(path);
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_group().empty()) continue;  // hidden
    words += command->get_name() + " ";
    add_completion_cases(
        *command, path.empty() ? command->get_name() : path + " " + command->get_name(), cases);
  }
  if (!words.empty()) words.pop_back();
  cases.words += fmt::format("    '{}') words='{}' ;;\n", path, words);
}

}  // namespace perdure::cli
