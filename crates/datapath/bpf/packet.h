/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Parses a packet's headers: Ethernet, VLAN tags, IP, TCP or UDP. Programs at tc and XDP parse the
 * packet itself. Programs at tracepoints parse kernel memory. */
#ifndef EVENKEEL_PACKET_H
#define EVENKEEL_PACKET_H

#include "kernel.h"
#include "evenkeel/datapath.h"

/* An outer 802.1ad tag and an inner 802.1Q tag. */
#define MAX_VLAN_TAGS 2
/* Each kind of extension header may occur once, and destination options twice (RFC 8200, section 4.1). */
#define MAX_IPV6_EXTENSIONS 5

/* Bytes to parse. `probed` is constant at compile time, so the compiler removes the unused read method. */
struct bytes {
	const void *begin, *end;
	int probed; /* kernel memory, to be read by bpf_probe_read_kernel */
};

struct packet {
	struct ek_tuple tuple;  /* also set without ports, if there is an IP header */
	__u32 transport;        /* offset of the TCP or UDP header */
	__u32 transport_length; /* length of this header and its payload, according to the IP header */
	__u32 header_length;    /* length of all headers; 0 if they could not be read */
	__u32 sequence;         /* TCP sequence number */
	__sum16 check;          /* TCP or UDP checksum */
	__u8 is_first_fragment; /* further fragments follow, without ports */
	__u8 is_source_routed;  /* the destination is the next hop, not that of the flow */
};

/* The fields that IPv6 extension headers have in common (RFC 8200, section 4). */
struct ipv6_extension {
	__u8 next;
	__u8 length;      /* beyond 8 bytes, in units of 8; fragment header: reserved */
	__u8 offset_high; /* fragment header */
	__u8 offset_low;  /* fragment header, with the flag for further ones; routing header: segments left */
	__be32 rest;
};

/* Returns a header in the packet, or a copy of the header, like the kernel's skb_header_pointer.
 * Returns 0 if the header is truncated or cannot be read. */
static __always_inline const void *header_at(const struct bytes *bytes, const void *at, void *copy,
					     __u32 size)
{
	if (at + size > bytes->end)
		return 0;
	if (!bytes->probed)
		return at;
	return bpf_probe_read_kernel(copy, size, at) ? 0 : copy;
}

static __always_inline int is_vlan(__be16 ethertype)
{
	return ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD);
}

static __always_inline int is_ipv6_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_FRAGMENT ||
	       protocol == IPPROTO_DSTOPTS;
}

/* Parses the TCP or UDP header. Returns 0 for other protocols, and for a truncated header. */
static __always_inline int parse_transport(const struct bytes *bytes, const void *at, struct packet *packet)
{
	packet->transport = (__u32)(at - bytes->begin);
	if (packet->tuple.protocol == IPPROTO_TCP) {
		struct tcphdr copy;
		const struct tcphdr *tcp = header_at(bytes, at, &copy, sizeof(copy));

		if (!tcp)
			return 0;
		packet->tuple.source_port = bpf_ntohs(tcp->source);
		packet->tuple.destination_port = bpf_ntohs(tcp->dest);
		packet->sequence = bpf_ntohl(tcp->seq);
		packet->check = tcp->check;
		packet->header_length = packet->transport + tcp->doff * 4;
		return 1;
	}
	if (packet->tuple.protocol == IPPROTO_UDP) {
		struct udphdr copy;
		const struct udphdr *udp = header_at(bytes, at, &copy, sizeof(copy));

		if (!udp)
			return 0;
		packet->tuple.source_port = bpf_ntohs(udp->source);
		packet->tuple.destination_port = bpf_ntohs(udp->dest);
		packet->check = udp->check;
		packet->header_length = packet->transport + sizeof(*udp);
		return 1;
	}
	return 0;
}

/* Parses the IPv4 header. Returns the position of the next header. Returns 0 if the IPv4 header is invalid
 * or truncated, and for fragments other than the first. */
static __always_inline const void *parse_ipv4(const struct bytes *bytes, const void *at,
					      struct packet *packet)
{
	struct iphdr copy;
	const struct iphdr *ip = header_at(bytes, at, &copy, sizeof(copy));

