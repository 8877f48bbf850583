// What people who keep pools do with them: drop, rename, back up, restore, convert, salvage; CSV.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command_runner.h"
#include "perdure/pool.h"

namespace perdure::cli_test {
namespace {

class Operations : public CommandTest {
 protected:
  // Structure `name` with `count` records.
  void load(const std::string& name, int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i) lines += "key" + std::to_string(i) + "\t" + name + "\n";
    ASSERT_EQ(run({"load", "--capacity", "64M", "--name", name, pool(), "-"}, lines).code, 0);
  }
  uint64_t allocated() const {
    return run({"pool", "info", "--json", pool()}).json()["allocated_bytes"].get<uint64_t>();
  }
  std::string count_of(const std::string& pool_file, const std::string& name) const {
    return run({"count", "--name", name, pool_file}).out;
  }
};

TEST_F(Operations, DropRemovesAStructureAndWhatItsLoadNoted) {
  load("a", 5000);
  const uint64_t before = allocated();
  load("b", 5000);
  const Result dropped = run({"drop", "--json", pool(), "b"});
  EXPECT_EQ(dropped.code, 0) << dropped.err;
  EXPECT_EQ(dropped.json()["dropped"][0]["structure"], "b");
  EXPECT_GT(dropped.json()["dropped"][0]["freed_bytes"].get<uint64_t>(), 10'000U);
  EXPECT_EQ(allocated(), before);
  EXPECT_EQ(count_of(pool(), "a"), "5000\n");
  EXPECT_EQ(run({"count", "--name", "b", pool()}).code, 4);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
}

TEST_F(Operations, DropOfANameThatIsNotThereDropsNothing) {
  load("a", 10);
  const Result dropped = run({"drop", pool(), "a", "nothing"});
  EXPECT_EQ(dropped.code, 4);
  EXPECT_NE(dropped.err.find("'nothing'"), std::string::npos) << dropped.err;
  EXPECT_EQ(count_of(pool(), "a"), "10\n");
}

TEST_F(Operations, RenameKeepsRecordsAndResumes) {
  load("a", 100);
  load("taken", 1);
  EXPECT_EQ(run({"rename", pool(), "a", "taken"}).code, 4);
  EXPECT_EQ(run({"rename", pool(), "a", "b"}).code, 0);
  EXPECT_EQ(count_of(pool(), "b"), "100\n");
  EXPECT_EQ(run({"count", "--name", "a", pool()}).code, 4);
  EXPECT_EQ(count_of(pool(), "b.progress").empty(), false);
}

// Beside a process that writes: what only that one knows is left out, and said to be. That process
// maps the file when it has locked it; a command that looked at the pool before might keep it from
// that.
TEST_F(Operations, InfoAndStatWorkBesideAWriter) {
  load("a", 3000);
  const std::string port = path("serving");
  const Result result = shell(
      "mkfifo " + port + "; $PERDURE load --name b " + pool() + " - < " + port +
      " > /dev/null & exec 3> " + port + "; printf 'x\\ty\\n' >&3; n=0; until grep -q " + pool() +
      " /proc/$!/maps || [ $n -gt 1000 ]; do n=$((n+1)); sleep 0.01; done; " +
      "$PERDURE pool info " + pool() + " > " + path("info") +
      "; echo $?; $PERDURE pool info --json " + pool() + " > " + path("info.json") +
      "; echo $?; $PERDURE stat --name a " + pool() + " > " + path("stat") +
      "; echo $?; $PERDURE stat --name a --json " + pool() + " > " + path("stat.json") +
      "; echo $?; $PERDURE stat --name none " + pool() +
      "; echo $?; $PERDURE stat --count --name a " + pool() + "; echo $?; $PERDURE pool check " +
      pool() + "; echo $?; $PERDURE get --name a " + pool() + " key1; echo $?; exec 3>&-; wait");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            "0\n0\n0\n0\n4\n4\n" + pool() + ": header, directory and descriptors are sound\n4\n4\n")
      << result.err;
  EXPECT_NE(read_file("info").find("in another process"), std::string::npos) << read_file("info");
  EXPECT_NE(read_file("info").find("not known"), std::string::npos);
  const auto info = nlohmann::json::parse(read_file("info.json"));
  EXPECT_TRUE(info["open_to_write"].get<bool>());
  EXPECT_GT(info["allocated_bytes"].get<uint64_t>(), 10'000U);
  EXPECT_FALSE(info.contains("clean"));
  EXPECT_EQ(info["structures"][0]["name"], "a");
  EXPECT_NE(read_file("stat").find("not known here"), std::string::npos) << read_file("stat");
  const auto stat = nlohmann::json::parse(read_file("stat.json"));
  EXPECT_TRUE(stat["structure"]["statistics"].is_null());
  EXPECT_EQ(stat["structure"]["type"], "rstore");
  EXPECT_EQ(count_of(pool(), "a"), "3000\n");
  EXPECT_EQ(count_of(pool(), "b"), "1\n");
}

// Beside a process that writes: it makes the copy.
TEST_F(Operations, BackupsAndLiveReadsWorkBesideAWriter) {
  load("a", 3000);
  ASSERT_EQ(run({"load", "--structure", "fast-fair", "--name", "ordered", pool(), "-"},
                "a\t1\nb\t2\nc\t3\n")
                .code,
            0);
  const std::string port = path("serving");
  std::string line =
      "mkfifo " + port + "; $PERDURE load --name b " + pool() + " - < " + port +
      " > /dev/null & exec 3> " + port + "; printf 'x\\ty\\n' >&3; set -- $(stat -c '%D %i' " +
      pool() +
      "); n=0; until grep -q $(printf @perdure/%s/%x $1 $2) /proc/net/unix || [ $n -gt "
      "1000 ]; do n=$((n+1)); sleep 0.01; done; ";
  for (const std::string& command :
       {"pool backup --json " + pool() + " " + path("full") + " > " + path("full.json"),
        "pool backup --json --base " + path("full") + " " + pool() + " " + path("next") + " > " +
            path("next.json"),
        "get --name a " + pool() + " key1", "get --live --name a " + pool() + " key1",
        "scan --live --from b --name ordered " + pool(), "count --live --name a " + pool(),
        "dump --live --name ordered " + pool() + " | wc -l",
        "stat --json --live --name a " + pool() + " > " + path("stat.json"),
        "get --live --copy-max 4k --name a " + pool() + " key1 2> " + path("refused")}) {
    line += "$PERDURE " + command + "; echo $?; ";
  }
  // Once it has opened the structure.
  line += "n=0; until $PERDURE store backup --name b " + pool() + " " + path("store.backup") +
          " > /dev/null 2>&1 || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.01; done; exec 3>&-; wait";
  const Result result = shell(line);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "0\n0\n4\na\n0\nb\t2\nc\t3\n0\n3000\n0\n3\n0\n0\n4\n") << result.err;
  EXPECT_TRUE(std::filesystem::exists(path("store.backup")));
  EXPECT_NE(read_file("refused").find("--copy-max"), std::string::npos) << read_file("refused");
  const auto stat = nlohmann::json::parse(read_file("stat.json"));
  EXPECT_EQ(stat["structure"]["live_records"], 3000);
  EXPECT_EQ(stat["pool"]["path"], pool());
  const auto next = nlohmann::json::parse(read_file("next.json"));
  EXPECT_LT(next["written_bytes"].get<uint64_t>(), next["copied_bytes"].get<uint64_t>());
  ASSERT_EQ(run({"pool", "restore", path("next"), path("again.pool")}).code, 0);
  EXPECT_EQ(count_of(path("again.pool"), "a"), "3000\n");
  EXPECT_EQ(run({"pool", "check", path("again.pool")}).code, 0);
}

// One that was not told to.
TEST_F(Operations, ABackupBesideAWriterThatServesNoneSaysWhatToDo) {
  load("a", 10);
  const Pool pool_here = Pool::open(pool());
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"pool", "backup", pool(), path("x")},
        {"store", "backup", "--name", "a", pool(), path("x")},
        {"get", "--live", "--name", "a", pool(), "key1"}}) {
    const Result refused = run(command);
    EXPECT_EQ(refused.code, 4);
    EXPECT_NE(refused.err.find("serve_backups"), std::string::npos) << refused.err;
  }
  EXPECT_FALSE(std::filesystem::exists(path("x")));
}

