// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Chooses a transmit queue for every segment and keeps each queue's weight true.
 *
 *   select_queue      tcx egress of the managed device: the choice itself
 *   complete_exact    fentry tcp_wfree: a TCP segment has left (where the kernel loads fentry)
 *   complete_at_peer  tcx ingress of a veth peer: the same moment in a test bed, without loss
 *   start_ageing      starts the walk that releases flows no completion ever came for
 *
 * A flow is known by its socket's cookie. "Nothing outstanding" is read from the socket itself
 * (sk_wmem_alloc, what the kernel's own ooo_okay rests on), never counted: a segment dropped in a
 * qdisc corrects the figure by being freed, and nothing can leak.
 */
#include "kernel.h"
#include "packet.h"
#include "evenkeel/datapath.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NO_QUEUE_MAPPING 0xffff /* include/net/sock.h */
#define CLOCK_MONOTONIC 1

struct ek_device device SEC(".data.device");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* the loader may change it */
	__type(key, __u64);
	__type(value, struct ek_flow);
} flows SEC(".maps");

struct ageing {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ageing);
} ageing SEC(".maps");

#define COUNT(field) __sync_fetch_and_add(&device.counters.field, 1)

static __always_inline struct ek_pool pool_of_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return device.pool[cpu < EK_MAX_CPUS ? cpu : EK_MAX_CPUS - 1];
}

static __always_inline void steer(struct __sk_buff *ctx, __u32 queue)
{
	if (device.config.steering == EK_STEER_CLASS)
		ctx->priority = device.config.class_base + queue;
	else if (device.config.policy == EK_POLICY_DQA)
		/* Offset by one as in skb_record_rx_queue; skb_tx_hash undoes it. */
		ctx->queue_mapping = queue + 1;
}

static __always_inline struct ek_flow *find_or_create(__u64 cookie, const struct packet *packet)
{
	struct ek_flow *flow = bpf_map_lookup_elem(&flows, &cookie);
	struct ek_flow created = {};

	if (flow)
		return flow;
	created.weight = 1;
	created.tuple = packet->tuple;
	bpf_map_update_elem(&flows, &cookie, &created, BPF_NOEXIST);
	return bpf_map_lookup_elem(&flows, &cookie);
}

