// Expecting that a call throws a perdure::Error with a certain code.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "perdure/error.h"

namespace perdure::test {

// Whether `call` throws Error(`code`) with a message that contains `subject`.
//
//   EXPECT_TRUE(fails_with(ErrorCode::kNotFound, path, [&] { Pool::open(path); }));
inline testing::AssertionResult fails_with(ErrorCode code, const std::string& subject,
                                           const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (error.code() != code) {
      return testing::AssertionFailure() << "throws " << to_string(error.code()) << " rather than "
                                         << to_string(code) << ": " << message;
    }
    if (message.empty() || message.find(subject) == std::string::npos) {
      return testing::AssertionFailure()
             << "the message does not name \"" << subject << "\": " << message;
    }
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "does not throw " << to_string(code);
}

inline testing::AssertionResult fails_with(ErrorCode code, const std::function<void()>& call) {
  return fails_with(code, "", call);
}

}  // namespace perdure::test
