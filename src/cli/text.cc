#include "cli/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "perdure/error.h"

namespace perdure::cli {
namespace {

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

// The length of the valid UTF-8 character at the front, or 0. Over-long forms, surrogates and
// numbers beyond Unicode are not valid.
size_t utf8_length(std::string_view bytes) {
  const auto at = [&bytes](size_t i) {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U;
  };
  const auto continues = [&at](size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return at(i) >= low && at(i) <= high;
  };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return continues(1) ? 2 : 0;
  if (first < 0xF0) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : 0xBF;
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (first > 0xF4) return 0;
  const unsigned low = first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xF4 ? 0x8F : 0xBF;
  return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
}

bool is_plain(char byte) { return byte >= 0x20 && byte < 0x7f && byte != '\\'; }

void append_hex_escape(char byte, std::string& out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  out += "\\x";
  out += kDigits[value >> 4];
  out += kDigits[value & 15];
}

char hex_escaped(std::string_view digits) {
  unsigned value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2) {
    refuse("\\x must be followed by two hexadecimal digits");
  }
  return static_cast<char>(value);
}

int base64_value(char digit) {
  const size_t found = kBase64.find(digit);
  return found == std::string_view::npos ? -1 : static_cast<int>(found);
}

}  // namespace

void parse_datum(std::string_view text, Kind kind, Value& out) {
  if (kind == Kind::kBytes) {
    out.set_bytes().assign(text);
    return;
  }
  const bool hex = text.substr(0, 2) == "0x";
  const std::string_view digits = hex ? text.substr(2) : text;
  uint64_t word = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), word, hex ? 16 : 10);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) {
    refuse(fmt::format("\"{:.40}\" is not a whole number from 0 to 18446744073709551615", text));
  }
  out.set(word);
}

std::string to_text(Datum datum) {
  return datum.kind() == Kind::kU64 ? std::to_string(datum.word()) : std::string(datum.bytes());
}

void append_tsv_escaped(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const auto plain =
        static_cast<size_t>(std::find_if_not(bytes.begin(), bytes.end(), is_plain) - bytes.begin());
    out.append(bytes.substr(0, plain));
    bytes.remove_prefix(plain);
    if (bytes.empty()) return;
    size_t length = 1;
    switch (bytes[0]) {
      case '\t':
        out += "\\t";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\\':
        out += "\\\\";
        break;
      default:
        length = utf8_length(bytes);
        if (length > 1) {
          out.append(bytes.substr(0, length));
        } else {
          append_hex_escape(bytes[0], out);
          length = 1;
        }
    }
    bytes.remove_prefix(length);
  }
}

void append_tsv_unescaped(std::string_view text, std::string& out) {
  for (size_t at = 0;;) {
    const size_t backslash = std::min(text.find('\\', at), text.size());
    out.append(text.substr(at, backslash - at));
    if (backslash == text.size()) return;
    const char escape = backslash + 1 < text.size() ? text[backslash + 1] : '\0';
    at = backslash + 2;
    switch (escape) {
      case 't':
        out += '\t';
        break;
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case '\\':
        out += '\\';
        break;
      case 'x':
        out += hex_escaped(text.substr(at, 2));
        at += 2;
        break;
      default:
        refuse("a backslash must begin \\t, \\n, \\r, \\\\ or \\xNN");
    }
  }
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t length = utf8_length(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t group = 0;
    const size_t used = std::min<size_t>(3, bytes.size() - at);
    for (size_t i = 0; i < 3; ++i) {
      group = (group << 8) | (i < used ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (size_t i = 0; i < 4; ++i) {
      text += i <= used ? kBase64[(group >> (18 - 6 * i)) & 63] : '=';
    }
  }
  return text;
}

std::string from_base64(std::string_view text) {
  const char* const kWrong = "not base64: expected letters, digits, +, / in groups of four with =";
  if (text.size() % 4 != 0) refuse(kWrong);
  const size_t padding = text.size() - std::min(text.find('='), text.size());
  if (padding > 2 || text.substr(text.size() - padding) != std::string(padding, '=')) {
    refuse(kWrong);
  }
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    uint32_t group = 0;
    for (size_t i = 0; i < 4; ++i) {
      const char digit = text[at + i];
      const int value = digit == '=' ? 0 : base64_value(digit);
      if (value < 0) refuse(kWrong);
      group = (group << 6) | static_cast<uint32_t>(value);
    }
    for (const unsigned shift : {16U, 8U, 0U}) bytes += static_cast<char>(group >> shift);
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

void set_json(nlohmann::json& object, const std::string& name, Datum datum) {
  if (datum.kind() == Kind::kU64) {
    object[name] = datum.word();
  } else if (is_utf8(datum.bytes())) {
    object[name] = datum.bytes();
  } else {
    object[name + "_base64"] = to_base64(datum.bytes());
  }
}

void get_json(const nlohmann::json& object, const std::string& name, Kind kind, Value& out) {
  const auto plain = object.find(name);
  const auto encoded = object.find(name + "_base64");
  if (plain == object.end() && encoded == object.end()) {
    refuse(fmt::format("there is no \"{}\"", name));
  }
  if (plain != object.end() && encoded != object.end()) {
    refuse(fmt::format("there is both \"{0}\" and \"{0}_base64\"", name));
  }
  const nlohmann::json& field = plain != object.end() ? *plain : *encoded;
  if (kind == Kind::kU64 && field.is_number_unsigned()) {
    out.set(field.get<uint64_t>());
    return;
  }
  if (!field.is_string()) {
    refuse(
        fmt::format("\"{}\" is not a {}", name,
                    kind == Kind::kU64 ? "whole number from 0 to 18446744073709551615" : "string"));
  }
  const auto& text = field.get_ref<const std::string&>();
  parse_datum(encoded != object.end() ? from_base64(text) : text, kind, out);
}

}  // namespace perdure::cli
