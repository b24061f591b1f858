// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Chooses a transmit queue for every segment, and sums the weights of the flows on each queue. The programs:
 *
 * - select_*: tcx egress of the managed device. Chooses the queue.
 * - look: scans the sockets of all charged flows.
 * - complete_exact: fentry tcp_wfree, optional. Handles the completion of a TCP segment at once.
 * - complete_at_peer: tcx ingress of a veth peer. Handles the completion in a test bed without loss.
 * - start_timers: starts the timers for scanning and ageing.
 * - hold_back: in service.h, tcx ingress of the managed device. Holds a flow back until it may move.
 * - read_service: in service.h. Reads the service of the flows with data outstanding.
 * - count_busy: in service.h. Sums the weights of flows with data outstanding.
 *
 * The socket's cookie identifies a flow, which has a slot in a hash table (see datapath.h). The programs read
 * from the socket itself whether data is outstanding: sk_wmem_alloc, on which the kernel's ooo_okay is based.
 * The programs do not count outstanding data. The kernel also reduces sk_wmem_alloc when a qdisc drops a
 * segment, so a drop leaves no flow charged.
 *
 * So no program has to run when a segment leaves: the weights need to be right only at a pick. A flow is
 * charged while its weight is part of a queue's weight. Charged flows are on a list. Before a pick, the
 * program scans sockets of charged flows if this may give a better queue (see "Scan" below).
 */
#include "kernel.h"
#include "packet.h"
#include "evenkeel/datapath.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define CLOCK_MONOTONIC 1
/* Ethernet with two VLAN tags, IPv6, TCP with all options. A longer segment carries data, unless it has
 * IPv6 extension headers or IPv4 options. A pure ACK that is taken for data also uses its flow's queue. */
#define LONGEST_HEADERS (14 + 8 + 40 + 60)

const volatile struct ek_config config = {};

struct ek_device device SEC(".data.device");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* also aligns the slots to cache lines */
	__uint(max_entries, EK_SLOTS);
	__type(key, __u32);
	__type(value, struct ek_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, EK_SLOTS);
	__type(key, __u32);
	__type(value, struct ek_flow_detail);
} details SEC(".maps");

/* Ring of the charged flows (slot number plus 1; 0: no flow). It has as many entries as the
 * table. Each flow is in the ring at most once, so the ring cannot overflow. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EK_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} charged SEC(".maps");

enum timer_of { LOOK_TIMER, AGEING_TIMER, TIMERS };

struct timer_entry {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TIMERS);
	__type(key, __u32);
	__type(value, struct timer_entry);
} timers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set by the loader: number of possible CPUs */
	__type(key, __u32);
	__type(value, struct ek_counters);
} counters SEC(".maps");

static __always_inline struct ek_counters *counters_of_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&counters, &cpu);
}

/* Use an atomic addition, because an interrupt may count between the read and the write. */
#define COUNT(field)                                                                                         \
	do {                                                                                                 \
		struct ek_counters *own = counters_of_cpu();                                                 \
		if (own)                                                                                     \
			__sync_fetch_and_add(&own->field, 1);                                                \
	} while (0)

/* Returns the flow's slot if it is the first slot of the flow's probe sequence, otherwise 0. */
static __always_inline struct ek_flow *home_slot(__u64 cookie)
{
	__u32 key = ek_slot(cookie, 0);
	struct ek_flow *flow = bpf_map_lookup_elem(&flows, &key);

	return flow && *(volatile __u64 *)&flow->cookie == cookie ? flow : 0;
}

/* Returns a flow's slot, and writes its number to `slot`. Returns 0 if the flow has no slot. */
static __always_inline struct ek_flow *find_flow(__u64 cookie, __u32 *slot)
{
	__u32 step;

	for (step = 0; step < EK_PROBES; step++) {
		struct ek_flow *flow;

		*slot = ek_slot(cookie, step);
		flow = bpf_map_lookup_elem(&flows, slot);
		if (flow && *(volatile __u64 *)&flow->cookie == cookie)
			return flow;
	}
	return 0;
}

#include "flow_weight.h"

