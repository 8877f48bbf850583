// Part of the build: makes the libraries for PiBench, one copy of the same library for each
// structure of the catalogue.
//
//   copy_plugins LIBRARY FOLDER

#include <cstdio>
#include <exception>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>

#include "lab/pibench/names.h"
#include "perdure/catalog.h"

namespace {

namespace fs = std::filesystem;

void copy_plugins(const fs::path& library, const fs::path& folder) {
  fs::create_directories(folder);
  std::set<std::string> names;
  for (const perdure::CatalogEntry& entry : perdure::catalog()) {
    const std::string name = perdure::pibench::library_name(entry.name);
    if (!names.insert(name).second) throw std::runtime_error("two structures would be " + name);
    fs::copy_file(library, folder / name, fs::copy_options::overwrite_existing);
  }
  // Of structures that are no longer there.
  for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
    if (!names.contains(file.path().filename())) fs::remove(file.path());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    copy_plugins(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
