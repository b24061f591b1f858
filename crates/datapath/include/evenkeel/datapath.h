/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR Apache-2.0 OR MIT
 *
 * Shared by BPF programs and user space. */
#ifndef EVENKEEL_DATAPATH_H
#define EVENKEEL_DATAPATH_H

#include "evenkeel/flow_table.h"
#include "evenkeel/queue_choice.h"

/* Number of CPUs with their own XPS pool; higher CPUs use the last entry. A power of two. */
#define EK_MAX_CPUS 1024

/* A new flow without a free slot replaces an idle flow whose word counts at most this many segments. */
#define EK_SHORT_FLOW 4
/* Maximum number of flows. In a half-full table, few flows find all their probed slots in use. */
#define EK_MAX_FLOWS (EK_SLOTS / 2)
/* Number of slots that the ageing walk skips together if none is in use. */
#define EK_SLOTS_PER_BLOCK 64
#define EK_MAX_BLOCKS (EK_SLOTS / EK_SLOTS_PER_BLOCK)

/* Addresses and ports of a flow. An IPv4 address is in the first word; the other words are 0. */
struct ek_tuple {
	ek_u32 source[4];      /* network byte order */
	ek_u32 destination[4]; /* network byte order */
	ek_u16 source_port;    /* host byte order */
	ek_u16 destination_port;
	ek_u16 protocol; /* IPPROTO_* */
	ek_u16 family;   /* AF_INET or AF_INET6 */
};

/*
 * Reason and flow of a dropped packet. All bytes of the flow are 0 if no IP header could be read,
 * and if the table had no room for the flow. Ports are 0 for protocols other than TCP and UDP, and for
 * fragments other than the first.
 */
struct ek_drop {
	struct ek_tuple tuple;
	ek_u32 reason; /* enum skb_drop_reason */
};

/* How the chosen queue is passed to the device. */
enum ek_steering {
	EK_STEER_CLASS = 0, /* skb->priority names an HTB class: `class_base` + queue */
	EK_STEER_QUEUE = 1, /* skb->queue_mapping, where the kernel re-picks (ooo_okay) */
};

/* User space sets these values before it loads the programs. So the verifier treats every value as
 * constant and removes dead branches. */
struct ek_config {
	ek_u32 policy;     /* enum ek_policy */
	ek_u32 steering;   /* enum ek_steering */
	ek_u32 class_base; /* class id of queue 0 */
	ek_u32 queue_count;
	ek_u32 use_pools;       /* ek_device.pool applies; else every CPU may use every queue */
	ek_u32 max_flows;       /* a further flow evicts a short flow, or is hashed and counted */
	ek_u32 read_sockets;    /* completion is read from the flows' sockets */
	ek_u32 balance;         /* flows may be asked to move, see struct ek_move */
	ek_u32 gap_us;          /* silence after which a flow without a socket may change its queue */
	ek_u64 rate_bps;        /* line rate, for the ageing limit */
	ek_u64 ageing_floor_ns; /* smallest ageing limit */
	ek_u64 forget_after_ns; /* silence after which an uncharged flow loses its slot */
};

/* Starts a cache line, so that writes to preceding fields do not invalidate it in other CPUs' caches. */
#define EK_OWN_CACHE_LINE __attribute__((aligned(64)))

/* Counters of one CPU. Segments of many CPUs would contend for a shared cache line. */
struct ek_counters {
	ek_u64 picks EK_OWN_CACHE_LINE; /* picks of a queue for a flow with nothing outstanding */
	ek_u64 moves;                   /* picks of another queue than before */
	ek_u64 recharged;               /* charged again after a release, to the queue that holds the flow */
	ek_u64 completed;               /* released because the last segment had left */
	ek_u64 aged;                    /* released by age */
	ek_u64 false_releases;          /* released by age while segments were still queued */
	ek_u64 no_socket;               /* no full socket: forwarded, or of a new or closed connection */
	ek_u64 untracked;               /* hashed, because no slot was free */
	ek_u64 evicted;                 /* short flows whose slot a new flow took */
	ek_u64 contended;               /* sent uncharged: lost every race, or the flow lost its slot */
};

/* Maximum number of rules for flow weights. The first matching rule decides. */
#define EK_MAX_RULES 64

