// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A file system in memory, with the operations and permission rules of NFS version 3. It does not
// use the file system of the machine, so no client can reach that. One number of bytes limits its
// size and the number of its files.
//
// Operations fail by throwing NfsError.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "nfs/content.h"
#include "nfs/nfs3.h"
#include "nfs/rpc_message.h"

namespace uwarp::nfs {

using NodeId = uint64_t;
using CreateVerifier = std::array<std::byte, 8>;

class MemoryTree {
 public:
  static constexpr NodeId kRoot = 1;
  /// Bytes that a file counts in addition to its content.
  static constexpr uint64_t kNodeBytes = 1024;

  MemoryTree(uint64_t bytes_max, bool read_only);

  struct Piece {
    ConstBytes data;
    std::shared_ptr<const void> owner;  // keeps `data` valid
    bool end_of_file;
  };
  struct ListEntry {
    uint64_t cookie;
    NodeId id;
    std::string name;
  };

  Attributes attributes(NodeId id) const;
  void set_attributes(const Caller& caller, NodeId id, const NewAttributes& wanted,
                      const std::optional<NfsTime>& only_if_changed_at);
  uint32_t access(const Caller& caller, NodeId id, uint32_t wanted) const;
  NodeId lookup(const Caller& caller, NodeId directory, const std::string& name) const;
  std::string read_link(NodeId id) const;
  Piece read(const Caller& caller, NodeId id, uint64_t offset, size_t count);
  void write(const Caller& caller, NodeId id, uint64_t offset, ConstBytes data);
  NodeId create(const Caller& caller, NodeId directory, const std::string& name, CreateHow how,
                const NewAttributes& wanted, const CreateVerifier& verifier);
  NodeId make_directory(const Caller& caller, NodeId directory, const std::string& name,
                        const NewAttributes& wanted);
  NodeId make_symlink(const Caller& caller, NodeId directory, const std::string& name,
                      const std::string& target, const NewAttributes& wanted);
  void remove(const Caller& caller, NodeId directory, const std::string& name);
  void remove_directory(const Caller& caller, NodeId directory, const std::string& name);
  void rename(const Caller& caller, NodeId from, const std::string& from_name, NodeId to,
              const std::string& to_name);
  void link(const Caller& caller, NodeId file, NodeId directory, const std::string& name);
  /// At most `count` entries after the one that had this cookie; 0 is the beginning.
  std::vector<ListEntry> list(const Caller& caller, NodeId directory, uint64_t cookie,
                              size_t count) const;

  uint64_t bytes_max() const { return bytes_max_; }
  uint64_t bytes_used() const { return bytes_used_; }

  /// Puts a node of the initial content there, with its owner, mode and times; also in a tree that
  /// is read-only.
  NodeId adopt(NodeId directory, const std::string& name, const Attributes& attributes);
  void adopt_content(NodeId file, uint64_t offset, ConstBytes data);
  /// If it is larger than what has been adopted: the rest is a hole.
  void adopt_size(NodeId file, uint64_t size);
  void adopt_target(NodeId symlink, const std::string& target);
  void adopt_root(const Attributes& attributes);

 private:
  struct Entry {
    NodeId id;
    uint64_t cookie;
  };
  struct Node {
    Attributes attributes;  // size and used of a file are in `content`
    Content content;
    std::string target;
    CreateVerifier verifier{};
    NodeId parent = 0;  // of a directory
    uint64_t next_cookie = 3;
    std::unordered_map<std::string, Entry> entries;
    std::map<uint64_t, std::string> names;  // by cookie
  };

  Node& node(NodeId id);
  const Node& node(NodeId id) const;
  Node& directory(NodeId id);
  const Node& directory(NodeId id) const;
  Node& file(NodeId id);
  Node& directory_to_change(const Caller& caller, NodeId id, const std::string& name);
  void check_writable() const;
  void charge(uint64_t before, uint64_t after);
  NodeId add(NodeId parent, const std::string& name, const Attributes& attributes);
  NodeId make(const Caller& caller, NodeId parent, const std::string& name, FileType type,
              const NewAttributes& wanted, uint32_t default_mode);
  void enter(Node& directory, const std::string& name, NodeId id);
  void leave(Node& directory, const std::string& name);
  void unlink(NodeId id);
  void resize(Node& file, uint64_t size);
  void apply(Node& node, const NewAttributes& wanted);
  bool is_inside(NodeId id, NodeId ancestor) const;
  void check_replaceable(const Node& moved, const Node& replaced) const;

  uint64_t bytes_max_;
  uint64_t bytes_used_ = 0;
  bool read_only_;
  NodeId next_id_ = kRoot + 1;
  std::unordered_map<NodeId, Node> nodes_;
};

}  // namespace uwarp::nfs
