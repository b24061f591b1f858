/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Exports the inline functions of the shared headers as symbols, so that Rust can call them. */
#include "evenkeel/flow_table.h"
#include "evenkeel/lola.h"
#include "evenkeel/queue_choice.h"

struct ek_choice ek_shim_choose(ek_u64 *flow, ek_u32 *weight, const struct ek_segment *segment);
int ek_shim_release(ek_u64 *flow, ek_u32 *weight, ek_u64 seen, ek_u64 aged);
ek_u32 ek_shim_least_by_steps(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least);
ek_u32 ek_shim_least_at_once(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least);

/* With many queues, the search for the queue with the smallest weight takes most of the time. With
 * AVX2, the search compares eight queues at once. */
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

/* The two searches for the queue with the smallest weight, for a test that compares them. */
ek_u32 ek_shim_least_by_steps(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least)
{
	return ek_least_by_steps(weight, pool, preferred, least);
}

ek_u32 ek_shim_least_at_once(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least)
{
	return ek_least_at_once(weight, pool, preferred, least);
}

ek_u32 ek_shim_slot(ek_u64 cookie, ek_u32 step);

ek_u32 ek_shim_slot(ek_u64 cookie, ek_u32 step)
{
	return ek_slot(cookie, step);
}

struct ek_lola_settings ek_shim_lola_defaults(void);
ek_u32 ek_shim_lola_cube_root(ek_u64 value);
void ek_shim_lola_init(struct ek_lola *flow, ek_u64 now_us);
void ek_shim_lola_sample(struct ek_lola *flow, const struct ek_lola_settings *settings, ek_u32 rtt_us,
			 ek_u64 now_us);
struct ek_lola_window ek_shim_lola_grow(struct ek_lola *flow, const struct ek_lola_settings *settings,
					const struct ek_lola_ack *ack);
ek_u32 ek_shim_lola_loss(struct ek_lola *flow, const struct ek_lola_settings *settings, ek_u32 cwnd,
			 ek_u64 now_us);
void ek_shim_lola_idle_restart(struct ek_lola *flow, const struct ek_lola_settings *settings, ek_u64 now_us);

struct ek_lola_settings ek_shim_lola_defaults(void)
{
	return ek_lola_defaults();
}

ek_u32 ek_shim_lola_cube_root(ek_u64 value)
{
	return ek_lola_cube_root(value);
}

void ek_shim_lola_init(struct ek_lola *flow, ek_u64 now_us)
{
	ek_lola_init(flow, now_us);
}

void ek_shim_lola_sample(struct ek_lola *flow, const struct ek_lola_settings *settings, ek_u32 rtt_us,
			 ek_u64 now_us)
{
	ek_lola_sample(flow, settings, rtt_us, now_us);
}

struct ek_lola_window ek_shim_lola_grow(struct ek_lola *flow, const struct ek_lola_settings *settings,
					const struct ek_lola_ack *ack)
{
	return ek_lola_grow(flow, settings, ack);
}

ek_u32 ek_shim_lola_loss(struct ek_lola *flow, const struct ek_lola_settings *settings, ek_u32 cwnd,
			 ek_u64 now_us)
{
	return ek_lola_loss(flow, settings, cwnd, now_us);
}

void ek_shim_lola_idle_restart(struct ek_lola *flow, const struct ek_lola_settings *settings, ek_u64 now_us)
{
	ek_lola_idle_restart(flow, settings, now_us);
}
