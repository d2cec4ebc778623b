// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Counts the rdma_cm listeners of this process. They stay in it when it forks, so a program that
// listens and then becomes a daemon loses them; the user is told before stderr is gone.
#pragma once

namespace uwarp {

/// One listener, from its start to its end.
class OpenListener {
 public:
  OpenListener();
  ~OpenListener();
  OpenListener(const OpenListener&) = delete;
  OpenListener& operator=(const OpenListener&) = delete;
};

/// The application calls daemon(): its listeners end with this process. One line on stderr and in
/// the log if there are any.
void say_daemon_loses_listeners();
/// A forked child becomes the leader of a session, as daemons do and as others do before they
/// execute a program: one line in the log.
void say_session_without_listeners();
/// A forked child uses a channel of its parent's: one line on stderr and in the log.
void say_channel_without_listeners();

}  // namespace uwarp
