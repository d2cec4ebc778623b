// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/interrupt.h"

#include <signal.h>

#include <atomic>

namespace uwarp::nfs {

namespace {

std::atomic<bool> signal_came = false;
std::atomic<int> first_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void note(int number) {
  first_signal = number;
  signal_came = true;
}

}  // namespace

void Interrupt::watch() {
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (int number : {SIGINT, SIGTERM}) {
    sigaction(number, &action, nullptr);
  }
}

bool Interrupt::requested() { return signal_came; }

int Interrupt::signal_number() { return first_signal; }

void Interrupt::forget() { signal_came = false; }

}  // namespace uwarp::nfs
