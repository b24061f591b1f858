/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR Apache-2.0 OR MIT
 *
 * Integer types of the headers that BPF programs and user space share. */
#ifndef EVENKEEL_INTEGERS_H
#define EVENKEEL_INTEGERS_H

#ifdef __bpf__
#include <linux/types.h>
typedef __u64 ek_u64;
typedef __u32 ek_u32;
typedef __u16 ek_u16;
#else
#include <stdint.h>
typedef uint64_t ek_u64;
typedef uint32_t ek_u32;
typedef uint16_t ek_u16;
#endif

#define EK_INLINE static inline __attribute__((always_inline, unused))

#endif /* EVENKEEL_INTEGERS_H */
