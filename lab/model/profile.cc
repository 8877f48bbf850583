#include "lab/model/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <variant>

#include "perdure/error.h"

namespace perdure::lab {
namespace {

using nlohmann::json;

struct Count {
  uint64_t Profile::* member;
  uint64_t min;
  uint64_t max;
};
struct Number {
  double Profile::* member;
  double min;
  double max;
};
struct Flag {
  bool Profile::* member;
};
struct Text {
  std::string Profile::* member;
};
struct Parameter {
  const char* name;
  std::variant<Text, Count, Flag, Number> as;
};

constexpr uint64_t kTiB = uint64_t{1} << 40;
constexpr double kNsMax = 1e6;
constexpr double kBandwidthMin = 1e-3;
constexpr double kBandwidthMax = 1e5;

// Every parameter with its range, in the order in which they are shown.
const std::array kParameters = {
    Parameter{"name", Text{&Profile::name}},
    Parameter{"domain", Text{&Profile::domain}},
    Parameter{"cpu_cache_bytes", Count{&Profile::cpu_cache_bytes, kLineBytes, kTiB}},
    Parameter{"cpu_cache_ways", Count{&Profile::cpu_cache_ways, 1, 64}},
    Parameter{"clwb_evicts_line", Flag{&Profile::clwb_evicts_line}},
    Parameter{"streaming_buffers", Count{&Profile::streaming_buffers, 1, 256}},
    Parameter{"dimm_count", Count{&Profile::dimm_count, 1, 64}},
    Parameter{"interleave_bytes", Count{&Profile::interleave_bytes, 256, kTiB}},
    Parameter{"media_unit_bytes", Count{&Profile::media_unit_bytes, kLineBytes, 256}},
    Parameter{"write_buffer_units", Count{&Profile::write_buffer_units, 1, 16384}},
    Parameter{"write_buffer_recent_units", Count{&Profile::write_buffer_recent_units, 0, 16383}},
    Parameter{"read_buffer_units", Count{&Profile::read_buffer_units, 0, 16384}},
    Parameter{"controller_writes_ppm", Count{&Profile::controller_writes_ppm, 0, kPpm}},
    Parameter{"seed", Count{&Profile::seed, 0, std::numeric_limits<uint64_t>::max()}},
    Parameter{"cores", Count{&Profile::cores, 1, 65536}},
    Parameter{"access_ns", Number{&Profile::access_ns, 0, kNsMax}},
    Parameter{"locked_ns", Number{&Profile::locked_ns, 0, kNsMax}},
    Parameter{"dram_read_latency_ns", Number{&Profile::dram_read_latency_ns, 0, kNsMax}},
    Parameter{"media_read_latency_ns", Number{&Profile::media_read_latency_ns, 0, kNsMax}},
    Parameter{"buffered_read_latency_ns", Number{&Profile::buffered_read_latency_ns, 0, kNsMax}},
    Parameter{"fence_latency_ns", Number{&Profile::fence_latency_ns, 0, kNsMax}},
    Parameter{"flush_ns", Number{&Profile::flush_ns, 0, kNsMax}},
    Parameter{"sequential_read_gb_per_s",
              Number{&Profile::sequential_read_gb_per_s, kBandwidthMin, kBandwidthMax}},
    Parameter{"random_read_gb_per_s",
              Number{&Profile::random_read_gb_per_s, kBandwidthMin, kBandwidthMax}},
    Parameter{"sequential_write_gb_per_s",
              Number{&Profile::sequential_write_gb_per_s, kBandwidthMin, kBandwidthMax}},
    Parameter{"random_write_gb_per_s",
              Number{&Profile::random_write_gb_per_s, kBandwidthMin, kBandwidthMax}},
};

// What a run changes; shown, but not accepted from a file.
constexpr const char* kUnscaled = "unscaled_cpu_cache_bytes";
constexpr const char* kScaledFor = "scaled_for_records";

// Below this the scaled cache is no longer large against the DIMMs' buffers, and lines that leave
// it one by one still meet there.
constexpr uint64_t kFewRecords = 1'000'000;

constexpr uint64_t kib(uint64_t count) { return count << 10; }

// Two-socket server of 2019, one socket: 28 cores of 1 MiB L2 and 1.375 MiB L3 each, six DIMMs.
Profile optane_100() {
  Profile profile;
  profile.name = "optane-100";
  profile.cpu_cache_bytes = 28 * (kib(1024) + kib(1408));
  profile.cpu_cache_ways = 16;
  profile.clwb_evicts_line = true;
  profile.streaming_buffers = 10;
  profile.dimm_count = 6;
  profile.interleave_bytes = 4096;
  profile.media_unit_bytes = 256;
  profile.write_buffer_units = 64;
  profile.write_buffer_recent_units = 16;
  profile.read_buffer_units = 64;
  profile.controller_writes_ppm = 30'000;
  profile.seed = 1;
  profile.cores = 28;
  profile.access_ns = 0.4;
  profile.locked_ns = 6;
  profile.dram_read_latency_ns = 80;
  profile.media_read_latency_ns = 300;
  profile.buffered_read_latency_ns = 133;
  profile.fence_latency_ns = 80;
  profile.flush_ns = 10;
  profile.sequential_read_gb_per_s = 40;
  profile.random_read_gb_per_s = 29.6;
  profile.sequential_write_gb_per_s = 10;
  profile.random_write_gb_per_s = 5.3;
  return profile;
}

// 40 cores of 1.25 MiB L2 and 1.5 MiB L3, eight DIMMs.
Profile optane_200() {
  Profile profile = optane_100();
  profile.name = "optane-200";
  profile.cpu_cache_bytes = 40 * (kib(1280) + kib(1536));
  profile.clwb_evicts_line = false;
  profile.streaming_buffers = 12;
  profile.dimm_count = 8;
  profile.cores = 40;
  profile.sequential_read_gb_per_s = 58;
  profile.random_read_gb_per_s = 43;
  profile.sequential_write_gb_per_s = 18;
  profile.random_write_gb_per_s = 9.5;
  return profile;
}

Profile eadr() {
  Profile profile = optane_200();
  profile.name = "eadr";
  profile.domain = "byte";
  return profile;
}

// DRAM: no unit larger than a line, hence nothing to combine, and no writes of its own.
void set_line_sized_media(Profile& profile) {
  profile.media_unit_bytes = kLineBytes;
  profile.write_buffer_units = 1;
  profile.write_buffer_recent_units = 0;
  profile.read_buffer_units = 0;
  profile.controller_writes_ppm = 0;
}

Profile nvdimm() {
  Profile profile = optane_100();
  profile.name = "nvdimm";
  set_line_sized_media(profile);
  profile.media_read_latency_ns = 80;
  profile.buffered_read_latency_ns = 80;
  profile.fence_latency_ns = 60;
  profile.sequential_read_gb_per_s = 105;
  profile.random_read_gb_per_s = 70;
  profile.sequential_write_gb_per_s = 57;
  profile.random_write_gb_per_s = 40;
  return profile;
}

// One memory expander; 32 cores of 2 MiB L2 and 1.875 MiB L3.
Profile cxl() {
  Profile profile = optane_100();
  profile.name = "cxl";
  profile.domain = "byte";
  set_line_sized_media(profile);
  profile.cpu_cache_bytes = 32 * (kib(2048) + kib(1920));
  profile.clwb_evicts_line = false;
  profile.streaming_buffers = 16;
  profile.dimm_count = 1;
  profile.cores = 32;
  profile.media_read_latency_ns = 250;
  profile.buffered_read_latency_ns = 250;
  profile.fence_latency_ns = 200;
  profile.sequential_read_gb_per_s = 26;
  profile.random_read_gb_per_s = 22;
  profile.sequential_write_gb_per_s = 22;
  profile.random_write_gb_per_s = 18;
  return profile;
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::string names_text() { return fmt::format("{}", fmt::join(builtin_profile_names(), ", ")); }

void check_range(const Profile& profile, const Parameter& parameter) {
  const auto check = [&](auto value, auto min, auto max) {
    if (value >= min && value <= max) return;
    refuse(fmt::format("profile '{}': {} is {}; it must be between {} and {}", profile.name,
                       parameter.name, value, min, max));
  };
  if (const auto* count = std::get_if<Count>(&parameter.as)) {
    check(profile.*count->member, count->min, count->max);
  } else if (const auto* number = std::get_if<Number>(&parameter.as)) {
    // The comparison also refuses what is not a number.
    check(profile.*number->member, number->min, number->max);
  }
}

auto find_parameter(const std::string& name) {
  return std::find_if(kParameters.begin(), kParameters.end(),
                      [&](const Parameter& each) { return name == each.name; });
}

void set_parameter(Profile& profile, const Parameter& parameter, const json& value,
                   const std::string& origin) {
  const auto expect = [&](bool holds, const char* what) {
    if (holds) return;
    refuse(fmt::format("{}: {} is {}; it must be {}", origin, parameter.name, value.dump(), what));
  };
  if (const auto* text = std::get_if<Text>(&parameter.as)) {
    expect(value.is_string(), "a string");
    profile.*text->member = value.get<std::string>();
  } else if (const auto* count = std::get_if<Count>(&parameter.as)) {
    expect(value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0),
           "a whole number, 0 or more");
    profile.*count->member = value.get<uint64_t>();
  } else if (const auto* flag = std::get_if<Flag>(&parameter.as)) {
    expect(value.is_boolean(), "true or false");
    profile.*flag->member = value.get<bool>();
  } else if (const auto* number = std::get_if<Number>(&parameter.as)) {
    expect(value.is_number(), "a number");
    profile.*number->member = value.get<double>();
  }
}

}  // namespace

const std::vector<std::string>& builtin_profile_names() {
  static const std::vector<std::string> names = {"optane-100", "optane-200", "eadr", "nvdimm",
                                                 "cxl"};
  return names;
}

Profile builtin_profile(std::string_view name) {
  if (name == "optane-100") return optane_100();
  if (name == "optane-200") return optane_200();
  if (name == "eadr") return eadr();
  if (name == "nvdimm" || name == "dram") return nvdimm();
  if (name == "cxl") return cxl();
  refuse(fmt::format("no memory profile '{}'; there are {}, and JSON files", name, names_text()));
}

void validate(const Profile& profile) {
  for (const Parameter& parameter : kParameters) check_range(profile, parameter);
  const auto expect = [&](bool holds, const std::string& what) {
    if (!holds) refuse(fmt::format("profile '{}': {}", profile.name, what));
  };
  expect(profile.domain == "line" || profile.domain == "byte",
         fmt::format("domain is '{}'; it must be 'line' (memory controller: flush and fence) or "
                     "'byte' (CPU caches too)",
                     profile.domain));
  const uint64_t unit = profile.media_unit_bytes;
  expect(unit == 64 || unit == 128 || unit == 256,
         fmt::format("media_unit_bytes is {}; it must be 64, 128 or 256", unit));
  expect(profile.interleave_bytes % unit == 0,
         fmt::format("interleave_bytes is {}; it must be a multiple of media_unit_bytes, {}",
                     profile.interleave_bytes, unit));
  expect(profile.write_buffer_recent_units < profile.write_buffer_units,
         fmt::format("write_buffer_recent_units is {}; it must be below write_buffer_units, {}",
                     profile.write_buffer_recent_units, profile.write_buffer_units));
  expect(profile.cpu_cache_bytes >= profile.cpu_cache_ways * kLineBytes,
         fmt::format("cpu_cache_bytes is {}; {} ways of 64 bytes need {}", profile.cpu_cache_bytes,
                     profile.cpu_cache_ways, profile.cpu_cache_ways * kLineBytes));
}

Profile parse_profile(const json& object, const std::string& origin) {
  if (!object.is_object()) refuse(fmt::format("{}: a profile is a JSON object", origin));
  std::string base = "optane-100";
  if (const auto found = object.find("base"); found != object.end()) {
    if (!found->is_string()) refuse(fmt::format("{}: base is not a string", origin));
    base = found->get<std::string>();
  }
  Profile profile = builtin_profile(base);
  profile.name = origin;
  for (const auto& [key, value] : object.items()) {
    if (key == "base") continue;
    const auto parameter = find_parameter(key);
    if (parameter == kParameters.end()) {
      std::string names = "base";
      for (const Parameter& each : kParameters) names += fmt::format(", {}", each.name);
      refuse(fmt::format("{}: unknown key '{}'; the keys are {}", origin, key, names));
    }
    set_parameter(profile, *parameter, value, origin);
  }
  try {
    validate(profile);
  } catch (const Error& error) {
    refuse(fmt::format("{}: {}", origin, error.what()));
  }
  return profile;
}

Profile load_profile(const std::string& path_or_name) {
  const bool is_path =
      path_or_name.find('/') != std::string::npos || path_or_name.ends_with(".json");
  if (!is_path) return builtin_profile(path_or_name);
  std::ifstream file(path_or_name);
  if (!file) throw Error(ErrorCode::kNotFound, fmt::format("cannot read '{}'", path_or_name));
  json object;
  try {
    object = json::parse(file);
  } catch (const json::exception& error) {
    refuse(fmt::format("{}: not JSON: {}", path_or_name, error.what()));
  }
  return parse_profile(object, path_or_name);
}

json to_json(const Profile& profile) {
  json object;
  for (const Parameter& parameter : kParameters) {
    std::visit([&](const auto& as) { object[parameter.name] = profile.*as.member; }, parameter.as);
  }
  if (profile.scaled_for_records != 0) {
    object[kUnscaled] = profile.unscaled_cpu_cache_bytes;
    object[kScaledFor] = profile.scaled_for_records;
  }
  return object;
}

std::vector<std::pair<std::string, std::string>> describe(const Profile& profile) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Parameter& parameter : kParameters) {
    std::visit(
        [&](const auto& as) {
          rows.emplace_back(parameter.name, fmt::format("{}", profile.*as.member));
        },
        parameter.as);
  }
  if (profile.scaled_for_records != 0) {
    rows.emplace_back(kUnscaled, fmt::format("{}", profile.unscaled_cpu_cache_bytes));
    rows.emplace_back(kScaledFor, fmt::format("{}", profile.scaled_for_records));
  }
  return rows;
}

