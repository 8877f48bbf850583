// load and dump: many records at a time.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <random>
#include <sstream>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class Load : public CommandTest {
 protected:
  static std::string numbered_lines(int count) {
    std::string lines;
    for (int i = 1; i <= count; ++i) {
      lines += "key" + std::to_string(i) + "\tvalue" + std::to_string(i) + "\n";
    }
    return lines;
  }

  // Runs the command until it has written `enough` numbers to its file descriptor 3, and kills it.
  // Returns all the numbers that it wrote, and its exit code or minus the signal.
  static std::pair<std::vector<int>, int> acknowledged_until_killed(
      const std::vector<std::string>& arguments, size_t enough) {
    const std::string command = command_path();
    std::vector<const char*> pointers = {command.c_str()};
    for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
    pointers.push_back(nullptr);
    int ends[2];
    if (pipe(ends) != 0) return {};
    fcntl(ends[1], F_SETPIPE_SZ, 4096);  // so that it cannot run far ahead
    const pid_t child = fork();
    if (child == 0) {
      dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
      const int out = dup(ends[1]);
      dup2(out, 3);
      execv(pointers[0], const_cast<char* const*>(pointers.data()));
      _exit(127);
    }
    close(ends[1]);
    std::vector<int> numbers;
    std::string pending;
    char buffer[512];
    for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof buffer)) > 0;) {
      pending.append(buffer, static_cast<size_t>(got));
      size_t begin = 0;
      for (size_t end = 0; (end = pending.find('\n', begin)) != std::string::npos;
           begin = end + 1) {
        numbers.push_back(std::stoi(pending.substr(begin, end - begin)));
      }
      pending.erase(0, begin);
      if (numbers.size() >= enough) kill(child, SIGKILL);
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return {numbers, WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status)};
  }

  // Lines in an order of their own, to compare what has none.
  static std::vector<std::string> sorted_lines(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    std::sort(lines.begin(), lines.end());
    return lines;
  }
};

TEST_F(Load, RangesOfKeysAreSampled) {
  std::string lines;
  for (int i = 0; i < 6000; ++i) {
    lines += (i % 2 == 0 ? "a,\\\\" : "b") + std::to_string(100000 + i * 7) + "\tvalue\n";
  }
  const std::string file = write_file("words.tsv", lines);
  const Result loaded =
      run({"load", "--structure", "rstore+ordered", "--ranges", "6", pool(), file});
  EXPECT_EQ(loaded.code, 0) << loaded.err;
  EXPECT_NE(run({"store", "stat", pool()}).out.find("partitions               6 partitions"),
            std::string::npos)
      << run({"store", "stat", pool()}).out;
  EXPECT_EQ(sorted_lines(run({"dump", pool()}).out), sorted_lines(lines));
  const Result piped = run({"load", "--ranges", "6", pool(), "-"}, lines);
  EXPECT_NE(piped.code, 0);
  EXPECT_NE(piped.err.find("--ranges"), std::string::npos) << piped.err;
}

TEST_F(Load, TsvRoundTripsThroughDump) {
  const std::string lines = numbered_lines(3000);
  const Result loaded = run({"load", pool(), write_file("words.tsv", lines)});
  EXPECT_EQ(loaded.code, 0) << loaded.err;
  EXPECT_NE(loaded.out.find("3,000 records acknowledged"), std::string::npos) << loaded.out;
  EXPECT_EQ(sorted_lines(run({"dump", pool()}).out), sorted_lines(lines));
}

TEST_F(Load, ArbitraryBytesRoundTripInBothFormats) {
  // Every byte value in keys and values, and random strings of them.
  std::mt19937 random(7);
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    const auto bytes = [&random](size_t length) {
      std::string hex;
      char escaped[5];
      for (size_t at = 0; at < length; ++at) {
        std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(random() % 256));
        hex += escaped;
      }
      return hex;
    };
    lines += bytes(4 + random() % 20) + "\t" + bytes(random() % 60) + "\n";
  }
  ASSERT_EQ(run({"load", pool(), write_file("bytes.tsv", lines)}).code, 0);
  const std::vector<std::string> original = sorted_lines(run({"dump", pool()}).out);
  EXPECT_EQ(original.size(), 300U);
  for (const std::string format : {"tsv", "jsonl"}) {
    const std::string copy = path("copy-" + format + ".pool");
    const std::string text = run({"dump", "--format", format, pool()}).out;
    ASSERT_EQ(run({"load", "--format", format, copy, "-"}, text).code, 0);
    EXPECT_EQ(sorted_lines(run({"dump", copy}).out), original) << format;
  }
}