/* Returns the flow's weight. Applies the rules again if they have changed. */
static __always_inline __u32 weight_of(struct __sk_buff *ctx, struct ek_flow *flow,
				       struct ek_flow_detail *detail, const struct ek_tuple *tuple)
{
	__u32 generation = *(volatile __u32 *)&device.rule_generation;

	if (detail->rule_generation != generation) {
		detail->rule_generation = generation;
		detail->weight = weight_by_rules(ctx, tuple);
		ek_reweigh(&flow->word, device.weight, detail->weight);
		flow->may_follow = tuple->protocol == IPPROTO_TCP && flow->socket;
	}
	return detail->weight;
}

/* Scan: releases the charged flows whose sockets have nothing outstanding.
 *
 * A pick, the timer or user space holds `look_lock` during a scan. A flow is on the list exactly while its
 * detail has `listed` set. The scan removes a flow from the list, and adds it again if it stays charged. */

static __always_inline void list_charged(__u32 slot)
{
	struct ek_flow_detail *detail = bpf_map_lookup_elem(&details, &slot);
	__u32 position, *entry;

	if (!detail || __sync_val_compare_and_swap(&detail->listed, 0, 1))
		return;
	position = __sync_fetch_and_add(&device.charged_head, 1) & (EK_SLOTS - 1);
	entry = bpf_map_lookup_elem(&charged, &position);
	if (entry)
		*(volatile __u32 *)entry = slot + 1;
}

/* Returns whether a flow without a socket has been silent for so long that none of its segments is
 * still queued. Times are in µs, 32 bits. Their difference is signed, because another CPU may have written
 * a later time. A silence of 35 minutes would overflow, but ageing removes the flow earlier. */
static __always_inline int is_silent(const struct ek_flow_detail *detail)
{
	__u32 last_us = *(volatile __u32 *)&detail->last_us;

	return (__s32)((__u32)(bpf_ktime_get_ns() / 1000) - last_us) > (__s32)config.gap_us;
}

/* Returns whether the flow's socket has nothing outstanding. A freed socket has nothing outstanding, because
 * each outstanding segment holds a reference. The memory of a freed socket may be unmapped: then a read
 * fails. Another socket may use the memory: then the cookie differs, because it is unique since boot. The
 * program reads the cookie last. */
static __always_inline int socket_is_idle(const struct ek_flow *flow)
{
	const struct sock *sk = (const struct sock *)flow->socket;
	__u64 cookie = 0;
	int below = 0;

	if (BPF_CORE_READ_INTO(&below, sk, sk_wmem_alloc.refs.counter) ||
	    BPF_CORE_READ_INTO(&cookie, sk, __sk_common.skc_cookie.counter))
		return 1;
	return cookie != flow->cookie || below - WMEM_BIAS < WMEM_IDLE;
}

/* Releases the flow's charge if its socket has nothing outstanding, or a flow without a socket is silent. */
static __always_inline void look_at(struct ek_flow *flow, const struct ek_flow_detail *detail)
{
	/* Read the word first: if choose() charges a later segment, the release fails. follow() does not
	 * change the word: after a release, the flow's next segment picks a queue. */
	__u64 seen = *(volatile __u64 *)&flow->word;

	if (seen & EK_WORD_CHARGED && (flow->socket ? socket_is_idle(flow) : is_silent(detail)) &&
	    ek_release(&flow->word, device.weight, seen, 0))
		COUNT(completed);
}

/* Frees the slot of a short flow that has nothing outstanding. Returns whether the slot was freed. A flow is
 * short if its word counts few segments. The flow picks a queue again with its next segment, as it would
 * without the eviction. A longer flow keeps its slot until it has been silent for a long time. So a flood
 * of single-segment flows does not evict it. */
static __always_inline int evict(struct ek_flow *flow, const struct ek_flow_detail *detail, __u32 slot)
{
	__u64 seen;

	if (config.read_sockets)
		look_at(flow, detail);
	seen = *(volatile __u64 *)&flow->word;
	if (seen & EK_WORD_FORGOTTEN || seen >> EK_WORD_SEQUENCE_SHIFT > EK_SHORT_FLOW ||
	    !ek_forget(&flow->word, seen))
		return 0;
	__sync_fetch_and_sub(&device.occupied[(slot / EK_SLOTS_PER_BLOCK) & (EK_MAX_BLOCKS - 1)], 1);
	__sync_fetch_and_sub(&device.flow_count, 1);
	*(volatile __u64 *)&flow->cookie = 0;
	COUNT(evicted);
	return 1;
}

