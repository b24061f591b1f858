// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Counts each flow's bytes and packets on the wire in short time bins, at the receiver (tcx ingress) or at
 * the sender (tcx egress). The programs run in the path of the packet. So they miss no packet, unlike a
 * tracepoint program.
 */
#include "kernel.h"
#include "packet.h"
#include "evenkeel/datapath.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* No row. The number exceeds the number of entries of every map. */
#define NO_ROW 0xffffffff

struct ek_meter meter SEC(".data.meter");

/* The row of each flow. The counts are in arrays that user space maps, so that it reads the counts
 * without a system call. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096); /* set by the loader */
	__type(key, struct ek_tuple);
	__type(value, __u32);
} metered SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4096); /* set by the loader */
	__type(key, __u32);
	__type(value, struct ek_metered_flow);
} rows SEC(".maps");

/* The flow of each row. The program writes each entry once. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4096); /* set by the loader */
	__type(key, __u32);
	__type(value, struct ek_tuple);
} names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set by the loader: flows times bins */
	__type(key, __u32);
	__type(value, struct ek_bin);
} bins SEC(".maps");

/* Returns the row of a flow, and allocates one for a new flow. Returns NO_ROW if all rows are in use. */
static __always_inline __u32 row_of(const struct ek_tuple *tuple, __u64 now)
{
	__u32 *known = bpf_map_lookup_elem(&metered, tuple), index;
	struct ek_metered_flow *flow;
	struct ek_tuple *name;

	if (known)
		return *known;
	if (meter.next_index >= meter.flows)
		return NO_ROW;
	index = __sync_fetch_and_add(&meter.next_index, 1);
	flow = bpf_map_lookup_elem(&rows, &index);
	name = bpf_map_lookup_elem(&names, &index);
	if (!flow || !name)
		return NO_ROW;
	*name = *tuple;
	flow->first_ns = now;
	/* An atomic exchange is ordered: a reader that sees the flag also sees the tuple. */
	__sync_lock_test_and_set(&flow->is_named, 1);
	/* If two CPUs insert the same flow at the same time, both CPUs count in the first row, and the
	 * second row stays empty. */
	bpf_map_update_elem(&metered, tuple, &index, BPF_NOEXIST);
	known = bpf_map_lookup_elem(&metered, tuple);
	return known ? *known : NO_ROW;
}

/* Counts a packet. `queue` is the transmit queue of the packet, or NO_QUEUE_MAPPING. */
static __always_inline int count_packet(struct __sk_buff *ctx, __u32 queue)
{
	__u64 now = bpf_ktime_get_ns(), bin;
	struct packet packet = {};
	struct ek_metered_flow *flow;
	struct ek_bin *slot;
	__u32 packets, bytes, payload, key, row;

	if (!parse_packet(ctx, &packet))
		return NEXT_PROGRAM;
	packets = ctx->gso_segs ? ctx->gso_segs : 1;
	row = row_of(&packet.tuple, now);
	flow = bpf_map_lookup_elem(&rows, &row);
	if (!flow) {
		__sync_fetch_and_add(&meter.overflow, packets);
		return NEXT_PROGRAM;
	}

	bytes = ctx->len + (packets - 1) * packet.header_length;
	payload = ctx->len > packet.header_length ? ctx->len - packet.header_length : 0;
	__sync_fetch_and_add(&flow->bytes, bytes);
	__sync_fetch_and_add(&flow->packets, packets);
	__sync_fetch_and_add(&flow->payload_bytes, payload);
	flow->last_ns = now;
	flow->queue_mapping = queue;
	if (payload && packet.tuple.protocol == IPPROTO_TCP) {
		/* Sequence number arithmetic (RFC 9293): a negative difference means that a later part of
		 * the stream has already passed. */
		if (flow->next_sequence && (__s32)(packet.sequence - flow->next_sequence) < 0)
			__sync_fetch_and_add(&flow->out_of_order, packets);
		else
			flow->next_sequence = packet.sequence + payload;
	}

	if (!meter.start_ns || now < meter.start_ns || !meter.bin_ns)
		return NEXT_PROGRAM;
	bin = (now - meter.start_ns) / meter.bin_ns;
	if (bin >= meter.bins)
		return NEXT_PROGRAM;
	key = row * meter.bins + (__u32)bin;
	slot = bpf_map_lookup_elem(&bins, &key);
	if (slot) {
		__sync_fetch_and_add(&slot->bytes, bytes);
		__sync_fetch_and_add(&slot->packets, packets);
	}
	return NEXT_PROGRAM;
}

SEC("tcx/ingress")
int count(struct __sk_buff *ctx)
{
	/* Behind a veth, queue_mapping is still the sender's transmit queue. A veth records no receive
	 * queue, which would be offset by one (drivers/net/veth.c since Linux 5.17). */
	return count_packet(ctx, ctx->queue_mapping);
}

/* Counts a packet on egress, with the queue that the socket has recorded for its last packet. The kernel
 * picks the queue after this program, and usually keeps the recorded queue while the socket has data
 * outstanding (netdev_pick_tx). */
SEC("tcx/egress")
int count_sent(struct __sk_buff *ctx)
{
	struct sk_buff *skb = KERNEL_SKB(ctx);
	struct sock *sk = KERNEL_READ(skb, sk);
	__u32 queue = NO_QUEUE_MAPPING;

	if (sk && is_full_socket(sk))
		queue = KERNEL_READ(sk, __sk_common.skc_tx_queue_mapping);
	return count_packet(ctx, queue);
}