/* Fields of a rule; all must match. */
enum ek_match {
	EK_MATCH_PROTOCOL = 1,
	EK_MATCH_SOURCE_PORT = 2,
	EK_MATCH_DESTINATION_PORT = 4,
	EK_MATCH_MARK = 8,
	EK_MATCH_PRIORITY = 16,
	EK_MATCH_CGROUP = 32,
};

struct ek_rule {
	ek_u64 cgroup;       /* id of a cgroup v2: the flow's socket is in it or in a descendant */
	ek_u32 cgroup_level; /* depth of the cgroup below the root */
	ek_u32 match;        /* the fields that must match: bits of enum ek_match */
	ek_u32 mark;         /* value of skb->mark under the mask */
	ek_u32 mark_mask;
	ek_u32 priority; /* value of skb->priority, as SO_PRIORITY sets it */
	ek_u16 protocol; /* IPPROTO_* */
	ek_u16 source_port_first;
	ek_u16 source_port_last;
	ek_u16 destination_port_first;
	ek_u16 destination_port_last;
	ek_u16 weight; /* 1 to 65535 */
	ek_u32 unused;
};

enum ek_move_state {
	EK_MOVE_NONE = 0,
	EK_MOVE_WANTED = 1, /* requested by user space: the flow is held back until it may move */
	EK_MOVE_DONE = 2,   /* a segment took the wanted queue */
};

/* A flow that should change its queue. The windows that its peer advertises are reduced until nothing is
 * queued below its socket. Then the kernel lets the flow move. Nothing needs to be restored: the next
 * unchanged acknowledgement opens the window again. */
struct ek_move {
	ek_u64 cookie;
	ek_u64 socket;         /* address of its socket */
	ek_u64 deadline_ns;    /* CLOCK_MONOTONIC; end of the hold */
	ek_u64 first_ns;       /* time at which its first window was reduced; 0: none yet */
	ek_u64 done_ns;        /* time of the move */
	struct ek_tuple reply; /* addresses and ports of packets in the other direction */
	ek_u32 queue;          /* target queue */
	ek_u32 state;          /* enum ek_move_state; user space writes it last */
	ek_u32 windows;        /* number of reduced windows */
	ek_u32 unused;
};

/* Maximum number of flows in one reading of struct ek_service. */
#define EK_MAX_SERVICES 4096

struct ek_service {
	ek_u64 cookie;
	ek_u64 socket; /* address of its socket; 0: none in this network namespace */
	ek_u64 acknowledged_bytes;
	ek_u32 slot;
	ek_u32 queue; /* recorded by the kernel, or charged */
	ek_u32 weight;
	ek_u32 flags; /* enum ek_service_flag */
};

enum ek_service_flag {
	EK_SERVICE_KNOWN = 1,      /* TCP: acknowledged_bytes is valid */
	EK_SERVICE_BACKLOGGED = 2, /* its socket holds unsent data; also set without EK_SERVICE_KNOWN */
	EK_SERVICE_MOVABLE = 4,    /* the peer's windows may be changed: segments are not signed */
};

struct ek_device {
	ek_u64 ageing_limit_ns;                /* computed by the last walk */
	ek_u64 walks;                          /* runs of both timers */
	ek_u64 walk_ns;                        /* time in both timers, which no program's run time includes */
	ek_u32 charged_head EK_OWN_CACHE_LINE; /* entries added to the list of charged flows so far */
	ek_u32 charged_tail;                   /* entries removed from it so far */
	ek_u32 look_lock;                      /* held during a scan of the sockets */
	ek_u32 looked_us;                      /* time of the last scan before a pick */
	ek_u32 flow_count;                     /* number of slots in use */
	ek_u32 evict_hand;                     /* counter that selects the next block to evict from */
	ek_u32 rule_count EK_OWN_CACHE_LINE;
	ek_u32 rule_generation; /* changes with the rules: flows then look up their weight again */
	ek_u32 weight[EK_MAX_QUEUES] EK_OWN_CACHE_LINE; /* flow weights charged to each queue */
	ek_u32 busy[EK_MAX_QUEUES];     /* weights of flows with data outstanding, from the last count */
	ek_u64 backlog[EK_MAX_QUEUES];  /* scratch of the ageing walk: bytes outstanding per queue */
	ek_u32 occupied[EK_MAX_BLOCKS]; /* slots in use in each block */
	struct ek_pool pool[EK_MAX_CPUS] EK_OWN_CACHE_LINE; /* queues that each CPU may use */
	struct ek_rule rule[EK_MAX_RULES] EK_OWN_CACHE_LINE;
	struct ek_move flow_move EK_OWN_CACHE_LINE;
	ek_u32 services; /* number of entries that the last reading has filled */
};