// A backup is read where it lies.
TEST_F(Operations, CommandsThatReadTakeABackup) {
  load("a", 3000);
  const std::string backup = path("monday.backup");
  ASSERT_EQ(run({"pool", "backup", pool(), backup}).code, 0);
  load("a2", 10);
  EXPECT_EQ(count_of(backup, "a"), "3000\n");
  EXPECT_EQ(run({"get", "--name", "a", backup, "key17"}).out, "a\n");
  EXPECT_EQ(run({"pool", "info", "--json", backup}).json()["structures"].size(), 2U);
  EXPECT_EQ(run({"stat", "--name", "a", backup}).code, 0);
  EXPECT_EQ(run({"pool", "check", backup}).code, 0);
  const Result written = run({"put", "--name", "a", backup, "k", "v"});
  EXPECT_EQ(written.code, 4);
  EXPECT_NE(written.err.find("is a backup"), std::string::npos) << written.err;
}

TEST_F(Operations, ABackupBringsThePoolBack) {
  load("a", 3000);
  const std::string full = path("full.backup");
  const Result backup = run({"pool", "backup", "--json", pool(), full});
  ASSERT_EQ(backup.code, 0) << backup.err;
  load("b", 50);
  const std::string next = path("next.backup");
  const Result second = run({"pool", "backup", "--json", "--base", full, pool(), next});
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_LT(second.json()["written_bytes"].get<uint64_t>(),
            second.json()["copied_bytes"].get<uint64_t>());
  std::filesystem::remove(pool());

  const Result restored = run({"pool", "restore", next, pool()});
  ASSERT_EQ(restored.code, 0) << restored.err;
  EXPECT_EQ(count_of(pool(), "a"), "3000\n");
  EXPECT_EQ(count_of(pool(), "b"), "50\n");
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  EXPECT_EQ(run({"pool", "restore", next, pool()}).code, 4);  // is there already

  // Elsewhere, with what it rests on under another name.
  std::filesystem::rename(full, path("moved.backup"));
  const std::string other = path("other.pool");
  EXPECT_EQ(run({"pool", "restore", next, other}).code, 4);
  EXPECT_EQ(run({"pool", "restore", "--base", path("moved.backup"), next, other}).code, 0);
  EXPECT_EQ(count_of(other, "b"), "50\n");
}

