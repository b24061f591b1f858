/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR Apache-2.0 OR MIT
 *
 * The transmit queue choice. The BPF program and user space include this header, so the simulator runs
 * the kernel's code.
 *
 * A flow's whole state is one 64-bit word (queue, weight, flags, sequence), which changes only by
 * compare-and-swap. A queue's state is the sum of the weights of the flows with data outstanding on
 * this queue. There are no locks. If several cores change a flow's word at the same time, only one core
 * charges or releases the queue, so the sums stay exact:
 *
 *     weight[q] == sum of the weights of the flows charged to q
 *
 * Dynamic queue assignment follows Titan (USENIX ATC 2017, section 3.1). It selects the queue with the
 * smallest weight, but only when the flow has nothing outstanding. The flow's weight is removed from
 * the queue when the flow's last segment has left. There are three deliberate differences from Titan:
 *   - In a tie, the flow keeps its previous queue, so that flows do not move needlessly. Without a
 *     previous queue, the flow gets the queue of its hash, which spreads the load. Titan selects the
 *     queue with the lowest number.
 *   - Two cores cannot pick the same empty queue, because the claim is a compare-and-swap on the
 *     queue's weight. Titan serialises all picks by a lock.
 *   - Flows have weights. Titan counts every flow as 1. */
#ifndef EVENKEEL_QUEUE_CHOICE_H
#define EVENKEEL_QUEUE_CHOICE_H

#include "evenkeel/integers.h"

/* Largest number of transmit queues. A power of two, because the verifier accepts a mask as a bound. */
#define EK_MAX_QUEUES 256
/* Value of a queue field without a queue. */
#define EK_NO_QUEUE 0xffffffffu
/* Number of attempts at a compare-and-swap. After the last one, ek_choose leaves the segment uncharged. */
#define EK_TRIES 4

/* How a queue is picked for a flow that may change its queue. */
enum ek_policy {
	EK_POLICY_HASH = 0, /* the kernel's: a hash per socket (skb_tx_hash) */
	EK_POLICY_DQA = 1,  /* dynamic queue assignment: the smallest weight */
};

/* The flow's word: bits 0-15 queue, 16-31 weight, 32-35 flags, 36-63 sequence. */
#define EK_WORD_QUEUE(word) ((ek_u32)((word)&0xffff))
#define EK_WORD_WEIGHT(word) ((ek_u32)(((word) >> 16) & 0xffff))
#define EK_WORD_ASSIGNED (1ULL << 32)  /* the queue field is valid */
#define EK_WORD_CHARGED (1ULL << 33)   /* the weight is part of the queue's sum */
#define EK_WORD_AGED (1ULL << 34)      /* the last release was by age, not by completion */
#define EK_WORD_FORGOTTEN (1ULL << 35) /* the word belongs to no flow any more */
#define EK_WORD_SEQUENCE (1ULL << 36)  /* one more segment; may wrap */
#define EK_WORD_SEQUENCE_SHIFT 36
#define EK_WORD_SEQUENCE_MASK (~0ULL << 36)

/* The queues that a flow may use: `count` queues from `first`, which are an XPS pool or all queues. */
struct ek_pool {
	ek_u32 first;
	ek_u32 count;
};

struct ek_segment {
	struct ek_pool pool;
	enum ek_policy policy;
	ek_u32 hash;   /* the flow's hash */
	ek_u32 weight; /* the flow's weight, 1 to 65535 */
	/* The flow had nothing outstanding before this segment, so it may change queue. */
	ek_u32 idle;
	/* Queue on which the kernel holds a flow that is not `idle`. With EK_NO_QUEUE, only this code
	 * decides, and the flow keeps its queue. */
	ek_u32 held_on;
	/* Queue to use if the flow may move, for any policy, or EK_NO_QUEUE. */
	ek_u32 wanted;
	/* The segment has payload. A pure ACK uses its flow's queue and is never charged. */
	ek_u32 data;
};

/* Result of the choice, for statistics. */
enum ek_outcome {
	EK_KEPT = 0,      /* kept its queue, to which it was already charged */
	EK_PICKED = 1,    /* picked a queue and was charged */
	EK_RECHARGED = 2, /* held on a queue to which it was not charged: charged to this queue */
	EK_UNCHARGED = 3, /* the segment has no payload */
	EK_CONTENDED = 4, /* every compare-and-swap failed, or the flow was forgotten: sent uncharged */
};