TEST_F(Load, EscapesStandForSingleBytes) {
  run({"load", pool(), "-"}, "a\\tb\tc\\nd\\\\e\\x00f\n");
  EXPECT_EQ(run({"get", "--raw", pool(), "a\tb"}).out, std::string("c\nd\\e\0f", 7));
}

TEST_F(Load, JsonLinesAreKnownByTheirFirstByteAndByExtension) {
  const std::string lines =
      "{\"key\": \"a\", \"value\": \"1\"}\n{\"key_base64\": \"/w==\", \"value\": \"2\"}\n";
  EXPECT_EQ(run({"load", "--json", pool(), "-"}, lines).json()["format"], "jsonl");
  EXPECT_EQ(run({"get", pool(), "a"}).out, "1\n");
  EXPECT_EQ(run({"get", pool(), "\xff"}).out, "2\n");
  const std::string named = write_file("lines.jsonl", "{\"key\": \"b\", \"value\": \"3\"}");
  EXPECT_EQ(run({"load", pool(), named}).code, 0);
  EXPECT_EQ(run({"get", pool(), "b"}).out, "3\n");
}

TEST_F(Load, BlankLinesBetweenJsonLinesAreNoRecordsAndNoMistakes) {
  const Result load = run({"load", "--json", pool(), "-"},
                          "{\"key\": \"a\", \"value\": \"1\"}\n\n \t\r\n"
                          "{\"key\": \"b\", \"value\": \"2\"}\n\n");
  EXPECT_EQ(load.code, 0) << load.err;
  EXPECT_EQ(load.json()["acknowledged"], 2);
  EXPECT_EQ(load.json()["skipped_bad"], 0);
  EXPECT_EQ(run({"get", pool(), "b"}).out, "2\n");
}

TEST_F(Load, WordsLoadFromTsvAndJson) {
  const std::vector<std::string> kinds = {"--key-kind", "u64", "--value-kind", "u64"};
  std::vector<std::string> command = {"load", pool(), "-"};
  command.insert(command.end(), kinds.begin(), kinds.end());
  EXPECT_EQ(run(command, "7\t49\n8\t64\n").code, 0);
  EXPECT_EQ(run({"load", pool(), "-"}, "{\"key\": 18446744073709551615, \"value\": 1}\n").code, 0);
  EXPECT_EQ(run({"get", pool(), "18446744073709551615"}).out, "1\n");
  EXPECT_EQ(run({"get", pool(), "8"}).out, "64\n");
}

TEST_F(Load, TheLastLineOfAKeyWinsWithManyThreads) {
  std::string lines;
  for (int round = 0; round < 200; ++round) {
    for (int key = 0; key < 50; ++key) {
      lines += "k" + std::to_string(key) + "\t" + std::to_string(round) + "\n";
    }
  }
  ASSERT_EQ(run({"load", "--threads", "4", pool(), "-"}, lines).code, 0);
  for (const std::string& line : sorted_lines(run({"dump", pool()}).out)) {
    EXPECT_EQ(line.substr(line.find('\t')), "\t199");
  }
}

TEST_F(Load, ABadLineIsNamedAndWhatCameBeforeIsStored) {
  const std::string file = write_file("bad.tsv", "a\t1\nb\t2\nno tab here\nc\t3\n");
  const Result bad = run({"load", pool(), file});
  EXPECT_EQ(bad.code, 4);
  EXPECT_NE(bad.err.find("bad.tsv, line 3: there is no tab"), std::string::npos) << bad.err;
  EXPECT_EQ(run({"get", pool(), "b"}).out, "2\n");
  EXPECT_EQ(run({"get", pool(), "c"}).code, 1);
}

