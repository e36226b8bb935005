#include "program/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "program/error.h"

namespace potluck {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

void* map_anonymous(uint64_t num_bytes) {
  return mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

}  // namespace

Buffer::Buffer(uint64_t num_bytes, Pages pages, const std::string& what_for)
    : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  const bool huge = pages == Pages::Huge && num_bytes >= kHugePageBytes;
  const uint64_t slack = huge ? kHugePageBytes : 0;
  // This limit prevents the sum from overflowing; no address space is that large.
  void* mapped =
      num_bytes > (uint64_t{1} << 62) ? MAP_FAILED : map_anonymous(num_bytes + slack);
  if (mapped == MAP_FAILED) throw OutOfMemoryError(num_bytes, what_for);
  data_ = static_cast<uint8_t*>(mapped);
  if (!huge) return;

  // mmap only aligns to small pages: map 2 MB more, and unmap the excess before and after.
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t misaligned = reinterpret_cast<uintptr_t>(data_) % kHugePageBytes;
  const uint64_t head = misaligned == 0 ? 0 : kHugePageBytes - misaligned;
  const uint64_t kept = (num_bytes + page - 1) / page * page;
  if (head > 0) munmap(data_, head);
  data_ += head;
  const uint64_t mapped_bytes = (num_bytes + slack + page - 1) / page * page;
  const uint64_t tail = mapped_bytes - head - kept;
  if (tail > 0) munmap(data_ + kept, tail);
  // Only a hint: without transparent huge pages everything works, slightly slower.
  madvise(data_, num_bytes, MADV_HUGEPAGE);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, num_bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      num_bytes_(std::exchange(other.num_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

}  // namespace potluck
