// Which instructions are turned into call-outs, and what each call-out says.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lab/wrap/assembly.h"

namespace perdure::lab::wrap {

enum class EventKind { kFlush, kFence, kStream, kLocked, kLoad };

struct Event {
  EventKind kind = EventKind::kFence;
  // The end of the trampoline's name: `clwb`, `sfence`, `stream_8`, ...
  std::string site;
  // The memory operand as it stands in the source; empty for a fence.
  std::string operand;
  // Whether the instruction runs after the call-out. A flush does not: the runtime answers for it.
  bool keep = true;
};

// The event of an instruction in AT&T or Intel syntax, or nothing if it is none of ours.
// `prefix_bytes` are prefixes written as `.byte` in front of it, as code did before assemblers knew
// the instructions: `.byte 0x66; clflush X` is clflushopt, `.byte 0x66; xsaveopt X` is clwb.
std::optional<Event> find_event(const Instruction& instruction, bool intel,
                                std::span<const uint8_t> prefix_bytes);

// The event of an instruction written wholly in bytes, such as `0x0f, 0xae, 0xf8` (sfence) or
// `0x66, 0x0f, 0xae, 0x30` (clwb (%rax)). The operand is in AT&T syntax.
std::optional<Event> decode_event(std::span<const uint8_t> bytes);

}  // namespace perdure::lab::wrap
