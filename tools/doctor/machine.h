// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Is this machine ready? Each function looks at one part of it and adds its lines.
#pragma once

#include <string>

#include "base/settings.h"
#include "report.h"

namespace doctor {

/// libibverbs and librdmacm: there, which release, which interface for plugins (libraries.cc).
void check_libraries(Report& report);
/// The launcher and the libraries of uwarp (libraries.cc).
void check_own_files(Report& report);
/// The variables that are set (variables.cc). Returns what is in effect.
uwarp::Settings check_settings(Report& report);
/// UWARP_TLS: its module, files and their rights.
void check_tls(Report& report, const uwarp::Settings& settings);
/// Network devices and what becomes of them (network.cc).
void check_devices(Report& report, const uwarp::Settings& settings);
/// UWARP_PORT_RANGE, the system's own range (network.cc).
void check_ports(Report& report, const uwarp::Settings& settings);
void check_congestion_control(Report& report, const uwarp::Settings& settings);
/// Files, threads, address space; memory that may be locked is not needed (limits.cc).
void check_limits(Report& report);
/// System calls, /proc, a folder to write to (limits.cc).
void check_system_calls(Report& report);
void check_folders(Report& report);
/// Shared memory between processes of this user (same_host.cc).
void check_same_host(Report& report, const uwarp::Settings& settings);
/// Adapters and the rdma_cm device of the host itself (limits.cc).
void check_host_devices(Report& report, const uwarp::Settings& settings);
/// Whether uwarp comes into the program of that name or path (libraries.cc).
void check_program(Report& report, const std::string& name);
/// A program under uwarp-run lists and opens devices, and opens an event channel
/// (application.cc).
void check_application(Report& report);

/// The other half of check_application(): runs under uwarp-run, prints one line of JSON.
int act_as_application();

}  // namespace doctor
