// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Chooses a transmit queue for every segment and keeps each queue's weight true.
 *
 *   select_queue      tcx egress of the managed device: the choice itself
 *   complete_exact    fentry tcp_wfree: a TCP segment has left (where the kernel loads fentry)
 *   complete_at_peer  tcx ingress of a veth peer: the same moment in a test bed, without loss
 *   start_ageing      starts the walk that releases flows no completion ever came for
 *
 * A flow is known by its socket's cookie, and lives in a slot of a table (see datapath.h). "Nothing
 * outstanding" is read from the socket itself (sk_wmem_alloc, what the kernel's own ooo_okay rests on), never
 * counted: a segment dropped in a qdisc corrects the figure by being freed, and nothing can leak.
 */
#include "kernel.h"
#include "packet.h"
#include "evenkeel/datapath.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NO_QUEUE_MAPPING 0xffff /* include/net/sock.h */
#define CLOCK_MONOTONIC 1
/* Ethernet with two VLAN tags, IPv6, TCP with all options: what is longer carries data. */
#define LONGEST_HEADERS (14 + 8 + 40 + 60)

const volatile struct ek_config config = {};

struct ek_device device SEC(".data.device");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);       /* so that slots start on cache lines, too */
	__uint(max_entries, EK_SLOTS_PER_BLOCK); /* the loader sets it */
	__type(key, __u32);
	__type(value, struct ek_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, EK_SLOTS_PER_BLOCK); /* as many as flows */
	__type(key, __u32);
	__type(value, struct ek_flow_detail);
} details SEC(".maps");

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

/* Where the probes for a cookie begin: Fibonacci hashing, since cookies come in runs. */
static __always_inline __u32 home_of(__u64 cookie)
{
	return (cookie * 0x9e3779b97f4a7c15ULL) >> (config.slot_shift & 63);
}

static __always_inline __u32 probe(__u32 home, __u32 step)
{
	__u32 slots_mask = (1U << ((64 - config.slot_shift) & 31)) - 1;

	return (home + step) & slots_mask;
}

/* A flow's slot, looking at this many probes. */
static __always_inline struct ek_flow *find_flow(__u64 cookie, __u32 probes)
{
	__u32 home = home_of(cookie), step;

#pragma unroll
	for (step = 0; step < probes; step++) {
		__u32 key = probe(home, step);
		struct ek_flow *flow = bpf_map_lookup_elem(&flows, &key);

		if (flow && *(volatile __u64 *)&flow->cookie == cookie)
			return flow;
	}
	return 0;
}

/* Takes a free slot for a flow; none if all of its probes are taken.
 *
 * Two cores may send for one socket at the same time (what waited for ARP goes out on the core that
 * got the answer). So a free slot's word says that it is forgotten, from the beginning on: whoever
 * finds the slot before it is ready leaves the word alone. */
static __always_inline struct ek_flow *create_flow(__u64 cookie, const struct ek_tuple *tuple)
{
	__u32 home = home_of(cookie), step;

	for (step = 0; step < EK_PROBES; step++) {
		__u32 key = probe(home, step);
		struct ek_flow *flow = bpf_map_lookup_elem(&flows, &key);
		struct ek_flow_detail *detail = bpf_map_lookup_elem(&details, &key);

		if (!flow || !detail || flow->cookie)
			continue;
		if (__sync_val_compare_and_swap(&flow->cookie, 0, cookie))
			continue;
		flow->weight = 1;
		flow->outstanding = 0;
		detail->tuple = *tuple;
		detail->walked_word = 0;
		detail->quiet_since_ns = bpf_ktime_get_ns();
		__sync_fetch_and_add(&device.occupied[(key / EK_SLOTS_PER_BLOCK) & (EK_MAX_BLOCKS - 1)], 1);
		/* Last: until now the slot's word said that it was forgotten. */
		*(volatile __u64 *)&flow->word = 0;
		return flow;
	}
	return 0;
}

