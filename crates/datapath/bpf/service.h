/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Service balancing: reads the service of each flow, and holds a backlogged flow back until it may
 * change its queue. Part of queue_select.bpf.c, whose maps it uses.
 *
 * The kernel lets a socket change its queue when it has nothing outstanding (ooo_okay). A backlogged
 * TCP flow rarely reaches this state, because it sends at each completion. So this program holds the
 * flow back until its queued segments have left. The program reduces the window in arriving
 * acknowledgements to the data in flight, rounded down to the unit of the window scale. Then the flow
 * may send no more.
 *
 * The program changes an acknowledgement only while data is in flight and segments are queued. So
 * another acknowledgement always follows and opens the window. If user space exits, the kernel detaches
 * the program or the hold expires, and the next acknowledgement also opens the window. */
#ifndef EVENKEEL_SERVICE_H
#define EVENKEEL_SERVICE_H

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, EK_MAX_SERVICES);
	__type(key, __u32);
	__type(value, struct ek_service);
} services SEC(".maps");

struct tcp_state {
	__u32 next_sequence;
	__u32 window_scale;
	int below; /* bytes below the socket */
};

/* Reads a socket. Returns whether it could be read and still has this cookie. */
static __always_inline int read_tcp_state(__u64 address, __u64 cookie, struct tcp_state *state)
{
	const struct tcp_sock *tcp = (const struct tcp_sock *)address;
	const struct sock *sk = (const struct sock *)address;
	__u64 found = 0;

	if (BPF_CORE_READ_INTO(&state->below, sk, sk_wmem_alloc.refs.counter) ||
	    BPF_CORE_READ_INTO(&state->next_sequence, tcp, snd_nxt))
		return 0;
	state->window_scale = BPF_CORE_READ_BITFIELD_PROBED(tcp, rx_opt.snd_wscale);
	/* Read the cookie last: if the memory now belongs to another socket, the cookie differs. */
	return !BPF_CORE_READ_INTO(&found, sk, __sk_common.skc_cookie.counter) && found == cookie;
}

static __always_inline int same_tuple(const struct ek_tuple *left, const struct ek_tuple *right)
{
	const __u64 *one = (const __u64 *)left, *other = (const __u64 *)right;
	__u64 difference = 0;
	int index;

#pragma unroll
	for (index = 0; index < (int)(sizeof(*left) / 8); index++)
		difference |= one[index] ^ other[index];
	return !difference;
}

/* Returns the queue to which user space wants to move the flow, or EK_NO_QUEUE. */
static __always_inline __u32 wanted_queue(__u64 cookie)
{
	if (*(volatile __u32 *)&device.flow_move.state != EK_MOVE_WANTED || device.flow_move.cookie != cookie)
		return EK_NO_QUEUE;
	return device.flow_move.queue;
}

static __always_inline void moved_as_wanted(void)
{
	device.flow_move.done_ns = bpf_ktime_get_ns();
	__sync_val_compare_and_swap(&device.flow_move.state, EK_MOVE_WANTED, EK_MOVE_DONE);
}

SEC("?tcx/ingress")
int hold_back(struct __sk_buff *ctx)
{
	struct packet packet = {};
	struct tcp_state state = {};
	struct tcphdr tcp;
	__u32 in_flight, window;
	__be16 advertised;

	if (*(volatile __u32 *)&device.flow_move.state != EK_MOVE_WANTED ||
	    bpf_ktime_get_ns() > device.flow_move.deadline_ns)
		return NEXT_PROGRAM;
	if (!parse_packet(ctx, &packet) || !same_tuple(&packet.tuple, &device.flow_move.reply) ||
	    bpf_skb_load_bytes(ctx, packet.transport, &tcp, sizeof(tcp)) || !tcp.ack || tcp.syn || tcp.rst)
		return NEXT_PROGRAM;
	if (!read_tcp_state(device.flow_move.socket, device.flow_move.cookie, &state))
		return NEXT_PROGRAM;
	in_flight = state.next_sequence - bpf_ntohl(tcp.ack_seq);
	/* The flow may move now: its next segment will use the new queue. */
	if ((__s32)in_flight <= 0 || state.below - WMEM_BIAS < WMEM_IDLE)
		return NEXT_PROGRAM;
	window = in_flight >> (state.window_scale & 15);
	/* A zero window would make the sender probe. */
	if (!window)
		window = 1;
	if (window >= bpf_ntohs(tcp.window))
		return NEXT_PROGRAM;
	advertised = bpf_htons(window);
	if (bpf_l4_csum_replace(ctx, packet.transport + offsetof(struct tcphdr, check), tcp.window,
				advertised, sizeof(advertised)))
		return NEXT_PROGRAM;
	bpf_skb_store_bytes(ctx, packet.transport + offsetof(struct tcphdr, window), &advertised,
			    sizeof(advertised), 0);
	if (!device.flow_move.first_ns)
		device.flow_move.first_ns = bpf_ktime_get_ns();
	device.flow_move.windows++;
	return NEXT_PROGRAM;
}

/* Returns whether the connection's segments are unsigned. A changed window would invalidate a signature (RFC
 * 2385, RFC 5925). */
static __always_inline int is_unsigned(const struct tcp_sock *tcp)
{
	void *signs = 0;

	if (bpf_core_field_exists(tcp->md5sig_info))
		signs = BPF_CORE_READ(tcp, md5sig_info);
	if (!signs && bpf_core_field_exists(tcp->ao_info))
		signs = BPF_CORE_READ(tcp, ao_info);
	return !signs;
}

