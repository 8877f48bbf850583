// The file system of a pool beside that of the machine: the same calls, the same answers.
#include <gtest/gtest.h>
#include <rocksdb/file_system.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lsm/same_answers.h"
#include "perdure/pool.h"
#include "perdure/rocksdb.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

using rocksdb::FileSystem;
using rocksdb::IOStatus;

// What a caller may go by.
std::string kind_of(const IOStatus& status) {
  if (status.ok()) return "ok";
  if (status.IsNotFound()) return "not found";
  if (status.IsPathNotFound()) return "path not found";
  if (status.IsNotSupported()) return "not supported";
  return "error";
}

// A file system, and the files that are open in it.
class Side {
 public:
  Side(std::shared_ptr<FileSystem> system, std::string root)
      : system_(std::move(system)), root_(std::move(root)) {}

  FileSystem& system() const { return *system_; }
  std::string path(const std::string& name) const { return root_ + name; }
  std::map<std::string, std::unique_ptr<rocksdb::FSWritableFile>>& writers() { return writers_; }
  std::map<std::string, std::unique_ptr<rocksdb::FSRandomAccessFile>>& readers() {
    return readers_;
  }

 private:
  std::shared_ptr<FileSystem> system_;
  std::string root_;
  std::map<std::string, std::unique_ptr<rocksdb::FSWritableFile>> writers_;
  std::map<std::string, std::unique_ptr<rocksdb::FSRandomAccessFile>> readers_;
};

class RocksDbFileSystem : public testing::Test {
 protected:
  static PoolOptions options() {
    PoolOptions options;
    options.capacity_bytes = uint64_t{64} << 20;
    return options;
  }
  void both(const std::string& what, const std::function<std::string(Side&)>& call) {
    answers_.expect(system_, pool_side_, what, call);
  }

  TempDir folder_;
  Pool pool_ = Pool::create(folder_.file("pool"), options());
  Side system_{FileSystem::Default(), folder_.path() + "/files"};
  Side pool_side_{rocksdb_file_system(pool_), "/files"};
  SameAnswers answers_;
};

