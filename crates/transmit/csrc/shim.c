/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Exports the inline functions of the shared header as symbols, so that Rust can call them. */
#include "evenkeel/queue_choice.h"

struct ek_choice ek_shim_choose(ek_u64 *flow, ek_u32 *weight, const struct ek_segment *segment);
int ek_shim_release(ek_u64 *flow, ek_u32 *weight, ek_u64 seen, ek_u64 aged);
ek_u32 ek_shim_least_by_steps(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least);
ek_u32 ek_shim_least_at_once(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least);

/* With many queues, the search for the lightest one takes most of the time. With AVX2 it compares eight at
 * once. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define EK_WIDE __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef EK_WIDE
#define EK_WIDE
#endif

EK_WIDE struct ek_choice ek_shim_choose(ek_u64 *flow, ek_u32 *weight, const struct ek_segment *segment)
{
	return ek_choose(flow, weight, segment);
}

int ek_shim_release(ek_u64 *flow, ek_u32 *weight, ek_u64 seen, ek_u64 aged)
{
	return ek_release(flow, weight, seen, aged);
}

/* Both searches for the lightest queue, so that a test can compare them. */
ek_u32 ek_shim_least_by_steps(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least)
{
	return ek_least_by_steps(weight, pool, preferred, least);
}

ek_u32 ek_shim_least_at_once(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least)
{
	return ek_least_at_once(weight, pool, preferred, least);
}
