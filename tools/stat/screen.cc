// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "screen.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace stat_view {
namespace {

volatile sig_atomic_t ended = 0;

void note_end(int) { ended = 1; }

void write_all(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) done += static_cast<size_t>(count);
  }
}

// Without SA_RESTART, so that poll() returns.
void catch_signals() {
  struct sigaction action {};
  action.sa_handler = note_end;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
  action.sa_handler = [](int) {};
  sigaction(SIGWINCH, &action, nullptr);
}

}  // namespace

Screen::Screen() {
  catch_signals();
  if (tcgetattr(STDIN_FILENO, &before_) == 0) {
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    changed_ = tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0;
  }
  write_all("\x1b[?1049h\x1b[?25l");
}

Screen::~Screen() {
  write_all("\x1b[?25h\x1b[?1049l");
  if (changed_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

void Screen::show(const std::vector<std::string>& lines, size_t heading, const std::string& last) {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) size = {24, 80, 0, 0};
  std::string out = "\x1b[H";
  const auto add = [&](const std::string& text, bool inverted) {
    std::string line = text.substr(0, size.ws_col);
    if (inverted) line.resize(size.ws_col, ' ');
    out += (inverted ? "\x1b[7m" : "") + line + (inverted ? "\x1b[0m" : "") + "\x1b[K";
  };
  const size_t rows = std::min<size_t>(lines.size(), size.ws_row - 1);
  for (size_t i = 0; i < rows; ++i) {
    add(lines[i], i + 1 == heading);
    out += "\r\n";
  }
  out += "\x1b[J\x1b[" + std::to_string(size.ws_row) + ";1H";
  add(last, true);
  write_all(out);
}

char Screen::wait_for_key(double seconds) {
  pollfd keys = {STDIN_FILENO, POLLIN, 0};
  const int ready = poll(&keys, 1, static_cast<int>(seconds * 1000));
  if (ended != 0) return 'q';
  char key = 0;
  if (ready <= 0 || read(STDIN_FILENO, &key, 1) == 1) return key;
  return 'q';  // the terminal is gone
}

}  // namespace stat_view
