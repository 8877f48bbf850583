// Commands that are linked into `perdure` from elsewhere: those of the laboratory. A build without
// it has none of them.
#pragma once

#include <functional>
#include <vector>

#include "cli/command.h"
#include "cli/completion_cases.h"

namespace perdure::cli {

struct Extension {
  // Sees the arguments first; may become another program, or throw.
  std::function<void(int argc, char** argv)> dispatch;
  std::function<void(CLI::App& app, Action& action)> add_commands;
  // Of commands that `perdure` itself does not define.
  std::function<CompletionCases()> completion;
};

// Before main() runs. Returns true.
bool extend(Extension extension);
const std::vector<Extension>& extensions();

}  // namespace perdure::cli
