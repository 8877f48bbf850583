// A system that gives no more threads.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

namespace perdure::test {

// No thread can be made while it lives: none has room for its stack.
class NoThreads {
 public:
  NoThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge;
    EXPECT_EQ(pthread_attr_init(&huge), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 47), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    EXPECT_EQ(pthread_attr_destroy(&huge), 0);
  }
  ~NoThreads() {
    EXPECT_EQ(pthread_setattr_default_np(&before_), 0);
    EXPECT_EQ(pthread_attr_destroy(&before_), 0);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

}  // namespace perdure::test
