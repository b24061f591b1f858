/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR Apache-2.0 OR MIT
 *
 * What the receive steering program and user space share: read by both, so it cannot drift. */
#ifndef EVENKEEL_STEER_H
#define EVENKEEL_STEER_H

#include "evenkeel/datapath.h"

/* Flows that can have a target of their own: twice as many as the largest filter table of a NIC that is
 * modelled, 8192 (Intel 82599). A power of two. */
#define EK_STEER_SLOTS 16384
/* Classes of flows. A power of two. */
#define EK_STEER_CLASSES 64
/* CPUs that a class's flows are hashed over. A power of two. */
#define EK_STEER_CLASS_TARGETS 64
/* Entries of the indirection table: as RSS of the Intel 82599 has it. A power of two. */
#define EK_STEER_INDIRECTION 128
/* Flows without a slot that are remembered, the latest ones. */
#define EK_STEER_SEEN 16384
/* Longest input of the Toeplitz hash, bytes: IPv6 addresses and ports. */
#define EK_STEER_HASH_INPUT 36
/* Segments that a CPU map's thread takes from its ring at once (CPUMAP_BATCH, kernel/bpf/cpumap.c). */
#define EK_STEER_BATCH 8

/* Targets that are no CPU. */
enum ek_steer_target {
	EK_STEER_STAY = 0xffff,       /* the packet goes on where it came in (XDP_PASS) */
	EK_STEER_BY_DEFAULT = 0xfffe, /* as classes and indirection have it */
	EK_STEER_NEW = 0xfffd,        /* `current` of a slot that no packet has used yet */
};

/* Set before the program is loaded: the verifier then knows every value. */
struct ek_steer_config {
	ek_u32 pass; /* decide everything, and let every packet go on where it came in */
	ek_u32 unused;
	ek_u64 hold_ns;   /* longest wait of a flow that is to move for its old ring to be empty of it */
	ek_u64 settle_ns; /* after so much silence nothing of a flow is in a batch any more */
};

/* A flow's own target; a cache line. */
struct ek_steer_slot {
	ek_u32 wanted;     /* CPU or enum ek_steer_target; user space sets it */
	ek_u32 current;    /* where its packets go now; the program sets it */
	ek_u64 sequence;   /* of its last packet, among all that went to `current` */
	ek_u64 packets;    /* since the slot was given to it */
	ek_u64 bytes;      /* frames without their check sequence, as the program sees them */
	ek_u64 last_ns;    /* CLOCK_MONOTONIC */
	ek_u64 waiting_ns; /* since when it is to move; 0: it is not */
	ek_u32 moves;      /* changes of CPU */
	ek_u32 forced;     /* of these, without waiting any longer */
	ek_u64 unused;
};

/* Flows by masked fields. An IPv4 address stands in the first word. */
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

/* Everything that flows without a slot go by. */
struct ek_steer_rules {
	ek_u32 class_count;
	ek_u32 unused;
	ek_u16 indirection[EK_STEER_INDIRECTION];       /* by the low bits of the hash */
	struct ek_steer_class class_[EK_STEER_CLASSES]; /* the first that matches */
};

/* The rules twice: user space writes those that are not in force, then turns `active` over, so that
 * no packet ever meets half of a change. */
struct ek_steer {
	ek_u32 active; /* 0 or 1 */
	ek_u32 unused;
	struct ek_steer_rules rules[2];
};

/* One CPU, as target and as receiver. */
struct ek_steer_cpu {
	ek_u64 enqueued EK_OWN_CACHE_LINE; /* packets sent to its ring, by every receiver */
	ek_u64 dequeued EK_OWN_CACHE_LINE; /* packets that came out of it */
	/* Sent and never come out, because the ring was full: user space's finding when nothing is under way.
	 */
	ek_u64 lost;
	ek_u64 received EK_OWN_CACHE_LINE; /* packets that came in here */
	ek_u64 bytes;                      /* of these */
	ek_u64 other;                      /* neither TCP nor UDP, or fragments: they stay */
	ek_u64 partial;                    /* their checksum was finished here */
	ek_u64 without_slot;               /* by class or indirection */
	ek_u64 refused;                    /* could not be sent to their target: they stay */
	ek_u64 held;                       /* went to the old CPU of their flow, which is to move */
};

/* A flow without a slot. */
struct ek_steer_seen {
	ek_u64 packets;
	ek_u64 bytes;
	ek_u64 last_ns;
};

#endif /* EVENKEEL_STEER_H */