struct ek_choice {
	ek_u32 queue;
	enum ek_outcome outcome;
};

EK_INLINE ek_u64 ek_word(ek_u64 sequence, ek_u32 queue, ek_u32 weight, ek_u64 flags)
{
	return (sequence & EK_WORD_SEQUENCE_MASK) | flags | ((ek_u64)(weight & 0xffff) << 16) |
	       (queue & 0xffff);
}

/* Maps a hash to a queue as the kernel does (reciprocal_scale in skb_tx_hash). */
EK_INLINE ek_u32 ek_hash_queue(ek_u32 hash, struct ek_pool pool)
{
	return pool.first + (ek_u32)(((ek_u64)hash * pool.count) >> 32);
}

EK_INLINE int ek_in_pool(ek_u32 queue, struct ek_pool pool)
{
	return queue - pool.first < pool.count;
}

/* State of a search through the queues of a pool. */
struct ek_scan {
	const ek_u32 *weight;
	struct ek_pool pool;
	ek_u32 offset; /* of the last examined queue */
	ek_u32 best;
	ek_u32 best_weight;
};

/* Examines the next queue of the pool. Returns 1 to end the search. */
static __attribute__((unused)) long ek_scan_step(ek_u32 index, void *context)
{
	struct ek_scan *scan = context;
	ek_u32 queue, queue_weight;

	(void)index;
	if (scan->best_weight == 0)
		return 1;
	if (++scan->offset >= scan->pool.count)
		scan->offset = 0;
	queue = (scan->pool.first + scan->offset) & (EK_MAX_QUEUES - 1);
	queue_weight = ((const volatile ek_u32 *)scan->weight)[queue];
	if (queue_weight < scan->best_weight) {
		scan->best = queue;
		scan->best_weight = queue_weight;
	}
	return 0;
}

/* Calls `step` until it returns 1, at most `count` times. In the kernel this is bpf_loop. The verifier
 * would check an ordinary loop of 256 rounds round by round, and again for each attempt of ek_claim. */
#ifdef __bpf__
#define ek_loop(count, step, context) bpf_loop(count, step, context, 0)
#else
EK_INLINE void ek_loop(ek_u32 count, long (*step)(ek_u32, void *), void *context)
{
	ek_u32 index;

	for (index = 0; index < count; index++)
		if (step(index, context))
			break;
}
#endif

/* Finds the queue with the smallest weight, one queue after the other. */
EK_INLINE ek_u32 ek_least_by_steps(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least)
{
	struct ek_scan scan = {
		.weight = weight,
		.pool = pool,
		.offset = preferred - pool.first,
		.best = preferred & (EK_MAX_QUEUES - 1),
	};

	scan.best_weight = ((const volatile ek_u32 *)weight)[scan.best];
	if (scan.best_weight && pool.count > 1)
		ek_loop((pool.count - 1) & (EK_MAX_QUEUES - 1), ek_scan_step, &scan);
	*least = scan.best_weight;
	return scan.best & (EK_MAX_QUEUES - 1);
}

/* In user space, ek_least_at_once finds the same queue with vector instructions. It finds the smallest
 * weight, and then the first queue with this weight. If another core changes a weight in between, the
 * queue may have another weight than `least`. The compare-and-swap then fails and is repeated. */
#ifndef __bpf__
EK_INLINE ek_u32 ek_least_weight(const ek_u32 *weight, ek_u32 first, ek_u32 end)
{
	ek_u32 least = ~0u, queue;

	for (queue = first; queue < end; queue++)
		least = weight[queue] < least ? weight[queue] : least;
	return least;
}

/* Returns the first queue with the weight `wanted`, or `end`. Compares blocks, so that the compiler
 * uses vector instructions. */
#define EK_BLOCK 16
EK_INLINE ek_u32 ek_first_of_weight(const ek_u32 *weight, ek_u32 first, ek_u32 end, ek_u32 wanted)
{
	ek_u32 queue = first, index;

	while (end - queue >= EK_BLOCK) {
		ek_u32 found = 0;

		for (index = 0; index < EK_BLOCK; index++)
			found |= weight[queue + index] == wanted;
		if (found)
			break;
		queue += EK_BLOCK;
	}
	while (queue < end && weight[queue] != wanted)
		queue++;
	return queue;
}

