#include "lab/crash/sites.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

#include "lab/crash/trace.h"

extern char** environ;

namespace perdure::lab {
namespace {

// Files whose functions are the primitives: a place in them says nothing; who called them does.
bool is_primitive_file(std::string_view file) {
  if (file.ends_with("intrin.h")) return true;
  for (const std::string_view part : {"pm/memory.h", "pm/observe.h", "bits/atomic_base.h",
                                      "include/c++/12/atomic", "c++/12/bits/"}) {
    if (file.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// Files whose functions carry out a protocol for who called them: pm::Heap::Txn::commit() and its
// like.
bool is_protocol_file(std::string_view file) { return file.ends_with("pm/heap.h"); }

// Functions that are the primitives in code that is not ours: they too say nothing where they are
// inlined.
bool is_primitive_name(const std::string& function) {
  static constexpr std::string_view kPrimitives[] = {
      "persist", "flush",      "fence",      "clwb",         "clflush",       "clflushopt",
      "sfence",  "mfence",     "flush_line", "flush_lines",  "flush_range",   "persist_range",
      "drain",   "pmem_flush", "pmem_drain", "pmem_persist", "clflush_range", "clwb_range"};
  const size_t scope = function.rfind("::");
  const std::string_view name =
      std::string_view(function).substr(scope == std::string::npos ? 0 : scope + 2);
  return std::find(std::begin(kPrimitives), std::end(kPrimitives), name) != std::end(kPrimitives);
}

std::string base_name(const std::string& file) {
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? file : file.substr(slash + 1);
}

// A function's name without its parameters and namespaces.
std::string short_name(std::string function) {
  // It has parentheses of its own.
  static constexpr std::string_view kNameless = "(anonymous namespace)::";
  for (size_t at = 0; (at = function.find(kNameless, at)) != std::string::npos;) {
    function.erase(at, kNameless.size());
  }
  std::string name;
  int depth = 0;
  for (const char c : function) {
    if (c == '<') ++depth;
    if (depth == 0 && c == '(') break;
    if (depth == 0) name += c;
    if (c == '>') --depth;
  }
  const size_t scope = name.rfind("::");
  if (scope == std::string::npos) return name;
  const size_t before = scope == 0 ? std::string::npos : name.rfind("::", scope - 1);
  return before == std::string::npos ? name : name.substr(before + 2);
}

bool read_line(FILE* from, std::string& line) {
  line.clear();
  for (int c = std::fgetc(from); c != EOF; c = std::fgetc(from)) {
    if (c == '\n') return true;
    line += static_cast<char>(c);
  }
  return false;
}

}  // namespace

Symbols::Symbols(std::string program, uint64_t load_address)
    : program_(program.empty() ? "/proc/self/exe" : std::move(program)),
      load_address_(load_address) {}

Symbols::~Symbols() {
  if (to_ != nullptr) std::fclose(to_);
  if (from_ != nullptr) std::fclose(from_);
  if (process_ > 0) {
    kill(process_, SIGKILL);
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
}

bool Symbols::start() {
  if (tried_) return process_ > 0;
  tried_ = true;
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (pipe2(in.data(), O_CLOEXEC) != 0) return false;
  if (pipe2(out.data(), O_CLOEXEC) != 0) {
    close(in[0]);
    close(in[1]);
    return false;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string name = "addr2line";
  std::string options = "-afiCe";
  char* arguments[] = {name.data(), options.data(), program_.data(), nullptr};
  const int error = posix_spawnp(&process_, name.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_ = fdopen(in[1], "w");
  from_ = fdopen(out[0], "r");
  if (error != 0) process_ = -1;
  return process_ > 0;
}

std::vector<Frame> Symbols::ask(uint64_t address) {
  std::vector<Frame> frames;
  if (!start()) return frames;
  // The answer has no end of its own: a second question, whose answer is known, marks it.
  std::fprintf(to_, "0x%llx\n0xffffffffffffffff\n", static_cast<unsigned long long>(address));
  std::fflush(to_);
  std::string line;
  if (!read_line(from_, line)) return frames;  // the address
  for (;;) {
    std::string function;
    if (!read_line(from_, function) || function.starts_with("0x")) break;
    if (!read_line(from_, line)) break;
    const size_t colon = line.rfind(':');
    if (function == "??" || colon == std::string::npos) continue;
    frames.push_back({function, line.substr(0, colon),
                      static_cast<unsigned>(std::strtoul(line.c_str() + colon + 1, nullptr, 10))});
  }
  read_line(from_, line);  // the known answer: ?? and ??:0
  read_line(from_, line);
  return frames;
}

const std::vector<Frame>& Symbols::frames(uint64_t pc) {
  const auto found = known_.find(pc);
  if (found != known_.end()) return found->second;
  // The address after a call belongs to the line of the call.
  return known_[pc] = pc > load_address_ ? ask(pc - load_address_ - 1) : std::vector<Frame>{};
}

bool Symbols::passes_over(const Frame& frame) const {
  const std::string name = short_name(frame.function);
  return is_primitive_name(name) || passed_over_.contains(name);
}

const Frame* Symbols::site_of(uint64_t pc) {
  const auto& all = frames(pc);
  for (const Frame& frame : all) {
    const bool is_outermost = &frame == &all.back();
    if (is_primitive_file(frame.file) || is_protocol_file(frame.file)) continue;
    if (is_outermost || !passes_over(frame)) return &frame;
  }
  return all.empty() ? nullptr : &all.back();
}

bool Symbols::is_primitive(uint64_t pc) {
  const Frame* site = site_of(pc);
  return site != nullptr &&
         (is_primitive_file(site->file) || is_protocol_file(site->file) || passes_over(*site));
}

std::string Symbols::place(uint64_t pc) {
  const Frame* site = site_of(pc);
  if (site == nullptr) return pc == 0 ? "?" : fmt::format("{:#x}", pc);
  // Of two fences of one commit() the step tells which: announce or conclude.
  std::string step;
  for (const Frame& frame : frames(pc)) {
    if (&frame == site) break;
    if (is_protocol_file(frame.file)) step = short_name(frame.function);
    if (!step.empty()) break;
  }
  const size_t scope = step.rfind("::");
  if (scope != std::string::npos) step.erase(0, scope + 2);
  return fmt::format("{}:{}{}{}", base_name(site->file), site->line, step.empty() ? "" : "/", step);
}

std::string Symbols::function(uint64_t pc) {
  const Frame* site = site_of(pc);
  return site == nullptr ? "" : short_name(site->function);
}

std::string Symbols::place_and_function(uint64_t pc) {
  if (site_of(pc) == nullptr) return place(pc);
  return fmt::format("{} {}", place(pc), function(pc));
}

namespace crash {

Symbols& symbols_of(const Trace& trace) {
  // A process that was forked must not share the pipes.
  using Key = std::tuple<pid_t, std::string, uint64_t>;
  static std::map<Key, std::unique_ptr<Symbols>> known;
  auto& symbols = known[{getpid(), trace.program, trace.load_address}];
  if (!symbols) symbols = std::make_unique<Symbols>(trace.program, trace.load_address);
  return *symbols;
}

SiteNames::SiteNames(const Trace& trace) : symbols_(&symbols_of(trace)) {}

}  // namespace crash

}  // namespace perdure::lab
