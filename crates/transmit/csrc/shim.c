/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The shared header's inline functions as symbols that Rust can call. */
#include "evenkeel/queue_choice.h"

struct ek_choice ek_shim_choose(ek_u64 *flow, ek_u32 *weight, const struct ek_segment *segment);
int ek_shim_release(ek_u64 *flow, ek_u32 *weight, ek_u64 seen, ek_u64 aged);

struct ek_choice ek_shim_choose(ek_u64 *flow, ek_u32 *weight, const struct ek_segment *segment)
{
	return ek_choose(flow, weight, segment);
}

int ek_shim_release(ek_u64 *flow, ek_u32 *weight, ek_u64 seen, ek_u64 aged)
{
	return ek_release(flow, weight, seen, aged);
}
