#include "cli/word_sources.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "cli/record_source.h"
#include "cli/subprocess.h"
#include "cli/text.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

constexpr char kAptHelper[] = "/usr/lib/apt/apt-helper";

// Takes the next word, up to a space, off the front.
std::string_view take_word(std::string_view& line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, space);
  line.remove_prefix(std::min(space + 1, line.size()));
  return word;
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \r\n") - begin + 1);
}

// "hot_dog" to "hot dog"; "galore(ip)", whose mark tells where an adjective may stand, to "galore".
std::string lemma_of(std::string_view word) {
  if (!word.empty() && word.back() == ')') word = word.substr(0, word.rfind('('));
  std::string lemma(word);
  std::replace(lemma.begin(), lemma.end(), '_', ' ');
  return lemma;
}

// One line of a data file: the set of synonyms "offset file type count word id word id ... |
// gloss", where count is in hexadecimal.
void add_synonyms(std::string_view line, std::string_view part_of_speech, Records& records) {
  const size_t bar = line.find(" | ");
  if (bar == std::string_view::npos) return;
  const std::string_view gloss = trim(line.substr(bar + 3));
  for (int field = 0; field < 3; ++field) take_word(line);
  const std::string_view count_text = take_word(line);
  unsigned count = 0;
  std::from_chars(count_text.data(), count_text.data() + count_text.size(), count, 16);
  for (unsigned i = 0; i < count; ++i) {
    std::string& value = records[lemma_of(take_word(line))];
    take_word(line);
    fmt::format_to(std::back_inserter(value), "{}({}) {}", value.empty() ? "" : "\n",
                   part_of_speech, gloss);
  }
}

// Collects stanzas of "Field: text" lines, as far as packages need them.
class PackageIndex {
 public:
  explicit PackageIndex(Records& records) : records_(records) {}

  void take(std::string_view line) {
    if (line.empty()) {
      end_stanza();
    } else if (line.rfind("Package: ", 0) == 0) {
      package_ = trim(line.substr(9));
    } else if (line.rfind("Description: ", 0) == 0) {
      description_ = trim(line.substr(13));
    }
  }
  void end_stanza() {
    if (!package_.empty()) records_["deb:" + package_] = description_;
    package_.clear();
    description_.clear();
  }

 private:
  Records& records_;
  std::string package_;
  std::string description_;
};

std::vector<std::string> index_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code ignored;  // a folder that cannot be read has no files for us
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().find("_Packages") != std::string::npos) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

SourceNote add_wordnet(const std::string& folder, Records& records) {
  constexpr std::array<std::array<const char*, 2>, 4> kFiles = {
      {{"data.noun", "noun"}, {"data.verb", "verb"}, {"data.adj", "adj"}, {"data.adv", "adv"}}};
  const uint64_t before = records.size();
  for (const auto& [name, part_of_speech] : kFiles) {
    std::ifstream file(folder + "/" + name);
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("  ", 0) != 0) add_synonyms(line, part_of_speech, records);
    }
  }
  SourceNote note{.records = records.size() - before, .note = ""};
  if (note.records == 0) note.note = "not in " + folder + " (Debian package wordnet-base)";
  return note;
}

SourceNote add_debian_packages(const std::string& folder, Records& records) {
  const std::vector<std::string> files = index_files(folder);
  if (files.empty()) return {0, "no package index in " + folder + " (apt-get update brings one)"};
  const uint64_t before = records.size();
  for (const std::string& path : files) {
    // The helper reads every compression that apt uses.
    Subprocess helper({kAptHelper, "cat-file", path}, 1);
    PackageIndex index(records);
    helper.read_lines([&index](std::string_view line) {
      index.take(line);
      return true;
    });
    index.end_stanza();
  }
  SourceNote note{.records = records.size() - before, .note = ""};
  if (note.records == 0) note.note = fmt::format("{} could not read the index", kAptHelper);
  return note;
}

SourceNote add_file(const std::string& path, Records& records) {
  LineSource source(path);
  const TextFormat format = detect_format(source);
  const uint64_t before = records.size();
  Value key;
  Value value;
  for (std::string_view line; source.next(line);) {
    if (is_blank(line, format)) continue;
    try {
      parse_record(line, format, Kind::kBytes, Kind::kBytes, key, value);
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("{}, line {}: {}", path, source.line_number(), error.what()));
    }
    records[key.bytes()] = value.bytes();
  }
  return {records.size() - before, ""};
}

uint64_t write_tsv(const Records& records, const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  uint64_t bytes = 0;
  std::string line;
  for (const auto& [key, value] : records) {
    line.clear();
    append_tsv_escaped(key, line);
    line += '\t';
    append_tsv_escaped(value, line);
    line += '\n';
    file.write(line.data(), static_cast<std::streamsize>(line.size()));
    bytes += line.size();
  }
  file.close();
  if (!file) {
    throw Error(errno == EACCES ? ErrorCode::kPermission : ErrorCode::kIo,
                fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  }
  return bytes;
}

}  // namespace perdure::cli
