// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What models need of the product beyond its headers, compiled over the explorer's atomics.
#include "memory/region_directory.cc"
#include "progress/deadline_heap.cc"
#include "progress/epoll_muted_sources.cc"
#include "qp/completion_queue.cc"
#include "qp/receive_queue.cc"
