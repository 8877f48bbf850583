// Records from text: a file or standard input, line by line, as TSV, CSV or JSON lines.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/index.h"

namespace perdure::cli {

// A file read line by line. "-" is standard input.
class LineSource {
 public:
  // The longest line: key and value of 64 MiB each, every byte of them escaped as \xNN.
  static constexpr uint64_t kMaxLineBytes = uint64_t{640} << 20;

  // `stop`, if given, ends a wait for input that a signal interrupted: next() is false from then
  // on. Errors: kNotFound, kNotAFile, kPermission, kIo.
  explicit LineSource(const std::string& path, const std::atomic<bool>* stop = nullptr);
  // Of an open pipe, which stays the caller's. `unit` is what messages call a line of it.
  LineSource(int pipe, std::string name, std::string unit, const std::atomic<bool>* stop);
  ~LineSource();
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;

  // Gets the next line, without its newline; valid until the next call. False at the end. Throws
  // kIo, and kInvalidArgument for a line beyond kMaxLineBytes.
  bool next(std::string_view& line);

  // From now on newlines within quotes are part of a line, as in CSV.
  void keep_quoted_newlines() { quotes_ = true; }

  // Whether the next call can be answered from what is already in memory.
  bool has_buffered_line() const;
  // The first byte, or -1 if there is none. Reads ahead, consumes nothing.
  int peek();

  const std::string& name() const { return name_; }  // for messages
  // "words.tsv, line 17".
  std::string place(uint64_t line) const;
  bool is_file() const { return is_file_; }
  uint64_t size_bytes() const { return size_bytes_; }  // of a file
  uint64_t position_bytes() const { return position_bytes_; }
  uint64_t line_number() const { return line_number_; }  // of the last line got, from 1

  // What tells this source from others: path, size and time of change; "-" for what is no file.
  std::string identity() const { return identity_; }

 private:
  // Where a byte of CSV stands.
  enum class In : uint8_t { kFieldStart, kPlain, kQuotes, kQuoteInQuotes };

  bool fill();
  // The newline that ends a line, at or after `from`, where the state is `in`; or null.
  const char* find_newline(size_t from, In& in) const;
  bool stopped() const { return stop_ != nullptr && stop_->load(); }

  const std::atomic<bool>* stop_;
  std::string name_;
  std::string unit_ = "line";
  int file_ = -1;
  bool is_file_ = false;
  uint64_t size_bytes_ = 0;
  std::string identity_ = "-";
  std::vector<char> buffer_;
  size_t begin_ = 0;  // of what is buffered and not yet given out
  size_t end_ = 0;
  size_t scanned_ = 0;  // no newline before this place
  bool quotes_ = false;
  In in_ = In::kFieldStart;  // at `scanned_`
  bool at_end_ = false;
  uint64_t position_bytes_ = 0;
  uint64_t line_number_ = 0;
};

enum class TextFormat { kTsv, kJsonLines, kCsv };

const char* to_string(TextFormat format) noexcept;

// The format that a file's name promises (.tsv .txt .csv .jsonl .ndjson .json), or else its first
// byte: '{' begins JSON lines. Of CSV the source keeps quoted newlines from then on.
TextFormat detect_format(LineSource& source);
// Of a name: "tsv", "jsonl" or "csv".
TextFormat parse_format(std::string_view name);

// Whether a line is neither a record nor a mistake: nothing but white space, among JSON lines;
// nothing, in CSV.
bool is_blank(std::string_view line, TextFormat format);

// Reads one line as a record. Throws Error(kInvalidArgument) with what is wrong with it.
void parse_record(std::string_view line, TextFormat format, Kind key_kind, Kind value_kind,
                  Value& key, Value& value);

}  // namespace perdure::cli
