// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/url.h"

#include <gtest/gtest.h>

#include "nfs/mount_client.h"

namespace uwarp::nfs {
namespace {

TEST(Url, HostPortAndPath) {
  Url url = Url::parse("rdma://host.example/export/a//b/");
  EXPECT_EQ(url.host, "host.example");
  EXPECT_EQ(url.port, "20049");
  EXPECT_EQ(url.path, "/export/a/b");
  url = Url::parse("rdma://192.0.2.1:1234");
  EXPECT_EQ(url.host, "192.0.2.1");
  EXPECT_EQ(url.port, "1234");
  EXPECT_EQ(url.path, "/");
}

TEST(Url, Ipv6InBrackets) {
  Url url = Url::parse("rdma://[2001:db8::1]:999/x");
  EXPECT_EQ(url.host, "2001:db8::1");
  EXPECT_EQ(url.port, "999");
  EXPECT_EQ(Url::parse("rdma://[::1]/x").port, "20049");
}

TEST(Url, PercentIsACharacterLikeAnyOther) {
  EXPECT_EQ(Url::parse("rdma://h/a%20b c").path, "/a%20b c");
}

TEST(Url, InvalidUrlsAreErrors) {
  for (const char* text : {"", "http://h/x", "rdma:/h", "rdma://", "rdma:///x", "rdma://h:0/x",
                           "rdma://h:65536/x", "rdma://h:/x", "rdma://h:1x/x", "rdma://[::1/x",
                           "rdma://[]/x", "rdma://[::1]x/y", "rdma://h/../x", "rdma://h/a/./b"}) {
    EXPECT_THROW(Url::parse(text), UrlError) << text;
  }
}

TEST(Url, PathsBelowOthers) {
  EXPECT_TRUE(path_is_below("/a/b", "/a"));
  EXPECT_TRUE(path_is_below("/a", "/a"));
  EXPECT_TRUE(path_is_below("/a", "/"));
  EXPECT_FALSE(path_is_below("/ab", "/a"));
  EXPECT_FALSE(path_is_below("/", "/a"));
}

TEST(Url, TheLongestExportIsChosen) {
  std::vector<ExportEntry> exports = {{"/", {}}, {"/srv", {}}, {"/srv/a", {}}};
  EXPECT_EQ(choose_export(exports, "/srv/a/x"), "/srv/a");
  EXPECT_EQ(choose_export(exports, "/srv/ab"), "/srv");
  EXPECT_EQ(choose_export(exports, "/x"), "/");
  EXPECT_THROW(choose_export({{"/srv", {}}}, "/x"), RpcError);
  EXPECT_THROW(choose_export({}, "/x"), RpcError);
}

}  // namespace
}  // namespace uwarp::nfs
