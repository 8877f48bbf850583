// perdure completion: a script that completes the command line in a shell. It is made from the
// command line's own definition, so that it cannot fall behind.

#include <fmt/core.h>

#include "cli/command.h"
#include "cli/completion_cases.h"
#include "cli/extension.h"

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
  case "$command $sub" in
  'pool create'|'pool info'|'pool check'|'study write-amplification'|'study range-indexes'|'study radix-trees')
    command+=" $sub"
    ;;
  esac
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
  if [[ $word == -* || $command == "" || $command == pool || $command == study ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  elif [[ $command == @(bench|amp|crash|completion|study\ *) ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _perdure perdure
)";

int run_completion(const CLI::App& app) {
  CompletionCases cases;
  add_completion_cases(app, "", cases);
  // Of several arms with the same pattern the first counts.
  for (const Extension& extension : extensions()) {
    const CompletionCases more = extension.completion();
    cases.values += more.values;
    cases.words += more.words;
  }
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
