#include "lab/bench/processors.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

namespace perdure::lab {

void run_on_processor(unsigned number) {
  cpu_set_t allowed;
  // Of the process: threads that were bound before do not narrow it.
  if (sched_getaffinity(getpid(), sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) == 0)
    return;
  unsigned left = number % static_cast<unsigned>(CPU_COUNT(&allowed));
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed) || left-- > 0) continue;
    cpu_set_t chosen;
    CPU_ZERO(&chosen);
    CPU_SET(processor, &chosen);
    pthread_setaffinity_np(pthread_self(), sizeof chosen, &chosen);
    return;
  }
}

}  // namespace perdure::lab