struct eviction {
	__u32 first; /* first slot of the block */
	__u32 done;
};

static long evict_at(__u32 index, struct eviction *eviction)
{
	__u32 slot = (eviction->first + index) & (EK_SLOTS - 1);
	struct ek_flow *flow = bpf_map_lookup_elem(&flows, &slot);
	struct ek_flow_detail *detail = bpf_map_lookup_elem(&details, &slot);

	if (!flow || !detail || !*(volatile __u64 *)&flow->cookie || !evict(flow, detail, slot))
		return 0;
	eviction->done = 1;
	return 1;
}

/* Evicts a short flow from the next block of slots, round robin over all blocks. Returns whether a flow was
 * evicted. */
static __always_inline int make_room(void)
{
	__u32 block = __sync_fetch_and_add(&device.evict_hand, 1) & (EK_MAX_BLOCKS - 1);
	struct eviction eviction = {.first = block * EK_SLOTS_PER_BLOCK};

	bpf_loop(EK_SLOTS_PER_BLOCK, evict_at, &eviction, 0);
	return eviction.done;
}

/* Returns a new flow's word. If the socket already uses a queue, the flow prefers this queue to other
 * queues of the same weight. A change of the queue at the start of a session may reorder packets. */
static __always_inline __u64 first_word(const struct sock *sk)
{
	__u32 queue = sk ? KERNEL_READ(sk, __sk_common.skc_tx_queue_mapping) : NO_QUEUE_MAPPING;

	if (config.steering != EK_STEER_QUEUE || queue >= config.queue_count)
		return 0;
	return ek_word(0, queue, 0, EK_WORD_ASSIGNED);
}

/* Takes a free slot for a flow. Evicts a short flow if all probed slots are taken. If the table is
 * full, evicts a flow first. Returns 0 if no slot is free.
 *
 * Two CPUs may send for one socket at once: the CPU that receives an ARP reply sends the packets that
 * waited for the reply. So the word of a free slot is EK_WORD_FORGOTTEN. A CPU that finds the slot
 * before it is complete does not change the word. */
static __always_inline struct ek_flow *create_flow(__u64 cookie, const struct sock *sk,
						   const struct ek_tuple *tuple, __u32 *slot)
{
	__u32 step;

	/* Try two blocks: half of the slots are free, so a whole block may be free. */
	if (__sync_fetch_and_add(&device.flow_count, 1) >= config.max_flows && !make_room() && !make_room())
		goto full;
	/* The second pass over the probes evicts short flows. */
	for (step = 0; step < 2 * EK_PROBES; step++) {
		struct ek_flow_detail *detail;
		struct ek_flow *flow;

		*slot = ek_slot(cookie, step % EK_PROBES);
		flow = bpf_map_lookup_elem(&flows, slot);
		detail = bpf_map_lookup_elem(&details, slot);
		if (!flow || !detail)
			continue;
		if (*(volatile __u64 *)&flow->cookie && (step < EK_PROBES || !evict(flow, detail, *slot)))
			continue;
		if (__sync_val_compare_and_swap(&flow->cookie, 0, cookie))
			continue;
		flow->class_base = config.class_base;
		flow->may_follow = tuple->protocol == IPPROTO_TCP && sk;
		flow->socket = (__u64)sk;
		detail->weight = 1;
		/* Store an outdated generation, so that the program applies the rules to this segment. */
		detail->rule_generation = *(volatile __u32 *)&device.rule_generation - 1;
		detail->last_us = bpf_ktime_get_ns() / 1000;
		detail->outstanding = 0;
		detail->tuple = *tuple;
		detail->walked_word = 0;
		detail->quiet_since_ns = bpf_ktime_get_ns();
		__sync_fetch_and_add(&device.occupied[(*slot / EK_SLOTS_PER_BLOCK) & (EK_MAX_BLOCKS - 1)], 1);
		/* Write the word last: until this write it is EK_WORD_FORGOTTEN. */
		*(volatile __u64 *)&flow->word = first_word(sk);
		return flow;
	}
full:
	__sync_fetch_and_sub(&device.flow_count, 1);
	return 0;
}

