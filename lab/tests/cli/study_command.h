// Tests of the commands below `perdure study`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command_runner.h"

namespace perdure::cli_test {

class StudyCommandTest : public CommandTest {
 protected:
  explicit StudyCommandTest(const char* name) : name_(name) {}

  Result study(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"study", name_, "--folder", folder()});
    return run(arguments);
  }
  nlohmann::json study_json(std::vector<std::string> arguments) const {
    arguments.emplace_back("--json");
    const Result result = study(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.json();
  }
  static void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
  }

 private:
  const char* name_;
};

}  // namespace perdure::cli_test
