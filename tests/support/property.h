// RapidCheck properties inside parametrised tests.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>

#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {

// Checks `property` on `runs` random inputs (fewer in slow builds) of growing size, up to
// `size_max`, and shrinks what fails, for half a minute at most. The environment variable RC_PARAMS
// overrides all of it, as a failure's message says how. RapidCheck offers its parameters in its
// namespace `detail` only.
template <typename Property>
void expect_property(uint64_t runs, uint64_t size_max, const Property& property) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  rc::detail::TestMetadata metadata;
  metadata.id = std::string(test->test_suite_name()) + "." + test->name();
  metadata.description = metadata.id;
  rc::detail::TestParams params;
  params.seed = base_seed();
  params.maxSuccess = static_cast<int>(scaled(runs));
  params.maxSize = static_cast<int>(size_max);
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> shrink_until;
  const auto bounded = [&] {
    if (shrink_until && Clock::now() > *shrink_until) return;  // "passes": shrinking ends
    try {
      property();
    } catch (...) {
      if (!shrink_until) shrink_until = Clock::now() + std::chrono::seconds(30);
      throw;
    }
  };
  const auto result = std::getenv("RC_PARAMS") == nullptr
                          ? rc::detail::checkTestable(bounded, metadata, params)
                          : rc::detail::checkTestable(bounded, metadata);
  if (result.template is<rc::detail::SuccessResult>()) return;
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  ADD_FAILURE() << message.str();
}

}  // namespace perdure::test
