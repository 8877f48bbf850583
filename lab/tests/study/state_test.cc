// What a study keeps between runs, and which files it refuses.
#include "lab/study/state.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "perdure/error.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

const json kParameters = {{"records", 1000}, {"seed", 1}};

class StudyState : public ::testing::Test {
 protected:
  StudyState() {
    folder_ = (std::filesystem::temp_directory_path() / "perdure-study-XXXXXX").string();
    if (mkdtemp(folder_.data()) == nullptr) std::abort();
    path_ = folder_ + "/state";
  }
  ~StudyState() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& text) const { std::ofstream(path_, std::ios::app) << text; }
  void truncate_by(uint64_t bytes) const {
    std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - bytes);
  }
  // The message with which the file is refused.
  std::string refusal(const json& parameters, ErrorCode code) const {
    try {
      const StateFile state(path_, parameters);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    ADD_FAILURE() << "it was taken up";
    return "";
  }

  std::string folder_;
  std::string path_;
};

TEST_F(StudyState, GivesBackWhatWasKept) {
  for (int run = 0; run < 3; ++run) {
    StateFile state(path_, kParameters);
    ASSERT_EQ(state.results().size(), static_cast<size_t>(run));
    for (int i = 0; i < run; ++i) EXPECT_EQ(state.results()[static_cast<size_t>(i)]["run"], i);
    state.add({{"run", run}});
  }
}

TEST_F(StudyState, KeepsNothingWithoutAFile) {
  StateFile state("", kParameters);
  state.add({{"run", 1}});
  EXPECT_EQ(state.results().size(), 1U);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(StudyState, ForgetsALineThatACrashCutShort) {
  {
    StateFile state(path_, kParameters);
    state.add({{"run", 1}});
    state.add({{"run", 2}});
  }
  truncate_by(4);
  {
    StateFile state(path_, kParameters);
    ASSERT_EQ(state.results().size(), 1U);
    state.add({{"run", 3}});
  }
  const StateFile state(path_, kParameters);
  ASSERT_EQ(state.results().size(), 2U);
  EXPECT_EQ(state.results()[1]["run"], 3);
}

TEST_F(StudyState, BeginsAnewIfTheFirstLineWasCutShort) {
  {
    const StateFile state(path_, kParameters);
  }
  truncate_by(5);
  {
    StateFile(path_, kParameters).add({{"run", 1}});
  }
  EXPECT_EQ(StateFile(path_, kParameters).results().size(), 1U);
}

TEST_F(StudyState, NamesWhatDiffers) {
  {
    const StateFile state(path_, kParameters);
  }
  const std::string message =
      refusal({{"records", 2000}, {"seed", 1}}, ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("records 1000 (now 2000)"), std::string::npos) << message;
  EXPECT_EQ(message.find("seed"), std::string::npos) << message;
}

TEST_F(StudyState, RefusesOtherFilesAndLeavesThemAlone) {
  for (const std::string text : {"shopping list\n", "a line that does not end", "{\"a\": 1}\n"}) {
    std::filesystem::remove(path_);
    write(text);
    const std::string message = refusal(kParameters, ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find("no state of a study"), std::string::npos) << message;
    EXPECT_EQ(std::filesystem::file_size(path_), text.size());
  }
}

TEST_F(StudyState, IsKeptByOneRunAtATime) {
  const StateFile state(path_, kParameters);
  EXPECT_NE(refusal(kParameters, ErrorCode::kLocked).find("another run"), std::string::npos);
}

}  // namespace
}  // namespace perdure::lab::study