TEST_F(Operations, ADamagedBackupIsRefused) {
  load("a", 3000);
  const std::string file = path("pool.backup");
  ASSERT_EQ(run({"pool", "backup", pool(), file}).code, 0);
  const std::string sound = read_file("pool.backup");
  std::string damaged = sound;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 4);
  write_file("pool.backup", damaged);
  const Result changed = run({"pool", "restore", file, path("copy.pool")});
  EXPECT_EQ(changed.code, 3) << changed.out;
  EXPECT_NE(changed.err.find("pool.backup"), std::string::npos) << changed.err;
  EXPECT_FALSE(std::filesystem::exists(path("copy.pool")));
  write_file("pool.backup", sound.substr(0, sound.size() - 1));
  EXPECT_EQ(run({"pool", "restore", file, path("copy.pool")}).code, 3);
  EXPECT_EQ(run({"pool", "restore", pool(), path("copy.pool")}).code, 4);  // no backup at all
}

// ---- CSV

std::string sorted(std::string lines) {
  std::vector<std::string> all;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = lines.find('\n', begin);
    all.push_back(lines.substr(begin, end - begin));
    begin = end + 1;
  }
  std::sort(all.begin(), all.end());
  lines.clear();
  for (const std::string& line : all) lines += line + "\n";
  return lines;
}

TEST_F(Operations, CsvIsReadAsRfc4180Says) {
  const std::string csv =
      "key,value\r\n"
      "plain,value\r\n"
      "\"quoted\",\"with, comma\"\n"
      "two quotes,\"say \"\"yes\"\"\"\r\n"
      "lines,\"one\ntwo\r\nthree\"\n"
      ",empty key\n"
      "empty value,\n"
      "\r\n"
      "back\\slash,a\tb\n"
      "last,without newline";
  const std::string file = write_file("records.csv", csv);
  const Result loaded = run({"load", "--json", "--header", "--capacity", "64M", pool(), file});
  ASSERT_EQ(loaded.code, 0) << loaded.err;
  EXPECT_EQ(loaded.json()["format"], "csv");
  EXPECT_EQ(sorted(run({"dump", pool()}).out),
            sorted("plain\tvalue\nquoted\twith, comma\ntwo quotes\tsay "
                   "\"yes\"\nlines\tone\\ntwo\\r\\nthree\n"
                   "\tempty key\nempty value\t\nback\\\\slash\ta\\tb\nlast\twithout newline\n"));
}

TEST_F(Operations, WhatIsNoCsvIsRefusedByLine) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"ok,1\nno comma\n", "line 2"},
      {"a,b,c\n", "two fields"},
      {"a,b\"c\n", "quote"},
      {"\"a\"b,c\n", "behind a field"},
      {"ok,1\n\"does not end,1\n", "line 2"},
      {"a,\"does not end", "does not end"}};
  for (const auto& [csv, words] : bad) {
    const Result loaded = run({"load", "--format", "csv", "--capacity", "64M", pool(), "-"}, csv);
    EXPECT_EQ(loaded.code, 4) << csv;
    EXPECT_NE(loaded.err.find(words), std::string::npos) << csv << ": " << loaded.err;
  }
  // A bad line does not spoil the next one.
  const Result skipped =
      run({"load", "--format", "csv", "--skip-bad", "--capacity", "64M", pool(), "-"},
          "a,b\"c\nno comma\ngood,1\n");
  EXPECT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_EQ(run({"get", pool(), "good"}).out, "1\n");
}

TEST_F(Operations, CsvKeepsAnyBytes) {
  std::mt19937_64 random(7);
  std::string tsv;
  constexpr std::string_view kOdd =
      "\",\r\n\t \\;'\0\x80\xff"
      "ab";
  for (int i = 0; i < 400; ++i) {
    const auto append = [&](uint64_t length) {
      for (uint64_t n = 0; n < length; ++n) {
        char hex[8];
        std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(kOdd[random() % 14]));
        tsv += hex;
      }
    };
    tsv += std::to_string(i);
    append(random() % 6);
    tsv += "\t";
    append(random() % 12);
    tsv += "\n";
  }
  ASSERT_EQ(run({"load", "--format", "tsv", "--capacity", "64M", pool(), "-"}, tsv).code, 0);
  const std::string csv = run({"dump", "--format", "csv", pool()}).out;
  const std::string copy = path("copy.pool");
  for (const char* threads : {"1", "4"}) {
    std::filesystem::remove(copy);
    const Result loaded =
        run({"load", "--format", "csv", "--threads", threads, "--capacity", "64M", copy, "-"}, csv);
    ASSERT_EQ(loaded.code, 0) << loaded.err;
    EXPECT_EQ(sorted(run({"dump", copy}).out), sorted(run({"dump", pool()}).out));
  }
  EXPECT_EQ(run({"count", copy}).out, "400\n");
}

