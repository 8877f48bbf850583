#include "lab/wrap/rewriter.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <ranges>
#include <span>
#include <utility>

#include "lab/wrap/assembly.h"
#include "lab/wrap/event.h"
#include "lab/wrap/scope.h"

namespace perdure::lab::wrap {
namespace {

// The red zone of the calling convention: 128 bytes below the stack pointer that belong to a
// function without being reserved by it.
constexpr int kRedZone = 128;
// And room for rdi, which carries the address.
constexpr int kRoom = kRedZone + 8;

// An address in AT&T syntax as it reads when the stack pointer has moved down by kRoom.
std::string below_stack(std::string_view operand) {
  const size_t open = operand.rfind('(');
  std::string text(operand);
  if (open == std::string_view::npos) return text;
  const std::string base = lower(trim(operand.substr(open + 1)));
  if (!base.starts_with("%rsp") && !base.starts_with("%esp")) return text;
  const std::string_view displacement = trim(operand.substr(0, open));
  return fmt::format("{}{}{}", kRoom, displacement.empty() ? "" : "+", text);
}

// Whether the text names this register, and not only a symbol that contains its letters.
bool names_register(std::string_view text, std::string_view name) {
  const auto is_letter = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '$';
  };
  for (size_t i = 0; (i = text.find(name, i)) != std::string_view::npos; ++i) {
    const size_t end = i + name.size();
    if ((i == 0 || !is_letter(text[i - 1])) && (end == text.size() || !is_letter(text[end]))) {
      return true;
    }
  }
  return false;
}

// The same in Intel syntax, without `QWORD PTR`, which a lea does not want.
std::string below_stack_intel(std::string_view operand) {
  const std::string lowered = lower(operand);
  const size_t ptr = lowered.find(" ptr");
  if (ptr != std::string::npos) operand = trim(operand.substr(ptr + 4));
  std::string text(operand);
  const size_t close = text.rfind(']');
  if (close != std::string::npos &&
      (names_register(lowered, "rsp") || names_register(lowered, "esp"))) {
    text.insert(close, fmt::format("+{}", kRoom));
  }
  return text;
}

bool uses_thread_segment(std::string_view operand, const Instruction& instruction) {
  const std::string text = lower(operand);
  const auto& prefixes = instruction.prefixes;
  return text.find("fs:") != std::string::npos || text.find("gs:") != std::string::npos ||
         std::find(prefixes.begin(), prefixes.end(), "fs") != prefixes.end() ||
         std::find(prefixes.begin(), prefixes.end(), "gs") != prefixes.end();
}

// Without a segment that is flat anyway; lea takes none.
std::string_view without_segment(std::string_view operand) {
  const size_t colon = operand.find(':');
  return colon == std::string_view::npos ? operand : trim(operand.substr(colon + 1));
}

// Moves the stack pointer by so many bytes, and tells the debugger if it has to know.
std::string move_stack(int bytes, const Scope& scope) {
  std::string text = fmt::format("leaq {}(%rsp), %rsp; ", bytes);
  if (scope.frame_follows_stack()) text += fmt::format(".cfi_adjust_cfa_offset {}; ", -bytes);
  return text;
}

// Puts the operand's address into rdi, below the red zone.
std::string load_address(const Event& event, const Scope& scope, bool in_att_syntax) {
  if (in_att_syntax || !scope.intel()) {
    return fmt::format("leaq {}, %rdi; ", below_stack(without_segment(event.operand)));
  }
  const bool bare = scope.intel_directive().find("noprefix") != std::string::npos;
  return fmt::format("{}; lea {}rdi, {}; .att_syntax prefix; ", scope.intel_directive(),
                     bare ? "" : "%", below_stack_intel(event.operand));
}

// The statements that make the call-out, on one line.
std::string call_out(const Event& event, const Scope& scope, bool operand_in_att_syntax) {
  // By the global offset table instead of the procedure linkage table: binding a name at the first
  // call may change flags and registers.
  std::string text = fmt::format("call *perdure_lab_site_{}@GOTPCREL(%rip); ", event.site);
  int room = kRedZone;
  if (!event.operand.empty()) {
    room = kRoom;
    text = fmt::format("movq %rdi, (%rsp); {}{}movq (%rsp), %rdi; ",
                       load_address(event, scope, operand_in_att_syntax), text);
  }
  text = fmt::format("{}{}{}", move_stack(-room, scope), text, move_stack(room, scope));
  if (!scope.intel()) return text;
  return fmt::format(".att_syntax prefix; {}{}; ", text, scope.intel_directive());
}

class Rewriter {
 public:
  explicit Rewriter(std::string_view text) : text_(text) {}

