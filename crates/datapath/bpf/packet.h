/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Parses a segment: addresses, ports, header length, payload. */
#ifndef EVENKEEL_PACKET_H
#define EVENKEEL_PACKET_H

#include "kernel.h"
#include "evenkeel/datapath.h"

struct packet {
	struct ek_tuple tuple;
	__u32 header_length; /* all headers, 0 if they could not be read */
	__u32 sequence;      /* TCP */
	__u32 transport;     /* offset of the TCP header */
};

/* Reads the headers; returns 0 for anything that is not TCP or UDP over IP. IPv6 extension headers
 * and later fragments are not parsed: they have no readable ports. */
static __always_inline int parse_packet(struct __sk_buff *ctx, struct packet *packet)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	void *network = ethernet + 1, *transport;
	__be16 ethertype;
	__u8 protocol;

	if (network > end)
		return 0;
	ethertype = ethernet->h_proto;
	if (ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD)) {
		struct vlan_header *vlan = network;

		network = vlan + 1;
		if (network > end)
			return 0;
		ethertype = vlan->protocol;
	}

	if (ethertype == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = network;

		if ((void *)(ip + 1) > end || ip->ihl < 5 || ip->frag_off & bpf_htons(0x1fff))
			return 0;
		protocol = ip->protocol;
		packet->tuple.family = AF_INET;
		packet->tuple.source[0] = ip->saddr;
		packet->tuple.destination[0] = ip->daddr;
		transport = network + ip->ihl * 4;
	} else if (ethertype == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = network;

		if ((void *)(ip + 1) > end)
			return 0;
		protocol = ip->nexthdr;
		packet->tuple.family = AF_INET6;
		__builtin_memcpy(packet->tuple.source, &ip->saddr, 16);
		__builtin_memcpy(packet->tuple.destination, &ip->daddr, 16);
		transport = ip + 1;
	} else {
		return 0;
	}

	packet->tuple.protocol = protocol;
	if (protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = transport;

		if ((void *)(tcp + 1) > end)
			return 0;
		packet->tuple.source_port = bpf_ntohs(tcp->source);
		packet->tuple.destination_port = bpf_ntohs(tcp->dest);
		packet->sequence = bpf_ntohl(tcp->seq);
		packet->transport = (__u32)(transport - data);
		packet->header_length = (__u32)(transport - data) + tcp->doff * 4;
		return 1;
	}
	if (protocol == IPPROTO_UDP) {
		struct udphdr *udp = transport;

		if ((void *)(udp + 1) > end)
			return 0;
		packet->tuple.source_port = bpf_ntohs(udp->source);
		packet->tuple.destination_port = bpf_ntohs(udp->dest);
		packet->header_length = (__u32)(transport - data) + sizeof(*udp);
		return 1;
	}
	return 0;
}

#endif /* EVENKEEL_PACKET_H */
