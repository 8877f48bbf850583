// How much work a test does: less where every memory access costs many times more.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace perdure::test {

inline constexpr bool kUnderThreadSanitizer =
#if defined(__SANITIZE_THREAD__)
    true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    true;
#else
    false;
#endif
#else
    false;
#endif

inline constexpr bool kUnderAddressSanitizer =
#if defined(__SANITIZE_ADDRESS__)
    true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
    true;
#else
    false;
#endif
#else
    false;
#endif

inline constexpr bool kWithAssertions =
#if defined(NDEBUG)
    false;
#else
    true;
#endif

// Threads pause on purpose (pm/pause.h).
inline constexpr bool kWithPauses =
#ifdef PERDURE_PAUSES
    true;
#else
    false;
#endif

// `count` in an optimised build, and a tenth to a half of it in slower ones; never 0.
constexpr uint64_t scaled(uint64_t count) {
  const uint64_t divisor = kUnderThreadSanitizer    ? 10
                           : kUnderAddressSanitizer ? 5
                           : kWithPauses            ? 10
                           : kWithAssertions        ? 2
                                                    : 1;
  return count / divisor == 0 ? 1 : count / divisor;
}

// How often a scenario that repeats itself does so: scaled(count), times environment variable
// PERDURE_ROUNDS if there is one.
inline uint64_t rounds(uint64_t count) {
  const char* text = std::getenv("PERDURE_ROUNDS");
  return scaled(count) * (text == nullptr ? 1 : std::strtoull(text, nullptr, 10));
}

}  // namespace perdure::test