TEST_F(RocksDbFileSystem, AnswersAsThatOfTheMachine) {
  both("mkdir", [](Side& side) {
    return kind_of(side.system().CreateDirIfMissing(side.path(""), {}, nullptr));
  });
  Random random(base_seed());
  const std::vector<std::string> directories{"", "/d0", "/d1", "/d0/d2"};
  const auto some_name = [&] {
    return directories[random.below(4)] + "/f" + std::to_string(random.below(4));
  };
  const auto some_directory = [&] { return directories[1 + random.below(3)]; };
  // Where a directory may be made: the pool would make those that lead there.
  const auto some_place = [&](uint64_t percent) {
    for (;;) {
      std::string place = random.chance(percent) ? some_directory() : some_name();
      const std::string above = place.substr(0, place.find_last_of('/'));
      if (system_.system().FileExists(system_.path(above), {}, nullptr).ok()) return place;
    }
  };
  const auto is_directory = [&](const std::string& name) {
    bool directory = false;
    static_cast<void>(system_.system().IsDirectory(system_.path(name), {}, &directory, nullptr));
    return directory;
  };
  const auto some_writer = [&]() -> std::string {
    auto& all = system_.writers();
    if (all.empty()) return "";
    return std::next(all.begin(), static_cast<ptrdiff_t>(random.below(all.size())))->first;
  };
  const auto open = [&](const std::string& id, const std::string& name, bool again) {
    both((again ? "reopen " : "create ") + name + " as " + id, [&](Side& side) {
      std::unique_ptr<rocksdb::FSWritableFile> file;
      const IOStatus status =
          again ? side.system().ReopenWritableFile(side.path(name), {}, &file, nullptr)
                : side.system().NewWritableFile(side.path(name), {}, &file, nullptr);
      if (status.ok()) side.writers()[id] = std::move(file);
      return kind_of(status);
    });
  };
  uint64_t number = 0;
  std::map<std::string, std::string> names;  // of writers
  for (uint64_t step = 0; step < rounds(20'000) && !HasFailure(); ++step) {
    const uint64_t choice = random.below(100);
    const std::string name = some_name();
    if (choice < 10) {
      // One writer at a time.
      const bool taken = std::ranges::any_of(names, [&](const auto& each) {
        return each.second == name && system_.writers().contains(each.first);
      });
      if (taken || system_.writers().size() > 4) continue;
      const std::string id = std::to_string(++number);
      names[id] = name;
      open(id, name, random.chance(50));
    } else if (choice < 45) {
      const std::string id = some_writer();
      if (id.empty()) continue;
      const uint64_t what = random.below(100);
      std::string bytes(random.below(random.chance(15) ? 200'000 : 2000), '\0');
      for (char& each : bytes) each = static_cast<char>(random.next());
      uint64_t size = 0;
      static_cast<void>(
          system_.system().GetFileSize(system_.path(names.at(id)), {}, &size, nullptr));
      const uint64_t cut = random.below(size + 1);
      both("write " + id + " " + std::to_string(what), [&](Side& side) -> std::string {
        rocksdb::FSWritableFile& file = *side.writers().at(id);
        if (what < 70) {
          // What is not flushed is nobody's to see.
          const std::string appended = kind_of(file.Append(bytes, {}, nullptr));
          return appended + " " +
                 kind_of(what < 50 ? file.Flush({}, nullptr) : file.Sync({}, nullptr));
        }
        if (what < 80) {
          // And is closed, for that of the machine goes on where it was.
          const std::string text = kind_of(file.Truncate(cut, {}, nullptr));
          side.writers().erase(id);
          return text;
        }
        const std::string closed = kind_of(file.Close({}, nullptr));
        side.writers().erase(id);
        return closed;
      });
    } else if (choice < 50) {
      both("delete " + name, [&](Side& side) {
        return kind_of(side.system().DeleteFile(side.path(name), {}, nullptr));
      });
    } else if (choice < 52) {
      const std::string directory = some_place(80);
      both("mkdir " + directory, [&](Side& side) {
        return kind_of(side.system().CreateDir(side.path(directory), {}, nullptr));
      });
    } else if (choice < 54) {
      const std::string directory = some_place(80);
      both("mkdir -p " + directory, [&](Side& side) {
        return kind_of(side.system().CreateDirIfMissing(side.path(directory), {}, nullptr));
      });
    } else if (choice < 55) {
      const std::string directory = random.chance(80) ? some_directory() : name;
      both("rmdir " + directory, [&](Side& side) {
        return kind_of(side.system().DeleteDir(side.path(directory), {}, nullptr));
      });
    } else if (choice < 56) {
      const std::string directory = some_directory();
      both("delete the directory " + directory, [&](Side& side) {
        return kind_of(side.system().DeleteFile(side.path(directory), {}, nullptr));
      });
    } else if (choice < 62) {
      const std::string from = random.chance(85) ? name : some_directory();
      const std::string to = random.chance(85) ? some_name() : some_directory();
      // No file where others have a directory: what goes through it is told in other words.
      if (!is_directory(from) && std::ranges::count(directories, to) != 0 && !is_directory(to))
        continue;
      both("rename " + from + " " + to, [&](Side& side) {
        side.writers().clear();  // of which each file has one at a time, by its name
        return kind_of(side.system().RenameFile(side.path(from), side.path(to), {}, nullptr));
      });
    } else if (choice < 70) {
      const std::string directory = random.chance(90) ? directories[random.below(4)] : name;
      both("ls " + directory, [&](Side& side) {
        std::vector<std::string> all;
        std::string text =
            kind_of(side.system().GetChildren(side.path(directory), {}, &all, nullptr));
        std::ranges::sort(all);
        for (const std::string& each : all) text += " " + each;
        return text;
      });
    } else if (choice < 80) {
      const std::string which = random.chance(90) ? name : some_directory();
      both("stat " + which, [&](Side& side) {
        bool directory = false;
        uint64_t bytes = 0;
        const IOStatus is = side.system().IsDirectory(side.path(which), {}, &directory, nullptr);
        const IOStatus has = side.system().GetFileSize(side.path(which), {}, &bytes, nullptr);
        return kind_of(side.system().FileExists(side.path(which), {}, nullptr)) + " " +
               kind_of(is) + (directory ? " directory " : " ") + kind_of(has) + " " +
               (directory ? "" : std::to_string(bytes));
      });
    } else if (choice < 90 && is_directory(name)) {
      continue;  // which that of the machine opens
    } else if (choice < 86) {
      both("open " + name, [&](Side& side) {
        std::unique_ptr<rocksdb::FSRandomAccessFile> file;
        const IOStatus status =
            side.system().NewRandomAccessFile(side.path(name), {}, &file, nullptr);
        if (status.ok()) side.readers()[std::to_string(step % 4)] = std::move(file);
        return kind_of(status);
      });
    } else if (choice < 90) {
      const uint64_t skipped = random.chance(30) ? random.below(3000) : 0;
      const uint64_t bytes = 1 + random.below(50'000);
      both("scan " + name + " by " + std::to_string(bytes), [&](Side& side) {
        std::unique_ptr<rocksdb::FSSequentialFile> file;
        const IOStatus status =
            side.system().NewSequentialFile(side.path(name), {}, &file, nullptr);
        std::string text = kind_of(status);
        if (!status.ok()) return text;
        text += " " + kind_of(file->Skip(skipped));
        std::string scratch(bytes, '\0');
        rocksdb::Slice result;
        do {
          text += " " + kind_of(file->Read(bytes, {}, &result, scratch.data(), nullptr)) +
                  digest_of({result.data(), result.size()});
        } while (!result.empty());
        return text;
      });
    } else {
      const std::string id = std::to_string(random.below(4));
      if (!system_.readers().contains(id)) continue;
      const uint64_t offset = random.chance(5) ? uint64_t{1} << 40 : random.below(100'000);
      const uint64_t bytes = 1 + random.below(20'000);
      both("read " + id + " " + std::to_string(offset) + " " + std::to_string(bytes),
           [&](Side& side) {
             std::string scratch(bytes, '\0');
             rocksdb::Slice result;
             const IOStatus status =
                 side.readers().at(id)->Read(offset, bytes, {}, &result, scratch.data(), nullptr);
             return kind_of(status) + digest_of({result.data(), result.size()});
           });
    }
  }
}

}  // namespace
}  // namespace perdure::test
