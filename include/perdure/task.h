// Coroutines that work on a store.
//
//   perdure::Task<bool> rename(perdure::Store& store, std::string from, std::string to) {
//     std::optional<std::string> value = co_await store.async_get(from);
//     if (!value || !co_await store.async_insert(to, *value)) co_return false;
//     co_return co_await store.async_remove(from);
//   }
//   bool renamed = store.run(rename(store, "a", "b"));
//
// A task is lazy: it starts when it is awaited, or given to Store::run or spawn. What it throws
// comes out of the co_await. Awaiting one costs its frame (one allocation) and no message; there is
// no depth limit, for control passes from frame to frame. It stays on the worker that started it.
// Its parameters live as long as the task: take them by value, unless what they refer to outlives
// it.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

namespace perdure {

template <typename T>
class Task;

// What promises of all tasks have: who goes on after this task, and what it threw.
class TaskPromise {
 public:
  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> task) const noexcept {
      return task.promise().continuation_;
    }
    void await_resume() const noexcept {}
  };

  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { error_ = std::current_exception(); }
  void continue_with(std::coroutine_handle<> continuation) noexcept {
    continuation_ = continuation;
  }

 protected:
  void rethrow_error() {
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  std::coroutine_handle<> continuation_ = std::noop_coroutine();
  std::exception_ptr error_;
};

template <typename T>
class ValuePromise : public TaskPromise {
 public:
  Task<T> get_return_object() noexcept;
  template <typename Value>
  void return_value(Value&& value) {
    value_.emplace(std::forward<Value>(value));
  }
  T take() {
    rethrow_error();
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <>
class ValuePromise<void> : public TaskPromise {
 public:
  Task<void> get_return_object() noexcept;
  void return_void() const noexcept {}
  void take() { rethrow_error(); }
};

// A coroutine that begins when it is awaited, or run by a Store: see above.
template <typename T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = ValuePromise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  explicit Task(Handle handle) noexcept : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // The end of the task, without its result.
  struct EndAwaiter {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> continuation) const noexcept {
      task.promise().continue_with(continuation);
      return task;
    }
    void await_resume() const noexcept {}

    Handle task;
  };
  struct ResultAwaiter : EndAwaiter {
    T await_resume() const { return this->task.promise().take(); }
  };

  EndAwaiter end() const noexcept { return {handle_}; }
  // Once, after the end: the value, or what the task threw.
  T take_result() { return handle_.promise().take(); }
  // A task is awaited once.
  ResultAwaiter operator co_await() const noexcept { return {{handle_}}; }

 private:
  Handle handle_;
};

template <typename T>
Task<T> ValuePromise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<ValuePromise>::from_promise(*this));
}
inline Task<void> ValuePromise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<ValuePromise>::from_promise(*this));
}

}  // namespace perdure