bool scale_cache(Profile& profile, uint64_t records) {
  if (profile.scaled_for_records == 0) profile.unscaled_cpu_cache_bytes = profile.cpu_cache_bytes;
  profile.scaled_for_records = records;
  const uint64_t full = profile.unscaled_cpu_cache_bytes;
  const uint64_t smallest = std::min(full, kSmallestCacheBytes);
  const double wanted =
      static_cast<double>(full) * static_cast<double>(records) / static_cast<double>(kScaleRecords);
  // Whole sets.
  const uint64_t set_bytes = profile.cpu_cache_ways * kLineBytes;
  const double sets = std::round(std::min(wanted, 1e15) / static_cast<double>(set_bytes));
  const uint64_t rounded = std::max<uint64_t>(1, static_cast<uint64_t>(sets)) * set_bytes;
  profile.cpu_cache_bytes = std::clamp(rounded, std::max(smallest, set_bytes), full);
  return profile.cpu_cache_bytes == rounded;
}

std::string scaling_statement(const Profile& profile) {
  const auto mebibytes = [](uint64_t bytes) {
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  };
  const std::string now = mebibytes(profile.cpu_cache_bytes);
  if (profile.scaled_for_records == 0) {
    return fmt::format("modelled cache {}, the machine's own", now);
  }
  Profile again = profile;
  const bool kept = scale_cache(again, profile.scaled_for_records);
  const std::string rule =
      fmt::format("{} x {:g} M / 64 M records", mebibytes(profile.unscaled_cpu_cache_bytes),
                  static_cast<double>(profile.scaled_for_records) / 1e6);
  const char* few = profile.scaled_for_records < kFewRecords
                        ? "; with fewer than 1 M records evictions combine more than they would"
                        : "";
  if (kept) return fmt::format("modelled cache {}: {}{}", now, rule, few);
  const char* limit =
      profile.cpu_cache_bytes == profile.unscaled_cpu_cache_bytes ? "most" : "least";
  return fmt::format("modelled cache {}, the {} that is modelled, instead of {}{}", now, limit,
                     rule, few);
}

}  // namespace perdure::lab