/* The slot of a flow: the fields that every segment uses, half a cache line. */
struct ek_flow {
	ek_u64 cookie;     /* of its socket, else derived from its addresses; 0: the slot is free */
	ek_u64 word;       /* see queue_choice.h */
	ek_u32 may_follow; /* TCP, and its weight is current: follow() may handle it */
	ek_u32 class_base; /* copy of the setting */
	ek_u64 socket;     /* address of its socket; 0: none in this network namespace */
};

/* Further fields of a slot, which follow() does not read. */
struct ek_flow_detail {
	struct ek_tuple tuple;
	ek_u32 weight;
	ek_u32 rule_generation; /* generation of the rules from which its weight was taken */
	ek_u32 last_us;         /* last segment of a flow without a socket, modulo 2^32 */
	ek_u32 outstanding;     /* bytes below the socket when the last segment was sent, for ageing */
	ek_u64 walked_word;     /* the word that the last walk read */
	ek_u64 quiet_since_ns;  /* time at which a walk first read that word */
	ek_u64 listed;          /* whether the flow is on the list of charged flows */
};

/* A flow as the meter counts it. */
struct ek_metered_flow {
	ek_u64 first_ns;
	ek_u64 last_ns;
	ek_u64 bytes;         /* on the wire: skb->len and the headers of the further segments */
	ek_u64 packets;       /* on the wire: gso_segs */
	ek_u64 payload_bytes; /* TCP or UDP payload */
	ek_u64 out_of_order;  /* data packets that arrived after a packet with a higher sequence number */
	ek_u32 is_named;      /* whether the tuple of this row is written */
	ek_u32 next_sequence; /* highest TCP sequence number seen, plus 1 */
	ek_u32 queue_mapping; /* last known transmit queue; 0xffff: none */
	ek_u32 unused;
};

struct ek_bin {
	ek_u32 bytes;
	ek_u32 packets;
};

/* Settings of the meter, and its count of packets that it could not assign to a flow. */
struct ek_meter {
	ek_u64 start_ns; /* CLOCK_MONOTONIC; start of the first bin; 0: not started */
	ek_u64 bin_ns;
	ek_u32 bins;  /* per flow */
	ek_u32 flows; /* rows */
	ek_u32 next_index;
	ek_u32 unused;
	ek_u64 overflow; /* packets of flows for which there was no row */
};

/* Number of transmit queues with batching, including the root qdisc. A power of two. */
#define EK_BATCH_QUEUES 1024
/* Maximum number of segments in a queue with batching. */
#define EK_BATCH_MAX_PACKETS 65536

/* User space sets these values before it loads the programs of transmit batching. */
struct ek_batch_config {
	ek_u64 hold_ns;       /* maximum hold time of a segment that arrives at an empty queue; 0: no hold */
	ek_u32 batch_packets; /* a queue with this number of segments is not held */
	ek_u32 limit_packets; /* capacity of each queue */
};

struct ek_batch_counters {
	ek_u64 held;    /* holds: segments that arrived at an empty queue */
	ek_u64 batches; /* holds that ended with more than one segment */
	ek_u64 dropped; /* the queue was full, or there was no memory */
};

/* Maximum number of flows whose state TCP LoLa publishes. The congestion control of further flows is
 * the same. */
#define EK_LOLA_FLOWS 16384

/* Published state of a flow, after each measurement, loss or change of phase. */
struct ek_lola_flow {
	struct ek_tuple tuple;
	ek_u64 started_ns;
	ek_u32 phase; /* enum ek_lola_phase */
	ek_u32 cwnd;
	ek_u32 mss;
	ek_u32 base_rtt_us;
	ek_u32 queueing_us;
	ek_u32 losses;
	ek_u32 decreases;
	ek_u32 unused;
};

struct ek_lola_counters {
	ek_u64 started;
	ek_u64 ended;
	ek_u64 unseen; /* flows without a place in the map of flows */
	ek_u64 losses;
	ek_u64 decreases;
	char name[16]; /* of the congestion control; set before the programs are loaded */
};

#endif /* EVENKEEL_DATAPATH_H */