static long look_at_next(__u32 index, void *context)
{
	__u32 position = device.charged_tail & (EK_SLOTS - 1), slot, *entry;
	struct ek_flow_detail *detail;
	struct ek_flow *flow;

	entry = bpf_map_lookup_elem(&charged, &position);
	if (!entry || !*(volatile __u32 *)entry)
		return 1;
	slot = *entry - 1;
	flow = bpf_map_lookup_elem(&flows, &slot);
	detail = bpf_map_lookup_elem(&details, &slot);
	if (!flow || !detail)
		return 1;
	*(volatile __u32 *)entry = 0;
	device.charged_tail++;
	look_at(flow, detail);
	/* Remove the flow from the list before the last read of the word, with a full barrier in between. A
	 * CPU that charges the flow after that read then finds the flow unlisted, and lists it. */
	__sync_val_compare_and_swap(&detail->listed, 1, 0);
	if (*(volatile __u64 *)&flow->word & EK_WORD_CHARGED)
		list_charged(slot);
	return 0;
}

/* Scans up to `limit` charged flows, the least recently scanned flows first. Does nothing during another
 * scan. */
static __always_inline void look_at_charged(__u32 limit)
{
	__u32 count;

	if (__sync_val_compare_and_swap(&device.look_lock, 0, 1))
		return;
	count = *(volatile __u32 *)&device.charged_head - device.charged_tail;
	bpf_loop(count < limit ? count : limit, look_at_next, 0, 0);
	__sync_val_compare_and_swap(&device.look_lock, 1, 0);
}

/*
 * Maximum number of flows per scan before a pick, and minimum interval between such scans. Both bound the
 * cost of a pick.
 */
#define LOOK_BEFORE_PICK 64
#define LOOK_INTERVAL_NS (50 * 1000ULL)

/* Scans before a pick, but only if the scan may find a better queue. This is the case if the queue that
 * the flow would otherwise take is charged with the weight of another flow. */
static __always_inline void look_before_pick(__u64 word, const struct ek_segment *segment)
{
	__u32 preferred = ek_preferred_queue(word, segment), own, now;

	own = word & EK_WORD_CHARGED && EK_WORD_QUEUE(word) == preferred ? EK_WORD_WEIGHT(word) : 0;
	if (*(volatile __u32 *)&device.weight[preferred] <= own)
		return;
	/* In µs, 32 bits: the value wraps every 71 minutes. The wrap omits at most one scan. */
	now = bpf_ktime_get_ns() / 1000;
	if (now - device.looked_us < LOOK_INTERVAL_NS / 1000)
		return;
	device.looked_us = now;
	look_at_charged(LOOK_BEFORE_PICK);
}

static __always_inline struct ek_pool pool_of_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct ek_pool all = {.count = config.queue_count};

	if (!config.use_pools)
		return all;
	return device.pool[cpu < EK_MAX_CPUS ? cpu : EK_MAX_CPUS - 1];
}

static __always_inline void steer(struct __sk_buff *ctx, enum ek_steering steering, __u32 queue)
{
	if (steering == EK_STEER_CLASS)
		ctx->priority = config.class_base + queue;
	else if (config.policy == EK_POLICY_DQA)
		/* Add one, as skb_record_rx_queue does. skb_tx_hash subtracts it. */
		ctx->queue_mapping = queue + 1;
}

/* Returns whether the flow may change its queue at this segment. If the kernel holds the flow on a queue,
 * writes this queue to `held_on`, otherwise EK_NO_QUEUE. */
static __always_inline int may_move(enum ek_steering steering, const struct sk_buff *skb,
				    const struct sock *sk, int besides, __u32 *held_on)
{
	__u32 held;

	*held_on = EK_NO_QUEUE;
	/* The kernel records a queue only for a flow with a socket, and never records a class. In these two
	 * cases, only this program holds the flow. */
	if (steering == EK_STEER_CLASS || !sk)
		return besides < WMEM_IDLE;
	held = KERNEL_READ(sk, __sk_common.skc_tx_queue_mapping);
	if (KERNEL_READ_BITFIELD(skb, ooo_okay))
		return 1;
	/* The kernel also releases a flow from its queue when it looks up the flow's route again, even
	 * with data outstanding. The kernel then accepts any queue. Choosing the previous queue keeps
	 * the packets in order. */
	if (held == NO_QUEUE_MAPPING)
		return besides < WMEM_IDLE;
	*held_on = held;
	return 0;
}

