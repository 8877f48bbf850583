#include "support/workload.h"

#include <exception>
#include <mutex>
#include <thread>

namespace perdure::test {

namespace {

// One message. Small enough for the pipe to keep messages of several threads apart.
struct Progress {
  uint32_t thread;
  Outcome last;       // of the thread's operation before; meaningless in its first message
  uint32_t sequence;  // of its messages, from 0: operation `sequence` starts now
  uint32_t finished;  // 1: no more operations start
};

std::string describe(const Operation& operation) {
  static const char* const kNames[] = {"insert", "update", "upsert", "remove"};
  return std::string(kNames[static_cast<uint32_t>(operation.verb)]) + " of key " +
         std::to_string(operation.key) + ", value " + std::to_string(operation.value);
}

}  // namespace

OperationStream::OperationStream(const Workload& workload, uint32_t thread)
    : random_(workload.seed + thread),
      thread_(thread),
      threads_(workload.threads),
      keys_(workload.keys),
      value_(workload.value_first + thread) {}

Operation OperationStream::next() {
  Operation operation{};
  const uint64_t dice = random_.below(100);
  operation.verb = dice < 30   ? Verb::kInsert
                   : dice < 50 ? Verb::kUpdate
                   : dice < 80 ? Verb::kUpsert
                               : Verb::kRemove;
  operation.key = random_.below(keys_ / threads_) * threads_ + thread_;
  operation.value = value_;
  value_ += threads_;
  return operation;
}

Outcome perform(TypedIndex index, const Operation& operation) {
  try {
    switch (operation.verb) {
      case Verb::kInsert:
        return index.insert(operation.key, operation.value) ? Outcome::kTrue : Outcome::kFalse;
      case Verb::kUpdate:
        return index.update(operation.key, operation.value) ? Outcome::kTrue : Outcome::kFalse;
      case Verb::kUpsert:
        index.upsert(operation.key, operation.value);
        return Outcome::kTrue;
      case Verb::kRemove:
        return index.remove(operation.key) ? Outcome::kTrue : Outcome::kFalse;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPoolFull) throw;
  }
  return Outcome::kFull;
}

std::optional<uint64_t> after(const Operation& operation, std::optional<uint64_t> before) {
  switch (operation.verb) {
    case Verb::kInsert:
      return before ? before : operation.value;
    case Verb::kUpdate:
      return before ? std::optional(operation.value) : before;
    case Verb::kUpsert:
      return operation.value;
    case Verb::kRemove:
      return std::nullopt;
  }
  return before;
}

void write_and_tell(TypedIndex index, const Workload& workload, int out) {
  std::vector<std::thread> writers;
  std::exception_ptr failure;
  std::mutex failure_mutex;
  for (uint32_t t = 0; t < workload.threads; ++t) {
    writers.emplace_back([&, t] {
      try {
        OperationStream stream(workload, t);
        Progress progress{t, Outcome::kFalse, 0, 0};
        for (; progress.sequence < workload.operations_max; ++progress.sequence) {
          send(out, &progress, sizeof(progress));
          progress.last = perform(index, stream.next());
        }
        progress.finished = 1;
        send(out, &progress, sizeof(progress));
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        failure = std::current_exception();
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  if (failure) std::rethrow_exception(failure);
}

Witness::Witness(const Workload& workload, Model& model)
    : model_(model), current_(workload.threads) {
  for (uint32_t t = 0; t < workload.threads; ++t) streams_.emplace_back(workload, t);
}

bool Witness::receive(Child& child) {
  Progress progress{};
  if (!child.receive(&progress, sizeof(progress))) return false;
  std::optional<Operation>& current = current_.at(progress.thread);
  if (current) end(*current, progress.last);
  current.reset();
  if (progress.finished == 0) current = streams_[progress.thread].next();
  return true;
}

void Witness::end(const Operation& operation, Outcome outcome) {
  ++acknowledged_;
  const bool present = model_.contains(operation.key);
  if (outcome == Outcome::kFull) {
    if (operation.verb == Verb::kRemove) lies_ += describe(operation) + " reported a full pool\n";
    return;
  }
  const bool expected =
      operation.verb == Verb::kUpsert || present != (operation.verb == Verb::kInsert);
  if ((outcome == Outcome::kTrue) != expected) {
    lies_ += describe(operation) + (expected ? " returned false\n" : " returned true\n");
  }
  assign(model_, operation.key, after(operation, value_in(model_, operation.key)));
}

std::vector<Operation> Witness::in_flight() const {
  std::vector<Operation> operations;
  for (const auto& current : current_) {
    if (current) operations.push_back(*current);
  }
  return operations;
}

std::string fates(TypedIndex index, const Model& model, const std::vector<Operation>& in_flight) {
  std::string letters;
  for (const Operation& operation : in_flight) {
    const auto before = value_in(model, operation.key);
    const auto found = index.lookup(operation.key);
    letters += found == before ? 'b' : found == after(operation, before) ? 'a' : 'x';
  }
  return letters;
}

std::string settle(Model& model, const std::vector<Operation>& in_flight,
                   const std::string& fates) {
  if (fates.size() != in_flight.size()) return "not all operations in flight are accounted for\n";
  std::string wrong;
  for (uint64_t i = 0; i < in_flight.size(); ++i) {
    const Operation& operation = in_flight[i];
    if (fates[i] == 'x') wrong += describe(operation) + " was in flight and is half there\n";
    if (fates[i] == 'a') {
      assign(model, operation.key, after(operation, value_in(model, operation.key)));
    }
  }
  return wrong;
}

}  // namespace perdure::test
