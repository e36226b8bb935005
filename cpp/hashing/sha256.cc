#include "hashing/sha256.h"

#include <cstring>
#include <stdexcept>

namespace potluck {
namespace {

constexpr size_t kWordsBytes = 32, kSavedBytes = kWordsBytes + 8;
constexpr uint64_t kMaxBytes = UINT64_MAX / 8;  // the message length in bits is 64 bits wide

// FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64
// primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// 5.3.3: of the square roots of the first 8 primes.
constexpr std::array<uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t rotate(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

uint32_t load(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

void store(uint32_t word, uint8_t* bytes) {
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<uint8_t>(word >> (24 - 8 * i));
}

void store(uint64_t word, uint8_t* bytes) {
  store(static_cast<uint32_t>(word >> 32), bytes);
  store(static_cast<uint32_t>(word), bytes + 4);
}

// 6.2.2, one round. Its result replaces `h`, which is the next round's `a`, so eight rounds move no
// words.
inline void round(uint32_t a, uint32_t b, uint32_t c, uint32_t& d, uint32_t e, uint32_t f,
                  uint32_t g, uint32_t& h, uint32_t word) {
  const uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
  const uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
  const uint32_t choice = g ^ (e & (f ^ g));
  const uint32_t majority = (a & b) | (c & (a | b));
  const uint32_t t1 = h + s1 + choice + word;
  d += t1;
  h = t1 + s0 + majority;
}

void compress(std::array<uint32_t, 8>& words, const uint8_t* block) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t) w[t] = load(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
    const uint32_t s1 = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = s1 + w[t - 7] + s0 + w[t - 16];
  }
  uint32_t a = words[0], b = words[1], c = words[2], d = words[3];
  uint32_t e = words[4], f = words[5], g = words[6], h = words[7];
  for (int t = 0; t < 64; t += 8) {
    round(a, b, c, d, e, f, g, h, kRound[t] + w[t]);
    round(h, a, b, c, d, e, f, g, kRound[t + 1] + w[t + 1]);
    round(g, h, a, b, c, d, e, f, kRound[t + 2] + w[t + 2]);
    round(f, g, h, a, b, c, d, e, kRound[t + 3] + w[t + 3]);
    round(e, f, g, h, a, b, c, d, kRound[t + 4] + w[t + 4]);
    round(d, e, f, g, h, a, b, c, kRound[t + 5] + w[t + 5]);
    round(c, d, e, f, g, h, a, b, kRound[t + 6] + w[t + 6]);
    round(b, c, d, e, f, g, h, a, kRound[t + 7] + w[t + 7]);
  }
  const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) words[i] += sums[i];
}

}  // namespace

Sha256State::Sha256State() : words_(kInitial) {}

Sha256State::Sha256State(const std::string& saved) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(saved.data());
  if (saved.size() >= kSavedBytes)
    num_bytes_ = uint64_t{load(bytes + kWordsBytes)} << 32 | load(bytes + kWordsBytes + 4);
  const size_t rest = num_bytes_ % kBlockBytes;
  if (saved.size() != kSavedBytes + rest || num_bytes_ > kMaxBytes)
    throw std::invalid_argument("not a saved state of SHA-256");
  for (int i = 0; i < 8; ++i) words_[i] = load(bytes + 4 * i);
  std::memcpy(rest_.data(), bytes + kSavedBytes, rest);
}

void Sha256State::update(const uint8_t* data, size_t num_bytes) {
  if (num_bytes > kMaxBytes - num_bytes_) throw std::invalid_argument("the message is too long");
  const size_t had = num_bytes_ % kBlockBytes;
  num_bytes_ += num_bytes;
  if (had != 0) {
    const size_t missing = kBlockBytes - had;
    const size_t taken = num_bytes < missing ? num_bytes : missing;
    if (taken != 0) std::memcpy(rest_.data() + had, data, taken);
    if (taken < missing) return;
    compress(words_, rest_.data());
    data += taken;
    num_bytes -= taken;
  }
  for (; num_bytes >= kBlockBytes; data += kBlockBytes, num_bytes -= kBlockBytes)
    compress(words_, data);
  if (num_bytes != 0) std::memcpy(rest_.data(), data, num_bytes);
}

std::string Sha256State::save() const {
  const size_t rest = num_bytes_ % kBlockBytes;
  std::string saved(kSavedBytes + rest, '\0');
  auto* bytes = reinterpret_cast<uint8_t*>(&saved[0]);
  for (int i = 0; i < 8; ++i) store(words_[i], bytes + 4 * i);
  store(num_bytes_, bytes + kWordsBytes);
  std::memcpy(bytes + kSavedBytes, rest_.data(), rest);
  return saved;
}

std::string Sha256State::digest() const {
  // 5.1.1: a one bit, zeros, and the length in bits, which fill up the last block.
  uint8_t padded[2 * kBlockBytes] = {};
  const size_t rest = num_bytes_ % kBlockBytes;
  const size_t total = rest < kBlockBytes - 8 ? kBlockBytes : 2 * kBlockBytes;
  std::memcpy(padded, rest_.data(), rest);
  padded[rest] = 0x80;
  store(num_bytes_ * 8, padded + total - 8);
  std::array<uint32_t, 8> words = words_;
  for (size_t at = 0; at < total; at += kBlockBytes) compress(words, padded + at);
  std::string digest(kDigestBytes, '\0');
  for (int i = 0; i < 8; ++i) store(words[i], reinterpret_cast<uint8_t*>(&digest[4 * i]));
  return digest;
}

}  // namespace potluck
