#include "lab/seam/own_thread.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cstddef>
#include <exception>

#include "lab/seam/runtime.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

constexpr size_t kStackBytes = size_t{8} << 20;

struct Task {
  const std::function<void()>* work;
  std::exception_ptr error;
};

void* carry_out(void* argument) {
  Task& task = *static_cast<Task*>(argument);
  try {
    (*task.work)();
  } catch (...) {
    task.error = std::current_exception();
  }
  return nullptr;
}

}  // namespace

void run_in_own_thread(const std::function<void()>& work) {
  // Not through this library's pthread_create, which makes events take a lock from then on.
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  const Quiet quiet;
  Task task{.work = &work, .error = nullptr};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread;
  const int failed = create(&thread, &attributes, carry_out, &task);
  pthread_attr_destroy(&attributes);
  if (failed != 0) throw Error(ErrorCode::kIo, "cannot start a thread");
  pthread_join(thread, nullptr);
  if (task.error) std::rethrow_exception(task.error);
}

}  // namespace perdure::lab
