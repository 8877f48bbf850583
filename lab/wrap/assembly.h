// Reads GNU assembler text for x86-64: cuts it into statements and takes these apart.
//
// Only as much is understood as is needed to find an instruction and its memory operand; what is
// not understood passes through unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace perdure::lab::wrap {

// A statement: the part of the text from `begin` to `end`, without the separator and without the
// comment behind it. Several may stand on a line.
struct Statement {
  size_t begin = 0;
  size_t end = 0;
  size_t line = 1;
};

// Walks through the statements of a text. Comments, strings and character constants are minded, so
// that no separator within them counts.
class StatementReader {
 public:
  explicit StatementReader(std::string_view text) : text_(text) {}

  // The next statement, which may be empty; nothing at the end of the text.
  std::optional<Statement> next();

 private:
  void skip_string();
  void skip_block_comment();
  bool at_line_comment() const;

  std::string_view text_;
  size_t position_ = 0;
  size_t line_ = 1;
  bool at_line_start_ = true;
  bool done_ = false;
};

// What a statement says: `1: lock cmpxchgq %rax, 8(%rdi)` has the prefix `lock`, the mnemonic
// `cmpxchgq` and two operands. A prefix alone on its statement has no mnemonic.
struct Instruction {
  size_t body = 0;  // where the prefixes begin, behind the labels, counted from the statement
  std::vector<std::string> prefixes;
  std::string mnemonic;  // in lower case
  std::vector<std::string> operands;
};

// Takes a statement apart. Block comments within it read as blanks.
Instruction parse_instruction(std::string_view statement);

// The text without blanks at either end.
std::string_view trim(std::string_view text);
std::string lower(std::string_view text);

// The values of a `.byte` directive's operands; nothing if one is not a plain number.
std::optional<std::vector<uint8_t>> parse_bytes(const std::vector<std::string>& operands);

// Width in bytes of a register, named with or without `%`: al 1, ax 2, eax 4, rax and mm0 8, xmm0
// 16, ymm0 32, zmm0 64. 0 if it is none.
size_t register_bytes(std::string_view name);

}  // namespace perdure::lab::wrap
