// The C library's memory functions, as observed programs (and the libraries that they use) call
// them: told and then carried out. In this library they take the place of the C library's for the
// whole process. Everything here must work before anything else of the process does.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

#include "lab/seam/dispatch.h"
#include "lab/seam/private_files.h"

namespace perdure::lab {
namespace {
bool files_are_private = false;

// The private copy of a file, mapped where the program wants it or kept elsewhere since it was
// unmapped.
struct PrivateCopy {
  dev_t device;
  ino_t inode;
  char* address;  // null: the entry is free
  size_t bytes;
  bool kept;
};
PrivateCopy private_copies[4];

char* move_mapping(void* from, size_t bytes, void* to) {
  return reinterpret_cast<char*>(
      syscall(SYS_mremap, from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to));
}

// The copy of an open file that is kept; null if there is none.
PrivateCopy* kept_copy(int file) {
  if (!files_are_private) return nullptr;
  struct stat status{};
  if (fstat(file, &status) != 0) return nullptr;
  for (PrivateCopy& copy : private_copies) {
    const bool same = copy.device == status.st_dev && copy.inode == status.st_ino;
    if (copy.address != nullptr && copy.kept && same) return &copy;
  }
  return nullptr;
}

void* map_private(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  PrivateCopy* known = offset == 0 && (flags & MAP_FIXED) != 0 ? kept_copy(file) : nullptr;
  if (known != nullptr && known->bytes == bytes) {
    known->address = move_mapping(known->address, bytes, address);
    known->kept = false;
    syscall(SYS_mprotect, known->address, bytes, protection);
    return known->address;
  }
  flags = (flags & ~(MAP_TYPE | MAP_SYNC)) | MAP_PRIVATE;
  void* mapped =
      reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
  struct stat status{};
  if (mapped == MAP_FAILED || offset != 0 || fstat(file, &status) != 0) return mapped;
  for (PrivateCopy& copy : private_copies) {
    if (copy.address != nullptr) continue;
    copy = {status.st_dev, status.st_ino, static_cast<char*>(mapped), bytes, false};
    break;
  }
  return mapped;
}

// Before memory is unmapped: what of it is a private copy goes elsewhere.
void keep_private(const char* address, size_t bytes) {
  for (PrivateCopy& copy : private_copies) {
    if (copy.address == nullptr || copy.kept) continue;
    if (copy.address < address || copy.address + copy.bytes > address + bytes) continue;
    void* place = reinterpret_cast<void*>(
        syscall(SYS_mmap, nullptr, copy.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    copy.address = move_mapping(copy.address, copy.bytes, place);
    copy.kept = true;
  }
}
}  // namespace

void make_files_private() { files_are_private = true; }

void forget_private_files() {
  for (PrivateCopy& copy : private_copies) {
    if (copy.address != nullptr && copy.kept) syscall(SYS_munmap, copy.address, copy.bytes);
    copy.address = nullptr;
  }
}
}  // namespace perdure::lab

namespace {

using perdure::lab::EventKind;
using perdure::lab::files_are_private;
using perdure::lab::seam::make_way;
using perdure::lab::seam::tell;
using perdure::lab::seam::thread_state;

// As they are compiled they must make no call that would come back here.

// Fewer bytes are copied sooner word by word than by one instruction.
constexpr size_t kFewBytes = 256;

using MovedWord [[gnu::may_alias, gnu::aligned(1)]] = volatile uint64_t;

void copy_forward(void* to, const void* from, size_t bytes) {
  if (bytes >= kFewBytes) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
    return;
  }
  auto* target = static_cast<volatile unsigned char*>(to);
  const auto* source = static_cast<const volatile unsigned char*>(from);
  for (; bytes >= 8; target += 8, source += 8, bytes -= 8) {
    *reinterpret_cast<MovedWord*>(target) = *reinterpret_cast<const MovedWord*>(source);
  }
  for (; bytes > 0; --bytes) *target++ = *source++;
}

void copy_backward(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<volatile unsigned char*>(to);
  const auto* source = static_cast<const volatile unsigned char*>(from);
  while (bytes >= 8) {
    bytes -= 8;
    *reinterpret_cast<MovedWord*>(target + bytes) =
        *reinterpret_cast<const MovedWord*>(source + bytes);
  }
  while (bytes > 0) {
    --bytes;
    target[bytes] = source[bytes];
  }
}

void fill(void* to, int value, size_t bytes) {
  asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
}

int compare(const void* a, const void* b, size_t bytes) {
  using Word [[gnu::may_alias, gnu::aligned(1)]] = volatile uint64_t;
  const auto* left = static_cast<const volatile unsigned char*>(a);
  const auto* right = static_cast<const volatile unsigned char*>(b);
  while (bytes >= 8 &&
         *reinterpret_cast<const Word*>(left) == *reinterpret_cast<const Word*>(right)) {
    left += 8;
    right += 8;
    bytes -= 8;
  }
  for (size_t i = 0; i < bytes; ++i) {
    if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
  }
  return 0;
}

size_t length(const char* text) {
  const volatile char* at = text;
  while (*at != 0) ++at;
  return static_cast<size_t>(at - text);
}

void* tell_and_copy(void* to, const void* from, size_t bytes, const void* pc) {
  if (bytes == 0) return to;
  tell(EventKind::kLoad, from, bytes, pc);
  tell(EventKind::kStore, to, bytes, pc);
  const auto distance = reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from);
  if (distance < bytes) {
    copy_backward(to, from, bytes);
  } else {
    copy_forward(to, from, bytes);
  }
  return to;
}

void* tell_and_fill(void* to, int value, size_t bytes, const void* pc) {
  if (bytes == 0) return to;
  tell(EventKind::kStore, to, bytes, pc);
  fill(to, value, bytes);
  return to;
}

}  // namespace

