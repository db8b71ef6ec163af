#include "base/sha256.hpp"

#include <string>

#include "support/catch.hpp"

using lockstep::Sha256;

namespace {

std::string digest(const std::string& bytes) {
  Sha256 sha;
  sha.update(bytes.data(), bytes.size());
  return sha.hex_digest();
}

}  // namespace

CATCH_TEST_CASE("SHA-256 gives NIST's example digests") {
  CATCH_CHECK(digest("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CATCH_CHECK(digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CATCH_CHECK(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CATCH_CHECK(digest(std::string(1'000'000, 'a')) ==
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

CATCH_TEST_CASE("SHA-256 pads right at every length around a block's end") {
  // SHA-256 over the digests of 'a' repeated 0 to 130 times, from Python's hashlib.
  Sha256 all;
  for (std::size_t length = 0; length <= 130; ++length) {
    const std::string one = digest(std::string(length, 'a'));
    all.update(one.data(), one.size());
  }
  CATCH_CHECK(all.hex_digest() == "5eee4c50e1b5ec4f1a47f34c25ca988850b49da7904f5ab1b3abc5cc0ae66ef9");
}

CATCH_TEST_CASE("SHA-256 of a text taken in parts is that of the whole") {
  const std::string text(200, 'x');
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 sha;
    sha.update(text.data(), cut);
    (void)sha.hex_digest();
    sha.update(text.data() + cut, text.size() - cut);
    CATCH_CHECK(sha.hex_digest() == digest(text));
  }
}