#include "service.h"

/* Returns a cookie for a flow without a socket. For example, a routed segment from a container loses the
 * socket in the host's ip_rcv_core() (skb_orphan). Cookies of the kernel count up from 1. The cookies of
 * this function have the highest bit set. */
static __always_inline __u64 cookie_of_tuple(const struct ek_tuple *tuple)
{
	const __u64 *words = (const __u64 *)tuple;
	__u64 hash = 0xcbf29ce484222325ULL;
	int index;

#pragma unroll
	for (index = 0; index < (int)(sizeof(*tuple) / 8); index++) {
		hash = (hash ^ words[index]) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 29;
	}
	return hash | 1ULL << 63;
}

/* Chooses the queue of a segment that follow() does not handle: for example a flow's first segment, a segment
 * of a flow that may change its queue, a pure ACK, or a segment without a socket. */
static __always_inline int choose(struct __sk_buff *ctx, enum ek_steering steering)
{
	struct sk_buff *skb = KERNEL_SKB(ctx);
	struct sock *sk = KERNEL_READ(skb, sk);
	struct packet packet = {};
	struct ek_segment segment = {
		.pool = pool_of_cpu(), .hash = bpf_get_hash_recalc(ctx), .wanted = EK_NO_QUEUE};
	struct ek_flow_detail *detail;
	struct ek_choice choice;
	struct ek_flow *flow;
	__u64 cookie, before;
	__u32 slot;
	int besides;

	if (segment.pool.count == 0)
		return NEXT_PROGRAM;
	segment.data = parse_packet(ctx, &packet) && ctx->len > packet.header_length;
	if (!sk || !is_full_socket(sk))
		COUNT(no_socket);
	if (sk ? !is_full_socket(sk) : !packet.header_length) {
		/* The segment has a request or time-wait socket, or belongs to no flow: use a hash, as the
		 * kernel does. */
		steer(ctx, steering, ek_hash_queue(segment.hash, segment.pool));
		return NEXT_PROGRAM;
	}
	cookie = sk ? bpf_get_socket_cookie(ctx) : cookie_of_tuple(&packet.tuple);
	flow = find_flow(cookie, &slot);
	if (!flow && segment.data)
		flow = create_flow(cookie, sk, &packet.tuple, &slot);
	detail = bpf_map_lookup_elem(&details, &slot);
	if (!flow || !detail) {
		if (segment.data)
			COUNT(untracked);
		steer(ctx, steering, ek_hash_queue(segment.hash, segment.pool));
		return NEXT_PROGRAM;
	}

	if (sk) {
		besides = outstanding_besides(skb, sk);
	} else {
		besides = is_silent(detail) ? 0 : WMEM_IDLE;
		if (segment.data)
			detail->last_us = bpf_ktime_get_ns() / 1000;
	}
	segment.policy = config.policy;
	segment.weight = weight_of(ctx, flow, detail, &packet.tuple);
	segment.idle = may_move(steering, skb, sk, besides, &segment.held_on);
	if (config.balance && segment.idle && segment.data)
		segment.wanted = wanted_queue(cookie);
	before = flow->word;
	if (segment.data) {
		if (before & EK_WORD_AGED && !(before & EK_WORD_CHARGED) && besides >= WMEM_IDLE)
			COUNT(false_releases);
		if (!config.read_sockets)
			detail->outstanding = KERNEL_READ(skb, truesize) + (besides < 0 ? 0 : (__u32)besides);
		if (config.read_sockets && config.policy == EK_POLICY_DQA && segment.idle)
			look_before_pick(before, &segment);
	}
	choice = ek_choose(&flow->word, device.weight, &segment);
	switch (choice.outcome) {
	case EK_PICKED:
		COUNT(picks);
		if (before & EK_WORD_ASSIGNED && EK_WORD_QUEUE(before) != choice.queue)
			COUNT(moves);
		if (choice.queue == segment.wanted)
			moved_as_wanted();
		break;
	case EK_RECHARGED:
		COUNT(recharged);
		break;
	case EK_CONTENDED:
		COUNT(contended);
		break;
	default:
		break;
	}
	if (config.read_sockets && (choice.outcome == EK_PICKED || choice.outcome == EK_RECHARGED))
		list_charged(slot);
	steer(ctx, steering, choice.queue);
	return NEXT_PROGRAM;
}

