// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The command line of raw_tcp.
#include "raw_tcp/options.h"

#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <map>

namespace uwarp::bench {
namespace {

constexpr char kUsage[] =
    "usage: raw_tcp MODE [options] [ADDRESS]    without ADDRESS: the server\n"
    "  ping-pong         half round trip; --wait says how both ends learn of bytes\n"
    "  memory-ping-pong  the same, received by an epoll thread while the application's thread\n"
    "                    spins on memory\n"
    "  stream            one stream of sends of --size bytes, received --read at a time\n"
    "  duplex            two such streams, one in each direction\n"
    "  messages          messages of --size bytes per second, --batch of them per send\n"
    "  pipeline          requests and answers of --size bytes, --batch of them outstanding\n"
    "  sockets           --count connections; batches on one of them, or with --all on each,\n"
    "                    answered by one message per batch\n"
    "  connects          connections per second with an exchange of frames as large as MPA's,\n"
    "                    --count in all, --window at a time\n"
    "options: --port P --size BYTES --read BYTES --batch N --count N --window N --all --seconds S\n"
    "         --wait spin|block|poll|epoll --congestion NAME\n";

[[noreturn]] void usage() {
  std::fputs(kUsage, stderr);
  std::exit(2);
}

Wait parse_wait(const std::string& name) {
  static const std::map<std::string, Wait> kNames = {{"spin", Wait::kSpin},
                                                     {"block", Wait::kBlock},
                                                     {"poll", Wait::kPoll},
                                                     {"epoll", Wait::kEpoll}};
  const auto found = kNames.find(name);
  if (found == kNames.end()) usage();
  return found->second;
}

size_t parse_size(const char* text) {
  const long long value = std::atoll(text);
  if (value <= 0) usage();
  return static_cast<size_t>(value);
}

}  // namespace

Options parse_options(int argc, char** argv) {
  static const option kOptions[] = {{"port", required_argument, nullptr, 'p'},
                                    {"size", required_argument, nullptr, 's'},
                                    {"read", required_argument, nullptr, 'r'},
                                    {"batch", required_argument, nullptr, 'b'},
                                    {"count", required_argument, nullptr, 'n'},
                                    {"window", required_argument, nullptr, 'w'},
                                    {"all", no_argument, nullptr, 'a'},
                                    {"seconds", required_argument, nullptr, 'D'},
                                    {"wait", required_argument, nullptr, 'W'},
                                    {"congestion", required_argument, nullptr, 'c'},
                                    {nullptr, 0, nullptr, 0}};
  Options options;
  for (int c; (c = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    switch (c) {
      case 'p':
        options.port = static_cast<uint16_t>(parse_size(optarg));
        break;
      case 's':
        options.size = parse_size(optarg);
        break;
      case 'r':
        options.read = parse_size(optarg);
        break;
      case 'b':
        options.batch = parse_size(optarg);
        break;
      case 'n':
        options.count = static_cast<int>(parse_size(optarg));
        break;
      case 'w':
        options.window = static_cast<int>(parse_size(optarg));
        break;
      case 'a':
        options.all = true;
        break;
      case 'D':
        options.seconds = std::atof(optarg);
        break;
      case 'W':
        options.wait = parse_wait(optarg);
        break;
      case 'c':
        options.congestion = optarg;
        break;
      default:
        usage();
    }
  }
  if (optind >= argc || argc - optind > 2) usage();
  options.mode = argv[optind];
  if (argc - optind == 2) options.address = argv[optind + 1];
  return options;
}

}  // namespace uwarp::bench
