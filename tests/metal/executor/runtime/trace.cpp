// Checks every load and store of a traced kernel: bounds, initialisation and order between threads,
// and counts the memory it touches. callbacks.cpp passes the accesses.
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "launch.h"

namespace rt {
namespace {

// The thread that touched a byte, and the barriers it had passed.
struct Stamp {
  uint32_t thread;  // 1 + global thread number, 0 for none
  uint16_t barrier;
  uint16_t simd;
};
enum Spread : uint8_t { ONE_THREAD, ONE_SIMDGROUP, WIDER };
struct Cell {
  Stamp write, read;
  Spread readers;
  bool atomic;
};

template <class T>
struct Zeroed {  // memory that is allocated when it is first touched
  T* data = nullptr;
  size_t bytes = 0;
  void resize(size_t n) {
    bytes = n * sizeof(T) + 1;
    data = static_cast<T*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }
  void release() {
    if (data) munmap(data, bytes);
    data = nullptr;
  }
};

struct Shadow {
  Zeroed<uint64_t> read_bits, written_bits;      // one bit per byte
  Zeroed<uint32_t> read_lines, written_lines;    // threadgroup that touched the line last
  Zeroed<Cell> cells;                            // outputs only
  BufferCounts counts;
};

constexpr int line_bytes = 64;
std::vector<Shadow> shadows;
Cell arena_cells[arena_bytes];
uint32_t group_serial;
std::vector<std::pair<const char*, const char*>> modules;

// A write that another thread's write precedes: harmless if it leaves the value as it was.
struct Pending {
  const char* address;
  size_t bytes;
  unsigned char before[16];
  Kind kind;
  const char* what;
  uint64_t pc;
  int64_t offset;
  uint32_t other;
};
Pending pending;
bool has_pending;

uint32_t my_number() {
  const Threadgroup& t = threadgroup_state;
  const uint32_t group = t.position[0] + t.count[0] * (t.position[1] + t.count[1] * t.position[2]);
  return group * max_threads + lane->index + 1;
}
bool same_group(uint32_t a, uint32_t b) { return (a - 1) / max_threads == (b - 1) / max_threads; }
bool same_simdgroup(uint32_t a, uint32_t b) { return (a - 1) / 32 == (b - 1) / 32; }

// Whether all accesses of the stamp happened before the current one of this thread.
bool ordered(const Stamp& s, Spread spread, uint32_t me, Memory memory) {
  if (s.thread == me && spread == ONE_THREAD) return true;
  if (!same_group(s.thread, me)) return false;
  if (s.barrier < lane->clock.barrier[memory]) return true;
  return spread != WIDER && same_simdgroup(s.thread, me) && s.simd < lane->clock.simd[memory];
}

Stamp stamp_now(uint32_t me, Memory memory) {
  return {me, lane->clock.barrier[memory], lane->clock.simd[memory]};
}

void note_read(Cell& cell, uint32_t me, Memory memory) {
  const Stamp now = stamp_now(me, memory);
  if (!cell.read.thread || ordered(cell.read, cell.readers, me, memory)) {
    cell.read = now;
    cell.readers = ONE_THREAD;
  } else if (cell.read.thread != me) {
    const bool together = same_simdgroup(cell.read.thread, me) && cell.readers != WIDER;
    cell.readers = together ? ONE_SIMDGROUP : WIDER;
    cell.read.simd = std::max(cell.read.simd, now.simd);
  }
}

struct Access {
  char* address;
  size_t bytes;
  bool read, write, atomic;
  uint64_t pc;
};

// Checks one byte; returns whether a conflict was reported (one report per access is enough).
bool check_cell(Cell& cell, const Access& a, uint32_t me, Memory memory, const char* what,
                int64_t offset) {
  const Kind kind = memory == DEVICE ? DEVICE_RACE : THREADGROUP_RACE;
  const bool both_atomic = a.atomic && cell.atomic;
  bool conflict = false;
  if (cell.write.thread && !both_atomic && !ordered(cell.write, ONE_THREAD, me, memory)) {
    conflict = true;
    const uint32_t other = (cell.write.thread - 1) % max_threads;
    if (!a.write || a.atomic || has_pending) {
      report(kind, what, a.pc, 0, offset, other);
    } else {
      const size_t bytes = std::min(a.bytes, sizeof pending.before);
      pending = {a.address, bytes, {}, kind, what, a.pc, offset, other};
      memcpy(pending.before, a.address, pending.bytes);
      has_pending = true;
    }
  }
  if (a.write && cell.read.thread && !ordered(cell.read, cell.readers, me, memory)) {
    conflict = true;
    report(kind, what, a.pc, 0, offset, (cell.read.thread - 1) % max_threads);
  }
  if (a.write) {
    cell.write = stamp_now(me, memory);
    cell.atomic = a.atomic;
    cell.read.thread = 0;
  } else if (!a.atomic) {
    note_read(cell, me, memory);
  }
  return conflict;
}

void touch_threadgroup(const Access& a) {
  const Variable* v = std::find_if(variables, variables + n_variables, [&](const Variable& x) {
    return a.address >= x.address && a.address + a.bytes <= x.address + x.bytes;
  });
  if (v == variables + n_variables) {
    report(THREADGROUP_BOUNDS, "threadgroup memory", a.pc, 0, a.address - arena, 0);
    return;
  }
  const uint32_t me = my_number();
  bool told = false;
  for (size_t k = 0; k < a.bytes; ++k) {
    Cell& cell = arena_cells[a.address + k - arena];
    const int64_t offset = a.address + int64_t(k) - v->address;
    if (a.read && !cell.write.thread) {
      if (!told) report(THREADGROUP_UNINITIALISED, v->name, a.pc, 0, offset, 0);
      told = true;
    }
    if (told) continue;
    told = check_cell(cell, a, me, THREADGROUP, v->name, offset);
  }
}

// Sets bits [from, from + n) and returns how many were clear.
uint64_t set_bits(uint64_t* bits, uint64_t from, uint64_t n) {
  uint64_t fresh = 0;
  while (n) {
    const uint64_t shift = from & 63, here = std::min<uint64_t>(n, 64 - shift);
    const uint64_t mask = (here == 64 ? ~0ull : (1ull << here) - 1) << shift;
    uint64_t& word = bits[from >> 6];
    fresh += uint64_t(__builtin_popcountll(mask & ~word));
    word |= mask;
    from += here;
    n -= here;
  }
  return fresh;
}

void count_device(Shadow& s, int64_t offset, const Access& a) {
  BufferCounts& c = s.counts;
  (a.write ? c.written_bytes : c.read_bytes) += a.bytes;
  uint64_t& unique = a.write ? c.unique_written : c.unique_read;
  unique += set_bits(a.write ? s.written_bits.data : s.read_bits.data, uint64_t(offset), a.bytes);
  uint32_t* lines = a.write ? s.written_lines.data : s.read_lines.data;
  uint64_t& group_lines = a.write ? c.group_lines_written : c.group_lines_read;
  for (int64_t l = offset / line_bytes; l <= (offset + int64_t(a.bytes) - 1) / line_bytes; ++l) {
    if (lines[l] == group_serial) continue;
    lines[l] = group_serial;
    ++group_lines;
  }
}

void touch_device(Buffer& b, const Access& a) {
  const int64_t offset = a.address - b.base;
  if (offset < 0 || offset + int64_t(a.bytes) > int64_t(b.bytes)) {
    report(DEVICE_BOUNDS, b.name, a.pc, 0, offset, 0);
    const bool mapped = offset >= -4096 && offset < int64_t(b.bytes) + 4096;
    if (!mapped) stop_launch();
    return;
  }
  Shadow& s = shadows[size_t(&b - current->buffers)];
  count_device(s, offset, a);
  if (!b.output) {
    if (a.write) report(INPUT_WRITTEN, b.name, a.pc, 0, offset, 0);
    return;
  }
  const uint32_t me = my_number();
  bool told = false;
  for (size_t k = 0; k < a.bytes && !told; ++k) {
    Cell& cell = s.cells.data[offset + int64_t(k)];
    if (a.read && !cell.write.thread && !b.initial) {
      report(DEVICE_UNINITIALISED, b.name, a.pc, 0, offset, 0);
      told = true;
    }
    told = check_cell(cell, a, me, DEVICE, b.name, offset + int64_t(k)) || told;
  }
}

void watch(const Access& a) {
  char* p = a.address;
  if (!lane || in_engine(p)) return;
  trace_settle();
  if (p >= arena && p < arena + arena_bytes) return touch_threadgroup(a);
  if (Buffer* b = find_buffer(p)) return touch_device(*b, a);
  for (auto& m : modules)
    if (p >= m.first && p < m.second) return;  // constants of the kernel, the runtime's own state
  if (p >= reinterpret_cast<const char*>(current->arguments) &&
      p < reinterpret_cast<const char*>(current->arguments + current->n_buffers))
    return;
  report(UNKNOWN_MEMORY, "memory of no buffer", a.pc, 0, 0, 0);
  stop_launch();
}


int add_module(dl_phdr_info* info, size_t, void*) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const char* start = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    modules.push_back({start, start + header.p_memsz});
  }
  return 0;
}

}  // namespace

