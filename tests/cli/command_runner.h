// Runs the built `perdure` command as a user would, in a folder that is removed afterwards.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace perdure::cli_test {

// The built command: $PERDURE_COMMAND, or the one of this build.
std::string command_path();

struct Result {
  int code = -1;  // exit code, or minus the signal
  std::string out;
  std::string err;

  // Standard output as JSON; a failed test and null if it is none.
  nlohmann::json json() const;
};

// What a browser made of a page.
struct Drawn {
  int figures = 0;
  int paths = 0;  // lines, bars and markers in them
};

class CommandTest : public ::testing::Test {
 protected:
  CommandTest();
  ~CommandTest() override;

  // Runs `perdure` with these arguments and this standard input; waits for its end.
  Result run(const std::vector<std::string>& arguments, const std::string& input = "") const;
  // Runs a line of shell, in which $PERDURE is the command.
  Result shell(const std::string& line) const;

  // Shell text that waits until nobody has the pool open for writing: children of a command that
  // was killed may for a moment. Fails after 20 s.
  static std::string until_closed(const std::string& pool) {
    return "n=0; while [ $n -lt 2000 ] && $PERDURE pool info --json " + pool +
           " 2>&1 | grep -q 'open_to_write.: true'; do n=$((n+1)); sleep 0.01; done; [ $n -lt 2000 "
           "]";
  }

  // Opens a page of this folder in headless Chromium. Tests fail if the browser complains, a figure
  // is empty, or the page is wider than the window.
  Drawn draw_in_browser(const std::string& page) const;
  bool has_browser() const;

  const std::string& folder() const { return folder_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string pool() const { return path("test.pool"); }
  std::string write_file(const std::string& name, const std::string& content) const;
  std::string read_file(const std::string& name) const;

 private:
  std::string folder_;
};

}  // namespace perdure::cli_test