/* Handles the common case: a data segment of a flow that is in its first slot and stays on its queue.
 * Returns 1 in this case.
 *
 * Caches are cold, so the number of cache lines determines the cost: the flow's slot, this code, and the
 * lines that TCP has just used. This function reads no settings and writes only to the packet. If another CPU
 * releases the flow at the same time, the flow's next segment picks a queue. */
static __always_inline int follow(struct __sk_buff *ctx, enum ek_steering steering)
{
	struct sk_buff *skb = KERNEL_SKB(ctx);
	struct sock *sk = tcp_socket(ctx, skb);
	struct ek_flow *flow;
	__u64 seen;
	__u32 held_on = EK_NO_QUEUE;

	/* choose() handles pure ACKs (see LONGEST_HEADERS). */
	if (ctx->len <= LONGEST_HEADERS || !sk || !IS_FULL_TCP_SOCKET(sk))
		return 0;
	/* A socket without a cookie matches a free slot, but the word of a free slot is not charged. */
	flow = home_slot(KERNEL_READ_TCP(sk, __sk_common.skc_cookie.counter));
	/* TCP has just computed whether data is outstanding (__tcp_transmit_skb). The CPU that frees
	 * segments writes the cache line of sk_wmem_alloc, but not the cache line of this result. Newer
	 * kernels also set ooo_okay if all data is acknowledged; choose() then decides. */
	if (!flow || !flow->may_follow || KERNEL_READ_BITFIELD(skb, ooo_okay))
		return 0;
	if (steering == EK_STEER_QUEUE)
		held_on = KERNEL_READ_TCP(sk, __sk_common.skc_tx_queue_mapping);
	seen = *(volatile __u64 *)&flow->word;
	if (!ek_stays(seen, 0, held_on))
		return 0;
	/* With the device's own queues, no further check is needed: the kernel keeps the flow on its queue.
	 */
	if (steering == EK_STEER_CLASS)
		ctx->priority = flow->class_base + EK_WORD_QUEUE(seen);
	return 1;
}

/* Use noinline, so that the code of the common case is contiguous. */
static __noinline int choose_class(struct __sk_buff *ctx)
{
	return choose(ctx, EK_STEER_CLASS);
}

static __noinline int choose_queue(struct __sk_buff *ctx)
{
	return choose(ctx, EK_STEER_QUEUE);
}

/* Chooses the queue if the programs read sockets. */
SEC("?tcx/egress")
int select_class(struct __sk_buff *ctx)
{
	return follow(ctx, EK_STEER_CLASS) ? NEXT_PROGRAM : choose_class(ctx);
}

SEC("?tcx/egress")
int select_queue(struct __sk_buff *ctx)
{
	return follow(ctx, EK_STEER_QUEUE) ? NEXT_PROGRAM : choose_queue(ctx);
}

/* Chooses the queue if the programs do not read sockets. Passes every segment to choose(), because ageing
 * uses the time of the last segment. */
SEC("?tcx/egress")
int select_class_aged(struct __sk_buff *ctx)
{
	return choose_class(ctx);
}

SEC("?tcx/egress")
int select_queue_aged(struct __sk_buff *ctx)
{
	return choose_queue(ctx);
}

/* Releases the flow's weight if the completed segment was the last segment outstanding. The caller has
 * checked that nothing else is outstanding. This check saves the look-up for most segments. */
static __always_inline void complete(__u64 cookie, const struct sk_buff *skb, const struct sock *sk)
{
	__u32 slot;
	struct ek_flow *flow = find_flow(cookie, &slot);
	__u64 seen;

	if (!flow)
		return;
	/* Read the word first: if a segment is sent later, the release fails. */
	seen = *(volatile __u64 *)&flow->word;
	if (!(seen & EK_WORD_CHARGED) || outstanding_besides(skb, sk) >= WMEM_IDLE)
		return;
	if (ek_release(&flow->word, device.weight, seen, 0))
		COUNT(completed);
}

