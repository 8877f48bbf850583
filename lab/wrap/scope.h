// Follows the assembler directives that decide how an instruction is to be rewritten: the section,
// the syntax, the width of the code, and what the call-frame information says.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/wrap/assembly.h"

namespace perdure::lab::wrap {

class Scope {
 public:
  // To be called with every statement that is a directive.
  void note(const Instruction& directive);

  // Whether what stands here is meant to be executed.
  bool in_code() const { return section_.code; }
  bool intel() const { return !intel_directive_.empty(); }
  // The directive that puts the syntax back to what it is here.
  const std::string& intel_directive() const { return intel_directive_; }
  bool is_64_bit() const { return is_64_bit_; }
  // Whether the debugger finds the frame by the stack pointer here, so that it has to be told when
  // the stack pointer moves.
  bool frame_follows_stack() const { return in_procedure_ && frame_follows_stack_; }

 private:
  struct Section {
    std::string name = ".text";
    bool code = true;
  };

  void note_section(const Instruction& directive);
  void note_frame(const Instruction& directive);
  void enter(Section section);

  Section section_;
  Section previous_;
  std::vector<Section> pushed_;
  std::string intel_directive_;
  bool is_64_bit_ = true;
  bool in_procedure_ = false;
  bool frame_follows_stack_ = false;
  std::vector<bool> remembered_;
};

}  // namespace perdure::lab::wrap
