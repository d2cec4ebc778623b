// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What bench/instructions runs under callgrind: one operation many times, inside a function of a
// known name so that nothing else is counted.
//
//   instruction_driver write-8|send-8|write-65536 COUNT
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "null_stream.h"

namespace {

struct Operation {
  const char* name;
  uwarp::SendOpcode opcode;
  uint32_t bytes;
};

constexpr Operation kOperations[] = {
    {"write-8", uwarp::SendOpcode::kWrite, 8},
    {"send-8", uwarp::SendOpcode::kSend, 8},
    {"write-65536", uwarp::SendOpcode::kWrite, 65536},
};

}  // namespace

extern "C" [[gnu::noinline]] void counted_operations(uwarp::bench::NullStreamSender& sender,
                                                     const Operation& operation, int count) {
  for (int i = 0; i < count; ++i) sender.post_and_poll(operation.opcode, operation.bytes);
}

int main(int argc, char** argv) {
  const int count = argc == 3 ? std::atoi(argv[2]) : 0;
  for (const Operation& operation : kOperations) {
    if (count <= 0 || std::strcmp(argv[1], operation.name) != 0) continue;
    uwarp::bench::NullStreamSender sender;
    sender.post_and_poll(operation.opcode, operation.bytes);
    counted_operations(sender, operation, count);
    return 0;
  }
  std::fprintf(stderr, "usage: instruction_driver write-8|send-8|write-65536 COUNT\n");
  return 2;
}