	if (!ip || ip->version != 4 || ip->ihl < 5)
		return 0;
	packet->tuple.family = AF_INET;
	packet->tuple.source[0] = ip->saddr;
	packet->tuple.destination[0] = ip->daddr;
	packet->tuple.protocol = ip->protocol;
	packet->is_first_fragment = !!(ip->frag_off & bpf_htons(0x2000));
	packet->transport_length = bpf_ntohs(ip->tot_len) - ip->ihl * 4;
	if (ip->frag_off & bpf_htons(0x1fff))
		return 0;
	return at + ip->ihl * 4;
}

/* Parses the IPv6 header and its extensions. Returns the position of the header after the extensions.
 * Returns 0 in the same cases as parse_ipv4. */
static __always_inline const void *parse_ipv6(const struct bytes *bytes, const void *at,
					      struct packet *packet)
{
	struct ipv6hdr copy;
	const struct ipv6hdr *ip = header_at(bytes, at, &copy, sizeof(copy));
	__u32 length, i;

	if (!ip || ip->version != 6)
		return 0;
	packet->tuple.family = AF_INET6;
	__builtin_memcpy(packet->tuple.source, &ip->saddr, 16);
	__builtin_memcpy(packet->tuple.destination, &ip->daddr, 16);
	packet->tuple.protocol = ip->nexthdr;
	packet->transport_length = bpf_ntohs(ip->payload_len);
	at += sizeof(*ip);
#pragma nounroll
	for (i = 0; i < MAX_IPV6_EXTENSIONS; i++) {
		struct ipv6_extension copied;
		const struct ipv6_extension *extension;
		__u8 kind = packet->tuple.protocol;

		if (!is_ipv6_extension(kind))
			break;
		extension = header_at(bytes, at, &copied, sizeof(copied));
		if (!extension)
			return 0;
		packet->tuple.protocol = extension->next;
		length = sizeof(*extension);
		if (kind != IPPROTO_FRAGMENT) {
			length += extension->length * 8;
			packet->is_source_routed |= kind == IPPROTO_ROUTING && extension->offset_low;
		} else if (extension->offset_high || extension->offset_low & 0xf8) {
			return 0;
		} else {
			packet->is_first_fragment = extension->offset_low & 1;
		}
		at += length;
		packet->transport_length -= length;
	}
	return at;
}

/* Parses a packet, starting at its IP header. The return value is that of parse_frame. */
static __always_inline int parse_network(const struct bytes *bytes, const void *at, __be16 ethertype,
					 struct packet *packet)
{
	if (ethertype == bpf_htons(ETH_P_IP))
		at = parse_ipv4(bytes, at, packet);
	else if (ethertype == bpf_htons(ETH_P_IPV6))
		at = parse_ipv6(bytes, at, packet);
	else
		return 0;
	return at ? parse_transport(bytes, at, packet) : 0;
}

/* Parses an Ethernet frame into a zeroed `packet`. Returns 0 for packets other than TCP or UDP over IP.
 * Returns 0 for truncated headers, and for fragments other than the first, because they have no ports. */
static __always_inline int parse_frame(const struct bytes *bytes, struct packet *packet)
{
	const void *at = bytes->begin;
	struct ethhdr copy;
	const struct ethhdr *ethernet = header_at(bytes, at, &copy, sizeof(copy));
	__be16 ethertype;
	__u32 i;

	if (!ethernet)
		return 0;
	at += sizeof(*ethernet);
	ethertype = ethernet->h_proto;
#pragma nounroll
	for (i = 0; i < MAX_VLAN_TAGS && is_vlan(ethertype); i++) {
		struct vlan_header copied;
		const struct vlan_header *vlan = header_at(bytes, at, &copied, sizeof(copied));

		if (!vlan)
			return 0;
		at += sizeof(*vlan);
		ethertype = vlan->protocol;
	}
	return parse_network(bytes, at, ethertype, packet);
}

static __always_inline int parse_packet(const struct __sk_buff *ctx, struct packet *packet)
{
	struct bytes bytes = {.begin = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end};

	return parse_frame(&bytes, packet);
}

#endif /* EVENKEEL_PACKET_H */
