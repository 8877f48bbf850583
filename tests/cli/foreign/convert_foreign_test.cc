// `perdure convert --from`: databases of other stores, whole, in parts, damaged, foreign.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cli/command_runner.h"
#include "cli/foreign/databases.h"

namespace perdure::cli_test {
namespace {

struct Store {
  const char* name;
  bool (*is_there)();
  void (*write)(const std::string& path, const Records& records, const DatabaseOptions& options);
};
constexpr Store kStores[] = {{"leveldb", has_leveldb, write_leveldb},
                             {"lmdb", has_lmdb, write_lmdb},
                             {"rocksdb", has_rocksdb, write_rocksdb}};

// Of the text that `perdure dump` writes.
std::string bytes_of(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
    } else if (text[++i] == 'x') {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      constexpr const char* kLetters = "tnr\\";
      out += "\t\n\r\\"[std::strchr(kLetters, text[i]) - kLetters];
    }
  }
  return out;
}

std::string word(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

std::string big_endian(uint64_t value) {
  std::string bytes = word(value);
  std::reverse(bytes.begin(), bytes.end());
  return bytes;
}

// Records of any bytes, with empty values, and values over several pages.
Records any_records(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::map<std::string, std::string> records;
  for (int i = 0; i < count; ++i) {
    std::string key = std::to_string(random() % 100'000);
    for (uint64_t n = random() % 12; n > 0; --n) key += static_cast<char>(random());
    std::string value(i % 7 == 0 ? 0 : random() % 300, 'v');
    if (i % 97 == 0) value.assign(20'000, '\0');
    for (size_t at = 0; at < value.size(); at += 3) value[at] = static_cast<char>(random());
    records[key] = value;
  }
  return {records.begin(), records.end()};
}

class ConvertForeign : public CommandTest {
 protected:
  Result convert(const std::string& from, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"convert", "--from", from, "--capacity", "64M", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.push_back(pool());
    return run(arguments);
  }

  std::map<std::string, std::string> dumped(const std::string& name) const {
    std::map<std::string, std::string> records;
    const std::string text = run({"dump", "--name", name, pool()}).out;
    for (size_t begin = 0; begin < text.size();) {
      const size_t tab = text.find('\t', begin);
      const size_t end = text.find('\n', tab);
      records[bytes_of(text.substr(begin, tab - begin))] =
          bytes_of(text.substr(tab + 1, end - tab - 1));
      begin = end + 1;
    }
    return records;
  }

  void expect_records(const std::string& name, const Records& records) const {
    EXPECT_TRUE(dumped(name) ==
                (std::map<std::string, std::string>(records.begin(), records.end())))
        << name;
    EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  }

  // A pool with one structure, whose file must not change.
  std::string untouched_pool() const {
    EXPECT_EQ(run({"put", "--capacity", "64M", "--name", "other", pool(), "a", "1"}).code, 0);
    return read_file("test.pool");
  }
  size_t structures() const {
    return run({"pool", "info", "--json", pool()}).json()["structures"].size();
  }
};

class ConvertEachForeign : public ConvertForeign, public ::testing::WithParamInterface<Store> {
 protected:
  void SetUp() override {
    if (!GetParam().is_there()) {
      GTEST_SKIP() << "built without lib" << GetParam().name
                   << "-dev: tools/install-deps.sh peers installs it";
    }
  }
  void write(const Records& records, const DatabaseOptions& options = {}) const {
    GetParam().write(database(), records, options);
  }
  std::string database() const { return path("database"); }
  std::string from() const { return std::string(GetParam().name) + ":" + database(); }
};

TEST_P(ConvertEachForeign, AllRecordsAreThereInAnyStructure) {
  const Records records = any_records(3000, 1);
  write(records);
  for (const char* structure : {"", "fptree", "plush", "p-art+vl", "rstore+ordered"}) {
    std::vector<std::string> more = {"--name", std::string("of ") + structure};
    if (*structure != '\0') more.insert(more.end(), {"--structure", structure});
    const Result result = convert(from(), more);
    ASSERT_EQ(result.code, 0) << structure << result.err;
    EXPECT_EQ(result.json()["records"], records.size());
    EXPECT_EQ(result.json()["from"], from());
    expect_records(more[1], records);
  }
  EXPECT_EQ(structures(), 5U);
  // A name that is taken.
  const Result again = convert(from(), {"--name", "of plush"});
  EXPECT_EQ(again.code, 4);
  EXPECT_NE(again.err.find("already"), std::string::npos) << again.err;
  EXPECT_EQ(structures(), 5U);
}

TEST_P(ConvertEachForeign, AnEmptyDatabaseIsAnEmptyStructure) {
  write({});
  const Result result = convert(from());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.json()["records"], 0);
  EXPECT_EQ(run({"count", pool()}).out, "0\n");
}

TEST_P(ConvertEachForeign, WordsInDigitsAndAsBytes) {
  Records digits;
  Records little;
  Records big;
  for (uint64_t i = 1; i <= 500; ++i) {
    digits.emplace_back(std::to_string(i * 1000), std::to_string(i));
    little.emplace_back(word(i * 1000), word(i));
    big.emplace_back(big_endian(i * 1000), std::to_string(i));
  }
  const std::vector<std::string> to_words = {"--key-kind", "u64",         "--value-kind",
                                             "u64",        "--structure", "fptree"};
  const auto with = [&](std::vector<std::string> more) {
    std::filesystem::remove(pool());
    more.insert(more.end(), to_words.begin(), to_words.end());
    const Result result = convert(from(), more);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(run({"scan", "--limit", "3", pool()}).out, "1000\t1\n2000\t2\n3000\t3\n");
    EXPECT_EQ(run({"count", pool()}).out, "500\n");
    std::filesystem::remove_all(database());
  };
  write(digits);
  with({});
  write(little);
  with({"--key-words", "little", "--value-words", "little"});
  write(big);
  with({"--key-words", "big"});
}

TEST_P(ConvertEachForeign, KeysThatAreNoWordsLeaveThePoolAsItWas) {
  write({{"1", "x"}, {"2", "y"}, {"number", "z"}});
  const Result no_word = convert(from(), {"--key-kind", "u64"});
  EXPECT_EQ(no_word.code, 4);
  EXPECT_NE(no_word.err.find("record 3"), std::string::npos) << no_word.err;
  EXPECT_NE(no_word.err.find("number"), std::string::npos) << no_word.err;
  EXPECT_FALSE(std::filesystem::exists(pool()));
  std::filesystem::remove_all(database());
  write({{"01", "x"}, {"1", "y"}});
  untouched_pool();
  const Result same = convert(from(), {"--key-kind", "u64"});
  EXPECT_EQ(same.code, 2);
  EXPECT_NE(same.err.find("same number"), std::string::npos) << same.err;
  const Result long_word = convert(from(), {"--key-kind", "u64", "--value-words", "little"});
  EXPECT_EQ(long_word.code, 2) << long_word.err;  // values of one byte are words
  std::filesystem::remove_all(database());
  write({{"nine bytes", "y"}});
  const Result too_long = convert(from(), {"--key-kind", "u64", "--key-words", "big"});
  EXPECT_EQ(too_long.code, 4);
  EXPECT_NE(too_long.err.find("no word"), std::string::npos) << too_long.err;
  EXPECT_EQ(structures(), 1U);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
}

TEST_P(ConvertEachForeign, WhatIsNotThereOrOfAnotherKindIsNamed) {
  const std::string before = untouched_pool();
  const Result absent = convert(from());
  EXPECT_EQ(absent.code, 4);
  EXPECT_NE(absent.err.find("No such file"), std::string::npos) << absent.err;
  std::filesystem::create_directory(database());
  const Result empty = convert(from());
  EXPECT_EQ(empty.code, 4);
  EXPECT_NE(empty.err.find("no database"), std::string::npos) << empty.err;
  EXPECT_TRUE(std::filesystem::is_empty(database()));  // nothing is made there
  std::filesystem::remove_all(database());
  write({{"a", "1"}});
  const Result part = convert(from(), {"--database", "nothing"});
  EXPECT_EQ(part.code, 4) << part.out;
  EXPECT_NE(part.err.find("database"), std::string::npos) << part.err;
  EXPECT_EQ(read_file("test.pool"), before);
  for (const Store& other : kStores) {
    if (other.name == GetParam().name || !other.is_there()) continue;
    // RocksDB reads LevelDB's files, and says so.
    if (std::string(other.name) == "rocksdb" && std::string(GetParam().name) == "leveldb") continue;
    const Result foreign = convert(std::string(other.name) + ":" + database());
    EXPECT_EQ(foreign.code, 4) << other.name << foreign.out;
    EXPECT_NE(foreign.err.find("database"), std::string::npos) << foreign.err;
  }
  EXPECT_EQ(read_file("test.pool"), before);
}

// Whatever bytes are changed: an error in words, and no structure; or what the store takes for all
// records.
TEST_P(ConvertEachForeign, DamageIsToldAndLeavesNothing) {
  const Records records = any_records(400, 2);
  write(records);
  std::filesystem::rename(database(), path("sound"));
  untouched_pool();
  std::mt19937_64 random(3);
  int refused = 0;
  for (int round = 0; round < 24; ++round) {
    std::filesystem::remove_all(database());
    std::filesystem::copy(path("sound"), database());
    std::vector<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(database())) {
      const std::string name = file.path().filename();
      if (file.file_size() > 0 && (name.ends_with(".ldb") || name.ends_with(".sst") ||
                                   name == "data.mdb" || name.starts_with("MANIFEST"))) {
        files.push_back(file.path());
      }
    }
    ASSERT_FALSE(files.empty());
    std::sort(files.begin(), files.end());
    const std::filesystem::path& file = files[static_cast<size_t>(round) % files.size()];
    const uint64_t size = std::filesystem::file_size(file);
    if (round % 3 == 0) {
      std::filesystem::resize_file(file, size / 4 * (random() % 4));
    } else {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      for (uint64_t at = random() % 4096; at < size; at += 4096) {
        bytes.seekp(static_cast<std::streamoff>(at));
        bytes << "\x5a\xa5";
      }
    }
    const Result result = convert(from());
    if (result.code == 0) {
      // LMDB has no checksums. A MANIFEST that is cut short is one that a crash has cut: what it
      // names is read.
      const bool is_table = std::string(GetParam().name) != "lmdb" && file.has_extension();
      if (is_table) expect_records("main", records);
      EXPECT_EQ(run({"drop", pool(), "main"}).code, 0);
    } else {
      ++refused;
      EXPECT_TRUE(result.code == 4 || result.code == 2) << result.code << result.err;
      EXPECT_NE(result.err.find(from()), std::string::npos) << result.err;
    }
    ASSERT_EQ(structures(), 1U) << round << result.err;
  }
  EXPECT_GT(refused, 4);
  EXPECT_EQ(run({"get", "--name", "other", pool(), "a"}).out, "1\n");
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
}

TEST_P(ConvertEachForeign, APoolThatIsTooSmallIsRemovedAgain) {
  write(any_records(4000, 4));
  const Result full = run({"convert", "--from", from(), "--capacity", "2M", pool()});
  EXPECT_EQ(full.code, 4) << full.out;
  EXPECT_NE(full.err.find("record "), std::string::npos) << full.err;
  EXPECT_EQ(full.err.find("--resume"), std::string::npos) << full.err;
  EXPECT_FALSE(std::filesystem::exists(pool()));
}

// Killed, or stopped with Ctrl-C, at any moment, then once more: all records are there, and nothing
// else stays.
TEST_P(ConvertEachForeign, AnInterruptedConversionIsBegunAnew) {
  const Records records = any_records(6000, 5);
  write(records);
  untouched_pool();
  int ended = 0;
  for (int round = 0; round < 4; ++round) {
    const bool kill = round % 2 == 0;
    // Only the command gets the signal: of two it takes the second for the end at once.
    const Result result =
        shell("timeout --foreground --preserve-status -s " + std::string(kill ? "KILL" : "INT") +
              " 0.0" + std::to_string(2 * round + 2) + " $PERDURE convert --from " + from() + " " +
              pool() + "; ended=$?; " + until_closed(pool()) + "; exit $ended");
    ended += result.code != 0 ? 1 : 0;
    const bool there = run({"count", pool()}).code == 0;
    if (!kill) {
      EXPECT_TRUE((there && result.code == 0) || result.code == 130) << result.code << result.err;
      EXPECT_EQ(structures(), there ? 2U : 1U);
    }
    if (!there) {  // else it was ended behind its end
      const Result again = convert(from());
      ASSERT_EQ(again.code, 0) << again.err;
    }
    EXPECT_EQ(structures(), 2U);
    expect_records("main", records);
    ASSERT_EQ(run({"drop", pool(), "main"}).code, 0);
  }
  EXPECT_GT(ended, 0);
}

TEST_P(ConvertEachForeign, WithoutItsReaderThePackageIsNamed) {
  write({{"a", "1"}});
  const std::string before = untouched_pool();
  const Result result = shell("PERDURE_READERS=" + path("none") + " $PERDURE convert --from " +
                              from() + " " + pool());
  EXPECT_EQ(result.code, 4);
  EXPECT_NE(result.err.find("install lib" + std::string(GetParam().name) + "-dev"),
            std::string::npos)
      << result.err;
  EXPECT_EQ(read_file("test.pool"), before);
}

INSTANTIATE_TEST_SUITE_P(Stores, ConvertEachForeign, ::testing::ValuesIn(kStores),
                         [](const auto& tested) { return std::string(tested.param.name); });

// ---- What only some of them have

#define SKIP_WITHOUT(store)                                                                     \
  if (!has_##store()) {                                                                         \
    GTEST_SKIP() << "built without lib" #store "-dev: tools/install-deps.sh peers installs it"; \
  }

TEST_F(ConvertForeign, CompressedBlocksAndLogs) {
  const Records records = any_records(2000, 6);
  for (const Store& store : kStores) {
    if (!store.is_there() || std::string(store.name) == "lmdb") continue;
    for (const char* compression : {"snappy", "zstd"}) {
      for (const bool in_log : {false, true}) {
        const std::string name = std::string(store.name) + compression + (in_log ? "log" : "");
        store.write(path(name), records, {.compression = compression, .in_log = in_log});
        const Result result = convert(std::string(store.name) + ":" + path(name), {"--name", name});
        ASSERT_EQ(result.code, 0) << name << result.err;
        expect_records(name, records);
      }
    }
  }
}

TEST_F(ConvertForeign, ColumnFamiliesByNameAndInAnyOrder) {
  SKIP_WITHOUT(rocksdb)
  const std::string from = "rocksdb:" + path("db");
  const Records one = any_records(300, 7);
  const Records other = any_records(200, 8);
  write_rocksdb(path("db"), one, {});
  const auto list = [&] {
    std::vector<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(path("db"))) {
      names.push_back(file.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  write_rocksdb(path("back"), other, {.part = "log", .backwards = true});
  const std::vector<std::string> before = list();
  ASSERT_EQ(convert(from).code, 0);
  expect_records("main", one);
  EXPECT_EQ(list(), before);  // opened for reading only: no file comes or goes
  const Result result = convert("rocksdb:" + path("back"), {"--database", "log", "--name", "log"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_records("log", other);
  const Result none = convert(from, {"--database", "nothing", "--name", "x"});
  EXPECT_EQ(none.code, 4);
  EXPECT_NE(none.err.find("there are: default"), std::string::npos) << none.err;
}

TEST_F(ConvertForeign, NamedDatabasesOfLmdb) {
  SKIP_WITHOUT(lmdb)
  const std::string from = "lmdb:" + path("env");
  const Records users = any_records(300, 9);
  write_lmdb(path("env"), users, {.part = "users"});
  write_lmdb(path("env"), {{"x", "y"}}, {.part = "other"});
  const Result nameless = convert(from);
  EXPECT_EQ(nameless.code, 4);
  EXPECT_NE(nameless.err.find("--database: other, users"), std::string::npos) << nameless.err;
  ASSERT_EQ(convert(from, {"--database", "users"}).code, 0);
  expect_records("main", users);
  // Records beside them, and one that only has the size of a descriptor.
  write_lmdb(path("env"), {{"plain", "1"}, {"plain too", std::string(48, 'x')}}, {});
  const Result mixed = convert(from, {"--name", "mixed"});
  ASSERT_EQ(mixed.code, 0) << mixed.err;
  expect_records("mixed", {{"plain", "1"}, {"plain too", std::string(48, 'x')}});
  EXPECT_NE(mixed.err.find("left out"), std::string::npos) << mixed.err;
  const Result record = convert(from, {"--database", "plain", "--name", "x"});
  EXPECT_EQ(record.code, 4);
  EXPECT_NE(record.err.find("other, users"), std::string::npos) << record.err;
}

TEST_F(ConvertForeign, LmdbInOneFileWithWordsAndWithSeveralValues) {
  SKIP_WITHOUT(lmdb)
  write_lmdb(path("one.mdb"), {{word(7), "seven"}, {word(900), "many"}},
             {.part = "ids", .words = true, .one_file = true});
  const Result words = convert("lmdb:" + path("one.mdb"),
                               {"--database", "ids", "--key-words", "little", "--key-kind", "u64"});
  ASSERT_EQ(words.code, 0) << words.err;
  EXPECT_EQ(run({"get", pool(), "900"}).out, "many\n");
  write_lmdb(path("single.mdb"), {{"a", "1"}, {"b", "2"}}, {.duplicates = true, .one_file = true});
  EXPECT_EQ(convert("lmdb:" + path("single.mdb"), {"--name", "single"}).code, 0);
  write_lmdb(path("several.mdb"), {{"a", "1"}, {"b", "2"}, {"b", "3"}},
             {.duplicates = true, .one_file = true});
  const Result several = convert("lmdb:" + path("several.mdb"), {"--name", "several"});
  EXPECT_EQ(several.code, 4);
  EXPECT_NE(several.err.find("'b' has several values"), std::string::npos) << several.err;
}

// Wherever a MANIFEST is cut: an error that says so, with all files as they were; or all records.
TEST_F(ConvertForeign, ALevelDbWhoseManifestWasCutShortIsRefused) {
  SKIP_WITHOUT(leveldb)
  const Records records = any_records(6000, 6);
  write_leveldb(path("sound"), records, {.small_tables = true});
  const auto files_in = [&](const std::string& folder) {
    std::map<std::string, uint64_t> files;
    for (const auto& file : std::filesystem::directory_iterator(path(folder)))
      files[file.path().filename()] = file.file_size();
    return files;
  };
  std::string manifest;
  for (const auto& [name, bytes] : files_in("sound")) {
    if (name.starts_with("MANIFEST")) manifest = name;
  }
  const uint64_t whole = std::filesystem::file_size(path("sound/" + manifest));
  uint64_t refused = 0;
  uint64_t told = 0;
  constexpr uint64_t kCuts = 24;
  for (uint64_t i = 0; i <= kCuts; ++i) {
    SCOPED_TRACE(i);
    std::filesystem::remove_all(path("db"));
    std::filesystem::copy(path("sound"), path("db"));
    std::filesystem::resize_file(path("db/" + manifest), whole * (kCuts - i) / kCuts);
    const auto before = files_in("db");
    const Result result = convert("leveldb:" + path("db"));
    if (result.code == 0) {
      expect_records("main", records);
      EXPECT_EQ(run({"drop", pool(), "main"}).code, 0);
      continue;
    }
    ++refused;
    EXPECT_EQ(result.code, 4) << result.err;
    if (result.err.find("cut short") == std::string::npos) continue;  // LevelDB's own words
    ++told;
    EXPECT_TRUE(files_in("db") == before);
  }
  EXPECT_LT(refused, kCuts + 1);
  EXPECT_GT(told, kCuts / 2);
}

TEST_F(ConvertForeign, ALevelDbThatIsOpenElsewhereIsRefused) {
  SKIP_WITHOUT(leveldb)
  write_leveldb(path("db"), {{"a", "1"}}, {});
  // flock and fcntl locks differ: LevelDB takes one of the latter.
  const Result locked = shell(
      "python3 -c 'import fcntl, subprocess, sys; f = open(sys.argv[1] + \"/LOCK\", \"w\"); "
      "fcntl.lockf(f, fcntl.LOCK_EX); sys.exit(subprocess.run([sys.argv[2], \"convert\", "
      "\"--from\", "
      "\"leveldb:\" + sys.argv[1], sys.argv[3]]).returncode)' " +
      path("db") + " $PERDURE " + pool());
  EXPECT_EQ(locked.code, 4);
  EXPECT_NE(locked.err.find("lock"), std::string::npos) << locked.err;
  EXPECT_FALSE(std::filesystem::exists(pool()));
}

TEST_F(ConvertForeign, TheCommandLineIsChecked) {
  const std::vector<std::vector<std::string>> wrong = {
      {"convert", pool()},
      {"convert", pool(), "main"},
      {"convert", "--from", "lmdb:x", pool(), "main", "plush"},
      {"convert", "--from", "lmdb:x", "--to", "other.pool", pool()},
      {"convert", "--name", "x", pool(), "main", "plush"},
      {"convert", "--from", "mysql:x", pool()},
      {"convert", "--from", "lmdb", pool()},
      {"convert", "--from", "lmdb:", pool()},
      {"convert", "--from", "lmdb:x", "--key-words", "middle", pool()}};
  for (const std::vector<std::string>& arguments : wrong) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_FALSE(std::filesystem::exists(pool()));
  }
}

// Every byte of a key and a value comes over, also those that the pipe writes in another way.
TEST_F(ConvertForeign, EveryByte) {
  Records records;
  for (int byte = 0; byte < 256; ++byte) {
    records.emplace_back(std::string(1, static_cast<char>(byte)),
                         std::string(1, static_cast<char>(byte)) + "\\x00\t");
  }
  for (const Store& store : kStores) {
    if (!store.is_there()) continue;
    store.write(path(store.name), records, {});
    const Result result =
        convert(std::string(store.name) + ":" + path(store.name), {"--name", store.name});
    ASSERT_EQ(result.code, 0) << result.err;
    expect_records(store.name, records);
  }
}

}  // namespace
}  // namespace perdure::cli_test
