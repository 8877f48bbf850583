#include "lab/wrap/event.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

namespace perdure::lab::wrap {
namespace {

template <size_t N>
bool contains(const std::array<std::string_view, N>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_memory(std::string_view operand, bool intel) {
  if (operand.empty()) return false;
  if (intel) {
    return operand.find('[') != std::string_view::npos ||
           lower(operand).find(" ptr ") != std::string::npos;
  }
  if (operand.find('(') != std::string_view::npos) return true;
  if (operand.front() == '$') return false;
  // %fs:8 is memory, %rax is not.
  return operand.front() != '%' || operand.find(':') != std::string_view::npos;
}

std::string memory_operand(const Instruction& instruction, bool intel) {
  for (const std::string& operand : instruction.operands) {
    if (is_memory(operand, intel)) return operand;
  }
  return {};
}

size_t intel_bytes(std::string_view operand) {
  static constexpr std::array<std::pair<std::string_view, size_t>, 9> kSizes = {{{"byte", 1},
                                                                                 {"word", 2},
                                                                                 {"dword", 4},
                                                                                 {"qword", 8},
                                                                                 {"mmword", 8},
                                                                                 {"oword", 16},
                                                                                 {"xmmword", 16},
                                                                                 {"ymmword", 32},
                                                                                 {"zmmword", 64}}};
  const std::string text = lower(operand);
  const size_t ptr = text.find(" ptr");
  if (ptr == std::string::npos) return 0;
  const std::string_view word = trim(std::string_view(text).substr(0, ptr));
  for (const auto& [name, bytes] : kSizes) {
    if (name == word) return bytes;
  }
  return 0;
}

size_t suffix_bytes(char suffix) {
  switch (suffix) {
    case 'b':
      return 1;
    case 'w':
      return 2;
    case 'l':
      return 4;
    case 'q':
      return 8;
    default:
      return 0;
  }
}

// The width that the operands tell: of the widest register, or in Intel syntax of the memory
// operand. 0 if they tell none.
size_t operand_bytes(const Instruction& instruction, bool intel) {
  size_t bytes = 0;
  for (const std::string& operand : instruction.operands) {
    const bool memory = is_memory(operand, intel);
    bytes = std::max(bytes, memory ? intel_bytes(operand) : register_bytes(operand));
  }
  return bytes;
}

Event sized(EventKind kind, std::string_view name, size_t bytes, std::string operand) {
  return {kind, fmt::format("{}_{}", name, bytes), std::move(operand), true};
}

std::optional<Event> find_flush_or_fence(const Instruction& instruction, bool intel,
                                         bool operand_size_prefix) {
  const std::string& name = instruction.mnemonic;
  if (name == "sfence" || name == "mfence") return Event{EventKind::kFence, name, {}, true};
  std::string site;
  if (name == "clwb" || name == "clflushopt") site = name;
  if (name == "clflush") site = operand_size_prefix ? "clflushopt" : "clflush";
  if (name == "xsaveopt" && operand_size_prefix) site = "clwb";
  if (site.empty()) return std::nullopt;
  std::string operand = memory_operand(instruction, intel);
  if (operand.empty()) return std::nullopt;
  return Event{EventKind::kFlush, std::move(site), std::move(operand), false};
}

std::optional<Event> find_stream(const Instruction& instruction, bool intel) {
  const std::string& name = instruction.mnemonic;
  // These name no operand: they write where rdi points.
  if (name == "maskmovdqu" || name == "vmaskmovdqu" || name == "maskmovq") {
    return sized(EventKind::kStream, "stream", name == "maskmovq" ? 8 : 16,
                 intel ? "[rdi]" : "(%rdi)");
  }
  if (name == "movdir64b" && instruction.operands.size() == 2) {
    const std::string& target = instruction.operands[intel ? 0 : 1];
    return sized(EventKind::kStream, "stream", 64,
                 intel ? fmt::format("[{}]", target) : fmt::format("({})", target));
  }
  std::string operand = memory_operand(instruction, intel);
  if (operand.empty()) return std::nullopt;
  size_t bytes = operand_bytes(instruction, intel);
  if (name == "movntdqa" || name == "vmovntdqa") {
    return sized(EventKind::kLoad, "load", bytes == 0 ? 16 : bytes, std::move(operand));
  }
  static constexpr std::array<std::string_view, 6> kVector = {"movntdq",  "movntps",  "movntpd",
                                                              "vmovntdq", "vmovntps", "vmovntpd"};
  if (contains(kVector, name)) {
    return sized(EventKind::kStream, "stream", bytes == 0 ? 16 : bytes, std::move(operand));
  }
  if (name == "movntq" || name == "movntsd" || name == "movnti" || name == "movntil" ||
      name == "movntiq" || name == "movntss" || name == "movdiri" || name == "movdiril" ||
      name == "movdiriq") {
    if (name == "movntss") bytes = 4;
    if (name == "movntsd" || name == "movntq") bytes = 8;
    if (bytes == 0) bytes = suffix_bytes(name.back());
    return sized(EventKind::kStream, "stream", bytes == 0 ? 8 : bytes, std::move(operand));
  }
  return std::nullopt;
}

// Instructions that may be locked, without their suffix.
constexpr std::array<std::string_view, 17> kLockable = {
    "add", "adc", "and", "btc", "btr", "bts",  "cmpxchg", "dec", "inc",
    "neg", "not", "or",  "sbb", "sub", "xadd", "xchg",    "xor"};

size_t locked_bytes(const Instruction& instruction, bool intel, std::string& base) {
  const std::string& name = instruction.mnemonic;
  if (name == "cmpxchg8b") return 8;
  if (name == "cmpxchg16b") return 16;
  base = name;
  if (contains(kLockable, name)) return operand_bytes(instruction, intel);
  if (name.empty()) return 0;
  base.pop_back();
  return contains(kLockable, base) ? suffix_bytes(name.back()) : 0;
}

std::optional<Event> find_locked(const Instruction& instruction, bool intel, bool lock_byte) {
  const bool locked =
      lock_byte || std::find(instruction.prefixes.begin(), instruction.prefixes.end(), "lock") !=
                       instruction.prefixes.end();
  // What cannot be an exchange need not be looked at.
  if (!locked && !instruction.mnemonic.starts_with("xchg")) return std::nullopt;
  std::string base;
  const size_t bytes = locked_bytes(instruction, intel, base);
  if (bytes == 0 || (!locked && base != "xchg")) return std::nullopt;
  std::string operand = memory_operand(instruction, intel);
  if (operand.empty()) return std::nullopt;
  return sized(EventKind::kLocked, "locked", bytes, std::move(operand));
}

bool has_byte(std::span<const uint8_t> bytes, uint8_t byte) {
  return std::find(bytes.begin(), bytes.end(), byte) != bytes.end();
}

constexpr uint8_t kOperandSize = 0x66;
constexpr uint8_t kLock = 0xf0;
constexpr uint8_t kDataSegment = 0x3e;  // pads a clflush to the length of a clflushopt

// The memory operand that a ModRM byte and its displacement describe; empty if it is of a form that
// is not written by hand (SIB, rip-relative).
std::string decode_operand(std::span<const uint8_t> bytes, bool extended) {
  static constexpr std::array<std::string_view, 16> kNames = {
      "%rax", "%rcx", "%rdx", "%rbx", "%rsp", "%rbp", "%rsi", "%rdi",
      "%r8",  "%r9",  "%r10", "%r11", "%r12", "%r13", "%r14", "%r15"};
  const unsigned mode = bytes[0] >> 6U;
  const unsigned base = (bytes[0] & 7U) + (extended ? 8U : 0U);
  const size_t displacement_bytes = mode == 0 ? 0 : mode == 1 ? 1 : 4;
  if (mode == 3 || (base & 7U) == 4 || (mode == 0 && (base & 7U) == 5)) return {};
  if (bytes.size() != 1 + displacement_bytes) return {};
  int32_t displacement = 0;
  if (mode == 1) displacement = bytes[1] < 128 ? bytes[1] : bytes[1] - 256;
  if (mode == 2) {
    uint32_t word = 0;
    for (size_t i = 4; i > 0; --i) word = word << 8U | bytes[i];
    displacement = static_cast<int32_t>(word);
  }
  if (displacement == 0) return fmt::format("({})", kNames[base]);
  return fmt::format("{}({})", displacement, kNames[base]);
}

}  // namespace

std::optional<Event> find_event(const Instruction& instruction, bool intel,
                                std::span<const uint8_t> prefix_bytes) {
  const bool operand_size = has_byte(prefix_bytes, kOperandSize) ||
                            std::find(instruction.prefixes.begin(), instruction.prefixes.end(),
                                      "data16") != instruction.prefixes.end();
  if (auto event = find_flush_or_fence(instruction, intel, operand_size)) return event;
  if (auto event = find_locked(instruction, intel, has_byte(prefix_bytes, kLock))) return event;
  return find_stream(instruction, intel);
}

std::optional<Event> decode_event(std::span<const uint8_t> bytes) {
  bool operand_size = false;
  bool extended = false;
  while (!bytes.empty() && (bytes[0] == kOperandSize || bytes[0] == kDataSegment)) {
    operand_size = operand_size || bytes[0] == kOperandSize;
    bytes = bytes.subspan(1);
  }
  if (!bytes.empty() && (bytes[0] & 0xf0U) == 0x40) {  // REX
    extended = (bytes[0] & 1U) != 0;
    bytes = bytes.subspan(1);
  }
  if (bytes.size() < 3 || bytes[0] != 0x0f || bytes[1] != 0xae) return std::nullopt;
  bytes = bytes.subspan(2);
  if (bytes.size() == 1 && !operand_size && bytes[0] >= 0xf8) {
    return Event{EventKind::kFence, "sfence", {}, true};
  }
  if (bytes.size() == 1 && !operand_size && bytes[0] >= 0xf0 && bytes[0] < 0xf8) {
    return Event{EventKind::kFence, "mfence", {}, true};
  }
  const unsigned operation = (bytes[0] >> 3U) & 7U;
  std::string site;
  if (operation == 7) site = operand_size ? "clflushopt" : "clflush";
  if (operation == 6 && operand_size) site = "clwb";
  std::string operand = decode_operand(bytes, extended);
  if (site.empty() || operand.empty()) return std::nullopt;
  return Event{EventKind::kFlush, std::move(site), std::move(operand), false};
}

}  // namespace perdure::lab::wrap
