#include "cli/interrupt.h"

#include <array>
#include <csignal>

namespace perdure::cli {
namespace {

constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};

std::atomic<bool> interrupt_raised{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler stores to it");

void on_signal(int) { interrupt_raised.store(true); }

void set_handlers(void (*handler)(int), int flags) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
}

}  // namespace

InterruptFlag::InterruptFlag() {
  interrupt_raised = false;
  set_handlers(on_signal, static_cast<int>(SA_RESETHAND));
}

InterruptFlag::~InterruptFlag() { set_handlers(SIG_DFL, 0); }

const std::atomic<bool>& InterruptFlag::raised() const { return interrupt_raised; }

}  // namespace perdure::cli
