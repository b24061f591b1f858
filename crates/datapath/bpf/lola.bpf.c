// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * TCP LoLa as a congestion control (struct_ops for tcp_congestion_ops). The algorithm is in
 * evenkeel/lola.h. This program connects the algorithm to the kernel's socket.
 *
 * The kernel keeps programs and maps until the last flow that uses them has ended (net/ipv4/tcp_cong.c,
 * bpf_try_module_get), even after user space has exited.
 */
#include "kernel.h"
#include "evenkeel/datapath.h"
#include "evenkeel/lola.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define TCP_CA_NAME_MAX 16         /* include/net/tcp.h */
#define TCP_CONG_NON_RESTRICTED 1u /* any user and network namespace may choose it */
#define NSEC_PER_USEC 1000

enum tcp_ca_event___lola {
	CA_EVENT_TX_START_LOLA = 0, /* first transmit with no packets in flight */
};

enum tcp_ca_state___lola {
	TCP_CA_CWR_LOLA = 2, /* from here on ssthresh is reduced: CWR, recovery, loss */
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common___lola {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock___lola {
	struct sock_common___lola __sk_common;
};

struct inet_connection_sock {
	__u64 icsk_ca_priv[13];
};

struct tcp_sock___lola {
	__u64 tcp_mstamp;
	__u32 mss_cache;
	__u32 snd_cwnd;
	__u32 snd_cwnd_clamp;
	__u32 snd_ssthresh;
	__u32 prior_cwnd;
	__u32 max_packets_out;
	__u8 is_cwnd_limited : 1;
};

struct ack_sample {
	__u32 pkts_acked;
	__s32 rtt_us;
};

#pragma clang attribute pop

/* The members of the kernel's structure that this program sets. libbpf matches them by name. */
struct tcp_congestion_ops {
	char name[TCP_CA_NAME_MAX];
	__u32 flags;
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 state);
	void (*cwnd_event)(struct sock *sk, int event);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
};

/* User space may change the settings at any time. */
struct ek_lola_settings settings SEC(".data.settings");
struct ek_lola_counters counters SEC(".data.counters");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EK_LOLA_FLOWS);
	__type(key, __u64); /* address of the socket */
	__type(value, struct ek_lola_flow);
} lola_flows SEC(".maps");

#define COUNT(field) __sync_fetch_and_add(&counters.field, 1)

