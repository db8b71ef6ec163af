#include "ranks/local_address.hpp"

#include <unistd.h>

#include <cstdio>
#include <memory>

#include "support/catch.hpp"

using namespace lockstep;

namespace {

Launch launch_at(const std::string& host, int local_size) {
  return {.world_size = 2, .local_size = local_size, .host = host, .port = 29500};
}

/// What `hostname -I` lists: the addresses of this machine besides the loopback ones.
std::string addresses_of_machine() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen("hostname -I", "r"), pclose);
  char text[4096] = "";
  return std::fgets(text, sizeof text, pipe.get()) ? text : "";
}

}  // namespace

CATCH_TEST_CASE("ranks that meet on their machine reach each other there") {
  CATCH_CHECK(address_for_others(launch_at("127.0.0.1", 2)) == "127.0.0.1");
  CATCH_CHECK(address_for_others(launch_at("localhost", 1)) == "127.0.0.1");
  CATCH_CHECK(address_for_others({.world_size = 2, .local_size = 2, .file = "/shared/run"}) == "127.0.0.1");
}

CATCH_TEST_CASE(
    "a machine of several is reached by an address that a network gave it, whatever its name means there") {
  char name[256] = "";
  CATCH_REQUIRE(gethostname(name, sizeof name) == 0);
  const std::string own = addresses_of_machine();
  const bool has_network = own.find_first_not_of(" \n") != std::string::npos;
  for (const char* const host : {static_cast<const char*>(name), ""}) {
    const std::string address = address_for_others(launch_at(host, 1));
    CATCH_INFO(address << " towards \"" << host << "\", of " << own);
    CATCH_CHECK(
        (has_network ? (" " + own).find(" " + address + " ") != std::string::npos : address == "127.0.0.1"));
  }
}

CATCH_TEST_CASE("the address is the one by which the meeting point is reached") {
  const std::string own = addresses_of_machine();
  const std::string first = own.substr(0, own.find(' '));
  CATCH_CHECK(address_for_others(launch_at(first.empty() ? "127.0.0.2" : first, 1)) ==
              (first.empty() ? "127.0.0.1" : first));
}
