/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The kernel fields that the programs read. CO-RE relocates every access to the running kernel's
 * layout, so no full vmlinux.h is needed, and an object is not tied to the layout of one kernel. */
#ifndef EVENKEEL_KERNEL_H
#define EVENKEEL_KERNEL_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

#define AF_INET 2
#define AF_INET6 10

/* include/net/tcp_states.h */
#define TCP_TIME_WAIT 6
#define TCP_NEW_SYN_RECV 12

/* TCX_NEXT, and TC_ACT_UNSPEC for cls_bpf: continue with the next program. Headers before Linux 6.6 do not
 * define TCX_NEXT. */
#define NEXT_PROGRAM (-1)

/* The socket has no recorded queue (include/net/sock.h). */
#define NO_QUEUE_MAPPING 0xffff

/* See include/linux/if_vlan.h. */
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88A8
struct vlan_header {
	__be16 tci;
	__be16 protocol;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	atomic_t refs;
} refcount_t;

typedef struct {
	__s64 counter;
} atomic64_t;

struct sock_common {
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned short skc_tx_queue_mapping;
	atomic64_t skc_cookie;
};

struct sock {
	struct sock_common __sk_common;
	refcount_t sk_wmem_alloc;
};

struct tcp_options_received {
	__u16 snd_wscale : 4;
};

struct tcp_sock {
	__u32 snd_nxt;
	__u32 write_seq;
	__u64 bytes_acked;
	struct tcp_options_received rx_opt;
	void *md5sig_info; /* with CONFIG_TCP_MD5SIG */
	void *ao_info;     /* with CONFIG_TCP_AO */
};

struct sk_buff {
	struct sock *sk;
	unsigned int len;
	unsigned int truesize;
	__u8 ooo_okay : 1;
};

#pragma clang attribute pop

/* The kernel's view of a tc program's context, and loads from it. A tc program's context is the
 * kernel's sk_buff.
 *
 * Linux 6.2 and newer: a cast tells the verifier the type of the context, and loads are direct. Older
 * kernels: each load is a bpf_probe_read_kernel. The build compiles each object that uses these macros
 * twice (build.rs). */
#ifdef EK_PROBED
#define KERNEL_SKB(ctx) ((struct sk_buff *)(ctx))
#define KERNEL_READ(pointer, field) BPF_CORE_READ(pointer, field)
#define KERNEL_READ_BITFIELD(pointer, field) BPF_CORE_READ_BITFIELD_PROBED(pointer, field)
#else
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;
#define KERNEL_SKB(ctx) ((struct sk_buff *)bpf_cast_to_kern_ctx(ctx))
#define KERNEL_READ(pointer, field) ((pointer)->field)
#define KERNEL_READ_BITFIELD(pointer, field) BPF_CORE_READ_BITFIELD(pointer, field)
#endif

/* Initial value of sk_wmem_alloc (sk_alloc). sk_free subtracts it. */
#define WMEM_BIAS 1
/* Larger than the truesize of pure ACKs (2 each), and smaller than the truesize of any segment with
 * data. The kernel's own test for "nothing outstanding" is sk_wmem_alloc_get(sk) < SKB_TRUESIZE(1). */
#define WMEM_IDLE 512

/* Returns the truesize of the socket's segments in the qdisc and in the device, without the segment skb. */
static __always_inline int outstanding_besides(const struct sk_buff *skb, const struct sock *sk)
{
	return KERNEL_READ(sk, sk_wmem_alloc.refs.counter) - WMEM_BIAS - (int)KERNEL_READ(skb, truesize);
}

/* Returns whether the socket is a full `struct sock`. Timewait and request sockets share only its first
 * fields. */
static __always_inline int is_full_socket(const struct sock *sk)
{
	unsigned char state = KERNEL_READ(sk, __sk_common.skc_state);

	return state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV;
}

/* The socket of a TCP segment, and direct loads from it. Before Linux 6.2, bpf_skc_to_tcp_sock() gives
 * TCP sockets a type that permits direct loads. tcp_socket() then returns only full TCP sockets. */
#ifdef EK_PROBED
#define KERNEL_READ_TCP(sk, field) ((sk)->field)
#define IS_FULL_TCP_SOCKET(sk) 1
static __always_inline struct sock *tcp_socket(struct __sk_buff *ctx, const struct sk_buff *skb)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? (struct sock *)bpf_skc_to_tcp_sock(sk) : 0;
}
#else
#define KERNEL_READ_TCP(sk, field) KERNEL_READ(sk, field)
#define IS_FULL_TCP_SOCKET(sk) is_full_socket(sk)
static __always_inline struct sock *tcp_socket(struct __sk_buff *ctx, const struct sk_buff *skb)
{
	return skb->sk;
}
#endif

#endif /* EVENKEEL_KERNEL_H */
