// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/memory_tree.h"

#include <gtest/gtest.h>

#include "bytes.h"
#include "status_of.h"

namespace uwarp::nfs {
namespace {

constexpr NodeId kRoot = MemoryTree::kRoot;
const Caller kSuperuser{0, 0, {}};
const Caller kUser{1000, 1000, {}};
const Caller kOther{2000, 2000, {}};

NewAttributes mode(uint32_t bits) {
  NewAttributes wanted;
  wanted.mode = bits;
  return wanted;
}

class MemoryTreeTest : public testing::Test {
 protected:
  NodeId make_file(const std::string& name, uint32_t bits = 0644, const Caller& caller = kSuperuser,
                   NodeId directory = kRoot) {
    return tree.create(caller, directory, name, CreateHow::kGuarded, mode(bits), {});
  }
  NodeId make_directory(const std::string& name, NodeId parent = kRoot, uint32_t bits = 0755) {
    return tree.make_directory(kSuperuser, parent, name, mode(bits));
  }

  MemoryTree tree{1 << 20, false};
};

TEST_F(MemoryTreeTest, NamesThatLeadElsewhereAreRefused) {
  for (const std::string& name :
       {std::string("a/b"), std::string("/"), std::string(""), std::string("a\0b", 3)}) {
    EXPECT_EQ(status_of([&] { make_file(name); }), NfsStatus::kInval);
    EXPECT_EQ(status_of([&] { tree.lookup(kSuperuser, kRoot, name); }), NfsStatus::kInval);
  }
  EXPECT_EQ(status_of([&] { make_file(".."); }), NfsStatus::kExist);
  EXPECT_EQ(status_of([&] { make_file(std::string(256, 'x')); }), NfsStatus::kNametoolong);
  EXPECT_EQ(tree.lookup(kSuperuser, kRoot, ".."), kRoot);
  EXPECT_EQ(status_of([&] { tree.remove_directory(kSuperuser, kRoot, "."); }), NfsStatus::kExist);
}

TEST_F(MemoryTreeTest, PermissionsAreThoseOfTheMode) {
  NodeId secret = make_file("secret", 0600);
  EXPECT_EQ(status_of([&] { tree.read(kUser, secret, 0, 1); }), NfsStatus::kAcces);
  EXPECT_EQ(status_of([&] { tree.write(kUser, secret, 0, bytes_of("x")); }), NfsStatus::kAcces);
  EXPECT_EQ(status_of([&] { make_file("x", 0644, kUser); }), NfsStatus::kAcces);
  EXPECT_EQ(status_of([&] { tree.remove(kUser, kRoot, "secret"); }), NfsStatus::kAcces);
  EXPECT_EQ(status_of([&] { tree.set_attributes(kUser, secret, mode(0666), {}); }),
            NfsStatus::kPerm);
  NewAttributes chown;
  chown.uid = 1000;
  tree.set_attributes(kSuperuser, secret, chown, {});
  EXPECT_EQ(status_of([&] { tree.read(kUser, secret, 0, 1); }), NfsStatus::kOk);
  EXPECT_EQ(status_of([&] { tree.read(kOther, secret, 0, 1); }), NfsStatus::kAcces);
  EXPECT_EQ(tree.access(kUser, secret, 0x3f), kAccessRead | kAccessModify | kAccessExtend);
  EXPECT_EQ(tree.access(kOther, secret, 0x3f), 0u);
}

TEST_F(MemoryTreeTest, SupplementaryGroupsCount) {
  NodeId file = make_file("file", 0640);
  NewAttributes chgrp;
  chgrp.gid = 77;
  tree.set_attributes(kSuperuser, file, chgrp, {});
  EXPECT_EQ(status_of([&] { tree.read({5, 5, {76}}, file, 0, 1); }), NfsStatus::kAcces);
  EXPECT_EQ(status_of([&] { tree.read({5, 5, {76, 77}}, file, 0, 1); }), NfsStatus::kOk);
}

TEST_F(MemoryTreeTest, BytesAreLimitedAndGivenBack) {
  NodeId file = make_file("file");
  uint64_t before = tree.bytes_used();
  EXPECT_EQ(status_of([&] { tree.write(kSuperuser, file, 2 << 20, bytes_of("x")); }),
            NfsStatus::kNospc);
  EXPECT_EQ(status_of([&] { tree.write(kSuperuser, file, UINT64_MAX - 3, bytes_of("1234")); }),
            NfsStatus::kFbig);
  EXPECT_EQ(status_of([&] { tree.write(kSuperuser, file, UINT64_MAX - 3, bytes_of("1")); }),
            NfsStatus::kNospc);
  NewAttributes huge;
  huge.size = UINT64_MAX;
  EXPECT_EQ(status_of([&] { tree.set_attributes(kSuperuser, file, huge, {}); }), NfsStatus::kNospc);
  EXPECT_EQ(tree.attributes(file).size, 0u);
  EXPECT_EQ(tree.bytes_used(), before);
  tree.write(kSuperuser, file, 500000, bytes_of("x"));
  EXPECT_EQ(tree.bytes_used(), before + 500001);
  tree.remove(kSuperuser, kRoot, "file");
  EXPECT_EQ(tree.bytes_used(), 0u);
  EXPECT_EQ(status_of([&] { tree.attributes(file); }), NfsStatus::kStale);
}

TEST_F(MemoryTreeTest, FilesAreLimitedToo) {
  NfsStatus status = NfsStatus::kOk;
  unsigned made = 0;
  while (status == NfsStatus::kOk) {
    status = status_of([&] { make_file("f" + std::to_string(made)); });
    ++made;
  }
  EXPECT_EQ(status, NfsStatus::kNospc);
  EXPECT_EQ(made, (1u << 20) / MemoryTree::kNodeBytes + 1);
}

TEST_F(MemoryTreeTest, AFileThatDoesNotFitIsNotMade) {
  NewAttributes wanted;
  wanted.size = 2 << 20;
  EXPECT_EQ(
      status_of([&] { tree.create(kSuperuser, kRoot, "big", CreateHow::kUnchecked, wanted, {}); }),
      NfsStatus::kNospc);
  EXPECT_EQ(status_of([&] { tree.lookup(kSuperuser, kRoot, "big"); }), NfsStatus::kNoent);
  EXPECT_EQ(tree.bytes_used(), 0u);
}

TEST_F(MemoryTreeTest, ExclusiveCreationIsRepeatable) {
  CreateVerifier one{std::byte{1}};
  CreateVerifier two{std::byte{2}};
  NodeId made = tree.create(kSuperuser, kRoot, "x", CreateHow::kExclusive, {}, one);
  EXPECT_EQ(tree.create(kSuperuser, kRoot, "x", CreateHow::kExclusive, {}, one), made);
  EXPECT_EQ(status_of([&] { tree.create(kSuperuser, kRoot, "x", CreateHow::kExclusive, {}, two); }),
            NfsStatus::kExist);
}

TEST_F(MemoryTreeTest, RenameReplacesAndKeepsTheTreeATree) {
  NodeId a = make_directory("a");
  NodeId b = make_directory("b", a);
  EXPECT_EQ(status_of([&] { tree.rename(kSuperuser, kRoot, "a", b, "c"); }), NfsStatus::kInval);
  EXPECT_EQ(status_of([&] { tree.rename(kSuperuser, kRoot, "a", a, "c"); }), NfsStatus::kInval);
  NodeId file = make_file("file");
  EXPECT_EQ(status_of([&] { tree.rename(kSuperuser, kRoot, "file", kRoot, "a"); }),
            NfsStatus::kExist);
  EXPECT_EQ(status_of([&] { tree.rename(kSuperuser, a, "b", kRoot, "file"); }), NfsStatus::kExist);
  NodeId old = make_file("old");
  tree.rename(kSuperuser, kRoot, "file", kRoot, "old");
  EXPECT_EQ(tree.lookup(kSuperuser, kRoot, "old"), file);
  EXPECT_EQ(status_of([&] { tree.attributes(old); }), NfsStatus::kStale);
  make_directory("d");
  EXPECT_EQ(status_of([&] { tree.rename(kSuperuser, kRoot, "d", kRoot, "a"); }),
            NfsStatus::kNotempty);
  tree.rename(kSuperuser, a, "b", kRoot, "d");
  EXPECT_EQ(tree.lookup(kSuperuser, b, ".."), kRoot);
  EXPECT_EQ(tree.attributes(a).link_count, 2u);
  EXPECT_EQ(tree.attributes(kRoot).link_count, 4u);
  tree.rename(kSuperuser, kRoot, "old", kRoot, "old");
  EXPECT_EQ(tree.lookup(kSuperuser, kRoot, "old"), file);
}

TEST_F(MemoryTreeTest, LinksCountAndCost) {
  NodeId file = make_file("one");
  uint64_t before = tree.bytes_used();
  tree.link(kSuperuser, file, kRoot, "two");
  EXPECT_EQ(tree.attributes(file).link_count, 2u);
  EXPECT_GT(tree.bytes_used(), before);
  tree.remove(kSuperuser, kRoot, "one");
  EXPECT_EQ(tree.lookup(kSuperuser, kRoot, "two"), file);
  EXPECT_EQ(tree.bytes_used(), before);
  EXPECT_EQ(status_of([&] { tree.link(kSuperuser, kRoot, kRoot, "loop"); }), NfsStatus::kIsdir);
}

TEST_F(MemoryTreeTest, AListingContinuesThoughEntriesAreRemoved) {
  for (int i = 0; i < 10; ++i) {
    make_file(std::to_string(i));
  }
  auto first = tree.list(kSuperuser, kRoot, 0, 5);  // ., .., 0, 1, 2
  ASSERT_EQ(first.size(), 5u);
  for (const auto& entry : first) {
    if (entry.name[0] != '.') {
      tree.remove(kSuperuser, kRoot, entry.name);
    }
  }
  auto rest = tree.list(kSuperuser, kRoot, first.back().cookie, 100);
  ASSERT_EQ(rest.size(), 7u);
  EXPECT_EQ(rest.front().name, "3");
  EXPECT_TRUE(tree.list(kSuperuser, kRoot, UINT64_MAX, 100).empty());
}

TEST_F(MemoryTreeTest, WrongTypes) {
  NodeId file = make_file("file");
  NodeId directory = make_directory("directory");
  NodeId link = tree.make_symlink(kSuperuser, kRoot, "link", "/etc/passwd", {});
  EXPECT_EQ(status_of([&] { tree.lookup(kSuperuser, file, "x"); }), NfsStatus::kNotdir);
  EXPECT_EQ(status_of([&] { tree.lookup(kSuperuser, link, "x"); }), NfsStatus::kNotdir);
  EXPECT_EQ(status_of([&] { tree.read(kSuperuser, directory, 0, 1); }), NfsStatus::kIsdir);
  EXPECT_EQ(status_of([&] { tree.read(kSuperuser, link, 0, 1); }), NfsStatus::kInval);
  EXPECT_EQ(status_of([&] { tree.read_link(file); }), NfsStatus::kInval);
  EXPECT_EQ(status_of([&] { tree.remove(kSuperuser, kRoot, "directory"); }), NfsStatus::kIsdir);
  EXPECT_EQ(status_of([&] { tree.remove_directory(kSuperuser, kRoot, "file"); }),
            NfsStatus::kNotdir);
  EXPECT_EQ(tree.read_link(link), "/etc/passwd");
}

TEST(MemoryTree, ReadOnlyRefusesEveryChange) {
  MemoryTree tree(1 << 20, true);
  Attributes attributes;
  attributes.mode = 0666;
  NodeId file = tree.adopt(kRoot, "file", attributes);
  tree.adopt_content(file, 0, bytes_of("data"));
  EXPECT_EQ(status_of([&] { tree.write(kSuperuser, file, 0, bytes_of("x")); }), NfsStatus::kRofs);
  EXPECT_EQ(status_of([&] { tree.remove(kSuperuser, kRoot, "file"); }), NfsStatus::kRofs);
  EXPECT_EQ(status_of([&] { tree.rename(kSuperuser, kRoot, "file", kRoot, "x"); }),
            NfsStatus::kRofs);
  EXPECT_EQ(status_of([&] { tree.set_attributes(kSuperuser, file, mode(0), {}); }),
            NfsStatus::kRofs);
  EXPECT_EQ(tree.read(kUser, file, 0, 10).data.size(), 4u);
}

}  // namespace
}  // namespace uwarp::nfs
