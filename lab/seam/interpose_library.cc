// More of the C library, as observed programs call it: functions that store to memory of the caller
// by themselves, locks that are kept there, and the end of the process. Told and then carried out.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <type_traits>

#include "lab/seam/dispatch.h"
#include "lab/seam/startup.h"

namespace {

using perdure::lab::EventKind;
using perdure::lab::seam::in_region;
using perdure::lab::seam::installed_sink;
using perdure::lab::seam::tell;
using perdure::lab::seam::thread_state;

#define PC __builtin_return_address(0)
// The C library's own function of the name.
#define REAL(name) \
  static const auto real = reinterpret_cast<decltype(&(name))>(dlsym(RTLD_NEXT, #name))

// Told before it happens: the recorder reads what was stored at the thread's next event.
void tell_store(const void* to, size_t bytes, const void* pc) {
  if (bytes > 0) tell(EventKind::kStore, to, bytes, pc);
}

// A lock in persistent memory is a word that a locked instruction changes, amid others. Of locks
// elsewhere nothing is told: that they order flushes as well is nothing to rely on.
template <typename Lock>
void tell_lock(Lock* lock, const void* pc) {
  const void* address = const_cast<std::remove_volatile_t<Lock>*>(lock);
  if (in_region(address)) tell(EventKind::kUpdate, lock, sizeof *lock, pc);
}

// How it is told needs the length, so that the text is made twice where somebody watches.
int print_to(char* to, size_t room, const char* format, va_list arguments, const void* pc) {
  REAL(vsnprintf);
  if (installed_sink.load(std::memory_order_relaxed) != nullptr && thread_state.quiet == 0) {
    va_list once;
    va_copy(once, arguments);
    const int length = real(nullptr, 0, format, once);
    va_end(once);
    if (length >= 0 && room > 0) {
      tell_store(to, static_cast<size_t>(length) < room ? static_cast<size_t>(length) + 1 : room,
                 pc);
    }
  }
  return real(to, room, format, arguments);
}

// A function that takes, tries or gives back a lock.
// NOLINTBEGIN(bugprone-macro-parentheses): Lock is a type.
#define LOCK_FUNCTION(name, Lock) \
  int name(Lock* lock) noexcept { \
    REAL(name);                   \
    tell_lock(lock, PC);          \
    return real(lock);            \
  }
// NOLINTEND(bugprone-macro-parentheses)

constexpr size_t kRoomMax = SIZE_MAX / 2;

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): the C library's names.

extern "C" {

ssize_t read(int file, void* to, size_t bytes) {
  // A call for no bytes, or to memory that is not there, is the kernel's to judge.
  tell_store(to, bytes, PC);
  return syscall(SYS_read, file, to, bytes);
}
size_t fread(void* to, size_t bytes, size_t count, std::FILE* file) {
  REAL(fread);
  tell_store(to, bytes * count, PC);
  return real(to, bytes, count, file);
}
int clock_gettime(clockid_t clock, struct timespec* to) noexcept {
  REAL(clock_gettime);
  tell_store(to, sizeof *to, PC);
  return real(clock, to);
}
int gettimeofday(struct timeval* to, void* zone) noexcept {
  REAL(gettimeofday);
  tell_store(to, sizeof *to, PC);
  return real(to, zone);
}
time_t time(time_t* to) noexcept {
  REAL(time);
  if (to != nullptr) tell_store(to, sizeof *to, PC);
  return real(to);
}

int vsnprintf(char* to, size_t room, const char* format, va_list arguments) noexcept {
  return print_to(to, room, format, arguments, PC);
}
int vsprintf(char* to, const char* format, va_list arguments) noexcept {
  return print_to(to, kRoomMax, format, arguments, PC);
}
int snprintf(char* to, size_t room, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const int length = print_to(to, room, format, arguments, PC);
  va_end(arguments);
  return length;
}
int sprintf(char* to, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const int length = print_to(to, kRoomMax, format, arguments, PC);
  va_end(arguments);
  return length;
}
int __snprintf_chk(char* to, size_t room, int, size_t, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const int length = print_to(to, room, format, arguments, PC);
  va_end(arguments);
  return length;
}
int __sprintf_chk(char* to, int, size_t room, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const int length = print_to(to, room < kRoomMax ? room : kRoomMax, format, arguments, PC);
  va_end(arguments);
  return length;
}
int __vsnprintf_chk(char* to, size_t room, int, size_t, const char* format,
                    va_list arguments) noexcept {
  return print_to(to, room, format, arguments, PC);
}
int __vsprintf_chk(char* to, int, size_t room, const char* format, va_list arguments) noexcept {
  return print_to(to, room < kRoomMax ? room : kRoomMax, format, arguments, PC);
}

int pthread_mutex_init(pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes) noexcept {
  REAL(pthread_mutex_init);
  tell_store(mutex, sizeof *mutex, PC);
  return real(mutex, attributes);
}
int pthread_mutex_destroy(pthread_mutex_t* mutex) noexcept {
  REAL(pthread_mutex_destroy);
  tell_store(mutex, sizeof *mutex, PC);
  return real(mutex);
}
LOCK_FUNCTION(pthread_mutex_trylock, pthread_mutex_t)
LOCK_FUNCTION(pthread_mutex_unlock, pthread_mutex_t)

int pthread_rwlock_init(pthread_rwlock_t* lock, const pthread_rwlockattr_t* attributes) noexcept {
  REAL(pthread_rwlock_init);
  tell_store(lock, sizeof *lock, PC);
  return real(lock, attributes);
}
LOCK_FUNCTION(pthread_rwlock_rdlock, pthread_rwlock_t)
LOCK_FUNCTION(pthread_rwlock_tryrdlock, pthread_rwlock_t)
LOCK_FUNCTION(pthread_rwlock_wrlock, pthread_rwlock_t)
LOCK_FUNCTION(pthread_rwlock_trywrlock, pthread_rwlock_t)
LOCK_FUNCTION(pthread_rwlock_unlock, pthread_rwlock_t)

int pthread_spin_init(pthread_spinlock_t* lock, int shared) noexcept {
  REAL(pthread_spin_init);
  tell_store(const_cast<const int*>(lock), sizeof *lock, PC);
  return real(lock, shared);
}
LOCK_FUNCTION(pthread_spin_lock, pthread_spinlock_t)
LOCK_FUNCTION(pthread_spin_trylock, pthread_spinlock_t)
LOCK_FUNCTION(pthread_spin_unlock, pthread_spinlock_t)

// The end of a process that runs no destructors.
void _exit(int status) {
  perdure::lab::finish_instruments();
  for (;;) syscall(SYS_exit_group, status);
}
void _Exit(int status) noexcept { _exit(status); }

}  // extern "C"

// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