void trace_start() {
  has_pending = false;
  group_serial = 0;
  if (!current->traced) return;
  modules.clear();
  dl_iterate_phdr(add_module, nullptr);
  shadows.assign(size_t(current->n_buffers), Shadow{});
  for (int i = 0; i < current->n_buffers; ++i) {
    Shadow& s = shadows[size_t(i)];
    const Buffer& b = current->buffers[i];
    const size_t bytes = b.bytes;
    s.read_bits.resize(bytes / 64 + 1);
    s.written_bits.resize(bytes / 64 + 1);
    s.read_lines.resize(bytes / line_bytes + 1);
    s.written_lines.resize(bytes / line_bytes + 1);
    if (b.output) s.cells.resize(bytes);
  }
}

void trace_group() { ++group_serial; }

void trace_variable(size_t offset, size_t bytes) {
  if (current->traced) memset(static_cast<void*>(arena_cells + offset), 0, bytes * sizeof(Cell));
}

void trace_settle() {
  if (!has_pending) return;
  has_pending = false;
  const bool same = !memcmp(pending.before, pending.address, pending.bytes);
  const Kind kind = same ? SAME_VALUE : pending.kind;
  report(kind, pending.what, pending.pc, 0, pending.offset, pending.other);
}

void trace_finish(BufferCounts* counts) {
  trace_settle();
  if (!current->traced) return;
  for (int i = 0; i < current->n_buffers; ++i) {
    Shadow& s = shadows[size_t(i)];
    const Buffer& b = current->buffers[i];
    if (b.output) s.counts.unwritten = b.bytes - s.counts.unique_written;
    counts[i] = s.counts;
    s.read_bits.release();
    s.written_bits.release();
    s.read_lines.release();
    s.written_lines.release();
    s.cells.release();
  }
  shadows.clear();
}

void plain_access(const void* address, size_t bytes, bool write, void* pc) {
  char* p = static_cast<char*>(const_cast<void*>(address));
  watch({p, bytes, !write, write, false, reinterpret_cast<uint64_t>(pc)});
}

void atomic_access(const void* address, size_t bytes, AtomicUse use) {
  if (!current->traced) return;
  char* p = static_cast<char*>(const_cast<void*>(address));
  const uint64_t pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  watch({p, bytes, use != ATOMIC_STORE, use != ATOMIC_LOAD, true, pc});
}

}  // namespace rt
