// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Receive steering in software: chooses the CPU that processes a packet.
 *
 * The target of a packet is the first of these:
 * - the target of its flow, in a slot
 * - the target of the first matching class
 * - the entry of the indirection table for its Toeplitz hash, as with RSS
 *
 * The program sends the packet to the target's ring (a CPU map). A thread on that CPU reads the ring.
 *
 * Before a flow with a slot moves, it stays on its CPU until the old ring has none of its packets, so that
 * packets stay in order. After `hold_ns` it moves in any case, and this is counted. Sequence numbers count
 * the packets into and out of each ring, so no work per flow is needed when a packet leaves a ring.
 */
#include "kernel.h"
#include "packet.h"
#include "evenkeel/steer.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile struct ek_steer_config config = {};

struct ek_steer steer SEC(".data.steer");

/* XOR contribution of each input byte, by position and value: the Toeplitz hash is linear. */
__u32 toeplitz[EK_STEER_HASH_INPUT][256] SEC(".data.toeplitz");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1); /* set by the loader: number of possible CPUs */
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct bpf_cpumap_val));
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EK_STEER_SLOTS);
	__type(key, struct ek_tuple);
	__type(value, __u32); /* index of the flow's slot */
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, EK_STEER_SLOTS);
	__type(key, __u32);
	__type(value, struct ek_steer_slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set by the loader: number of possible CPUs */
	__type(key, __u32);
	__type(value, struct ek_steer_cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, EK_STEER_SEEN);
	__type(key, struct ek_tuple);
	__type(value, struct ek_steer_seen);
} seen SEC(".maps");

#define CHUNK 256

/* Buffer for a part of a packet. The checksum covers whole 32-bit words, so there is room for padding. */
struct chunk {
	__u8 bytes[CHUNK + 4];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct chunk);
} chunks SEC(".maps");

struct frame {
	struct packet packet;
	__u8 input[EK_STEER_HASH_INPUT + 4]; /* input of the hash, padded to words of 8 bytes */
	__u32 input_length;
	__u32 partial; /* the checksum field holds only the sum of the pseudo header */
	__u32 end;     /* end of the checksummed bytes */
	__u32 check;   /* offset of the checksum field */
};

static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u32)sum;
}

/* Parses a packet, and computes the input of the hash and the state of the checksum. Returns 0 if
 * parse_frame returns 0, and for these packets:
 * - a first fragment: it must go to the same CPU as the fragments that follow
 * - a packet whose destination address is not that of its flow: the checksum includes an address that is not
 *   read (RFC 8200, section 8.1) */
static __always_inline int parse_steered(struct xdp_md *ctx, struct frame *frame)
{
	struct bytes bytes = {.begin = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end};
	struct packet *packet = &frame->packet;
	struct ek_tuple *tuple = &packet->tuple;
	__be16 ports[2];
	__u64 pseudo = 0;
	__u32 i;

	if (!parse_frame(&bytes, packet) || packet->is_first_fragment || packet->is_source_routed)
		return 0;
	ports[0] = bpf_htons(tuple->source_port);
	ports[1] = bpf_htons(tuple->destination_port);
	if (tuple->family == AF_INET) {
		__builtin_memcpy(frame->input, tuple->source, 4);
		__builtin_memcpy(frame->input + 4, tuple->destination, 4);
		__builtin_memcpy(frame->input + 8, ports, 4);
		frame->input_length = 12;
	} else {
		__builtin_memcpy(frame->input, tuple->source, 16);
		__builtin_memcpy(frame->input + 16, tuple->destination, 16);
		__builtin_memcpy(frame->input + 32, ports, 4);
		frame->input_length = 36;
	}
	/* Sum the pseudo header (RFC 9293, section 3.1; RFC 8200, section 8.1). Unused words are 0. */
#pragma unroll
	for (i = 0; i < 4; i++)
		pseudo += (__u64)tuple->source[i] + tuple->destination[i];
	pseudo += bpf_htonl(packet->transport_length);
	pseudo += bpf_htonl(tuple->protocol);
	frame->partial = fold(pseudo) == packet->check;
	frame->end = packet->transport + packet->transport_length;
	frame->check = packet->transport + (tuple->protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check)
									   : offsetof(struct udphdr, check));
	return 1;
}

