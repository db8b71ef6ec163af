#include "ranks/local_address.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

namespace lockstep {
namespace {

constexpr const char* loopback = "127.0.0.1";

bool is_of_this_machine_alone(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  return getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

/// From where this machine would send to `host`; empty if it cannot.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;  // connecting chooses a way and sends nothing
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const addrinfo* each = found; each; each = each->ai_next) {
    const int fd = socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    auto* const address = reinterpret_cast<sockaddr*>(&own);
    const bool chosen =
        connect(fd, each->ai_addr, each->ai_addrlen) == 0 && getsockname(fd, address, &length) == 0;
    close(fd);
    if (chosen) return numeric(address, length);
  }
  return "";
}

/// The first that a network gave this machine; empty if there is none.
std::string address_of_an_interface() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(found, freeifaddrs);
  for (const ifaddrs* each = found; each; each = each->ifa_next) {
    const bool reachable = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0;
    if (reachable && each->ifa_addr && each->ifa_addr->sa_family == AF_INET) {
      return numeric(each->ifa_addr, sizeof(sockaddr_in));
    }
  }
  return "";
}

}  // namespace

std::string address_for_others(const Launch& launch) {
  const bool meet_here =
      launch.host.empty() ? launch.local_size == launch.world_size : is_of_this_machine_alone(launch.host);
  if (meet_here) return loopback;
  auto address = launch.host.empty() ? "" : address_towards(launch.host, launch.port);
  if (address.empty() || is_of_this_machine_alone(address)) address = address_of_an_interface();
  return address.empty() ? loopback : address;
}

}  // namespace lockstep
