// perdure completion: a script that completes the command line in a shell. It is made from the
// command line's own definition, so that it cannot fall behind.

#include <fmt/format.h>

#include <map>

#include "cli/command.h"
#include "lab/null_index.h"
#include "perdure/catalog.h"

namespace perdure::cli {
namespace {

// {0} and {1} are the arms of two `case` statements: values by command and option, words by
// command.
constexpr char kScript[] = R"(# bash completion for perdure. Use: source <(perdure completion bash)
_perdure() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local command= sub= i words values
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    [[ ${{COMP_WORDS[i]}} == -* ]] && continue
    if [[ -z $command ]]; then command=${{COMP_WORDS[i]}}; else sub=${{COMP_WORDS[i]}}; break; fi
  done
  [[ $command == pool && -n $sub ]] && command="pool $sub"
  [[ $command == pool\ * ]] && case $sub in create|info|check) ;; *) command=pool ;; esac
  values=
  case $command:$before in
{0}  esac
  if [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$word"))
    return
  fi
  words=
  case $command in
{1}  esac
  if [[ $word == -* || $command == "" || $command == pool ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  elif [[ $command == bench || $command == completion ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _perdure perdure
)";

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
      {"--durability", "best process power"},
      {"--key-kind", "u64 bytes"},
      {"--value-kind", "u64 bytes"},
      {"--keys", "mixed sequential"},
      {"--structure", structure_names()},
      {"--mix", "insert lookup update upsert remove"}};
  return values;
}

struct Cases {
  std::string values;  // of options
  std::string words;   // of commands
};

// `path` is empty for the command itself, else "put" or "pool info".
void add_cases(const CLI::App& app, const std::string& path, Cases& cases) {
  std::string words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const std::string dashed = "--" + name;
      words += dashed + " ";
      const auto found = option_values().find(dashed);
      std::string values = found == option_values().end() ? "" : found->second;
      if (dashed == "--format") values = path == "load" ? "auto tsv jsonl" : "tsv jsonl";
      if (values.empty()) continue;
      cases.values += fmt::format("    '{}:{}') values='{}' ;;\n", path, dashed, values);
    }
  }
  if (path == "bench") words += structure_names() + " " + lab::kNullName + " ";
  if (path == "completion") words += "bash ";
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    words += command->get_name() + " ";
    add_cases(*command, path.empty() ? command->get_name() : path + " " + command->get_name(),
              cases);
  }
  if (!words.empty()) words.pop_back();
  cases.words += fmt::format("    '{}') words='{}' ;;\n", path, words);
}

int run_completion(const CLI::App& app) {
  Cases cases;
  add_cases(app, "", cases);
  fmt::print(kScript, cases.values, cases.words);
  return kExitOk;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  CLI::App* command =
      add_command(app, "completion", "Print a script that completes this command line in a shell",
                  "  source <(perdure completion bash)\n"
                  "  perdure completion bash > /usr/share/bash-completion/completions/perdure\n");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash")->required()->check(CLI::IsMember({"bash"}));
  command->callback(
      [&app, &action, shell] { action = [&app, shell] { return run_completion(app); }; });
}

}  // namespace perdure::cli