static __always_inline struct ek_pool pool_of_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct ek_pool all = {.count = config.queue_count};

	if (!config.use_pools)
		return all;
	return device.pool[cpu < EK_MAX_CPUS ? cpu : EK_MAX_CPUS - 1];
}

static __always_inline void steer(struct __sk_buff *ctx, __u32 queue)
{
	if (config.steering == EK_STEER_CLASS)
		ctx->priority = config.class_base + queue;
	else if (config.policy == EK_POLICY_DQA)
		/* Offset by one as in skb_record_rx_queue; skb_tx_hash undoes it. */
		ctx->queue_mapping = queue + 1;
}

/* Whether the flow may change queue at this segment, and if not, where the kernel holds it. */
static __always_inline int may_move(const struct sk_buff *skb, const struct sock *sk, int besides,
				    __u32 *held_on)
{
	__u32 held;

	*held_on = EK_NO_QUEUE;
	if (config.steering == EK_STEER_CLASS)
		return besides < WMEM_IDLE;
	held = sk->__sk_common.skc_tx_queue_mapping;
	if (BPF_CORE_READ_BITFIELD(skb, ooo_okay) || held == NO_QUEUE_MAPPING)
		return 1;
	*held_on = held;
	return 0;
}

static __always_inline void note_outstanding(struct ek_flow *flow, const struct sk_buff *skb, int besides)
{
	flow->outstanding = skb->truesize + (besides < 0 ? 0 : (__u32)besides);
}

/* Everything but the common case: a pick, a flow's first segment, a pure ACK, no socket. A function
 * of its own keeps the common case short. */