SEC("tcx/egress")
int select_queue(struct __sk_buff *ctx)
{
	struct ek_pool pool = pool_of_cpu();
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct sock *sk = skb->sk;
	struct packet packet = {};
	struct ek_segment segment = {};
	struct ek_choice choice;
	struct ek_flow *flow;
	__u64 cookie, before;
	int besides, parsed;

	__sync_fetch_and_add(&device.counters.segments, 1);
	if (pool.count == 0)
		return NEXT_PROGRAM;
	segment.hash = bpf_get_hash_recalc(ctx);

	if (!sk || !is_full_socket(sk)) {
		/* Forwarded or answered without a socket: the kernel's own choice. */
		COUNT(no_socket);
		steer(ctx, ek_hash_queue(segment.hash, pool));
		return NEXT_PROGRAM;
	}
	parsed = parse_packet(ctx, &packet);
	cookie = bpf_get_socket_cookie(ctx);
	flow = bpf_map_lookup_elem(&flows, &cookie);
	segment.data = parsed && ctx->len > packet.header_length;
	if (!flow && segment.data)
		flow = find_or_create(cookie, &packet);
	if (!flow) {
		if (segment.data)
			COUNT(untracked);
		steer(ctx, ek_hash_queue(segment.hash, pool));
		return NEXT_PROGRAM;
	}

	besides = outstanding_besides(skb, sk);
	segment.pool = pool;
	segment.policy = device.config.policy;
	segment.weight = flow->weight;
	segment.held_on = EK_NO_QUEUE;
	if (device.config.steering == EK_STEER_QUEUE) {
		__u32 held = sk->__sk_common.skc_tx_queue_mapping;

		segment.idle = BPF_CORE_READ_BITFIELD(skb, ooo_okay) || held == NO_QUEUE_MAPPING;
		if (!segment.idle)
			segment.held_on = held;
	} else {
		segment.idle = besides < WMEM_IDLE;
	}

	before = flow->word;
	if (segment.data) {
		COUNT(data_segments);
		if (before & EK_WORD_AGED && !(before & EK_WORD_CHARGED) && besides >= WMEM_IDLE)
			COUNT(false_releases);
		flow->last_ns = bpf_ktime_get_ns();
		flow->outstanding = besides < 0 ? skb->truesize : (__u32)besides + skb->truesize;
		/* One socket sends on one core at a time; a shared UDP socket may lose a count. */
		flow->segments += 1;
		flow->bytes += ctx->len;
	}
	choice = ek_choose(&flow->word, device.weight, &segment);
	switch (choice.outcome) {
	case EK_PICKED:
		COUNT(picks);
		if (before & EK_WORD_ASSIGNED && EK_WORD_QUEUE(before) != choice.queue)
			COUNT(moves);
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
	steer(ctx, choice.queue);
	return NEXT_PROGRAM;
}

/* A segment of the flow has left: if it was the last one, the flow's weight leaves its queue. */
static __always_inline void complete(__u64 cookie, const struct sk_buff *skb, const struct sock *sk)
{
	struct ek_flow *flow = bpf_map_lookup_elem(&flows, &cookie);
	__u64 seen;

	if (!flow)
		return;
	/* The word first: a segment sent after this line makes the release fail. */
	seen = *(volatile __u64 *)&flow->word;
	if (!(seen & EK_WORD_CHARGED) || outstanding_besides(skb, sk) >= WMEM_IDLE)
		return;
	if (ek_release(&flow->word, device.weight, seen, 0))
		COUNT(completed);
}

SEC("tcx/ingress")
int complete_at_peer(struct __sk_buff *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct sock *sk = skb->sk;

	if (sk && is_full_socket(sk))
		complete(bpf_get_socket_cookie(ctx), skb, sk);
	return NEXT_PROGRAM;
}

SEC("?fentry/tcp_wfree")
int BPF_PROG(complete_exact, struct sk_buff *skb)
{
	struct sock *sk = skb->sk;

	if (sk)
		complete(bpf_get_socket_cookie(sk), skb, sk);
	return 0;
}

struct walk {
	__u64 now;
	__u64 limit;
};

static long age_flow(void *map, __u64 *cookie, struct ek_flow *flow, struct walk *walk)
{
	__u64 seen = *(volatile __u64 *)&flow->word;
	__u64 last = *(volatile __u64 *)&flow->last_ns;
	__u64 silent = walk->now > last ? walk->now - last : 0;

	if (!(seen & EK_WORD_CHARGED)) {
		if (silent > device.config.forget_after_ns)
			bpf_map_delete_elem(map, cookie);
		return 0;
	}
	if (silent > walk->limit) {
		if (ek_release(&flow->word, device.weight, seen, EK_WORD_AGED))
			COUNT(aged);
		return 0;
	}
	device.backlog[EK_WORD_QUEUE(seen) & (EK_MAX_QUEUES - 1)] += flow->outstanding;
	return 0;
}

#define AGEING_SHORTEST_WALK_NS (1000 * 1000ULL)
#define AGEING_LONGEST_WALK_NS (100 * 1000 * 1000ULL)

/* A flow is released by age after twice the time that the fullest queue needs to drain when all
 * active queues are served in turn, so that nothing still queued is released. */
static int walk_flows(void *map, int *key, struct bpf_timer *timer)
{
	struct walk walk = {.now = bpf_ktime_get_ns(), .limit = device.ageing_limit_ns};
	__u64 largest = 0, active = 0, rate = device.config.rate_bps, limit, period;
	__u32 i;

	if (walk.limit < device.config.ageing_floor_ns)
		walk.limit = device.config.ageing_floor_ns;
	for (i = 0; i < EK_MAX_QUEUES; i++)
		*(volatile __u64 *)&device.backlog[i] = 0; /* volatile: BPF has no memset to call */
	bpf_for_each_map_elem(&flows, age_flow, &walk, 0);
	for (i = 0; i < EK_MAX_QUEUES; i++) {
		__u64 backlog = device.backlog[i];

		if (backlog == 0)
			continue;
		active++;
		if (backlog > largest)
			largest = backlog;
	}
	/* In KiB, so that no realistic backlog overflows: 8192e9 / rate is ns per KiB. */
	limit = rate ? 2 * active * ((largest >> 10) + 1) * (8192000000000ULL / rate + 1) : 0;
	if (limit < device.config.ageing_floor_ns)
		limit = device.config.ageing_floor_ns;
	/* Never shrink at once: what was queued a moment ago is still draining. */
	if (limit < device.ageing_limit_ns)
		limit = device.ageing_limit_ns - (device.ageing_limit_ns - limit) / 8;
	device.ageing_limit_ns = limit;
	device.ageing_walks++;

	period = limit / 4;
	if (period < AGEING_SHORTEST_WALK_NS)
		period = AGEING_SHORTEST_WALK_NS;
	if (period > AGEING_LONGEST_WALK_NS)
		period = AGEING_LONGEST_WALK_NS;
	bpf_timer_start(timer, period, 0);
	return 0;
}

SEC("syscall")
int start_ageing(void *ctx)
{
	__u32 key = 0;
	struct ageing *entry = bpf_map_lookup_elem(&ageing, &key);

	if (!entry)
		return -1;
	if (bpf_timer_init(&entry->timer, &ageing, CLOCK_MONOTONIC))
		return -2;
	if (bpf_timer_set_callback(&entry->timer, walk_flows))
		return -3;
	return bpf_timer_start(&entry->timer, AGEING_SHORTEST_WALK_NS, 0);
}
