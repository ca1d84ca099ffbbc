// Switching between stacks: save the callee-saved registers and the stack pointer, load others.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__ELF__) && !defined(RT_PORTABLE)

extern "C" void rt_switch(void** save, void* load);
asm(R"(
.text
.globl rt_switch
.hidden rt_switch
.type rt_switch,@function
rt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size rt_switch, .-rt_switch
)");

inline void* prepare_stack(char* top, void (*entry)()) {
  void** sp = reinterpret_cast<void**>(top);
  *--sp = nullptr;  // return address of `entry`: the stack is aligned as after a call
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--sp = nullptr;
  return sp;
}

#elif defined(__aarch64__) && defined(__ELF__) && !defined(RT_PORTABLE)

extern "C" void rt_switch(void** save, void* load);
asm(R"(
.text
.globl rt_switch
.hidden rt_switch
.type rt_switch,@function
rt_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size rt_switch, .-rt_switch
)");

inline void* prepare_stack(char* top, void (*entry)()) {
  uint64_t* frame = reinterpret_cast<uint64_t*>(top - 160);
  for (int i = 0; i < 20; ++i) frame[i] = 0;
  frame[11] = reinterpret_cast<uint64_t>(entry);  // x30, where `ret` goes
  return frame;
}

#else

#include <ucontext.h>

// Slow but portable: a context lives on the stack of the fiber it belongs to.
inline void rt_switch(void** save, void* load) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t*>(load));
}

inline void* prepare_stack(char* top, void (*entry)()) {
  ucontext_t* context = reinterpret_cast<ucontext_t*>(top - (sizeof(ucontext_t) + 63) / 64 * 64);
  getcontext(context);
  context->uc_stack.ss_sp = top - (64 << 10);
  context->uc_stack.ss_size = size_t(reinterpret_cast<char*>(context) - (top - (64 << 10)));
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}

#endif