  Rewritten run() {
    result_.text.reserve(text_.size() + text_.size() / 8);
    StatementReader reader(text_);
    while (const auto statement = reader.next()) {
      copy_until(statement->begin);
      take(*statement);
      copy_until(statement->end);
    }
    copy_until(text_.size());
    return std::move(result_);
  }

 private:
  // A prefix that stands alone as a statement: it belongs to the next one.
  struct PendingPrefix {
    size_t begin = 0;  // in the new text
    size_t length = 0;
  };

  void copy_until(size_t end) {
    if (copied_ >= end) return;
    result_.text += text_.substr(copied_, end - copied_);
    copied_ = end;
  }

  void take(const Statement& statement) {
    const std::string_view text = text_.substr(statement.begin, statement.end - statement.begin);
    if (trim(text).empty()) return;
    const Instruction instruction = parse_instruction(text);
    if (instruction.mnemonic == ".byte") return take_bytes(statement, instruction);
    if (instruction.mnemonic.starts_with('.')) {
      forget_prefixes();
      return scope_.note(instruction);
    }
    if (instruction.mnemonic.empty()) {
      if (instruction.prefixes.empty()) return;  // a label; what precedes it may still go on
      return keep_prefix(statement, instruction, {});
    }
    take_instruction(statement, instruction);
    forget_prefixes();
  }

  void take_instruction(const Statement& statement, const Instruction& instruction) {
    Instruction whole = instruction;
    whole.prefixes.insert(whole.prefixes.begin(), prefixes_.begin(), prefixes_.end());
    const auto event = find_event(whole, scope_.intel(), prefix_bytes_);
    if (!event) return;
    if (uses_thread_segment(event->operand, whole)) {
      return warn(statement, fmt::format("'{} {}' has an fs or gs operand and is not observed",
                                         instruction.mnemonic, event->operand));
    }
    emit(statement, instruction, *event, false);
  }

  void take_bytes(const Statement& statement, const Instruction& instruction) {
    const auto bytes = parse_bytes(instruction.operands);
    if (!bytes || !scope_.in_code()) return forget_prefixes();
    keep_prefix(statement, instruction, *bytes);
    const auto event = decode_event(prefix_bytes_);
    if (!event) return;
    pending_.pop_back();
    emit(statement, instruction, *event, true);
    forget_prefixes();
  }

  void keep_prefix(const Statement& statement, const Instruction& instruction,
                   std::span<const uint8_t> bytes) {
    // No instruction is longer than 15 bytes: what is longer is a table.
    if (prefix_bytes_.size() + bytes.size() > 15) return forget_prefixes();
    copy_until(statement.begin + instruction.body);
    pending_.push_back({result_.text.size(), statement.end - statement.begin - instruction.body});
    prefixes_.insert(prefixes_.end(), instruction.prefixes.begin(), instruction.prefixes.end());
    prefix_bytes_.insert(prefix_bytes_.end(), bytes.begin(), bytes.end());
  }

  void forget_prefixes() {
    pending_.clear();
    prefixes_.clear();
    prefix_bytes_.clear();
  }

  void emit(const Statement& statement, const Instruction& instruction, const Event& event,
            bool bytes_operand) {
    if (!scope_.is_64_bit()) {
      return warn(statement,
                  fmt::format("'{}' in 16- or 32-bit code is not observed", instruction.mnemonic));
    }
    ++result_.sites;
    const std::string call = call_out(event, scope_, bytes_operand);
    copy_until(statement.begin + instruction.body);
    if (event.keep) {
      // In front of the prefixes, even if they stand as statements of their own.
      const size_t at = pending_.empty() ? result_.text.size() : pending_.front().begin;
      result_.text.insert(at, call);
      return;
    }
    for (const PendingPrefix& prefix : std::views::reverse(pending_)) {
      result_.text.erase(prefix.begin, prefix.length);
    }
    result_.text += call;
    // The instruction goes, and with it line ends within it, which a comment may hold.
    const size_t end = statement.end;
    const auto lines = std::count(text_.begin() + static_cast<ptrdiff_t>(copied_),
                                  text_.begin() + static_cast<ptrdiff_t>(end), '\n');
    result_.text.append(static_cast<size_t>(lines), '\n');
    copied_ = end;
  }

  void warn(const Statement& statement, std::string text) {
    result_.warnings.push_back({statement.line, std::move(text)});
  }

  std::string_view text_;
  size_t copied_ = 0;
  Rewritten result_;
  Scope scope_;
  std::vector<PendingPrefix> pending_;
  std::vector<std::string> prefixes_;
  std::vector<uint8_t> prefix_bytes_;
};

}  // namespace

Rewritten rewrite(std::string_view text) { return Rewriter(text).run(); }

}  // namespace perdure::lab::wrap