/* Completes a checksum that a sender on this host left to the device. The kernel marks such a packet as
 * valid, but a ring loses the mark, so the packet would fail the check.
 * The checksum field holds the sum of the pseudo header. The checksum is the one's complement of the
 * sum of this value and the rest. If a complete checksum equals the sum of the pseudo header by chance,
 * the result is the same checksum. */
static __always_inline int finish_checksum(struct xdp_md *ctx, const struct frame *frame)
{
	__u32 key = 0, offset = frame->packet.transport, end = frame->end, i, length;
	struct chunk *chunk = bpf_map_lookup_elem(&chunks, &key);
	void *data, *data_end;
	__be16 *field;
	__s64 sum = 0;

	if (!chunk)
		return 0;
	for (i = 0; i <= 65536 / CHUNK; i++) {
		if (offset >= end)
			break;
		length = end - offset;
		/* Make the verifier aware of the bound that the compiler has already used. */
		asm volatile("" : "+r"(length));
		if (!length)
			break;
		if (length > CHUNK)
			length = CHUNK;
		chunk->bytes[length] = chunk->bytes[length + 1] = chunk->bytes[length + 2] = 0;
		if (bpf_xdp_load_bytes(ctx, offset, chunk->bytes, length))
			return 0;
		sum = bpf_csum_diff(0, 0, (__be32 *)chunk->bytes, (length + 3) & ~3U, (__u32)sum);
		if (sum < 0)
			return 0;
		offset += length;
	}
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	if (frame->check > 200)
		return 0;
	field = data + frame->check;
	if ((void *)(field + 1) > data_end)
		return 0;
	/* A UDP checksum of 0 would mean "no checksum" (RFC 768). */
	sum = (__u16)~fold(sum);
	*field = sum ? (__be16)sum : (__be16)0xffff;
	return 1;
}

static __always_inline __u32 hash_of(const struct frame *frame)
{
	__u32 hash = 0, i;

	for (i = 0; i < 12; i++)
		hash ^= toeplitz[i][frame->input[i]];
	if (frame->input_length == 12)
		return hash;
	for (i = 12; i < EK_STEER_HASH_INPUT; i++)
		hash ^= toeplitz[i][frame->input[i]];
	return hash;
}

static __always_inline int matches(const struct ek_steer_class *rule, const struct ek_tuple *tuple)
{
	__u32 differs = 0, i;

	if (rule->family && rule->family != tuple->family)
		return 0;
	if (rule->protocol && rule->protocol != tuple->protocol)
		return 0;
#pragma unroll
	for (i = 0; i < 4; i++) {
		differs |= (tuple->source[i] ^ rule->source[i]) & rule->source_mask[i];
		differs |= (tuple->destination[i] ^ rule->destination[i]) & rule->destination_mask[i];
	}
	differs |= (tuple->source_port ^ rule->source_port) & rule->source_port_mask;
	differs |= (tuple->destination_port ^ rule->destination_port) & rule->destination_port_mask;
	return !differs;
}

/* Returns the target by the first matching class, else by the indirection table. */
static __always_inline __u32 by_rules(const struct ek_tuple *tuple, __u32 hash)
{
	struct ek_steer_rules *rules = &steer.rules[steer.active & 1];
	__u32 count = rules->class_count, i;

	for (i = 0; i < EK_STEER_CLASSES; i++) {
		struct ek_steer_class *rule = &rules->class_[i];
		__u32 targets;

		if (i >= count)
			break;
		targets = rule->target_count;
		if (!targets || !matches(rule, tuple))
			continue;
		return rule->target[hash % targets & (EK_STEER_CLASS_TARGETS - 1)];
	}
	return rules->indirection[hash & (EK_STEER_INDIRECTION - 1)];
}

static __always_inline struct ek_steer_cpu *cpu_of(__u32 number)
{
	return bpf_map_lookup_elem(&cpus, &number);
}

/* Returns whether the flow has no packet in transit to its CPU. */
static __always_inline int has_drained(const struct ek_steer_slot *slot, __u64 now)
{
	struct ek_steer_cpu *cpu;
	__s64 ahead;

	if (slot->current >= EK_STEER_NEW)
		return 1;
	cpu = cpu_of(slot->current);
	if (!cpu)
		return 1;
	ahead = (__s64)(cpu->dequeued + cpu->lost - slot->sequence);
	/* The thread may still process the last batch that it took from the ring. The batch is done
	 * when the thread takes the next batch. */
	if (ahead >= EK_STEER_BATCH)
		return 1;
	/* Compare signed values: two CPUs that receive packets of the flow may have read the clock in either
	 * order. */
	return ahead >= 0 && (__s64)(now - slot->last_ns) >= (__s64)config.settle_ns;
}

