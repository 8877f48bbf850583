#include "cli/extension.h"

#include <utility>

namespace perdure::cli {
namespace {

std::vector<Extension>& list() {
  static std::vector<Extension> extensions;
  return extensions;
}

}  // namespace

bool extend(Extension extension) {
  list().push_back(std::move(extension));
  return true;
}

const std::vector<Extension>& extensions() { return list(); }

}  // namespace perdure::cli
