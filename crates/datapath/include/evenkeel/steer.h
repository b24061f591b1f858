/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR Apache-2.0 OR MIT
 *
 * Shared by the receive steering program and user space. */
#ifndef EVENKEEL_STEER_H
#define EVENKEEL_STEER_H

#include "evenkeel/datapath.h"

/* Number of flows with their own target: twice the largest filter table of a modelled NIC, 8192 (Intel
 * 82599). A power of two. */
#define EK_STEER_SLOTS 16384
/* Number of classes of flows. A power of two. */
#define EK_STEER_CLASSES 64
/* Number of CPUs over which the flows of a class are hashed. A power of two. */
#define EK_STEER_CLASS_TARGETS 64
/* Number of entries of the indirection table, as in the Intel 82599. A power of two. */
#define EK_STEER_INDIRECTION 128
/* Number of recent flows without a slot that the program records. */
#define EK_STEER_SEEN 16384
/* Longest input of the Toeplitz hash, bytes: IPv6 addresses and ports. */
#define EK_STEER_HASH_INPUT 36
/* Maximum number of packets that the thread of a CPU map takes from its ring at once (CPUMAP_BATCH,
 * kernel/bpf/cpumap.c). */
#define EK_STEER_BATCH 8

/* Targets other than a CPU. */
enum ek_steer_target {
	EK_STEER_STAY = 0xffff,       /* the packet stays on its CPU (XDP_PASS) */
	EK_STEER_BY_DEFAULT = 0xfffe, /* by classes and indirection */
	EK_STEER_NEW = 0xfffd,        /* `current` of a slot that no packet has used yet */
};

/* User space sets these values before it loads the program. So the verifier treats every value as
 * constant. */
struct ek_steer_config {
	ek_u32 pass; /* choose a target, but leave every packet on its CPU */
	ek_u32 unused;
	ek_u64 hold_ns;   /* maximum time that a moving flow waits for its old ring */
	ek_u64 settle_ns; /* silence after which no packet of a flow is in a batch */
};

/* The target of a flow; one cache line. */
struct ek_steer_slot {
	ek_u32 wanted;     /* CPU or enum ek_steer_target; user space sets it */
	ek_u32 current;    /* present target; the program sets it */
	ek_u64 sequence;   /* number of its last packet among all packets sent to `current` */
	ek_u64 packets;    /* since the flow got the slot */
	ek_u64 bytes;      /* frames without FCS, as the program sees them */
	ek_u64 last_ns;    /* CLOCK_MONOTONIC */
	ek_u64 waiting_ns; /* start of the wait before a move; 0: the flow is not waiting */
	ek_u32 moves;      /* changes of CPU */
	ek_u32 forced;     /* changes of CPU because the wait exceeded hold_ns */
	ek_u64 unused;
};

/* A class of flows, defined by masked fields. An IPv4 address is in the first word. */
struct ek_steer_class {
	ek_u32 source[4]; /* network byte order, as all addresses and masks */
	ek_u32 source_mask[4];
	ek_u32 destination[4];
	ek_u32 destination_mask[4];
	ek_u16 source_port; /* host byte order, as all ports */
	ek_u16 source_port_mask;
	ek_u16 destination_port;
	ek_u16 destination_port_mask;
	ek_u16 family;   /* AF_INET or AF_INET6; 0: both */
	ek_u16 protocol; /* IPPROTO_TCP or IPPROTO_UDP; 0: both */
	ek_u32 target_count;
	ek_u16 target[EK_STEER_CLASS_TARGETS]; /* by hash modulo `target_count` */
};

/* Rules for flows without a slot, and for slots with EK_STEER_BY_DEFAULT. */
struct ek_steer_rules {
	ek_u32 class_count;
	ek_u32 unused;
	ek_u16 indirection[EK_STEER_INDIRECTION];       /* by the low bits of the hash */
	struct ek_steer_class class_[EK_STEER_CLASSES]; /* the first that matches */
};

/* Two copies of the rules. User space writes the inactive copy and then switches `active`, so that no packet
 * sees a partial change. */
struct ek_steer {
	ek_u32 active; /* 0 or 1 */
	ek_u32 unused;
	ek_u64 unmapped; /* packets that arrived on a CPU without an ek_steer_cpu; they stay there */
	struct ek_steer_rules rules[2];
};

/* Counters of one CPU, as target and as receiver of packets. */
struct ek_steer_cpu {
	ek_u64 enqueued EK_OWN_CACHE_LINE; /* packets sent to its ring, by every receiver */
	ek_u64 dequeued EK_OWN_CACHE_LINE; /* packets taken from it */
	/* packets sent to the ring but not taken from it, because the ring was full; computed by user
	 * space when no packet is in transit */
	ek_u64 lost;
	ek_u64 received EK_OWN_CACHE_LINE; /* packets that arrived here */
	ek_u64 bytes;                      /* bytes of the packets that arrived here */
	ek_u64 other;                      /* neither TCP nor UDP, fragments, source-routed: not steered */
	ek_u64 partial;                    /* packets whose checksum a sender left to the device */
	ek_u64 without_slot;               /* packets of flows without a slot */
	ek_u64 refused;                    /* could not be sent to their target; they stay on this CPU */
	ek_u64 held;                       /* sent to the old CPU of a moving flow */
};

struct ek_steer_seen {
	ek_u64 packets;
	ek_u64 bytes;
	ek_u64 last_ns;
};

#endif /* EVENKEEL_STEER_H */