/* Returns the target of a packet of the flow: `wanted`, or the present target while the flow waits for its
 * old ring. */
static __always_inline __u32 move(struct ek_steer_slot *slot, __u32 wanted, __u64 now,
				  struct ek_steer_cpu *here)
{
	int drained = has_drained(slot, now);
	/* Read once: another CPU that receives packets of the flow may end the wait at the same time. */
	__u64 since = *(volatile __u64 *)&slot->waiting_ns;

	if (!since) {
		since = now;
		slot->waiting_ns = now;
	}
	if (!drained && (__s64)(now - since) < (__s64)config.hold_ns) {
		here->held += 1;
		return slot->current;
	}
	slot->forced += !drained;
	slot->moves += 1;
	slot->waiting_ns = 0;
	slot->current = wanted;
	return wanted;
}

static __always_inline void remember(const struct ek_tuple *tuple, __u64 bytes, __u64 now)
{
	struct ek_steer_seen *known = bpf_map_lookup_elem(&seen, tuple), first = {};

	if (known) {
		__sync_fetch_and_add(&known->packets, 1);
		__sync_fetch_and_add(&known->bytes, bytes);
		known->last_ns = now;
		return;
	}
	first.packets = 1;
	first.bytes = bytes;
	first.last_ns = now;
	bpf_map_update_elem(&seen, tuple, &first, BPF_NOEXIST);
}

SEC("xdp.frags")
int steer_packet(struct xdp_md *ctx)
{
	struct ek_steer_cpu *here = cpu_of(bpf_get_smp_processor_id()), *there;
	__u64 now = bpf_ktime_get_ns(), bytes = bpf_xdp_get_buff_len(ctx), sequence;
	struct ek_steer_slot *slot = 0;
	__u32 *index, hash, target;
	struct frame frame = {};
	long verdict;

	if (!here) {
		__sync_fetch_and_add(&steer.unmapped, 1);
		return XDP_PASS;
	}
	here->received += 1;
	here->bytes += bytes;
	if (!parse_steered(ctx, &frame)) {
		here->other += 1;
		return XDP_PASS;
	}
	hash = hash_of(&frame);
	target = by_rules(&frame.packet.tuple, hash);
	index = bpf_map_lookup_elem(&flows, &frame.packet.tuple);
	if (index)
		slot = bpf_map_lookup_elem(&slots, index);
	if (slot) {
		/* Until now, the packets of the flow followed the rules. */
		if (slot->current == EK_STEER_NEW) {
			there = cpu_of(target);
			slot->sequence = there ? there->enqueued : 0;
			slot->current = target;
		}
		if (slot->wanted != EK_STEER_BY_DEFAULT)
			target = slot->wanted;
		if (target != slot->current)
			target = move(slot, target, now, here);
		else
			slot->waiting_ns = 0;
		__sync_fetch_and_add(&slot->packets, 1);
		__sync_fetch_and_add(&slot->bytes, bytes);
		slot->last_ns = now;
	} else {
		here->without_slot += 1;
		remember(&frame.packet.tuple, bytes, now);
	}

	if (target == EK_STEER_STAY)
		return XDP_PASS;
	if (frame.partial) {
		here->partial += 1;
		if (!finish_checksum(ctx, &frame)) {
			here->refused += 1;
			return XDP_PASS;
		}
	}
	if (config.pass)
		return XDP_PASS;
	there = cpu_of(target);
	if (!there) {
		here->refused += 1;
		return XDP_PASS;
	}
	verdict = bpf_redirect_map(&rings, target, XDP_PASS);
	if (verdict != XDP_REDIRECT) {
		here->refused += 1;
		return XDP_PASS;
	}
	/* Count before sending, so that a move waits for this packet. */
	sequence = __sync_fetch_and_add(&there->enqueued, 1) + 1;
	if (slot)
		slot->sequence = sequence;
	return XDP_REDIRECT;
}

SEC("xdp.frags/cpumap")
int take_packet(struct xdp_md *ctx)
{
	struct ek_steer_cpu *here = cpu_of(bpf_get_smp_processor_id());

	/* Only the ring's thread writes this counter. */
	if (here)
		here->dequeued += 1;
	return XDP_PASS;
}
