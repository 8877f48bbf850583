// Keys and values as text: on the command line, in TSV lines and in JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "perdure/index.h"

namespace perdure::cli {

// Reads a key or value of this kind: byte strings as they are; words in decimal, or in hexadecimal
// after 0x. Throws Error(kInvalidArgument) for what is not a 64-bit number.
void parse_datum(std::string_view text, Kind kind, Value& out);

// The bytes of a byte string, or the decimal digits of a word.
std::string to_text(Datum datum);

// Appends bytes so that they hold no tab and no newline: \t \n \r \\ for these four, \xNN for other
// control characters and for bytes that are not part of valid UTF-8.
void append_tsv_escaped(std::string_view bytes, std::string& out);

// Appends what the escapes of append_tsv_escaped stand for; other bytes stand for themselves.
// Throws Error(kInvalidArgument) on a backslash before anything else.
void append_tsv_unescaped(std::string_view text, std::string& out);

bool is_utf8(std::string_view bytes);

std::string to_base64(std::string_view bytes);
// Throws Error(kInvalidArgument) on anything but padded base64.
std::string from_base64(std::string_view text);

// Sets `object[name]`: words as numbers, UTF-8 as strings; other bytes as base64, under the name
// with "_base64" appended.
void set_json(nlohmann::json& object, const std::string& name, Datum datum);

// Reads what set_json wrote (words also from strings of digits). Throws Error(kInvalidArgument)
// with what is wrong.
void get_json(const nlohmann::json& object, const std::string& name, Kind kind, Value& out);

}  // namespace perdure::cli
