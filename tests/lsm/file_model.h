// What files must hold: a model of them in DRAM, and random steps on both.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lsm/files/file_system.h"
#include "perdure/files.h"
#include "support/random.h"

namespace perdure::test {

// Path to content; of a directory nothing.
using FileModel = std::map<std::string, std::optional<std::string>>;

// Everything that a user sees below a directory.
inline FileModel contents_of(const Files& files, const std::string& directory = "") {
  FileModel all;
  for (const FileInfo& info : files.list(directory)) {
    const std::string path = directory + "/" + info.name;
    if (info.directory) {
      all[path] = std::nullopt;
      all.merge(contents_of(files, path));
      continue;
    }
    const FileReader reader = files.open_file(path);
    std::string scratch(reader.size(), '\0');
    all[path] = std::string(reader.read(0, scratch.size(), scratch.data()));
    if (all[path]->size() != info.bytes) all[path] = "has another length than its listing says";
  }
  return all;
}

// In words, where they differ.
inline std::string differences(const FileModel& there, const FileModel& wanted) {
  std::string text;
  for (const auto& [path, content] : wanted) {
    const auto found = there.find(path);
    if (found == there.end()) {
      text += "lost: " + path + "\n";
    } else if (found->second != content) {
      text += "another content: " + path + "\n";
    }
  }
  for (const auto& [path, content] : there) {
    if (!wanted.contains(path)) text += "came back: " + path + "\n";
  }
  return text;
}

// Sound, and no block of the pool lost.
inline void expect_sound(const Pool& pool, const Files& files) {
  const auto fail = [](const std::string& sentence) { ADD_FAILURE() << sentence; };
  files.check(fail);
  pool.check(fail);
  double owned = 0;
  for (const Statistic& one : files.statistics()) {
    if (one.name == "pool_bytes") owned = one.value;
  }
  EXPECT_EQ(static_cast<uint64_t>(owned), pool.info().allocated_bytes) << "leaked, or owned twice";
}

// A random step, each atomic and durable when it returns. `next` is what there is after it.
class FileSteps {
 public:
  FileSteps(Random& random, uint64_t bytes_max) : random_(random), bytes_max_(bytes_max) {}

  // Throws what Files throws. `next` is set before anything changes.
  void perform(Files& files, const FileModel& model, FileModel& next) {
    next = model;
    const uint64_t choice = random_.below(100);
    if (choice < 45) return append(files, next);
    if (choice >= 85 && choice < 92) return truncate(files, next);
    let_go();
    if (choice < 60) return replace(files, next);
    if (choice < 70) return rename(files, next);
    if (choice < 85) return remove(files, next);
    make_directory(files, next);
  }

  // Closes the file that was appended to last, which stays open until a step has to do with others.
  void let_go() { appended_.reset(); }

 private:
  std::string bytes() {
    std::string text(random_.below(random_.chance(20) ? bytes_max_ : 300), '\0');
    const uint64_t seed = random_.next();
    for (size_t i = 0; i < text.size(); ++i)
      text[i] = static_cast<char>(mix(seed + i / 8) >> (i % 8 * 8));
    return text;
  }
  std::string new_path(const FileModel& model) {
    std::vector<std::string> directories{""};
    for (const auto& [path, content] : model) {
      if (!content) directories.push_back(path);
    }
    return directories[random_.below(directories.size())] + "/f" + std::to_string(random_.below(8));
  }
  // Of a file that is there, if any.
  std::optional<std::string> some_file(const FileModel& model) {
    std::vector<std::string> paths;
    for (const auto& [path, content] : model) {
      if (content) paths.push_back(path);
    }
    if (paths.empty()) return std::nullopt;
    return paths[random_.below(paths.size())];
  }

  // One that is open is written to again, as a log is.
  std::optional<std::string> log_or_some_file(const FileModel& model) {
    return appended_ && random_.below(4) != 0 ? path_ : some_file(model);
  }
  FileWriter& writer_of(Files& files, const std::string& path) {
    if (appended_ && path_ == path) return *appended_;
    let_go();
    path_ = path;
    return appended_.emplace(files.append_file(path));
  }

  void append(Files& files, FileModel& next) {
    const auto path = log_or_some_file(next);
    if (!path) return replace(files, next);
    const std::string more = bytes();
    next[*path]->append(more);
    FileWriter& writer = writer_of(files, *path);
    // In pieces, which count together.
    for (size_t at = 0; at < more.size();) {
      const size_t piece = 1 + random_.below(more.size() - at);
      writer.append(std::string_view(more).substr(at, piece));
      at += piece;
    }
    writer.sync();
  }
  // A file of its own takes another one's place, as stores do with what names their newest state.
  void replace(Files& files, FileModel& next) {
    const std::string path = new_path(next);
    const auto found = next.find(path);
    if (found != next.end() && !found->second) return;
    const std::string content = bytes();
    FileWriter writer = files.create_file("/temporary");
    writer.append(content);
    writer.close();
    next[path] = content;
    files.rename("/temporary", path);
  }
  void rename(Files& files, FileModel& next) {
    const auto from = some_file(next);
    if (!from) return;
    const std::string to = new_path(next);
    const auto found = next.find(to);
    if (found != next.end() && !found->second) return;
    if (to != *from) {
      next[to] = next[*from];
      next.erase(*from);
    }
    files.rename(*from, to);
  }
  void remove(Files& files, FileModel& next) {
    const auto path = some_file(next);
    if (!path) return;
    next.erase(*path);
    files.remove(*path);
  }
  void truncate(Files& files, FileModel& next) {
    const auto path = log_or_some_file(next);
    if (!path) return;
    FileWriter& writer = writer_of(files, *path);
    const uint64_t bytes = random_.below(writer.size() + 1);
    next[*path]->resize(bytes);
    writer.truncate(bytes);
  }
  void make_directory(Files& files, FileModel& next) {
    const std::string path = "/d" + std::to_string(random_.below(4));
    next.emplace(path, std::nullopt);
    files.make_directory(path);
  }

  Random& random_;
  uint64_t bytes_max_;
  std::optional<FileWriter> appended_;
  std::string path_;  // of it
};

}  // namespace perdure::test