SEC("?tcx/ingress")
int complete_at_peer(struct __sk_buff *ctx)
{
	struct sk_buff *skb = KERNEL_SKB(ctx);
	struct sock *sk = KERNEL_READ(skb, sk);

	if (sk && is_full_socket(sk) && outstanding_besides(skb, sk) < WMEM_IDLE)
		complete(KERNEL_READ(sk, __sk_common.skc_cookie.counter), skb, sk);
	return NEXT_PROGRAM;
}

SEC("?fentry/tcp_wfree")
int BPF_PROG(complete_exact, struct sk_buff *skb)
{
	struct sock *sk = KERNEL_READ(skb, sk);

	if (sk && outstanding_besides(skb, sk) < WMEM_IDLE)
		complete(KERNEL_READ(sk, __sk_common.skc_cookie.counter), skb, sk);
	return 0;
}

struct walk {
	__u64 now;
	__u64 limit;
	__u32 block;
	__u32 active;  /* number of queues with a backlog */
	__u64 largest; /* largest backlog of a queue, bytes */
};

static long clear_backlog(__u32 queue, struct walk *walk)
{
	device.backlog[queue & (EK_MAX_QUEUES - 1)] = 0;
	return 0;
}

static long add_up_backlog(__u32 queue, struct walk *walk)
{
	__u64 backlog = device.backlog[queue & (EK_MAX_QUEUES - 1)];

	walk->active += backlog > 0;
	if (backlog > walk->largest)
		walk->largest = backlog;
	return 0;
}

static long age_slot(__u32 index, struct walk *walk)
{
	__u32 key = walk->block * EK_SLOTS_PER_BLOCK + index;
	struct ek_flow *flow = bpf_map_lookup_elem(&flows, &key);
	struct ek_flow_detail *detail = bpf_map_lookup_elem(&details, &key);
	__u64 seen, quiet;

	if (!flow || !detail || !flow->cookie)
		return 0;
	seen = *(volatile __u64 *)&flow->word;
	if (seen & EK_WORD_FORGOTTEN) /* create_flow() is filling it */
		return 0;
	if (config.read_sockets) {
		/* Scan flows that are missing from the list, too. So no flow needs a release by age. */
		look_at(flow, detail);
		seen = *(volatile __u64 *)&flow->word;
	}
	/* Measure silence from the first walk that read this word, so that the silence is never
	 * overestimated. */
	if (seen != detail->walked_word) {
		detail->walked_word = seen;
		detail->quiet_since_ns = walk->now;
	}
	quiet = walk->now > detail->quiet_since_ns ? walk->now - detail->quiet_since_ns : 0;
	if (seen & EK_WORD_CHARGED) {
		if (config.read_sockets)
			return 0;
		if (quiet <= walk->limit)
			device.backlog[EK_WORD_QUEUE(seen) & (EK_MAX_QUEUES - 1)] += detail->outstanding;
		else if (ek_release(&flow->word, device.weight, seen, EK_WORD_AGED))
			COUNT(aged);
	} else if (quiet > config.forget_after_ns && ek_forget(&flow->word, seen)) {
		__sync_fetch_and_sub(&device.occupied[walk->block & (EK_MAX_BLOCKS - 1)], 1);
		__sync_fetch_and_sub(&device.flow_count, 1);
		*(volatile __u64 *)&flow->cookie = 0;
	}
	return 0;
}

static long age_block(__u32 block, struct walk *walk)
{
	walk->block = block;
	if (*(volatile __u32 *)&device.occupied[block & (EK_MAX_BLOCKS - 1)])
		bpf_loop(EK_SLOTS_PER_BLOCK, age_slot, walk, 0);
	return 0;
}

#define AGEING_SHORTEST_WALK_NS (1000 * 1000ULL)
#define AGEING_LONGEST_WALK_NS (100 * 1000 * 1000ULL)
/* If the programs read sockets, this walk removes silent flows and repeats a scan. Neither is urgent. */
#define FORGETTING_WALK_NS (1000 * 1000 * 1000ULL)

