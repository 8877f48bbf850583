// The coroutines that a runtime runs are those of the public header:
//
//   Task<uint64_t> sum(Runtime& runtime) {
//     Get first(1), second(2);
//     co_await runtime.submit(first);
//     co_await runtime.submit(second);
//     co_return first.value + second.value;
//   }
#pragma once

#include "perdure/task.h"

namespace perdure::store {

using perdure::Task;

}  // namespace perdure::store
