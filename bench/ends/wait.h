// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// How a thread learns that something has come: bytes of TCP, or completions.
#pragma once

#include <map>
#include <string>

namespace uwarp::bench {

enum class Wait { kSpin, kBlock, kPoll, kEpoll };

inline const std::map<std::string, Wait> kWaitNames = {
    {"spin", Wait::kSpin}, {"block", Wait::kBlock}, {"poll", Wait::kPoll}, {"epoll", Wait::kEpoll}};

}  // namespace uwarp::bench
