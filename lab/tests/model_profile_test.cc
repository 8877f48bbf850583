#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/model/profile.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

using nlohmann::json;

// The message of the error that parsing gives, or "" if there is none.
std::string refusal(const json& object) {
  try {
    parse_profile(object, "mine.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

void expect_names(const std::string& message, const std::string& what) {
  EXPECT_NE(message.find(what), std::string::npos) << message;
  EXPECT_NE(message.find("mine.json"), std::string::npos) << message;
}

TEST(ModelProfile, BuiltInOnesAreValidAndKnowTheirDomain) {
  for (const std::string& name : builtin_profile_names()) {
    const Profile profile = builtin_profile(name);
    EXPECT_EQ(profile.name, name);
    EXPECT_NO_THROW(validate(profile));
  }
  EXPECT_EQ(builtin_profile("optane-100").domain, "line");
  EXPECT_EQ(builtin_profile("eadr").domain, "byte");
  EXPECT_EQ(builtin_profile("cxl").domain, "byte");
  EXPECT_EQ(builtin_profile("dram").name, "nvdimm");
}

TEST(ModelProfile, AnUnknownNameIsRefusedWithThoseThereAre) {
  try {
    load_profile("optane-300");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("optane-200"), std::string::npos);
  }
}

TEST(ModelProfile, AFileOverridesItsBase) {
  const Profile profile = parse_profile(
      {{"base", "cxl"}, {"name", "far"}, {"dimm_count", 3}, {"flush_ns", 2}}, "mine.json");
  EXPECT_EQ(profile.name, "far");
  EXPECT_EQ(profile.dimm_count, 3U);
  EXPECT_EQ(profile.flush_ns, 2.0);
  EXPECT_EQ(profile.domain, "byte");
  EXPECT_EQ(profile.cpu_cache_bytes, builtin_profile("cxl").cpu_cache_bytes);
}

TEST(ModelProfile, BadFilesAreRefusedByKey) {
  expect_names(refusal({{"dimms", 3}}), "unknown key 'dimms'");
  expect_names(refusal({{"dimm_count", "3"}}), "dimm_count");
  expect_names(refusal({{"dimm_count", -3}}), "dimm_count");
  expect_names(refusal({{"dimm_count", 2.5}}), "dimm_count");
  expect_names(refusal({{"dimm_count", 0}}), "between 1 and 64");
  expect_names(refusal({{"flush_ns", true}}), "flush_ns");
  expect_names(refusal({{"random_read_gb_per_s", 0}}), "random_read_gb_per_s");
  expect_names(refusal({{"clwb_evicts_line", 1}}), "true or false");
  expect_names(refusal({{"domain", "page"}}), "'page'");
  expect_names(refusal({{"media_unit_bytes", 192}}), "64, 128 or 256");
  expect_names(refusal({{"write_buffer_units", 16}}), "write_buffer_recent_units");
  expect_names(refusal({{"interleave_bytes", 4100}}), "interleave_bytes");
  expect_names(refusal({{"cpu_cache_bytes", 128}}), "cpu_cache_bytes");
  expect_names(refusal({{"base", 7}}), "base");
  expect_names(refusal(json::array()), "object");
}

TEST(ModelProfile, FilesAreReadByPath) {
  const auto path = std::filesystem::temp_directory_path() / "perdure-model-profile-test.json";
  std::ofstream(path) << R"({"base": "nvdimm", "dimm_count": 2})";
  EXPECT_EQ(load_profile(path).dimm_count, 2U);
  std::ofstream(path) << "{";
  EXPECT_THROW(load_profile(path), Error);
  std::filesystem::remove(path);
  EXPECT_THROW(load_profile(path), Error);
}

TEST(ModelProfile, WhatIsPrintedReadsBackAsTheSame) {
  for (const std::string& name : builtin_profile_names()) {
    const Profile profile = builtin_profile(name);
    const json printed = to_json(profile);
    EXPECT_EQ(to_json(parse_profile(printed, "mine.json")), printed);
    EXPECT_EQ(describe(profile).size(), printed.size());
  }
}

TEST(ModelProfile, TheCacheIsScaledToKeepTheRatioOfDataToCache) {
  Profile profile = builtin_profile("optane-100");
  const uint64_t full = profile.cpu_cache_bytes;
  EXPECT_TRUE(scale_cache(profile, 4'000'000));
  EXPECT_NEAR(static_cast<double>(profile.cpu_cache_bytes), static_cast<double>(full) / 16, 1024);
  EXPECT_NE(scaling_statement(profile).find("x 4 M / 64 M"), std::string::npos)
      << scaling_statement(profile);
  EXPECT_TRUE(scale_cache(profile, 32'000'000)) << "from the machine's own again";
  EXPECT_EQ(profile.cpu_cache_bytes, full / 2);
  EXPECT_TRUE(scale_cache(profile, kScaleRecords));
  EXPECT_EQ(profile.cpu_cache_bytes, full);
  EXPECT_NO_THROW(validate(profile));
}

TEST(ModelProfile, ScalingStopsAtWhatCanBeModelled) {
  Profile profile = builtin_profile("optane-100");
  const uint64_t full = profile.cpu_cache_bytes;
  EXPECT_FALSE(scale_cache(profile, 1'000));
  EXPECT_EQ(profile.cpu_cache_bytes, kSmallestCacheBytes);
  EXPECT_NE(scaling_statement(profile).find("least"), std::string::npos);
  EXPECT_FALSE(scale_cache(profile, 1'000'000'000));
  EXPECT_EQ(profile.cpu_cache_bytes, full);
  EXPECT_NE(scaling_statement(profile).find("most"), std::string::npos);
  EXPECT_EQ(to_json(profile)["scaled_for_records"], 1'000'000'000);
}

}  // namespace
}  // namespace perdure::lab
