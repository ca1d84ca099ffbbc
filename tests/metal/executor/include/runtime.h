// The contract between a kernel object (compiled per kernel) and the runtime (compiled once).
//
// A Metal thread is a fiber. Simdgroup functions and barriers are meetings: a lane writes its
// argument to `in`, names the meeting (kind, source line, combine function) and waits until the
// scheduler has combined the arguments of all lanes of this meeting.
#pragma once
#include <cstddef>
#include <cstdint>

namespace rt {

enum State : uint8_t { READY, AT_SIMD, AT_SIMD_BARRIER, AT_BARRIER, DONE };

struct Group;
using Combine = void (*)(Group&, uint32_t lanes);

// Numbers of the barriers passed so far. Index 0: device memory, index 1: threadgroup memory.
struct Clock {
  uint16_t barrier[2];
  uint16_t simd[2];
};

struct Lane {
  alignas(16) unsigned char in[64];
  alignas(16) unsigned char out[64];
  void* stack_pointer;
  Group* group;
  Combine combine;
  uint32_t lane;      // index in the simdgroup
  uint32_t index;     // index in the threadgroup
  uint32_t flags;     // mem_flags of the barrier it waits at
  int32_t site;       // source line of the meeting
  Clock clock;
  State state;
  uint32_t position[3];
  uint32_t grid_position[3];
};

struct Group {
  Lane* lanes;
  uint32_t size;
  uint32_t index;
};

struct Threadgroup {
  uint32_t position[3], size[3], full_size[3], count[3], grid[3];
  uint32_t threads, simdgroups;
};

struct Counters {
  uint64_t threadgroups, threads, barriers, simd_barriers, simd_ops, multiplies;
  uint64_t matrix_loads, matrix_stores, atomics, partial_simd_ops, threadgroup_bytes;
};

extern Lane* lane;
extern Threadgroup threadgroup_state;
extern Counters counters;

void meet(Combine combine, int site);
void barrier(uint32_t flags, int site);
void simd_barrier(uint32_t flags, int site);
void* threadgroup_memory(size_t bytes, const char* name, int line);
enum AtomicUse { ATOMIC_LOAD, ATOMIC_STORE, ATOMIC_UPDATE };
void atomic_access(const void* address, size_t bytes, AtomicUse use);

// Fills a local without an initialiser: NaN in every float type, -1 in integers. lower.py adds the
// calls. Old or zero contents would hide that a kernel reads it before it writes it.
template <class T>
inline void fill_unset(T& variable) {
  __builtin_memset(static_cast<void*>(&variable), 0xFF, sizeof variable);
}

// One address per (line, name): every thread of the threadgroup sees the same variable.
template <class T>
inline T& threadgroup_variable(const char* name, int line) {
  return *static_cast<T*>(threadgroup_memory(sizeof(T), name, line));
}

}  // namespace rt
