// The environment of a pool beside that of the machine: the same calls, the same answers.
#include <gtest/gtest.h>
#include <leveldb/env.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lsm/same_answers.h"
#include "perdure/leveldb.h"
#include "perdure/pool.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

using leveldb::Env;
using leveldb::Slice;
using leveldb::Status;

// What a caller may go by.
std::string kind_of(const Status& status) {
  if (status.ok()) return "ok";
  return status.IsNotFound() ? "not found" : "error";
}

// An environment, and the files that are open in it.
struct Side {
  Env& env;
  std::string root;
  std::map<std::string, std::unique_ptr<leveldb::WritableFile>> writers;  // by name
  std::map<uint64_t, std::unique_ptr<leveldb::RandomAccessFile>> readers;

  std::string path(const std::string& name) const { return root + name; }
};

class LevelDbEnv : public testing::Test {
 protected:
  static PoolOptions options() {
    PoolOptions options;
    options.capacity_bytes = uint64_t{64} << 20;
    return options;
  }
  void both(const std::string& what, const std::function<std::string(Side&)>& call) {
    answers_.expect(system_, pool_side_, what, call);
  }
  bool is_directory(const std::string& name) const {
    return std::filesystem::is_directory(system_.path(name));
  }

  TempDir folder_;
  Pool pool_ = Pool::create(folder_.file("pool"), options());
  std::unique_ptr<Env> env_ = leveldb_env(pool_);
  Side system_{*Env::Default(), folder_.path() + "/files", {}, {}};
  Side pool_side_{*env_, "/files", {}, {}};
  SameAnswers answers_;
};

