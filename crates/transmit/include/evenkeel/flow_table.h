/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR Apache-2.0 OR MIT
 *
 * The places of a flow in the flow table. */
#ifndef EVENKEEL_FLOW_TABLE_H
#define EVENKEEL_FLOW_TABLE_H

#include "evenkeel/queue_choice.h"

/* Flows are in a table of slots. At a few thousand segments per second the caches are cold. Then a
 * look-up in a BPF hash map misses four or five cache lines. A look-up in this table misses one cache
 * line. A flow is in one of EK_PROBES slots, which follow from its socket's cookie. */
#define EK_PROBES 8
/* Constants, so that a program can find a slot without reading a setting. */
#define EK_SLOT_BITS 18
#define EK_SLOTS (1 << EK_SLOT_BITS)

/* Returns the slot of a probe; a step is below EK_PROBES. Sockets get consecutive cookies. Sixteen
 * consecutive cookies map to neighbouring slots, so a small number of flows uses few cache lines and
 * pages. Multiplicative hashing spreads these runs over the table.
 *
 * Each CPU takes cookies from its own range (gen_cookie_next(), include/linux/cookie.h). If a run of one
 * range maps to the slots of a run of another range, the next runs of both ranges collide as well. So two
 * probes each share one of four multipliers: the golden ratio and the primes of xxHash. Ranges that collide
 * under one multiplier are apart under the others. */
static inline __attribute__((always_inline)) ek_u32 ek_slot(ek_u64 cookie, ek_u32 step)
{
	ek_u64 multiplier = step < 2   ? 0x9e3779b97f4a7c15ULL
			    : step < 4 ? 0xc2b2ae3d27d4eb4fULL
			    : step < 6 ? 0x165667b19e3779f9ULL
				       : 0x85ebca77c2b2ae63ULL;
	ek_u64 run = (cookie >> 4) * multiplier;
	ek_u32 first = (ek_u32)(run >> (64 - EK_SLOT_BITS + 4) << 4) | (cookie & 15);

	return (first + (step & 1)) & (EK_SLOTS - 1);
}

#endif
