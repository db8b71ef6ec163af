#include "ranks/slurm.hpp"

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("the first host of a node list is the first of its first range") {
  const auto [list, host] =
      GENERATE(table<const char*, const char*>({{"gpu7", "gpu7"},
                                                {"gpu7,gpu9", "gpu7"},
                                                {"host[1-3,7],host9", "host1"},
                                                {"host[7,1-3]", "host7"},
                                                {"node[001-003]", "node001"},
                                                {"rack[2-3]node[10-12],x", "rack2node10"},
                                                {"a[4]-ib,b", "a4-ib"},
                                                {"cn-1.site.example,cn-2", "cn-1.site.example"}}));
  CATCH_CHECK(first_host(list) == std::string(host));
}

CATCH_TEST_CASE("a text that is no node list has no first host") {
  const auto list = GENERATE("", ",a", "host[1-3", "host[]", "host[a-b]", "host]1");
  CATCH_CHECK_FALSE(first_host(list).has_value());
}

CATCH_TEST_CASE("the tasks of a node are read from its place in the list") {
  const auto [list, node, tasks] = GENERATE(table<const char*, int, int>({{"2", 0, 2},
                                                                          {"4,3", 1, 3},
                                                                          {"4(x2),3", 0, 4},
                                                                          {"4(x2),3", 1, 4},
                                                                          {"4(x2),3", 2, 3},
                                                                          {"1,2(x3),5", 4, 5}}));
  CATCH_CHECK(tasks_on_node(list, node) == tasks);
}

CATCH_TEST_CASE("a node that the list does not have has no tasks") {
  const auto [list, node] = GENERATE(table<const char*, int>(
      {{"", 0}, {"4", 1}, {"4(x2)", 2}, {"x", 0}, {"4(x", 0}, {"4(x2", 1}, {"-1", 0}}));
  CATCH_CHECK_FALSE(tasks_on_node(list, node).has_value());
}
