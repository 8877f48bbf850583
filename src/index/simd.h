// Whether vector instructions may read words that other threads may be writing. On x86 a vector
// load reads each aligned 8-byte word, and each byte, whole, as atomic loads do; the thread
// sanitizer must see the atomic loads that they stand for.
#pragma once

namespace perdure::index {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kVectorsAllowed = false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kVectorsAllowed = false;
#else
inline constexpr bool kVectorsAllowed = true;
#endif
#else
inline constexpr bool kVectorsAllowed = true;
#endif

}  // namespace perdure::index
