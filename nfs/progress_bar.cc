// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace uwarp::nfs {

namespace {

constexpr auto kFirstDraw = std::chrono::milliseconds(500);
constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr size_t kBarColumns = 20;

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string human_size(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  char text[32];
  snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, kUnits[unit]);
  return text;
}

ProgressBar::ProgressBar(std::string label, uint64_t total)
    : label_(std::move(label)), total_(total), on_terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (drawn_) {
    fputs("\r\033[K", stderr);
  }
}

void ProgressBar::advance(uint64_t bytes) {
  done_ += bytes;
  auto now = Clock::now();
  if (on_terminal_ && now - begin_ >= kFirstDraw && now - last_ >= kRedraw) {
    draw(now);
  }
}

void ProgressBar::draw(Clock::time_point now) {
  last_ = now;
  drawn_ = true;
  double seconds = std::chrono::duration<double>(now - begin_).count();
  fprintf(stderr, "\r%s\033[K",
          line(label_, done_, total_, seconds, terminal_columns() - 1).c_str());
}

std::string ProgressBar::line(const std::string& label, uint64_t done, uint64_t total,
                              double seconds, size_t columns) {
  double part =
      total > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total)) : 1;
  std::string bar(static_cast<size_t>(part * kBarColumns), '#');
  bar.resize(kBarColumns, '.');
  double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  char figures[128];
  snprintf(figures, sizeof figures, " [%s] %3.0f %%  %s  %s/s", bar.c_str(), part * 100,
           human_size(static_cast<double>(done)).c_str(), human_size(rate).c_str());
  std::string tail = figures;
  if (tail.size() >= columns) {
    return tail.substr(0, columns);
  }
  return label.substr(0, columns - tail.size()) + tail;
}

}  // namespace uwarp::nfs
