// Real data that a Debian machine has: the WordNet dictionary and the index of packages.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace perdure::cli {

// Keys to values, in the order of the keys.
using Records = std::map<std::string, std::string>;

// What was found of a source. `note` says why, if it is nothing.
struct SourceNote {
  uint64_t records = 0;
  std::string note;
};

// Adds the words of WordNet 3.0 (Debian package wordnet-base) with their glosses: "persist" to a
// line "(verb) continue to exist; ..." for each of its senses.
SourceNote add_wordnet(const std::string& folder, Records& records);

// Adds the packages that apt has downloaded the index of: "deb:bash" to "GNU Bourne Again SHell".
SourceNote add_debian_packages(const std::string& folder, Records& records);

// Adds the records of a TSV or JSON lines file.
SourceNote add_file(const std::string& path, Records& records);

// Writes records as TSV. Returns the bytes written. Throws Error(kPermission, kIo).
uint64_t write_tsv(const Records& records, const std::string& path);

}  // namespace perdure::cli