// ---- convert

TEST_F(Operations, ConvertTakesThePlaceOfWhatItCopies) {
  load("a", 3000);
  const std::string before = sorted(run({"dump", "--name", "a", pool()}).out);
  for (const char* structure : {"p-art+vl", "plush", "rstore+ordered", "fptree", "rstore"}) {
    const Result converted = run({"convert", "--json", pool(), "a", structure});
    ASSERT_EQ(converted.code, 0) << structure << ": " << converted.err;
    EXPECT_EQ(converted.json()["records"], 3000);
    EXPECT_EQ(sorted(run({"dump", "--name", "a", pool()}).out), before) << structure;
    const nlohmann::json info = run({"pool", "info", "--json", pool()}).json();
    ASSERT_EQ(info["structures"].size(), 2U) << info.dump();  // a and what its load noted
    EXPECT_NE(info.dump().find(structure), std::string::npos);
    EXPECT_EQ(run({"pool", "check", pool()}).code, 0) << structure;
  }
}

TEST_F(Operations, ConvertToAnotherNamePoolAndKind) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += std::to_string(i * 7) + "\t" + std::to_string(i) + "\n";
  ASSERT_EQ(run({"load", "--capacity", "64M", pool(), "-"}, lines).code, 0);
  ASSERT_EQ(
      run({"convert", "--key-kind", "u64", "--value-kind", "u64", pool(), "main", "sheaf", "words"})
          .code,
      0);
  EXPECT_EQ(run({"scan", "--name", "words", "--limit", "3", pool()}).out, "0\t0\n7\t1\n14\t2\n");
  EXPECT_EQ(count_of(pool(), "main"), "2000\n");
  const std::string other = path("other.pool");
  ASSERT_EQ(run({"convert", "--to", other, pool(), "words", "wbtree", "w"}).code, 0);
  EXPECT_EQ(count_of(other, "w"), "2000\n");
  EXPECT_EQ(run({"convert", "--to", other, pool(), "words", "wbtree", "w"}).code, 4);  // is there
  EXPECT_EQ(run({"convert", pool(), "words", "rstore", "x"}).code, 4);  // takes bytes only
  EXPECT_EQ(run({"convert", pool(), "nothing", "rstore"}).code, 4);
  EXPECT_EQ(run({"convert", pool(), "words", "no-such-structure"}).code, 2);
  EXPECT_EQ(count_of(pool(), "words"), "2000\n");
  // Keys that are no numbers, and those that are the same number.
  ASSERT_EQ(run({"put", "--name", "text", pool(), "x", "1"}).code, 0);
  EXPECT_NE(run({"convert", "--key-kind", "u64", pool(), "text", "plush"}).code, 0);
  ASSERT_EQ(run({"put", "--name", "twice", pool(), "1", "1"}).code, 0);
  ASSERT_EQ(run({"put", "--name", "twice", pool(), "01", "2"}).code, 0);
  const Result twice = run({"convert", "--key-kind", "u64", pool(), "twice", "plush"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_NE(twice.err.find("same text"), std::string::npos) << twice.err;
  EXPECT_EQ(count_of(pool(), "twice"), "2\n");
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  EXPECT_EQ(run({"pool", "info", pool()}).out.find("converting"), std::string::npos);
}

// Killed at any moment, then once more: the records are there, and nothing else stays.
TEST_F(Operations, AKilledConversionIsBegunAnewOrFinished) {
  load("a", 20'000);
  const std::string before = sorted(run({"dump", "--name", "a", pool()}).out);
  int killed = 0;
  for (int round = 0; round < 12; ++round) {
    const std::string structure = round % 2 == 0 ? "cceh" : "fptree";
    const std::string delay = "0.0" + std::to_string(round % 8 + 1);
    // timeout dies with what it kills, which may hold the pool for a moment longer.
    const Result result =
        shell("timeout -s KILL " + delay + " $PERDURE convert " + pool() + " a " + structure +
              "; killed=$?; " + until_closed(pool()) + "; exit $killed");
    killed += result.code != 0 ? 1 : 0;
    if (round % 3 == 0) continue;  // twice
    const Result again = run({"convert", pool(), "a", structure});
    ASSERT_EQ(again.code, 0) << again.err;
    ASSERT_EQ(sorted(run({"dump", "--name", "a", pool()}).out), before) << "round " << round;
    const nlohmann::json info = run({"pool", "info", "--json", pool()}).json();
    ASSERT_EQ(info["structures"].size(), 2U) << info.dump();
    ASSERT_EQ(run({"pool", "check", pool()}).code, 0) << "round " << round;
  }
  EXPECT_GT(killed, 0);
}

// What a crash may have left, of whatever age, is no copy of what is there now.
TEST_F(Operations, WhatAnEarlierConversionLeftIsNotTakenForACopy) {
  load("a", 100);
  ASSERT_EQ(run({"convert", pool(), "a", "cceh", "a.converted"}).code, 0);
  ASSERT_EQ(run({"convert", pool(), "a", "cceh", "copy"}).code, 0);
  ASSERT_EQ(run({"rename", pool(), "copy", "a.converting"}).code, 0);
  ASSERT_EQ(run({"put", "--name", "a", pool(), "new", "x"}).code, 0);
  ASSERT_EQ(run({"convert", pool(), "a", "cceh"}).code, 0);
  EXPECT_EQ(count_of(pool(), "a"), "101\n");
  EXPECT_EQ(run({"get", "--name", "a", pool(), "new"}).out, "x\n");
  EXPECT_EQ(run({"count", "--name", "a.converting", pool()}).code, 4);
  EXPECT_EQ(count_of(pool(), "a.converted"), "100\n");  // a name as any other
  // Nor is it dropped to be copied.
  ASSERT_EQ(run({"rename", pool(), "a.converted", "b.converting"}).code, 0);
  EXPECT_EQ(run({"convert", pool(), "b.converting", "cceh", "b"}).code, 2);
  EXPECT_EQ(count_of(pool(), "b.converting"), "100\n");
}

// A file that comes to be there is not this command's to remove: here one that a link hid until it
// was to be made.
TEST_F(Operations, ConvertRemovesNoPoolThatItHasNotMade) {
  load("a", 10);
  std::filesystem::create_symlink(path("elsewhere"), path("other.pool"));
  EXPECT_NE(run({"convert", "--to", path("other.pool"), pool(), "a", "cceh"}).code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(path("other.pool")));
  // What it has made goes, if nothing comes of it.
  EXPECT_EQ(run({"convert", "--to", path("new.pool"), pool(), "nothing", "cceh"}).code, 4);
  EXPECT_FALSE(std::filesystem::exists(path("new.pool")));
}

// ---- compaction

class Compact : public Operations {
 protected:
  // Structures of several kinds, of which much was dropped.
  void make() {
    load("a", 20'000);
    std::string words;
    for (int i = 0; i < 5000; ++i) words += std::to_string(i) + "\t" + std::to_string(3 * i) + "\n";
    ASSERT_EQ(run({"load", "--name", "gone", pool(), "-"}, large()).code, 0);
    ASSERT_EQ(run({"load", "--name", "words", "--structure", "fptree", "--key-kind", "u64",
                   "--value-kind", "u64", pool(), "-"},
                  words)
                  .code,
              0);
    ASSERT_EQ(run({"files", "put", pool(), "-", "folder/small"}, "a few words").code, 0);
    ASSERT_EQ(run({"db", "create", "--pm", "256K", "--log", "1M", pool()}).code, 0);
    ASSERT_EQ(run({"db", "load", pool()}, "alice\t10\nbob\t20\n").code, 0);
    ASSERT_EQ(run({"drop", pool(), "gone"}).code, 0);
    for (const char* name : {"a", "words"})
      dumps_[name] = sorted(run({"dump", "--name", name, pool()}).out);
  }
  void expect_all() {
    for (const auto& [name, dump] : dumps_)
      EXPECT_EQ(sorted(run({"dump", "--name", name, pool()}).out), dump) << name;
    EXPECT_EQ(run({"files", "cat", pool(), "folder/small"}).out, "a few words");
    EXPECT_EQ(run({"db", "get", pool(), "bob"}).out, "20\n");
    EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  }
  static void expect_no_copy(const std::string& of) {
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(of).parent_path()))
      EXPECT_EQ(entry.path().string().find(".compacting"), std::string::npos) << entry.path();
  }
  static std::string large() {
    std::string lines;
    for (int i = 0; i < 6000; ++i)
      lines += "key" + std::to_string(i) + "\t" + std::string(2000, 'x') + "\n";
    return lines;
  }
  std::map<std::string, std::string> dumps_;
};

TEST_F(Compact, GivesBackWhatNothingIsIn) {
  make();
  const uint64_t before =
      run({"pool", "info", "--json", pool()}).json()["size_bytes"].get<uint64_t>();
  const Result result = run({"pool", "compact", "--json", pool()});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json report = result.json();
  EXPECT_EQ(report["size_bytes_before"].get<uint64_t>(), before);
  EXPECT_LT(report["size_bytes"].get<uint64_t>() + (8 << 20), before);
  EXPECT_EQ(run({"pool", "info", "--json", pool()}).json()["capacity_bytes"].get<uint64_t>(),
            uint64_t{64} << 20);
  expect_all();
  expect_no_copy(pool());
}

TEST_F(Compact, KilledAtAnyMomentLeavesAWholePool) {
  make();
  int killed = 0;
  for (int round = 0; round < 10; ++round) {
    const bool kill = round % 3 != 2;
    const Result result = shell(
        "timeout --foreground --preserve-status -s " + std::string(kill ? "KILL" : "INT") + " 0." +
        (round < 5 ? "0" : "") + std::to_string(round % 5 * 2 + 1) + " $PERDURE pool compact " +
        pool() + "; ended=$?; " + until_closed(pool()) + "; exit $ended");
    killed += result.code != 0 ? 1 : 0;
    expect_all();
  }
  EXPECT_GT(killed, 0);
  ASSERT_EQ(run({"pool", "compact", pool()}).code, 0);
  expect_all();
  expect_no_copy(pool());
}

TEST_F(Compact, SaysHowMuchRoomItLacks) {
  const std::string small = path("small");
  if (shell("mkdir " + small + " && mount -t tmpfs -o size=24M none " + small).code != 0)
    GTEST_SKIP() << "needs the right to mount";
  const std::string full = small + "/full.pool";
  EXPECT_EQ(run({"load", "--capacity", "20M", full, "-"}, large()).code, 0);
  const Result refused = run({"pool", "compact", full});
  EXPECT_EQ(refused.code, 4);
  EXPECT_NE(refused.err.find("MiB left"), std::string::npos) << refused.err;
  EXPECT_EQ(run({"count", full}).out, "6000\n");
  expect_no_copy(full);
  EXPECT_EQ(shell("umount -l " + small).code, 0);
}

TEST_F(Compact, RefusesWhatItCannotCopyAndTouchesNothing) {
  load("a", 10);
  ASSERT_EQ(
      run({"db", "create", "--pages", path("db.pages"), "--pm", "256K", "--log", "1M", pool()})
          .code,
      0);
  const Result refused = run({"pool", "compact", pool()});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("file of its own"), std::string::npos) << refused.err;
  EXPECT_EQ(count_of(pool(), "a"), "10\n");
  EXPECT_EQ(run({"pool", "compact", path("none.pool")}).code, 4);
}

