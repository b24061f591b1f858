// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Counts dropped packets by the kernel's drop reason and by flow, from the tracepoint skb:kfree_skb.
 * The tracepoint has a reason since Linux 5.17. A tracepoint program may miss events under load, so the
 * kernel's own counters are authoritative. This program adds the reasons and flows.
 */
#include "kernel.h"
#include "packet.h"
#include "evenkeel/datapath.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	possible_net_t nd_net;
};

struct sock_common___net {
	possible_net_t skc_net;
};

struct sock___net {
	struct sock_common___net __sk_common;
};

struct sk_buff___dropped {
	struct sock___net *sk;
	struct net_device *dev;
	unsigned char *head;
	__u16 mac_header;
	__u16 network_header;
	__be16 protocol;
	unsigned int tail; /* an offset (NET_SKBUFF_DATA_USES_OFFSET), as on every 64-bit machine */
};

#pragma clang attribute pop

/* skb_mac_header_was_set (include/linux/skbuff.h) */
#define NO_MAC_HEADER 0xffff

/* Inode of the network namespace whose packets are counted; 0 counts all namespaces. */
volatile const __u32 namespace_inode = 0;

/* Whether the fourth argument of the tracepoint is the receiving socket, as since Linux 6.11. */
volatile const __u32 has_receiver = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct ek_drop);
	__type(value, __u64);
} drops SEC(".maps");

/* Returns the inode of a packet's network namespace; 0 if the namespace is unknown. TCP's receive path
 * clears `dev` (tcp_v4_rcv). For such a segment, only the tracepoint's socket gives the namespace. */
static __always_inline __u32 namespace_of(const struct sk_buff___dropped *skb, struct sock___net *receiver)
{
	struct net_device *device = BPF_CORE_READ(skb, dev);
	struct sock___net *socket = BPF_CORE_READ(skb, sk);

	if (receiver)
		return BPF_CORE_READ(receiver, __sk_common.skc_net.net, ns.inum);
	if (socket)
		return BPF_CORE_READ(socket, __sk_common.skc_net.net, ns.inum);
	/* In TCP's out-of-order queue, a link of the tree (`rbnode`) occupies the place of `dev`. The
	 * inode read through this pointer is meaningless, or 0 if the read fails. */
	if (device)
		return BPF_CORE_READ(device, nd_net.net, ns.inum);
	return 0;
}

/* Reads the flow's addresses and ports. Fields that cannot be read stay 0. */
static __always_inline void read_tuple(const struct sk_buff___dropped *skb, struct ek_tuple *tuple)
{
	const unsigned char *head = BPF_CORE_READ(skb, head);
	const unsigned char *network = head + BPF_CORE_READ(skb, network_header);
	__u16 mac_header = BPF_CORE_READ(skb, mac_header);
	__be16 ethertype = BPF_CORE_READ(skb, protocol);
	struct bytes bytes = {.begin = network, .end = head + BPF_CORE_READ(skb, tail), .probed = 1};
	struct packet packet = {};

	/* If the packet contains a VLAN tag, the network header is either the tag's header or the IP
	 * header. */
	if (!is_vlan(ethertype)) {
		parse_network(&bytes, network, ethertype, &packet);
	} else if (mac_header != NO_MAC_HEADER) {
		bytes.begin = head + mac_header;
		parse_frame(&bytes, &packet);
	}
	*tuple = packet.tuple;
}

SEC("tp_btf/kfree_skb")
int count_drop(__u64 *ctx)
{
	const struct sk_buff___dropped *skb = (const void *)ctx[0];
	struct ek_drop key = {}, rest = {};
	__u32 inode = namespace_inode;
	__u64 one = 1, *count;

	if (inode) {
		/* The verifier treats has_receiver as a constant, so older kernels never see the
		 * access. */
		__u32 own = namespace_of(skb, has_receiver ? (void *)ctx[3] : 0);

		if (own && own != inode)
			return 0;
	}
	key.reason = (__u32)ctx[2];
	read_tuple(skb, &key.tuple);
	count = bpf_map_lookup_elem(&drops, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&drops, &key, &one, BPF_NOEXIST)) {
		/* Either another CPU has added the key, or the map is full. For a full map, user space
		 * has added a key without a flow for each reason. */
		rest.reason = key.reason;
		count = bpf_map_lookup_elem(&drops, &key);
		if (!count)
			count = bpf_map_lookup_elem(&drops, &rest);
		if (count)
			__sync_fetch_and_add(count, 1);
	}
	return 0;
}