EK_INLINE ek_u32 ek_least_at_once(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least)
{
	ek_u32 end = pool.first + pool.count, queue = preferred, behind, before;

	*least = weight[preferred];
	if (*least == 0)
		return preferred;
	behind = ek_least_weight(weight, preferred, end);
	before = ek_least_weight(weight, pool.first, preferred);
	*least = behind;
	if (before < behind) {
		*least = before;
		queue = pool.first;
		end = preferred;
	}
	queue = ek_first_of_weight(weight, queue, end, *least);
	return queue < end ? queue : preferred;
}
#endif

/* Returns the queue with the smallest weight in the pool. Among queues of equal weight, returns the
 * first queue from `preferred` on, in circular order. Ties are then spread like the preferred queues.
 * `preferred` must be in the pool. */
EK_INLINE ek_u32 ek_least_queue(const ek_u32 *weight, struct ek_pool pool, ek_u32 preferred, ek_u32 *least)
{
#ifdef __bpf__
	return ek_least_by_steps(weight, pool, preferred, least);
#else
	return ek_least_at_once(weight, pool, preferred, least);
#endif
}

EK_INLINE void ek_discharge(ek_u32 *weight, ek_u64 word)
{
	__sync_fetch_and_sub(&weight[EK_WORD_QUEUE(word) & (EK_MAX_QUEUES - 1)], EK_WORD_WEIGHT(word));
}

/* Returns the queue that a flow gets if no other queue has a smaller weight. This is the flow's
 * previous queue if the pool contains it, otherwise the queue of the flow's hash. */
EK_INLINE ek_u32 ek_preferred_queue(ek_u64 word, const struct ek_segment *segment)
{
	ek_u32 queue = EK_WORD_QUEUE(word);

	if (!(word & EK_WORD_ASSIGNED) || !ek_in_pool(queue, segment->pool))
		queue = ek_hash_queue(segment->hash, segment->pool);
	return queue & (EK_MAX_QUEUES - 1);
}

/* Picks a queue and adds the flow's weight to it. */
EK_INLINE ek_u32 ek_claim(ek_u32 *weight, const struct ek_segment *segment, ek_u64 word)
{
	ek_u32 queue, least, tries;

	if (segment->wanted != EK_NO_QUEUE && ek_in_pool(segment->wanted, segment->pool)) {
		queue = segment->wanted & (EK_MAX_QUEUES - 1);
	} else if (segment->policy == EK_POLICY_DQA) {
		ek_u32 preferred = ek_preferred_queue(word, segment);

		for (tries = 0; tries < EK_TRIES; tries++) {
			queue = ek_least_queue(weight, segment->pool, preferred, &least);
			if (__sync_val_compare_and_swap(&weight[queue & (EK_MAX_QUEUES - 1)], least,
							least + segment->weight) == least)
				return queue;
		}
		/* Other cores keep changing this queue, which had the smallest weight in the last
		 * search. Add the weight without a comparison. */
	} else {
		queue = ek_hash_queue(segment->hash, segment->pool) & (EK_MAX_QUEUES - 1);
	}
	__sync_fetch_and_add(&weight[queue & (EK_MAX_QUEUES - 1)], segment->weight);
	return queue;
}

/* Removes the charge from a flow's queue if the word is still `seen`. Returns 1 if the charge was
 * removed.
 *
 * The caller must read the word BEFORE it checks that the flow has nothing outstanding, and pass the
 * word as `seen`. A segment sent in between changes the sequence, so the release fails, as it must.
 * `aged` is EK_WORD_AGED for a release by age, otherwise 0. */
EK_INLINE int ek_release(ek_u64 *flow, ek_u32 *weight, ek_u64 seen, ek_u64 aged)
{
	if (!(seen & EK_WORD_CHARGED))
		return 0;
	if (__sync_val_compare_and_swap(flow, seen, (seen & ~EK_WORD_CHARGED) | aged) != seen)
		return 0;
	ek_discharge(weight, seen);
	return 1;
}

/* Changes a charged flow's weight and its queue's sum. The sum is never smaller than the charged
 * weights, so a concurrent release cannot make it negative. */