// ---- salvage

class SalvageCommand : public Operations {
 protected:
  static constexpr int kRecords = 1200;

  void SetUp() override {
    std::string lines;
    std::string words;
    for (int i = 0; i < kRecords; ++i) {
      lines += "key" + std::to_string(i) + "\tvalue " + std::to_string(i) + "\n";
      words += std::to_string(i) + "\t" + std::to_string(i * 3) + "\n";
    }
    for (const char* structure : {"rstore", "plush", "p-art+vl", "fptree"}) {
      ASSERT_EQ(run({"load", "--capacity", "64M", "--structure", structure, "--name", structure,
                     pool(), "-"},
                    lines)
                    .code,
                0);
    }
    ASSERT_EQ(run({"load", "--structure", "cceh", "--key-kind", "u64", "--value-kind", "u64",
                   "--name", "words", pool(), "-"},
                  words)
                  .code,
              0);
    sound_ = read_file("test.pool");
    for (const char* name : {"rstore", "plush", "p-art+vl", "fptree", "words"}) {
      dumps_[name] = sorted(run({"dump", "--name", name, pool()}).out);
    }
  }

  // Salvages a file of this content. Whatever comes out of it was there before, but for words.
  nlohmann::json salvage(const std::string& content, int code = -1) {
    write_file("damaged.pool", content);
    std::filesystem::remove(path("saved.pool"));
    const Result result =
        run({"pool", "salvage", "--json", path("damaged.pool"), path("saved.pool")});
    if (code >= 0) {
      EXPECT_EQ(result.code, code) << result.err;
    }
    EXPECT_TRUE(result.code == 0 || result.code == 3 || result.code == 4)
        << result.code << result.err;
    EXPECT_EQ(read_file("damaged.pool"), content);
    if (result.code == 4 || result.out.empty()) return {};
    const nlohmann::json report = result.json();
    EXPECT_EQ(report["complete"].get<bool>(), result.code == 0);
    EXPECT_EQ(run({"pool", "check", path("saved.pool")}).code, 0);
    for (const nlohmann::json& one : report["structures"]) {
      const std::string name = one["name"];
      if (!dumps_.contains(name)) continue;
      const std::string dump = run({"dump", "--name", name, path("saved.pool")}).out;
      EXPECT_EQ(static_cast<uint64_t>(std::count(dump.begin(), dump.end(), '\n')),
                one["records"].get<uint64_t>());
      if (name == "words") continue;
      for (size_t begin = 0; begin < dump.size();) {
        const size_t end = dump.find('\n', begin) + 1;
        EXPECT_NE(dumps_[name].find(dump.substr(begin, end - begin)), std::string::npos)
            << dump.substr(begin, end - begin);
        begin = end;
      }
    }
    return report;
  }
  static uint64_t records_of(const nlohmann::json& report, const std::string& name) {
    for (const nlohmann::json& one : report["structures"]) {
      if (one["name"] == name) return one["records"].get<uint64_t>();
    }
    return 0;
  }

