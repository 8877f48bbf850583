#include "lab/crash/coverage.h"

#include <fmt/core.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "lab/crash/sites.h"

namespace perdure::lab::crash {
namespace {

// A call is this byte and the distance to the function, from what comes behind.
constexpr unsigned char kCall = 0xe8;
constexpr uint64_t kCallBytes = 5;

struct Code {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The machine code of this program, without its libraries.
Code own_code() {
  Code code;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& part = info->dlpi_phdr[i];
          if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
          auto* found = static_cast<Code*>(result);
          found->begin = info->dlpi_addr + part.p_vaddr;
          found->end = found->begin + part.p_memsz;
        }
        return 1;  // the program comes first
      },
      &code);
  return code;
}

const unsigned char* at(uint64_t address) {
  return reinterpret_cast<const unsigned char*>(address);  // NOLINT: an address of our own code
}

// What the call before a return address calls; 0: it is none, or calls by a pointer.
uint64_t callee(uint64_t pc) {
  if (*at(pc - kCallBytes) != kCall) return 0;
  int32_t distance = 0;
  std::memcpy(&distance, at(pc - sizeof distance), sizeof distance);
  return pc + static_cast<uint64_t>(static_cast<int64_t>(distance));
}

// All return addresses of calls of what is called before `pc`.
std::vector<uint64_t> calls_like(uint64_t pc) {
  std::vector<uint64_t> found;
  const Code code = own_code();
  if (pc < code.begin + kCallBytes || pc > code.end) return found;
  const uint64_t target = callee(pc);
  for (uint64_t next = code.begin + kCallBytes; target != 0 && next <= code.end; ++next) {
    if (*at(next - kCallBytes) == kCall && callee(next) == target) found.push_back(next);
  }
  return found;
}

// "index/clht" of ".../src/index/clht/write.cc", and "store" of what is in src/store; empty for
// what is in no such folder.
std::string folder_of(const std::string& file) {
  static constexpr std::string_view kSources = "src/";
  static constexpr std::string_view kIndex = "index/";
  static constexpr std::string_view kStore = "store/";
  const size_t sources = file.rfind(kSources);
  if (sources == std::string::npos) return {};
  const std::string_view path = std::string_view(file).substr(sources + kSources.size());
  if (path.starts_with(kStore)) return "store";
  const size_t end = path.find('/', kIndex.size());
  if (!path.starts_with(kIndex) || end == std::string_view::npos) return {};
  return std::string(path.substr(0, end));
}

std::string text_of(bool fence, const std::string& place) {
  return fmt::format("{} {}", fence ? "fence" : "flush", place);
}

}  // namespace

void Coverage::add(const Run& run, const Exploration& exploration) {
  Symbols& symbols = symbols_of(run.trace);
  symbols_ = &symbols;
  // A copy past the caches is where the code might flush instead.
  for (const uint64_t pc : stream_sites(run)) {
    const Frame* frame = symbols.site_of(pc);
    if (frame == nullptr || folder_of(frame->file).empty()) continue;
    reached_.insert(text_of(false, symbols.place_and_function(pc)));
  }
  for (const PersistSites& sites : {persist_sites(run), exploration.nested_sites}) {
    for (const auto& [site, count] : sites) {
      const Frame* frame = symbols.site_of(site.pc);
      if (frame == nullptr) continue;
      const std::string folder = folder_of(frame->file);
      if (folder.empty()) continue;
      folders_.insert(folder);
      calls_.insert(site);
      reached_.insert(text_of(site.fence, symbols.place_and_function(site.pc)));
    }
  }
}

std::vector<std::string> Coverage::unreached() const {
  std::set<std::string> missing;
  for (const bool fence : {false, true}) {
    const auto call = std::ranges::find(calls_, fence, &PersistSite::fence);
    if (call == calls_.end()) continue;
    for (const uint64_t pc : calls_like(call->pc)) {
      const Frame* frame = symbols_->site_of(pc);
      if (frame == nullptr || !folders_.contains(folder_of(frame->file))) continue;
      std::string text = text_of(fence, symbols_->place_and_function(pc));
      if (!reached_.contains(text)) missing.insert(std::move(text));
    }
  }
  return {missing.begin(), missing.end()};
}

}  // namespace perdure::lab::crash