#define PC __builtin_return_address(0)

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): the C library's names.

extern "C" {

void* memcpy(void* to, const void* from, size_t bytes) noexcept {
  return tell_and_copy(to, from, bytes, PC);
}
void* memmove(void* to, const void* from, size_t bytes) noexcept {
  return tell_and_copy(to, from, bytes, PC);
}
void* mempcpy(void* to, const void* from, size_t bytes) noexcept {
  return static_cast<char*>(tell_and_copy(to, from, bytes, PC)) + bytes;
}
void* memset(void* to, int value, size_t bytes) noexcept {
  return tell_and_fill(to, value, bytes, PC);
}
void* __memcpy_chk(void* to, const void* from, size_t bytes, size_t) noexcept {
  return tell_and_copy(to, from, bytes, PC);
}
void* __memmove_chk(void* to, const void* from, size_t bytes, size_t) noexcept {
  return tell_and_copy(to, from, bytes, PC);
}
void* __memset_chk(void* to, int value, size_t bytes, size_t) noexcept {
  return tell_and_fill(to, value, bytes, PC);
}
int memcmp(const void* a, const void* b, size_t bytes) noexcept {
  if (bytes == 0) return 0;
  tell(EventKind::kLoad, a, bytes, PC);
  tell(EventKind::kLoad, b, bytes, PC);
  return compare(a, b, bytes);
}
int bcmp(const void* a, const void* b, size_t bytes) noexcept {
  if (bytes == 0) return 0;
  tell(EventKind::kLoad, a, bytes, PC);
  tell(EventKind::kLoad, b, bytes, PC);
  return compare(a, b, bytes);
}
size_t strlen(const char* text) noexcept {
  const size_t bytes = length(text);
  tell(EventKind::kLoad, text, bytes + 1, PC);
  return bytes;
}
char* strcpy(char* to, const char* from) noexcept {
  return static_cast<char*>(tell_and_copy(to, from, length(from) + 1, PC));
}
char* strncpy(char* to, const char* from, size_t bytes) noexcept {
  size_t used = 0;
  while (used < bytes && from[used] != 0) ++used;
  tell_and_copy(to, from, used < bytes ? used + 1 : used, PC);
  if (used < bytes) tell_and_fill(to + used, 0, bytes - used, PC);
  return to;
}

char* stpcpy(char* to, const char* from) noexcept {
  const size_t bytes = length(from);
  return static_cast<char*>(tell_and_copy(to, from, bytes + 1, PC)) + bytes;
}
char* stpncpy(char* to, const char* from, size_t bytes) noexcept {
  size_t used = 0;
  while (used < bytes && from[used] != 0) ++used;
  tell_and_copy(to, from, used < bytes ? used + 1 : used, PC);
  if (used < bytes) tell_and_fill(to + used, 0, bytes - used, PC);
  return to + used;
}
char* strcat(char* to, const char* from) noexcept {
  tell_and_copy(to + length(to), from, length(from) + 1, PC);
  return to;
}
char* strncat(char* to, const char* from, size_t bytes) noexcept {
  size_t used = 0;
  while (used < bytes && from[used] != 0) ++used;
  char* end = to + length(to);
  tell_and_copy(end, from, used, PC);
  tell_and_fill(end + used, 0, 1, PC);
  return to;
}
int strcmp(const char* a, const char* b) noexcept {
  size_t same = 0;
  while (a[same] != 0 && a[same] == b[same]) ++same;
  tell(EventKind::kLoad, a, same + 1, PC);
  tell(EventKind::kLoad, b, same + 1, PC);
  return static_cast<unsigned char>(a[same]) - static_cast<unsigned char>(b[same]);
}
int strncmp(const char* a, const char* b, size_t bytes) noexcept {
  size_t same = 0;
  while (same < bytes && a[same] != 0 && a[same] == b[same]) ++same;
  const size_t seen = same < bytes ? same + 1 : same;
  if (seen == 0) return 0;
  tell(EventKind::kLoad, a, seen, PC);
  tell(EventKind::kLoad, b, seen, PC);
  if (same == bytes) return 0;
  return static_cast<unsigned char>(a[same]) - static_cast<unsigned char>(b[same]);
}
void bzero(void* to, size_t bytes) noexcept { tell_and_fill(to, 0, bytes, PC); }
void bcopy(const void* from, void* to, size_t bytes) noexcept {
  tell_and_copy(to, from, bytes, PC);
}

int msync(void* address, size_t bytes, int flags) {
  if ((flags & MS_SYNC) != 0) tell(EventKind::kSync, address, bytes, PC);
  return static_cast<int>(syscall(SYS_msync, address, bytes, flags));
}

// Files, as make_files_private() promises.

void* mmap(void* address, size_t bytes, int protection, int flags, int file,
           off_t offset) noexcept {
  if (files_are_private && file >= 0 && (flags & MAP_TYPE) != MAP_PRIVATE) {
    return perdure::lab::map_private(address, bytes, protection, flags, file, offset);
  }
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
void* mmap64(void* address, size_t bytes, int protection, int flags, int file,
             off64_t offset) noexcept {
  return mmap(address, bytes, protection, flags, file, offset);
}
int munmap(void* address, size_t bytes) noexcept {
  if (files_are_private) perdure::lab::keep_private(static_cast<const char*>(address), bytes);
  return static_cast<int>(syscall(SYS_munmap, address, bytes));
}
ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  const auto at = static_cast<size_t>(offset);
  const auto* copy = perdure::lab::kept_copy(file);
  if (copy == nullptr || at >= copy->bytes || bytes > copy->bytes - at) {
    return syscall(SYS_pread64, file, to, bytes, offset);
  }
  copy_forward(to, copy->address + at, bytes);
  return static_cast<ssize_t>(bytes);
}
ssize_t pread64(int file, void* to, size_t bytes, off64_t offset) {
  return pread(file, to, bytes, offset);
}
int flock(int file, int operation) noexcept {
  return files_are_private ? 0 : static_cast<int>(syscall(SYS_flock, file, operation));
}
int fcntl(int file, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  if (files_are_private && command == F_OFD_SETLK) return 0;
  if (files_are_private && command == F_OFD_GETLK) {
    static_cast<struct flock*>(argument)->l_type = F_UNLCK;
    return 0;
  }
  return static_cast<int>(syscall(SYS_fcntl, file, command, argument));
}
int fcntl64(int file, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  return fcntl(file, command, argument);
}
int ftruncate(int file, off_t bytes) noexcept {
  return files_are_private ? 0 : static_cast<int>(syscall(SYS_ftruncate, file, bytes));
}
int posix_fallocate(int file, off_t offset, off_t bytes) {
  if (files_are_private) return 0;
  static const auto real =
      reinterpret_cast<int (*)(int, off_t, off_t)>(dlsym(RTLD_NEXT, "posix_fallocate"));
  return real(file, offset, bytes);
}
int fallocate(int file, int mode, off_t offset, off_t bytes) {
  if (files_are_private) return 0;
  return static_cast<int>(syscall(SYS_fallocate, file, mode, offset, bytes));
}

// Blocking, for the threads of a Schedule: whoever holds the lock must get its turn to release it.

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  using Lock = int (*)(pthread_mutex_t*);
  static const auto real = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  if (perdure::lab::seam::in_region(mutex)) tell(EventKind::kUpdate, mutex, sizeof *mutex, PC);
  if (!thread_state.scheduled || thread_state.quiet != 0) return real(mutex);
  for (;;) {
    make_way(false);
    const int result = pthread_mutex_trylock(mutex);
    if (result != EBUSY) return result;
    make_way(true);
  }
}
int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*);
  static const auto real = reinterpret_cast<Wait>(dlsym(RTLD_NEXT, "pthread_cond_wait"));
  if (!thread_state.scheduled || thread_state.quiet != 0) return real(condition, mutex);
  // A wake-up for no reason, which every caller must be ready for.
  pthread_mutex_unlock(mutex);
  make_way(true);
  return pthread_mutex_lock(mutex);
}
int sched_yield() noexcept {
  if (thread_state.scheduled && thread_state.quiet == 0) {
    make_way(true);
    return 0;
  }
  return static_cast<int>(syscall(SYS_sched_yield));
}

// From the first further thread on, events need a lock.
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  perdure::lab::seam::several_threads.store(true);
  return real(thread, attributes, start, argument);
}

}  // extern "C"

// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