  std::string sound_;
  std::map<std::string, std::string> dumps_;
};

TEST_F(SalvageCommand, OfASoundPoolIsWhole) {
  const nlohmann::json report = salvage(sound_, 0);
  for (const auto& [name, dump] : dumps_) {
    EXPECT_EQ(records_of(report, name), static_cast<uint64_t>(kRecords)) << name;
    EXPECT_EQ(sorted(run({"dump", "--name", name, path("saved.pool")}).out), dump);
  }
}

TEST_F(SalvageCommand, DamageOfThePoolItselfIsPassedOver) {
  // The magic, the layout's hash, the capacity, the header's checksum, its size and its generation,
  // a lane, a free entry of the directory.
  for (const size_t at : {size_t{0}, size_t{20}, size_t{42}, size_t{250}, size_t{256}, size_t{320},
                          size_t{69'640}, size_t{60'000}}) {
    std::string damaged = sound_;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_NE(run({"count", "--name", "plush", write_file("x.pool", damaged)}).code, 0) << at;
    const nlohmann::json report = salvage(damaged, at == 60'000 ? 3 : -1);
    for (const auto& [name, dump] : dumps_) {
      EXPECT_EQ(records_of(report, name), static_cast<uint64_t>(kRecords))
          << name << ", byte " << at;
    }
  }
  // The name of one structure.
  std::string damaged = sound_;
  const size_t name = damaged.find("p-art+vl");
  ASSERT_LT(name, 69'632U);
  damaged[name] = 'q';
  const nlohmann::json report = salvage(damaged, 3);
  EXPECT_EQ(records_of(report, "rstore"), static_cast<uint64_t>(kRecords));
  EXPECT_EQ(records_of(report, "words"), static_cast<uint64_t>(kRecords));
  EXPECT_NE(report.dump().find("root directory"), std::string::npos);
}

TEST_F(SalvageCommand, OneDamagedRecordIsLostAlone) {
  std::string damaged = sound_;
  uint64_t hits = 0;
  // In all structures: each has the value as it is.
  for (size_t at = 0; (at = damaged.find("value 777", at)) != std::string::npos; ++hits)
    damaged[at + 6] = '8';
  ASSERT_GE(hits, 4U);
  const nlohmann::json report = salvage(damaged, 3);
  for (const char* structure : {"rstore", "plush", "p-art+vl", "fptree"}) {
    EXPECT_EQ(records_of(report, structure), static_cast<uint64_t>(kRecords - 1)) << report.dump();
    EXPECT_EQ(run({"get", "--name", structure, path("saved.pool"), "key777"}).code, 1) << structure;
    EXPECT_EQ(run({"get", "--name", structure, path("saved.pool"), "key778"}).out, "value 778\n");
  }
  EXPECT_EQ(records_of(report, "words"), static_cast<uint64_t>(kRecords));
}

TEST_F(SalvageCommand, NoDamageLeadsItAstray) {
  std::mt19937_64 random(11);
  uint64_t saved = 0;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    std::string damaged = sound_;
    const uint64_t places = 1 + random() % 40;
    for (uint64_t i = 0; i < places; ++i) {
      // A byte, a word or a line, anywhere or in what the pool itself needs.
      const uint64_t bytes = uint64_t{1} << (3 * (random() % 3));
      const uint64_t at = random() % (i % 4 == 0 ? 200'000 : damaged.size() - bytes);
      for (uint64_t n = 0; n < bytes; ++n) damaged[at + n] = static_cast<char>(random());
    }
    if (round % 5 == 4) damaged.resize(random() % damaged.size());
    const nlohmann::json report = salvage(damaged);
    if (report.is_null()) continue;
    for (const auto& [name, dump] : dumps_) saved += records_of(report, name);
  }
  EXPECT_GT(saved, uint64_t{kRecords} * 3);
}

#ifdef PERDURE_FAILING_READS
TEST_F(SalvageCommand, SavesAllOfAPoolThatCannotBeChecked) {
  const Result result = shell("LD_PRELOAD=" PERDURE_FAILING_READS " $PERDURE pool salvage --json " +
                              pool() + " " + path("saved.pool"));
  EXPECT_EQ(result.code, 3) << result.err;
  const nlohmann::json report = result.json();
  EXPECT_EQ(report["problems"].size(), 1U) << report.dump();
  for (const auto& [name, dump] : dumps_) {
    EXPECT_EQ(sorted(run({"dump", "--name", name, path("saved.pool")}).out), dump);
  }
}

// A child that hangs does not outlive the command, nor keep its locks.
TEST_F(SalvageCommand, LeavesNobodyBehindWhenItIsKilled) {
  const Result result =
      shell("LD_PRELOAD=" PERDURE_FAILING_READS " PERDURE_READS_HANG=" + path("hangs") +
            " $PERDURE pool salvage " + pool() + " " + path("saved.pool") + " & until [ -e " +
            path("hangs") + " ]; do sleep 0.01; done; kill -KILL $!; wait $!; " +
            until_closed(path("saved.pool") + ".*.unfinished"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(std::filesystem::exists(path("saved.pool")));
}

// Page by page: what a damaged one had is named, all else is there.
TEST_F(Operations, SalvageReadsDatabases) {
  std::string lines;
  for (int i = 0; i < 4000; ++i)
    lines += "key" + std::to_string(10'000 + i) + "\t" + std::string(100, 'v') + std::to_string(i) +
             "\n";
  const std::string pages = path("bank.pages");
  ASSERT_EQ(run({"db", "create", "--capacity", "64M", "--pages", pages, "--pm", "256K", "--log",
                 "1M", pool()})
                .code,
            0);
  ASSERT_EQ(run({"db", "load", "--pages", pages, pool()}, lines).code, 0);
  ASSERT_EQ(run({"db", "put", "--pages", pages, "--tree", "other", pool(), "a", "b"}).code, 0);
  ASSERT_EQ(run({"db", "create", "--name", "inside", "--pm", "256K", "--log", "1M", pool()}).code,
            0);
  ASSERT_EQ(run({"db", "load", "--name", "inside", pool()}, lines).code, 0);
  const auto salvage = [&](int code) {
    std::filesystem::remove(path("saved.pool"));
    std::filesystem::remove(path("saved.pool.db.pages"));
    const Result result =
        run({"pool", "salvage", "--json", "--pages", pages, pool(), path("saved.pool")});
    EXPECT_EQ(result.code, code) << result.err << result.out;
    return result.json();
  };
  const auto dump = [&](const std::string& tree) {
    return run({"db", "dump", "--tree", tree, "--pages", path("saved.pool.db.pages"),
                path("saved.pool")})
        .out;
  };
  nlohmann::json report = salvage(0);
  EXPECT_EQ(report["structures"][0]["records"].get<int>(), 4001);
  EXPECT_EQ(dump("main"), lines);
  EXPECT_EQ(dump("other"), "a\tb\n");
  EXPECT_EQ(run({"db", "dump", "--name", "inside", path("saved.pool")}).out, lines);
  // One leaf somewhere in the middle.
  const std::string sound = read_file("bank.pages");
  std::string damaged = sound;
  const size_t at = damaged.find(std::string(100, 'v') + "2000");
  ASSERT_NE(at, std::string::npos);
  damaged[at] ^= 1;
  write_file("bank.pages", damaged);
  report = salvage(3);
  EXPECT_EQ(read_file("bank.pages"), damaged);
  const auto& db = report["structures"][0];
  EXPECT_EQ(db["unreadable"].get<int>(), 1) << report.dump(2);
  EXPECT_FALSE(db["complete"].get<bool>());
  EXPECT_NE(db["lost"][0].get<std::string>().find("tree main: the records from \"key1"),
            std::string::npos)
      << report.dump(2);
  const std::string saved = dump("main");
  EXPECT_GT(saved.size() + 10'000, lines.size());
  EXPECT_LT(saved.size(), lines.size());
  EXPECT_EQ(saved.substr(0, 1000), lines.substr(0, 1000));
  EXPECT_EQ(saved.substr(saved.size() - 1000), lines.substr(lines.size() - 1000));
  EXPECT_EQ(report["structures"][1]["records"].get<int>(), 4000);
  // Without the page file it is told what is needed.
  std::filesystem::remove(path("saved.pool"));
  const Result without = run({"pool", "salvage", pool(), path("saved.pool")});
  EXPECT_EQ(without.code, 3);
  EXPECT_NE(without.out.find("--pages"), std::string::npos) << without.out;
}

// In pieces: there may be more in a file than memory holds, and than a pipe takes at once.
TEST_F(SalvageCommand, FilesAreLargerThanMemory) {
  std::string content(size_t{48} << 20, '\0');
  std::mt19937_64 random(5);
  for (size_t i = 0; i + 8 <= content.size(); i += 4096) {
    const uint64_t word = random();
    content.replace(i, 8, reinterpret_cast<const char*>(&word), 8);
  }
  const std::string large = write_file("large", content);
  const std::string files = path("files.pool");
  ASSERT_EQ(run({"files", "put", "--capacity", "80M", files, large, "folder/large"}).code, 0);
  ASSERT_EQ(run({"files", "put", files, "-", "folder/small"}, "a few words").code, 0);
  ASSERT_EQ(run({"files", "put", files, "-", "none"}, "").code, 0);
  // Address space for both pools, and half of the file.
  const Result result =
      shell("ulimit -v $(((160 + 24 + 64) * 1024)); $PERDURE pool salvage --json " + files + " " +
            path("saved.pool"));
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  ASSERT_EQ(run({"files", "get", path("saved.pool"), "folder/large", path("out")}).code, 0);
  EXPECT_TRUE(read_file("out") == content);
  EXPECT_EQ(run({"files", "cat", path("saved.pool"), "folder/small"}).out, "a few words");
  EXPECT_EQ(run({"files", "cat", path("saved.pool"), "none"}).out, "");
}
#endif

TEST_F(SalvageCommand, RefusesWhatIsNoPoolAndWhatIsInTheWay) {
  EXPECT_EQ(run({"pool", "salvage", write_file("notes.txt", "notes"), path("new.pool")}).code, 4);
  EXPECT_FALSE(std::filesystem::exists(path("new.pool")));
  EXPECT_EQ(run({"pool", "salvage", pool(), pool()}).code, 4);
  EXPECT_EQ(run({"pool", "salvage", path("none.pool"), path("new.pool")}).code, 4);
}

}  // namespace
}  // namespace perdure::cli_test