static __noinline int choose(struct __sk_buff *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct sock *sk = skb->sk;
	struct packet packet = {};
	struct ek_segment segment = {.pool = pool_of_cpu(), .hash = bpf_get_hash_recalc(ctx)};
	struct ek_choice choice;
	struct ek_flow *flow;
	__u64 cookie, before;
	int besides;

	if (segment.pool.count == 0)
		return NEXT_PROGRAM;
	if (!sk || !is_full_socket(sk)) {
		/* Forwarded, or answered without a socket: the kernel's own choice. */
		COUNT(no_socket);
		steer(ctx, ek_hash_queue(segment.hash, segment.pool));
		return NEXT_PROGRAM;
	}
	segment.data = parse_packet(ctx, &packet) && ctx->len > packet.header_length;
	cookie = bpf_get_socket_cookie(ctx);
	flow = find_flow(cookie, EK_PROBES);
	if (!flow && segment.data)
		flow = create_flow(cookie, &packet.tuple);
	if (!flow) {
		if (segment.data)
			COUNT(untracked);
		steer(ctx, ek_hash_queue(segment.hash, segment.pool));
		return NEXT_PROGRAM;
	}

	besides = outstanding_besides(skb, sk);
	segment.policy = config.policy;
	segment.weight = flow->weight;
	segment.idle = may_move(skb, sk, besides, &segment.held_on);
	before = flow->word;
	if (segment.data) {
		if (before & EK_WORD_AGED && !(before & EK_WORD_CHARGED) && besides >= WMEM_IDLE)
			COUNT(false_releases);
		note_outstanding(flow, skb, besides);
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

/* Probes of the common case; choose() looks at all of them. */
#define QUICK_PROBES 2

SEC("tcx/egress")
int select_queue(struct __sk_buff *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct sock *sk = skb->sk;
	struct ek_flow *flow;
	__u64 seen;
	__u32 held_on, idle;
	int besides;

	/* A pure ACK carries no more than headers; what is longer is a segment with data. */
	if (ctx->len <= LONGEST_HEADERS || !sk || !is_full_socket(sk))
		return choose(ctx);
	/* A socket without a cookie matches a free slot, whose word is not charged. */
	flow = find_flow(sk->__sk_common.skc_cookie.counter, QUICK_PROBES);
	if (!flow)
		return choose(ctx);
	seen = *(volatile __u64 *)&flow->word;
	besides = outstanding_besides(skb, sk);
	idle = may_move(skb, sk, besides, &held_on);
	if (!ek_follow(&flow->word, seen, idle, held_on))
		return choose(ctx);
	note_outstanding(flow, skb, besides);
	steer(ctx, EK_WORD_QUEUE(seen));
	return NEXT_PROGRAM;
}

/* A segment of the flow has left: if it was the last one, the flow's weight leaves its queue. The
 * caller has seen nothing else outstanding, which only saves the look-up for most segments. */
static __always_inline void complete(__u64 cookie, const struct sk_buff *skb, const struct sock *sk)
{
	struct ek_flow *flow = find_flow(cookie, EK_PROBES);
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

	if (sk && is_full_socket(sk) && outstanding_besides(skb, sk) < WMEM_IDLE)
		complete(sk->__sk_common.skc_cookie.counter, skb, sk);
	return NEXT_PROGRAM;
}

SEC("?fentry/tcp_wfree")
int BPF_PROG(complete_exact, struct sk_buff *skb)
{
	struct sock *sk = skb->sk;

	if (sk && outstanding_besides(skb, sk) < WMEM_IDLE)
		complete(sk->__sk_common.skc_cookie.counter, skb, sk);
	return 0;
}

struct walk {
	__u64 now;
	__u64 limit;
	__u32 block;
	__u32 active;  /* queues with a backlog */
	__u64 largest; /* backlog of the fullest of them, bytes */
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
	if (seen & EK_WORD_FORGOTTEN) /* being taken right now */
		return 0;
	/* Silence counts from the first walk that saw the word as it is: never too long. */
	if (seen != detail->walked_word) {
		detail->walked_word = seen;
		detail->quiet_since_ns = walk->now;
	}
	quiet = walk->now > detail->quiet_since_ns ? walk->now - detail->quiet_since_ns : 0;
	if (seen & EK_WORD_CHARGED) {
		if (quiet <= walk->limit)
			device.backlog[EK_WORD_QUEUE(seen) & (EK_MAX_QUEUES - 1)] += flow->outstanding;
		else if (ek_release(&flow->word, device.weight, seen, EK_WORD_AGED))
			COUNT(aged);
	} else if (quiet > config.forget_after_ns && ek_forget(&flow->word, seen)) {
		__sync_fetch_and_sub(&device.occupied[walk->block & (EK_MAX_BLOCKS - 1)], 1);
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

/* A flow is released by age after twice the time that the fullest queue needs to drain when all
 * active queues are served in turn, so that nothing still queued is released. */
static int walk_flows(void *map, int *key, struct bpf_timer *timer)
{
	struct walk walk = {.now = bpf_ktime_get_ns(), .limit = device.ageing_limit_ns};
	__u64 rate = config.rate_bps, limit, period;
	__u32 blocks = (1U << ((64 - config.slot_shift) & 31)) / EK_SLOTS_PER_BLOCK;

	if (walk.limit < config.ageing_floor_ns)
		walk.limit = config.ageing_floor_ns;
	bpf_loop(EK_MAX_QUEUES, clear_backlog, &walk, 0);
	bpf_loop(blocks < EK_MAX_BLOCKS ? blocks : EK_MAX_BLOCKS, age_block, &walk, 0);
	bpf_loop(EK_MAX_QUEUES, add_up_backlog, &walk, 0);
	/* The device's own queues may be shaped each by itself: then an idle one's share is lost. */
	if (config.steering == EK_STEER_QUEUE)
		walk.active = config.queue_count;
	/* In KiB, so that no realistic backlog overflows: 8192e9 / rate is ns per KiB. */
	limit = rate ? 2 * walk.active * ((walk.largest >> 10) + 1) * (8192000000000ULL / rate + 1) : 0;
	if (limit < config.ageing_floor_ns)
		limit = config.ageing_floor_ns;
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