/* Reads the state of a TCP flow's socket; does nothing if the socket is gone. */
static __always_inline void read_socket(struct ek_service *service)
{
	const struct tcp_sock *tcp = (const struct tcp_sock *)service->socket;
	const struct sock *sk = (const struct sock *)service->socket;
	__u32 written = 0, sent = 0;
	__u16 held_on = NO_QUEUE_MAPPING;
	__u64 acknowledged = 0, cookie = 0;
	int is_signed = !is_unsigned(tcp);

	if (BPF_CORE_READ_INTO(&acknowledged, tcp, bytes_acked) ||
	    BPF_CORE_READ_INTO(&written, tcp, write_seq) || BPF_CORE_READ_INTO(&sent, tcp, snd_nxt) ||
	    BPF_CORE_READ_INTO(&held_on, sk, __sk_common.skc_tx_queue_mapping) ||
	    BPF_CORE_READ_INTO(&cookie, sk, __sk_common.skc_cookie.counter) || cookie != service->cookie)
		return;
	service->acknowledged_bytes = acknowledged;
	service->flags = EK_SERVICE_KNOWN;
	if ((__s32)(written - sent) > 0)
		service->flags |= EK_SERVICE_BACKLOGGED;
	if (!is_signed)
		service->flags |= EK_SERVICE_MOVABLE;
	if (held_on != NO_QUEUE_MAPPING)
		service->queue = held_on;
}

/* Returns the flow at a position of the charged list, with its details; 0 if the entry is not in use. */
static __always_inline struct ek_flow *charged_flow(__u32 index, struct ek_flow_detail **detail, __u32 *slot)
{
	__u32 position = (device.charged_tail + index) & (EK_SLOTS - 1), *entry;
	struct ek_flow *flow;

	entry = bpf_map_lookup_elem(&charged, &position);
	if (!entry || !*(volatile __u32 *)entry)
		return 0;
	*slot = *entry - 1;
	flow = bpf_map_lookup_elem(&flows, slot);
	*detail = bpf_map_lookup_elem(&details, slot);
	return *detail ? flow : 0;
}

/* Returns whether a flow has data outstanding. `word` is the flow's word, read once by the caller. */
static __always_inline int is_outstanding(const struct ek_flow *flow, const struct ek_flow_detail *detail,
					  __u64 word)
{
	return word & EK_WORD_CHARGED && !(flow->socket ? socket_is_idle(flow) : is_silent(detail));
}

static long read_service_of(__u32 index, void *context)
{
	struct ek_flow_detail *detail;
	struct ek_service *service;
	struct ek_flow *flow;
	__u32 slot, number;
	__u64 seen;

	flow = charged_flow(index, &detail, &slot);
	if (!flow)
		return 0;
	number = device.services;
	service = bpf_map_lookup_elem(&services, &number);
	if (!service)
		return 1;
	seen = *(volatile __u64 *)&flow->word;
	if (!is_outstanding(flow, detail, seen))
		return 0;
	service->cookie = flow->cookie;
	service->socket = flow->socket;
	service->acknowledged_bytes = 0;
	service->slot = slot;
	service->queue = EK_WORD_QUEUE(seen);
	service->weight = EK_WORD_WEIGHT(seen);
	service->flags = EK_SERVICE_BACKLOGGED;
	if (flow->socket && detail->tuple.protocol == IPPROTO_TCP)
		read_socket(service);
	device.services++;
	return 0;
}

/* Reads the service of up to EK_MAX_SERVICES flows with data outstanding. Returns 1 if another scan holds
 * the lock. */
SEC("?syscall")
int read_service(void *ctx)
{
	__u32 count;

	if (__sync_val_compare_and_swap(&device.look_lock, 0, 1))
		return 1;
	device.services = 0;
	count = *(volatile __u32 *)&device.charged_head - device.charged_tail;
	bpf_loop(count < EK_SLOTS ? count : EK_SLOTS, read_service_of, 0, 0);
	__sync_val_compare_and_swap(&device.look_lock, 1, 0);
	return 0;
}

static long clear_busy(__u32 queue, void *context)
{
	device.busy[queue & (EK_MAX_QUEUES - 1)] = 0;
	return 0;
}

static long count_if_busy(__u32 index, void *context)
{
	struct ek_flow_detail *detail;
	struct ek_flow *flow;
	__u32 slot;
	__u64 seen;

	flow = charged_flow(index, &detail, &slot);
	if (!flow)
		return 0;
	seen = *(volatile __u64 *)&flow->word;
	if (is_outstanding(flow, detail, seen))
		device.busy[EK_WORD_QUEUE(seen) & (EK_MAX_QUEUES - 1)] += EK_WORD_WEIGHT(seen);
	return 0;
}

/* Sums the weights of the flows with data outstanding on each queue. Releases no flow, because an observer
 * must not make flows pick again. Returns 1 if another scan holds the lock. */
SEC("syscall")
int count_busy(void *ctx)
{
	__u32 count;

	if (__sync_val_compare_and_swap(&device.look_lock, 0, 1))
		return 1;
	bpf_loop(EK_MAX_QUEUES, clear_busy, 0, 0);
	count = *(volatile __u32 *)&device.charged_head - device.charged_tail;
	bpf_loop(count < EK_SLOTS ? count : EK_SLOTS, count_if_busy, 0, 0);
	__sync_val_compare_and_swap(&device.look_lock, 1, 0);
	return 0;
}

#endif /* EVENKEEL_SERVICE_H */