TEST_F(Load, EveryKindOfBadLineSaysWhatIsWrong) {
  const auto message = [this](const std::string& line) {
    return run({"load", pool(), "-"}, line).err;
  };
  EXPECT_NE(message("a\tb\tc\n").find("more than one tab"), std::string::npos);
  EXPECT_NE(message("a\\q\tb\n").find("backslash"), std::string::npos);
  EXPECT_NE(message("a\\x1\tb\n").find("hexadecimal"), std::string::npos);
  EXPECT_NE(message("{\"key\": \"a\"}\n").find("no \"value\""), std::string::npos);
  EXPECT_NE(message("{\"key\": 1, \"value\": \"x\"}\n").find("not a string"), std::string::npos);
  EXPECT_NE(message("{\"key\": \"a\", \"value\"\n").find("parse error"), std::string::npos);
  EXPECT_NE(message("{\"key_base64\": \"?\", \"value\": \"\"}\n").find("base64"),
            std::string::npos);
}

TEST_F(Load, SkipBadCountsBadLines) {
  const Result loaded =
      run({"load", "--skip-bad", "--json", pool(), "-"}, "a\t1\nbad\nb\t2\nworse\n");
  EXPECT_EQ(loaded.code, 0);
  EXPECT_EQ(loaded.json()["acknowledged"], 2);
  EXPECT_EQ(loaded.json()["skipped_bad"], 2);
  EXPECT_EQ(loaded.json()["lines"], 4);
  EXPECT_EQ(loaded.json()["bad_examples"].size(), 2U);
}

TEST_F(Load, ResumeLeavesOutWhatWasAcknowledged) {
  const std::string file = write_file("words.tsv", numbered_lines(500));
  ASSERT_EQ(run({"load", pool(), file}).code, 0);
  const Result again = run({"load", "--resume", pool(), file});
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.out.find("already loaded"), std::string::npos) << again.out;
  const nlohmann::json report = run({"load", "--resume", "--json", pool(), file}).json();
  EXPECT_EQ(report["resumed_after"], 500);
  EXPECT_EQ(report["acknowledged"], 0);
  // Without --resume everything is stored again.
  EXPECT_EQ(run({"load", "--json", pool(), file}).json()["acknowledged"], 500);
}

TEST_F(Load, ResumeGoesOnBehindABadLineThatWasMended) {
  const std::string source = "a\t1\nb\t2\nbad\nc\t3\n";
  EXPECT_EQ(run({"load", pool(), "-"}, source).code, 4);
  const Result resumed =
      run({"load", "--resume", "--json", pool(), "-"}, "a\t1\nb\t2\nmended\t!\nc\t3\n");
  EXPECT_EQ(resumed.json()["resumed_after"], 2);
  EXPECT_EQ(resumed.json()["acknowledged"], 2);
  EXPECT_EQ(run({"get", pool(), "mended"}).out, "!\n");
}

TEST_F(Load, AChangedFileIsAnotherSource) {
  const std::string file = write_file("words.tsv", numbered_lines(10));
  ASSERT_EQ(run({"load", pool(), file}).code, 0);
  write_file("words.tsv", numbered_lines(20));
  EXPECT_EQ(run({"load", "--resume", "--json", pool(), file}).json()["acknowledged"], 20);
}

