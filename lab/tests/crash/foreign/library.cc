// A program that leaves much of its writing to the C library, and whose operator new gives
// persistent memory: what a recording must see all the same. Ends by _exit.
//
//   library FILE run OPERATIONS      library FILE list
#include <perdure/lab_shim.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

namespace {

perdure_shim::Pool* pool = nullptr;
thread_local bool allocating = false;

bool is_in_pool(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) - perdure_shim::kAddress < (size_t{1} << 20);
}

struct Entry {
  pthread_mutex_t lock;
  pthread_rwlock_t read_lock;
  pthread_spinlock_t spin_lock;
  timespec when;
  char text[40];
  char bytes[16];
  Entry* next;
};

// Fills it by calls of the C library alone.
void fill(Entry* entry, unsigned number) {
  pthread_mutex_init(&entry->lock, nullptr);
  pthread_rwlock_init(&entry->read_lock, nullptr);
  pthread_spin_init(&entry->spin_lock, PTHREAD_PROCESS_PRIVATE);
  pthread_mutex_lock(&entry->lock);
  pthread_rwlock_wrlock(&entry->read_lock);
  pthread_spin_lock(&entry->spin_lock);
  clock_gettime(CLOCK_REALTIME, &entry->when);
  std::snprintf(entry->text, sizeof entry->text, "entry %u of %s", number, "many");
  int ends[2];
  char digits[16] = {};
  const int length = std::snprintf(digits, sizeof digits, "%u", number * number);
  if (pipe(ends) != 0 || write(ends[1], digits, sizeof digits) < length ||
      read(ends[0], entry->bytes, sizeof entry->bytes) < length) {
    _exit(1);
  }
  close(ends[0]);
  close(ends[1]);
  pthread_spin_unlock(&entry->spin_lock);
  pthread_rwlock_unlock(&entry->read_lock);
  pthread_mutex_unlock(&entry->lock);
}

void add(unsigned number) {
  perdure_lab_begin("add", sizeof(Entry));
  auto* entry = new Entry;
  fill(entry, number);
  entry->next = pool->root<Entry>(0);
  perdure_shim::persist(entry, sizeof *entry);
  pool->set_root(0, entry);
  perdure_lab_end();
}

}  // namespace

void* operator new(size_t bytes) {
  if (pool == nullptr || allocating) {
    void* memory = std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  allocating = true;
  void* memory = pool->allocate(bytes);
  allocating = false;
  return memory;
}
void operator delete(void* memory) noexcept {
  if (!is_in_pool(memory)) std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

int main(int count, char** arguments) {
  if (count < 3) return 2;
  pool = new perdure_shim::Pool(arguments[1], size_t{1} << 20);
  for (int i = 0; count > 3 && i < std::atoi(arguments[3]); ++i) add(static_cast<unsigned>(i));
  for (auto* entry = pool->root<Entry>(0); count == 3 && entry != nullptr; entry = entry->next) {
    std::printf("%s %s\n", entry->text, entry->bytes);
  }
  std::fflush(stdout);
  _exit(0);
}