EK_INLINE void ek_reweigh(ek_u64 *flow, ek_u32 *weight, ek_u32 new_weight)
{
	ek_u32 tries;

	for (tries = 0; tries < EK_TRIES; tries++) {
		ek_u64 seen = *(volatile ek_u64 *)flow, next;
		ek_u32 old_weight = EK_WORD_WEIGHT(seen), queue = EK_WORD_QUEUE(seen) & (EK_MAX_QUEUES - 1);
		ek_u32 more = new_weight > old_weight ? new_weight - old_weight : 0;

		if (!(seen & EK_WORD_CHARGED) || new_weight == old_weight)
			return;
		next = (seen & ~(0xffffULL << 16)) | ((ek_u64)(new_weight & 0xffff) << 16);
		__sync_fetch_and_add(&weight[queue], more);
		if (__sync_val_compare_and_swap(flow, seen, next) == seen) {
			if (new_weight < old_weight)
				__sync_fetch_and_sub(&weight[queue], old_weight - new_weight);
			return;
		}
		__sync_fetch_and_sub(&weight[queue], more);
	}
}

/* Marks the word as forgotten if it is still `seen` and uncharged. Returns 1 if the word was marked.
 * Programs that still hold a pointer to the word detect the mark. */
EK_INLINE int ek_forget(ek_u64 *flow, ek_u64 seen)
{
	return !(seen & EK_WORD_CHARGED) &&
	       __sync_val_compare_and_swap(flow, seen, EK_WORD_FORGOTTEN) == seen;
}

/* Returns whether the flow is in the common case: not idle, charged, and held on its queue (`idle` and
 * `held_on` as in struct ek_segment). The segment then uses EK_WORD_QUEUE(seen). */
EK_INLINE int ek_stays(ek_u64 seen, ek_u32 idle, ek_u32 held_on)
{
	return !idle && seen & EK_WORD_CHARGED && (held_on == EK_NO_QUEUE || held_on == EK_WORD_QUEUE(seen));
}

/* Picks the queue for a segment. Charges the flow's weight to the queue, except with the outcomes
 * EK_UNCHARGED and EK_CONTENDED. */
EK_INLINE struct ek_choice ek_choose(ek_u64 *flow, ek_u32 *weight, const struct ek_segment *segment)
{
	struct ek_choice choice = {.queue = 0, .outcome = EK_CONTENDED};
	ek_u32 tries;

	for (tries = 0; tries < EK_TRIES; tries++) {
		ek_u64 seen = *(volatile ek_u64 *)flow, next;
		ek_u32 previous = seen & EK_WORD_ASSIGNED ? EK_WORD_QUEUE(seen) : EK_NO_QUEUE;
		ek_u32 held = segment->held_on != EK_NO_QUEUE ? segment->held_on : previous;
		int free_to_move = segment->idle || held == EK_NO_QUEUE;

		if (seen & EK_WORD_FORGOTTEN) {
			choice.queue = ek_hash_queue(segment->hash, segment->pool);
			break;
		}
		if (!segment->data) {
			choice.queue =
				held != EK_NO_QUEUE ? held : ek_hash_queue(segment->hash, segment->pool);
			choice.outcome = EK_UNCHARGED;
			break;
		}
		if (ek_stays(seen, segment->idle, segment->held_on)) {
			choice.queue = EK_WORD_QUEUE(seen);
			if (__sync_val_compare_and_swap(flow, seen, seen + EK_WORD_SEQUENCE) == seen) {
				choice.outcome = EK_KEPT;
				break;
			}
			continue;
		}
		/* Release an existing charge first, so that the flow's own weight does not affect the
		 * choice. */
		if (seen & EK_WORD_CHARGED) {
			if (!ek_release(flow, weight, seen, 0))
				continue;
			seen &= ~EK_WORD_CHARGED;
		}
		if (free_to_move) {
			choice.queue = ek_claim(weight, segment, seen);
		} else {
			choice.queue = held & (EK_MAX_QUEUES - 1);
			__sync_fetch_and_add(&weight[choice.queue], segment->weight);
		}
		next = ek_word(seen + EK_WORD_SEQUENCE, choice.queue, segment->weight,
			       EK_WORD_ASSIGNED | EK_WORD_CHARGED);
		if (__sync_val_compare_and_swap(flow, seen, next) == seen) {
			choice.outcome = free_to_move ? EK_PICKED : EK_RECHARGED;
			break;
		}
		/* Another core changed the word, for example because it sent a segment of the same
		 * flow (a shared UDP socket), so undo the claim. */
		ek_discharge(weight, next);
	}
	choice.queue &= EK_MAX_QUEUES - 1;
	return choice;
}

#endif /* EVENKEEL_QUEUE_CHOICE_H */