// The loader is killed while it stores; what it acknowledged is there, and resuming stores the
// rest.
TEST_F(Load, AKilledLoadKeepsWhatItAcknowledgedAndResumes) {
  constexpr int kLines = 60'000;
  const std::string file = write_file("words.tsv", numbered_lines(kLines));
  // `head` ends after 20,000 acknowledgements; then the loader gets SIGKILL.
  const Result killed =
      shell("$PERDURE load --threads 3 --acknowledge 3 " + pool() + " " + file +
            " 3> >(head -n 20000 > " + path("acknowledged") + "; kill -9 $(cat " + path("pid") +
            ")) & echo $! > " + path("pid") + "; wait $!; code=$?; wait; exit $code");
  ASSERT_EQ(killed.code, 137) << killed.err;
  const std::vector<std::string> acknowledged = sorted_lines(read_file("acknowledged"));
  EXPECT_EQ(acknowledged.size(), 20'000U);
  const std::vector<std::string> present = sorted_lines(run({"dump", pool()}).out);
  for (const std::string& number : acknowledged) {
    std::string line = "key";
    line.append(number).append("\tvalue").append(number);
    EXPECT_TRUE(std::binary_search(present.begin(), present.end(), line)) << line;
  }
  const nlohmann::json resumed = run({"load", "--resume", "--json", pool(), file}).json();
  EXPECT_GT(resumed["resumed_after"], 0);
  EXPECT_LE(resumed["resumed_after"], 60'000);
  EXPECT_EQ(sorted_lines(run({"dump", pool()}).out), sorted_lines(numbered_lines(kLines)));
}

// Loads of a source in which keys come again and again, killed one after the other: no key ever
// goes back behind a line that some load of the series acknowledged.
TEST_F(Load, NoKilledLoadTakesAKeyBackBehindAnAcknowledgedLine) {
  constexpr int kLines = 40'000;
  constexpr int kKeys = 700;
  std::mt19937 random(11);
  std::vector<std::string> key_of = {""};
  std::string lines;
  for (int i = 1; i <= kLines; ++i) {
    key_of.push_back("key" + std::to_string(random() % kKeys));
    lines += key_of.back() + "\t" + std::to_string(i) + "\n";
  }
  const std::string file = write_file("again.tsv", lines);
  ASSERT_EQ(run({"pool", "create", "--capacity", "64M", pool()}).code, 0);
  std::map<std::string, int> acknowledged;  // the last line of each key
  bool complete = false;
  for (int round = 0; round < 40 && !complete; ++round) {
    const auto [numbers, code] = acknowledged_until_killed(
        {"load", "--resume", "--threads", std::to_string(1 + random() % 4), "--acknowledge", "3",
         pool(), file},
        1 + random() % 3000);
    ASSERT_TRUE(code == -SIGKILL || code == 0) << code;
    complete = code == 0;
    for (const int line : numbers) {
      int& last = acknowledged[key_of[line]];
      last = std::max(last, line);
    }
    std::map<std::string, int> stored;
    for (const std::string& text : sorted_lines(run({"dump", pool()}).out)) {
      const size_t tab = text.find('\t');
      stored[text.substr(0, tab)] = std::stoi(text.substr(tab + 1));
    }
    int older = 0;
    for (const auto& [key, line] : acknowledged) older += stored[key] < line ? 1 : 0;
    ASSERT_EQ(older, 0) << "keys of " << acknowledged.size() << " after round " << round;
  }
  EXPECT_EQ(run({"load", "--resume", pool(), file}).code, 0);
  std::map<std::string, int> last;
  for (int i = 1; i <= kLines; ++i) last[key_of[i]] = i;
  std::string expected;
  for (const auto& [key, line] : last) expected += key + "\t" + std::to_string(line) + "\n";
  EXPECT_EQ(sorted_lines(run({"dump", pool()}).out), sorted_lines(expected));
}

TEST_F(Load, BulkStoresTheSameAndResumes) {
  const std::string file = write_file("words.tsv", numbered_lines(5000));
  ASSERT_EQ(run({"load", "--bulk", "--threads", "3", pool(), file}).code, 0);
  EXPECT_EQ(sorted_lines(run({"dump", pool()}).out), sorted_lines(numbered_lines(5000)));
  EXPECT_EQ(run({"load", "--resume", "--json", pool(), file}).json()["resumed_after"], 5000);
  const Result both = run({"load", "--bulk", "--acknowledge", "1", pool(), file});
  EXPECT_EQ(both.code, 2);
  EXPECT_NE(both.err.find("--bulk"), std::string::npos) << both.err;
}

TEST_F(Load, AcknowledgesEveryLineOnce) {
  const std::string file = write_file("words.tsv", numbered_lines(1000));
  ASSERT_EQ(
      shell("$PERDURE load --acknowledge 3 " + pool() + " " + file + " 3> " + path("acks")).code,
      0);
  std::vector<std::string> expected;
  for (int i = 1; i <= 1000; ++i) expected.push_back(std::to_string(i));
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(sorted_lines(read_file("acks")), expected);
  EXPECT_EQ(run({"load", "--acknowledge", "77", pool(), file}).code, 2);
}

TEST_F(Load, AMissingSourceMakesNoPool) {
  const Result missing = run({"load", pool(), path("missing.tsv")});
  EXPECT_EQ(missing.code, 4);
  EXPECT_NE(missing.err.find("missing.tsv"), std::string::npos) << missing.err;
  EXPECT_EQ(run({"pool", "info", pool()}).code, 4);
  EXPECT_EQ(run({"load", pool(), folder()}).code, 4);
}

TEST_F(Load, AnEmptySourceIsLoaded) {
  EXPECT_EQ(run({"load", pool(), "-"}, "").code, 0);
  EXPECT_EQ(run({"dump", pool()}).out, "");
}

TEST_F(Load, AFullPoolKeepsWhatWasAcknowledged) {
  std::string lines;
  const std::string value(4000, 'v');
  for (int i = 0; i < 4000; ++i) lines += "key" + std::to_string(i) + "\t" + value + "\n";
  const std::string file = write_file("much.tsv", lines);
  const Result full = shell("$PERDURE load --capacity 6M --acknowledge 3 " + pool() + " " + file +
                            " 3> " + path("acks"));
  EXPECT_EQ(full.code, 4);
  EXPECT_NE(full.err.find("records of this load are stored"), std::string::npos) << full.err;
  const std::vector<std::string> acknowledged = sorted_lines(read_file("acks"));
  EXPECT_GT(acknowledged.size(), 100U);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  EXPECT_GE(sorted_lines(run({"dump", pool()}).out).size(), acknowledged.size());
}

TEST_F(Load, ScanAndCountGoThroughRangesInOrder) {
  std::string lines;
  for (int i = 100; i-- > 0;) lines += "k" + std::to_string(i) + "\t" + std::to_string(i) + "\n";
  ASSERT_EQ(run({"load", "--structure", "fptree", pool(), "-"}, lines).code, 0);
  EXPECT_EQ(run({"scan", "--from", "k8", "--to", "k82", pool()}).out, "k8\t8\nk80\t80\nk81\t81\n");
  EXPECT_EQ(run({"scan", "--prefix", "k9", "--limit", "2", pool()}).out, "k9\t9\nk90\t90\n");
  EXPECT_EQ(run({"scan", "--from", "k99", "--json", pool()}).json()["value"], "99");
  EXPECT_EQ(run({"scan", "--reverse", "--prefix", "k9", "--limit", "2", pool()}).out,
            "k99\t99\nk98\t98\n");
  EXPECT_EQ(run({"count", pool()}).out, "100\n");
  EXPECT_EQ(run({"count", "--prefix", "k9", "--json", pool()}).json()["records"], 11);
  EXPECT_EQ(run({"count", "--to", "k", pool()}).out, "0\n");
  EXPECT_EQ(run({"scan", "--prefix", "a", "--from", "b", pool()}).code, 2);
}

TEST_F(Load, ScanOfWordsAndOfWhatHasNoOrder) {
  ASSERT_EQ(run({"load", "--structure", "fptree", "--key-kind", "u64", "--value-kind", "u64",
                 pool(), "-"},
                "10\t1\n9\t2\n100\t3\n")
                .code,
            0);
  EXPECT_EQ(run({"scan", pool()}).out, "9\t2\n10\t1\n100\t3\n");
  EXPECT_EQ(run({"scan", "--from", "10", "--to", "100", pool()}).out, "10\t1\n");
  EXPECT_EQ(run({"scan", "--reverse", pool()}).out, "100\t3\n10\t1\n9\t2\n");
  EXPECT_EQ(run({"scan", "--reverse", "--to", "100", "--limit", "1", pool()}).out, "10\t1\n");
  EXPECT_EQ(run({"scan", "--reverse", "--from", "10", "--to", "99", pool()}).out, "10\t1\n");
  EXPECT_EQ(run({"scan", "--prefix", "1", pool()}).code, 2);
  ASSERT_EQ(run({"put", "--structure", "plush", "--name", "hash", pool(), "a", "1"}).code, 0);
  EXPECT_EQ(run({"scan", "--name", "hash", pool()}).code, 4);
  EXPECT_EQ(run({"count", "--name", "hash", pool()}).out, "1\n");
}

TEST_F(Load, DumpNeedsThePoolAndTheStructure) {
  EXPECT_EQ(run({"dump", pool()}).code, 4);
  run({"put", pool(), "a", "1"});
  EXPECT_EQ(run({"dump", "--name", "none", pool()}).code, 4);
  EXPECT_EQ(run({"dump", "--output", path("no/such/folder"), pool()}).code, 4);
  EXPECT_EQ(run({"dump", "--output", path("out.tsv"), pool()}).code, 0);
  EXPECT_EQ(read_file("out.tsv"), "a\t1\n");
  EXPECT_EQ(run({"dump", "--json", pool()}).json()["key"], "a");
}

TEST_F(Load, DumpToAFullDeviceIsAnError) {
  run({"put", pool(), "a", "1"});
  EXPECT_EQ(shell("$PERDURE dump " + pool() + " > /dev/full").code, 4);
}

}  // namespace
}  // namespace perdure::cli_test
