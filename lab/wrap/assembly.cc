#include "lab/wrap/assembly.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

namespace perdure::lab::wrap {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

bool is_symbol(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '$' ||
         c == '\\' || c == '@';
}

// A copy with every block comment blanked, so that offsets stay as they are.
std::string without_comments(std::string_view text) {
  std::string copy(text);
  for (size_t i = 0; (i = copy.find("/*", i)) != std::string::npos;) {
    const size_t end = copy.find("*/", i + 2);
    const size_t stop = end == std::string::npos ? copy.size() : end + 2;
    std::fill(copy.begin() + static_cast<ptrdiff_t>(i), copy.begin() + static_cast<ptrdiff_t>(stop),
              ' ');
    i = stop;
  }
  return copy;
}

bool is_prefix(std::string_view word) {
  static constexpr std::array<std::string_view, 22> kPrefixes = {
      "lock",     "rep",      "repe",  "repz",   "repne",  "repnz", "data16", "addr32",
      "cs",       "ds",       "es",    "fs",     "gs",     "ss",    "bnd",    "notrack",
      "xacquire", "xrelease", "{vex}", "{vex2}", "{vex3}", "{evex}"};
  return std::find(kPrefixes.begin(), kPrefixes.end(), word) != kPrefixes.end() ||
         word.starts_with("rex");
}

size_t skip_blanks(std::string_view text, size_t i) {
  while (i < text.size() && is_blank(text[i])) ++i;
  return i;
}

// Behind all labels at the front.
size_t skip_labels(std::string_view text) {
  size_t start = skip_blanks(text, 0);
  for (;;) {
    size_t i = start;
    if (i < text.size() && text[i] == '"') {
      i = text.find('"', i + 1);
      if (i == std::string_view::npos) return start;
      ++i;
    } else {
      while (i < text.size() && is_symbol(text[i])) ++i;
    }
    const size_t colon = skip_blanks(text, i);
    if (i == start || colon >= text.size() || text[colon] != ':') return start;
    start = skip_blanks(text, colon + 1);
  }
}

// Cuts at the commas that stand outside parentheses, brackets, braces and strings.
std::vector<std::string> split_operands(std::string_view text) {
  std::vector<std::string> operands;
  if (trim(text).empty()) return operands;
  int depth = 0;
  bool quoted = false;
  size_t start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (c != ',' || depth != 0) continue;
    operands.emplace_back(trim(text.substr(start, i - start)));
    start = i + 1;
  }
  operands.emplace_back(trim(text.substr(start)));
  return operands;
}

}  // namespace

std::string_view trim(std::string_view text) {
  while (!text.empty() && (is_blank(text.front()) || text.front() == '\n')) text.remove_prefix(1);
  while (!text.empty() && (is_blank(text.back()) || text.back() == '\n')) text.remove_suffix(1);
  return text;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

bool StatementReader::at_line_comment() const {
  return text_[position_] == '#' || (text_[position_] == '/' && at_line_start_);
}

void StatementReader::skip_string() {
  for (++position_; position_ < text_.size() && text_[position_] != '"'; ++position_) {
    if (text_[position_] == '\n') ++line_;
    if (text_[position_] == '\\') ++position_;
  }
  if (position_ < text_.size()) ++position_;
}

void StatementReader::skip_block_comment() {
  const size_t found = text_.find("*/", position_ + 2);
  const size_t end = found == std::string_view::npos ? text_.size() : found + 2;
  line_ += static_cast<size_t>(std::count(text_.begin() + static_cast<ptrdiff_t>(position_),
                                          text_.begin() + static_cast<ptrdiff_t>(end), '\n'));
  position_ = end;
}

std::optional<Statement> StatementReader::next() {
  if (done_) return std::nullopt;
  Statement statement{position_, position_, line_};
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c == '"') {
      skip_string();
    } else if (c == '/' && position_ + 1 < text_.size() && text_[position_ + 1] == '*') {
      skip_block_comment();
      continue;  // a line may still begin behind it
    } else if (c == '\'') {
      // A character constant: the character, perhaps escaped, need not be closed.
      position_ += position_ + 1 < text_.size() && text_[position_ + 1] == '\\' ? 3 : 2;
    } else if (c == ';' || c == '\n' || at_line_comment()) {
      break;
    } else {
      ++position_;
      if (is_blank(c)) continue;
    }
    at_line_start_ = false;
  }
  position_ = std::min(position_, text_.size());
  statement.end = position_;
  if (position_ < text_.size() && text_[position_] != ';') {
    const size_t newline = text_.find('\n', position_);
    position_ = newline == std::string_view::npos ? text_.size() : newline;
    at_line_start_ = true;
    ++line_;
  }
  if (position_ < text_.size()) {
    ++position_;
  } else {
    done_ = true;
  }
  return statement;
}

