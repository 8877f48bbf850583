#include "lab/wrap/scope.h"

#include <utility>

namespace perdure::lab::wrap {
namespace {

// DWARF's number of the stack pointer, and its operation that gives the frame as an expression.
constexpr std::string_view kStackPointer = "7";
constexpr uint8_t kDefineFrameExpression = 0x0f;

bool is_stack_pointer(std::string_view name) {
  return name == kStackPointer || name == "rsp" || name == "%rsp";
}

// Whether a section holds code: its flags say so or, without flags, its name.
bool is_code_section(const std::vector<std::string>& operands) {
  if (operands.size() > 1 && operands[1].starts_with('"')) {
    return operands[1].find('x') != std::string::npos;
  }
  std::string_view name = operands.empty() ? std::string_view() : operands[0];
  if (name.starts_with('"')) name.remove_prefix(1);
  return name.starts_with(".text") || name.starts_with(".init") || name.starts_with(".fini");
}

}  // namespace

void Scope::note(const Instruction& directive) {
  const std::string& name = directive.mnemonic;
  if (name == ".intel_syntax") {
    intel_directive_ = ".intel_syntax";
    // Without an operand, registers are written with `%`.
    if (!directive.operands.empty()) intel_directive_ += " " + directive.operands[0];
  } else if (name == ".att_syntax") {
    intel_directive_.clear();
  } else if (name == ".code64" || name == ".code32" || name == ".code16" || name == ".code16gcc") {
    is_64_bit_ = name == ".code64";
  } else if (name.starts_with(".cfi_")) {
    note_frame(directive);
  } else {
    note_section(directive);
  }
}

void Scope::enter(Section section) { previous_ = std::exchange(section_, std::move(section)); }

void Scope::note_section(const Instruction& directive) {
  const std::string& name = directive.mnemonic;
  if (name == ".text" || name == ".data" || name == ".bss") {
    enter({name, name == ".text"});
  } else if (name == ".section" || name == ".pushsection") {
    if (directive.operands.empty()) return;
    if (name == ".pushsection") pushed_.push_back(section_);
    enter({directive.operands[0], is_code_section(directive.operands)});
  } else if (name == ".popsection") {
    if (pushed_.empty()) return;
    section_ = std::move(pushed_.back());
    pushed_.pop_back();
  } else if (name == ".previous") {
    std::swap(section_, previous_);
  }
}

void Scope::note_frame(const Instruction& directive) {
  const std::string_view name = directive.mnemonic;
  const auto& operands = directive.operands;
  if (name == ".cfi_startproc") {
    in_procedure_ = true;
    frame_follows_stack_ = operands.empty();  // "simple" promises nothing
    remembered_.clear();
  } else if (name == ".cfi_endproc") {
    in_procedure_ = false;
  } else if (name == ".cfi_def_cfa" || name == ".cfi_def_cfa_register") {
    frame_follows_stack_ = !operands.empty() && is_stack_pointer(operands[0]);
  } else if (name == ".cfi_escape") {
    const auto bytes = parse_bytes(operands);
    if (bytes && !bytes->empty() && bytes->front() == kDefineFrameExpression) {
      frame_follows_stack_ = false;
    }
  } else if (name == ".cfi_remember_state") {
    remembered_.push_back(frame_follows_stack_);
  } else if (name == ".cfi_restore_state" && !remembered_.empty()) {
    frame_follows_stack_ = remembered_.back();
    remembered_.pop_back();
  }
}

}  // namespace perdure::lab::wrap