static __always_inline struct ek_lola *flow_of(struct sock *sk)
{
	return (struct ek_lola *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

static __always_inline void read_tuple(struct sock *sk, struct ek_tuple *tuple)
{
	const struct sock_common___lola *common = &((struct sock___lola *)sk)->__sk_common;

	tuple->family = common->skc_family;
	tuple->protocol = IPPROTO_TCP;
	tuple->source_port = common->skc_num;
	tuple->destination_port = bpf_ntohs(common->skc_dport);
	/* Kernels without CONFIG_IPV6 lack these fields. */
	if (tuple->family == AF_INET6 && bpf_core_field_exists(common->skc_v6_daddr)) {
		BPF_CORE_READ_INTO(&tuple->source, common, skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&tuple->destination, common, skc_v6_daddr);
	} else {
		tuple->source[0] = common->skc_rcv_saddr;
		tuple->destination[0] = common->skc_daddr;
	}
}

static __always_inline void publish(struct sock *sk, const struct ek_lola *flow)
{
	const struct tcp_sock___lola *tcp = (struct tcp_sock___lola *)sk;
	__u64 key = (__u64)sk;
	struct ek_lola_flow *seen = bpf_map_lookup_elem(&lola_flows, &key);

	if (!seen)
		return;
	seen->phase = flow->phase;
	seen->cwnd = tcp->snd_cwnd;
	seen->mss = tcp->mss_cache;
	seen->base_rtt_us = flow->rtt_min_us;
	seen->queueing_us = ek_lola_queueing_us(flow);
	seen->losses = flow->losses;
	seen->decreases = flow->decreases;
}

/* Same test as tcp_is_cwnd_limited (include/net/tcp.h). */
static __always_inline int is_limited(const struct tcp_sock___lola *tcp)
{
	if (BPF_CORE_READ_BITFIELD(tcp, is_cwnd_limited))
		return 1;
	return tcp->snd_cwnd < tcp->snd_ssthresh && tcp->snd_cwnd < 2 * tcp->max_packets_out;
}

SEC("struct_ops/lola_init")
void BPF_PROG(lola_init, struct sock *sk)
{
	struct ek_lola_flow seen = {.started_ns = bpf_ktime_get_ns()};
	__u64 key = (__u64)sk;

	ek_lola_init(flow_of(sk), seen.started_ns / NSEC_PER_USEC);
	read_tuple(sk, &seen.tuple);
	COUNT(started);
	if (bpf_map_update_elem(&lola_flows, &key, &seen, BPF_ANY))
		COUNT(unseen);
}

SEC("struct_ops/lola_release")
void BPF_PROG(lola_release, struct sock *sk)
{
	__u64 key = (__u64)sk;

	COUNT(ended);
	bpf_map_delete_elem(&lola_flows, &key);
}

SEC("struct_ops/lola_pkts_acked")
void BPF_PROG(lola_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	__s32 rtt_us = sample->rtt_us;

	/* A negative value means no sample, for example for a retransmitted segment. */
	if (rtt_us >= 0)
		ek_lola_sample(flow_of(sk), &settings, rtt_us, ((struct tcp_sock___lola *)sk)->tcp_mstamp);
}

SEC("struct_ops/lola_cong_avoid")
void BPF_PROG(lola_cong_avoid, struct sock *sk, __u32 ack_sequence, __u32 acked)
{
	struct tcp_sock___lola *tcp = (struct tcp_sock___lola *)sk;
	struct ek_lola *flow = flow_of(sk);
	__u32 phase = flow->phase, decreases = flow->decreases, fresh = flow->fresh;
	struct ek_lola_window window;
	struct ek_lola_ack ack = {
		.now_us = tcp->tcp_mstamp,
		.acked = acked,
		.cwnd = tcp->snd_cwnd,
		.ssthresh = tcp->snd_ssthresh,
		.mss = tcp->mss_cache,
		.limited = is_limited(tcp),
	};

	window = ek_lola_grow(flow, &settings, &ack);
	if (window.cwnd > tcp->snd_cwnd_clamp)
		window.cwnd = tcp->snd_cwnd_clamp;
	tcp->snd_cwnd = window.cwnd;
	tcp->snd_ssthresh = window.ssthresh;
	if (flow->decreases != decreases)
		COUNT(decreases);
	if (fresh || flow->phase != phase)
		publish(sk, flow);
}

/* Returns ssthresh after a loss. `cwnd` is the congestion window before the loss. */
static __always_inline __u32 reduce(struct sock *sk, __u32 cwnd)
{
	struct ek_lola *flow = flow_of(sk);
	__u32 ssthresh = ek_lola_loss(flow, &settings, cwnd, ((struct tcp_sock___lola *)sk)->tcp_mstamp);

	COUNT(losses);
	publish(sk, flow);
	return ssthresh;
}

SEC("struct_ops/lola_ssthresh")
__u32 BPF_PROG(lola_ssthresh, struct sock *sk)
{
	return reduce(sk, ((struct tcp_sock___lola *)sk)->snd_cwnd);
}

/* The kernel calls lola_ssthresh before it enters CWR, recovery or loss. If ssthresh is above the window
 * before the loss, the kernel skipped lola_ssthresh and used an undefined value (see ek_lola_known_cwnd). */
SEC("struct_ops/lola_set_state")
void BPF_PROG(lola_set_state, struct sock *sk, __u8 state)
{
	struct tcp_sock___lola *tcp = (struct tcp_sock___lola *)sk;
	__u32 most = ek_lola_bound(tcp->prior_cwnd, EK_LOLA_MIN_CWND, EK_LOLA_MAX_CWND);

	if (state >= TCP_CA_CWR_LOLA && tcp->snd_ssthresh > most)
		tcp->snd_ssthresh = reduce(sk, tcp->prior_cwnd);
}

SEC("struct_ops/lola_cwnd_event")
void BPF_PROG(lola_cwnd_event, struct sock *sk, int event)
{
	if (event == CA_EVENT_TX_START_LOLA)
		ek_lola_idle_restart(flow_of(sk), &settings, ((struct tcp_sock___lola *)sk)->tcp_mstamp);
}

SEC("struct_ops/lola_undo_cwnd")
__u32 BPF_PROG(lola_undo_cwnd, struct sock *sk)
{
	return ek_lola_undo(flow_of(sk), ((struct tcp_sock___lola *)sk)->snd_cwnd);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops lola = {
	/* User space overwrites the name. */
	.name = "lola",
	.flags = TCP_CONG_NON_RESTRICTED,
	.init = (void *)lola_init,
	.release = (void *)lola_release,
	.ssthresh = (void *)lola_ssthresh,
	.cong_avoid = (void *)lola_cong_avoid,
	.set_state = (void *)lola_set_state,
	.cwnd_event = (void *)lola_cwnd_event,
	.undo_cwnd = (void *)lola_undo_cwnd,
	.pkts_acked = (void *)lola_pkts_acked,
};