Instruction parse_instruction(std::string_view statement) {
  const std::string text = without_comments(statement);
  Instruction instruction;
  size_t i = skip_labels(text);
  instruction.body = i;
  while (i < text.size()) {
    size_t end = i;
    while (end < text.size() && !is_blank(text[end]) && text[end] != '\n') ++end;
    std::string word = lower(std::string_view(text).substr(i, end - i));
    i = end;
    while (i < text.size() && (is_blank(text[i]) || text[i] == '\n')) ++i;
    if (is_prefix(word)) {
      instruction.prefixes.push_back(std::move(word));
      continue;
    }
    instruction.mnemonic = std::move(word);
    instruction.operands = split_operands(std::string_view(text).substr(i));
    break;
  }
  return instruction;
}

std::optional<std::vector<uint8_t>> parse_bytes(const std::vector<std::string>& operands) {
  std::vector<uint8_t> bytes;
  for (std::string_view word : operands) {
    int base = 10;
    if (word.starts_with("0x") || word.starts_with("0X")) {
      base = 16;
      word.remove_prefix(2);
    } else if (word.size() > 1 && word.front() == '0') {
      base = 8;
    }
    unsigned value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
    if (error != std::errc() || end != word.data() + word.size() || value > 255)
      return std::nullopt;
    bytes.push_back(static_cast<uint8_t>(value));
  }
  return bytes;
}

size_t register_bytes(std::string_view name) {
  const std::string lowered = lower(name.starts_with('%') ? name.substr(1) : name);
  const std::string_view word = lowered;
  const size_t mm = word.find("mm");
  if (mm <= 1 && word.size() > mm + 2 &&
      word.find_first_not_of("0123456789", mm + 2) == std::string_view::npos) {
    if (mm == 0) return 8;
    return word[0] == 'x' ? 16 : word[0] == 'y' ? 32 : word[0] == 'z' ? 64 : 0;
  }
  if (word.size() < 2 || word.size() > 4) return 0;
  if (word[0] == 'r' && std::isdigit(static_cast<unsigned char>(word[1])) != 0) {
    switch (word.back()) {
      case 'b':
      case 'l':
        return 1;
      case 'w':
        return 2;
      case 'd':
        return 4;
      default:
        return 8;
    }
  }
  static constexpr std::array<std::string_view, 8> kWords = {"ax", "bx", "cx", "dx",
                                                             "si", "di", "bp", "sp"};
  const std::string_view tail = word.substr(word.size() - 2);
  const bool is_word = std::find(kWords.begin(), kWords.end(), tail) != kWords.end();
  if (word.size() == 3 && is_word) return word[0] == 'r' ? 8 : word[0] == 'e' ? 4 : 0;
  if (word.size() == 2 && is_word) return 2;
  if (word.size() == 2 && std::string_view("abcd").find(word[0]) != std::string_view::npos &&
      (word[1] == 'l' || word[1] == 'h')) {
    return 1;
  }
  static constexpr std::array<std::string_view, 4> kLow = {"sil", "dil", "bpl", "spl"};
  return std::find(kLow.begin(), kLow.end(), word) != kLow.end() ? 1 : 0;
}

}  // namespace perdure::lab::wrap
