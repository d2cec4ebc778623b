// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The errno of a call from outside: system calls inside the library set errno although the call
// succeeds. The places where such calls come in (verbs/boundary.h, host/host_table.cc) put it
// back.
#pragma once

#include <cerrno>

namespace uwarp {

/// Sets errno back to what it was when the scope ends, or to the reason why the call failed.
class KeptErrno {
 public:
  KeptErrno() : place_(errno), value_(place_) {}
  ~KeptErrno() { place_ = value_; }
  KeptErrno(const KeptErrno&) = delete;
  KeptErrno& operator=(const KeptErrno&) = delete;

  void failed(int reason) { value_ = reason; }

 private:
  int& place_;  // the thread stays the same, so it is looked up once
  int value_;
};

}  // namespace uwarp