TEST_F(LevelDbEnv, AnswersAsThatOfTheMachine) {
  both("mkdir", [](Side& side) { return kind_of(side.env.CreateDir(side.path(""))); });
  Random random(base_seed());
  const std::vector<std::string> directories{"", "/d0", "/d1", "/d0/d2"};
  const auto some_name = [&] {
    return directories[random.below(4)] + "/f" + std::to_string(random.below(4));
  };
  const auto some_directory = [&] { return directories[1 + random.below(3)]; };
  for (uint64_t step = 0; step < rounds(20'000) && !HasFailure(); ++step) {
    const uint64_t choice = random.below(100);
    const std::string name = some_name();
    if (choice < 10) {
      if (system_.writers.contains(name) || system_.writers.size() > 4) continue;
      const bool again = random.chance(50);
      both((again ? "append to " : "create ") + name, [&](Side& side) {
        if (!again) side.readers.clear();  // of a file that is cut the machine's must not be read
        leveldb::WritableFile* file = nullptr;
        const Status status = again ? side.env.NewAppendableFile(side.path(name), &file)
                                    : side.env.NewWritableFile(side.path(name), &file);
        if (status.ok()) side.writers[name].reset(file);
        return kind_of(status);
      });
    } else if (choice < 45) {
      if (system_.writers.empty()) continue;
      const std::string id = std::next(system_.writers.begin(),
                                       static_cast<ptrdiff_t>(random.below(system_.writers.size())))
                                 ->first;
      const uint64_t what = random.below(100);
      std::string bytes(random.below(random.chance(15) ? 200'000 : 2000), '\0');
      for (char& each : bytes) each = static_cast<char>(random.next());
      both("write " + id + " " + std::to_string(what), [&](Side& side) {
        leveldb::WritableFile& file = *side.writers.at(id);
        if (what < 75) {
          // What is not flushed is nobody's to see.
          const std::string appended = kind_of(file.Append(bytes));
          return appended + " " + kind_of(what < 50 ? file.Flush() : file.Sync());
        }
        const std::string closed = kind_of(file.Close());
        side.writers.erase(id);
        return closed;
      });
    } else if (choice < 50) {
      both("remove " + name, [&](Side& side) {
        side.writers.erase(name);
        return kind_of(side.env.RemoveFile(side.path(name)));
      });
    } else if (choice < 54) {
      // The pool makes those that lead there, too.
      const std::string directory = random.chance(80) ? some_directory() : name;
      if (!is_directory(directory.substr(0, directory.find_last_of('/')))) continue;
      both("mkdir " + directory,
           [&](Side& side) { return kind_of(side.env.CreateDir(side.path(directory))); });
    } else if (choice < 55) {
      const std::string directory = random.chance(80) ? some_directory() : name;
      both("rmdir " + directory,
           [&](Side& side) { return kind_of(side.env.RemoveDir(side.path(directory))); });
    } else if (choice < 56) {
      const std::string directory = some_directory();
      both("remove the directory " + directory,
           [&](Side& side) { return kind_of(side.env.RemoveFile(side.path(directory))); });
    } else if (choice < 62) {
      const std::string from = random.chance(85) ? name : some_directory();
      const std::string to = random.chance(85) ? some_name() : some_directory();
      // No file where others have a directory: what goes through it is told in other words.
      if (!is_directory(from) && std::ranges::count(directories, to) != 0 && !is_directory(to))
        continue;
      both("rename " + from + " " + to, [&](Side& side) {
        side.writers.clear();  // of which each file has one at a time, by its name
        return kind_of(side.env.RenameFile(side.path(from), side.path(to)));
      });
    } else if (choice < 70) {
      const std::string directory = random.chance(90) ? directories[random.below(4)] : name;
      both("ls " + directory, [&](Side& side) {
        std::vector<std::string> all;
        std::string text = kind_of(side.env.GetChildren(side.path(directory), &all));
        std::ranges::sort(all);
        for (const std::string& each : all) {
          if (each != "." && each != "..") text += " " + each;
        }
        return text;
      });
    } else if (choice < 76 || is_directory(name)) {
      both("stat " + name, [&](Side& side) {
        std::string text = side.env.FileExists(side.path(name)) ? "there" : "none";
        if (is_directory(name)) return text;
        uint64_t bytes = 0;
        text += " " + kind_of(side.env.GetFileSize(side.path(name), &bytes));
        return text + " " + std::to_string(bytes);
      });
    } else if (choice < 84) {
      uint64_t size = 0;
      system_.env.GetFileSize(system_.path(name), &size);
      if (size == 0 && system_.env.FileExists(system_.path(name)))
        continue;  // it maps no such file
      both("open " + name, [&](Side& side) {
        leveldb::RandomAccessFile* file = nullptr;
        const Status status = side.env.NewRandomAccessFile(side.path(name), &file);
        if (status.ok()) side.readers[step % 4].reset(file);
        return kind_of(status);
      });
    } else if (choice < 90) {
      const uint64_t skipped = random.chance(30) ? random.below(3000) : 0;
      const uint64_t bytes = 1 + random.below(50'000);
      both("scan " + name + " by " + std::to_string(bytes), [&](Side& side) {
        leveldb::SequentialFile* opened = nullptr;
        const Status status = side.env.NewSequentialFile(side.path(name), &opened);
        const std::unique_ptr<leveldb::SequentialFile> file(opened);
        std::string text = kind_of(status);
        if (!status.ok()) return text;
        text += " " + kind_of(file->Skip(skipped));
        std::string scratch(bytes, '\0');
        Slice result;
        do {
          text += " " + kind_of(file->Read(bytes, &result, scratch.data())) +
                  digest_of({result.data(), result.size()});
        } while (!result.empty());
        return text;
      });
    } else {
      const uint64_t id = random.below(4);
      if (!system_.readers.contains(id)) continue;
      const uint64_t offset = random.below(100'000);
      const uint64_t bytes = 1 + random.below(20'000);
      const auto read = [&](Side& side) {
        std::string scratch(bytes, '\0');
        Slice result;
        const Status status = side.readers.at(id)->Read(offset, bytes, &result, scratch.data());
        return kind_of(status) + digest_of({result.data(), result.size()});
      };
      // That of the machine maps files, and refuses what is behind the end that they had then.
      if (!read(system_).starts_with("ok")) continue;
      both("read " + std::to_string(id) + " " + std::to_string(offset), read);
    }
  }
}

}  // namespace
}  // namespace perdure::test