/* Returns the silence after which a flow is released by age. It is at least twice the time in which the
 * fullest queue drains with round robin over all active queues. So a flow with queued segments is not
 * released. If the line rate is unknown (0), the result is based on the configured floor only. */
static __always_inline __u64 next_ageing_limit(const struct walk *walk)
{
	__u64 rate = config.rate_bps, limit;
	__u32 active = walk->active;

	/* The device may shape each queue separately. Other queues then do not use the share of an idle
	 * queue. */
	if (config.steering == EK_STEER_QUEUE)
		active = config.queue_count;
	/* Compute in KiB, so that no realistic backlog overflows: 8192e9 / rate is ns per KiB. */
	limit = rate ? 2 * active * ((walk->largest >> 10) + 1) * (8192000000000ULL / rate + 1) : 0;
	if (limit < config.ageing_floor_ns)
		limit = config.ageing_floor_ns;
	/* Reduce the limit gradually: segments queued before are still draining. */
	if (limit < walk->limit)
		limit = walk->limit - (walk->limit - limit) / 8;
	return limit;
}

static int walk_flows(void *map, int *key, struct bpf_timer *timer)
{
	struct walk walk = {.now = bpf_ktime_get_ns(), .limit = device.ageing_limit_ns};
	__u32 blocks = (EK_SLOTS) / EK_SLOTS_PER_BLOCK;
	__u64 period = FORGETTING_WALK_NS;

	if (walk.limit < config.ageing_floor_ns)
		walk.limit = config.ageing_floor_ns;
	if (!config.read_sockets)
		bpf_loop(EK_MAX_QUEUES, clear_backlog, &walk, 0);
	bpf_loop(blocks < EK_MAX_BLOCKS ? blocks : EK_MAX_BLOCKS, age_block, &walk, 0);
	if (!config.read_sockets) {
		bpf_loop(EK_MAX_QUEUES, add_up_backlog, &walk, 0);
		device.ageing_limit_ns = next_ageing_limit(&walk);
		period = device.ageing_limit_ns / 4;
		if (period < AGEING_SHORTEST_WALK_NS)
			period = AGEING_SHORTEST_WALK_NS;
		if (period > AGEING_LONGEST_WALK_NS)
			period = AGEING_LONGEST_WALK_NS;
	}
	__sync_fetch_and_add(&device.walks, 1);
	__sync_fetch_and_add(&device.walk_ns, bpf_ktime_get_ns() - walk.now);
	bpf_timer_start(timer, period, 0);
	return 0;
}

/* Interval of the scans that release weights without a pick, and maximum number of flows per scan. */
#define LOOK_TIMER_NS (250 * 1000 * 1000ULL)
#define LOOK_AT_TICK 4096

static int look_at_tick(void *map, int *key, struct bpf_timer *timer)
{
	__u64 begin = bpf_ktime_get_ns();

	look_at_charged(LOOK_AT_TICK);
	__sync_fetch_and_add(&device.walks, 1);
	__sync_fetch_and_add(&device.walk_ns, bpf_ktime_get_ns() - begin);
	bpf_timer_start(timer, LOOK_TIMER_NS, 0);
	return 0;
}

static __always_inline int start_timer(__u32 which, __u64 period,
				       int (*callback)(void *, int *, struct bpf_timer *))
{
	struct timer_entry *entry = bpf_map_lookup_elem(&timers, &which);

	if (!entry)
		return -1;
	if (bpf_timer_init(&entry->timer, &timers, CLOCK_MONOTONIC))
		return -2;
	if (bpf_timer_set_callback(&entry->timer, callback))
		return -3;
	return bpf_timer_start(&entry->timer, period, 0);
}

SEC("syscall")
int start_timers(void *ctx)
{
	int error = start_timer(AGEING_TIMER, AGEING_SHORTEST_WALK_NS, walk_flows);

	if (!error && config.read_sockets)
		error = start_timer(LOOK_TIMER, LOOK_TIMER_NS, look_at_tick);
	return error;
}

SEC("syscall")
int look(void *ctx)
{
	if (config.read_sockets)
		look_at_charged(EK_SLOTS);
	return 0;
}
