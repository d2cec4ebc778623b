// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The name of this process's own sysfs tree.
#pragma once

namespace uwarp_preload {

/// The constructor's work: SYSFS_PATH names this process's own tree from now on (the tree itself
/// is made when it is first used). A value inherited from a parent under the preload is replaced;
/// any other value names the host's sysfs and moves to UWARP_HOST_SYSFS.
void set_sysfs_path();

/// Brings the tree up to date. False when there is no engine, no tree, or no device of ours.
bool refresh_tree();

}  // namespace uwarp_preload
