// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Transmit batching (Titan, section 4.4) as a qdisc: all sockets that send at the same time enqueue
 * before the first segment is dequeued.
 *
 * Linux dequeues as soon as one flow has enqueued. When one interrupt brings acknowledgements for
 * several flows, the first flow fills the device's queue up to its byte limit. The other flows find the
 * queue full. Titan changes TCP's tasklet so that it dequeues once, at its end. A qdisc does not see
 * the end of the tasklet. So when a segment arrives at an empty queue, this qdisc dequeues nothing until
 * a short time has passed or the queue has a given number of segments. Then the queue is a plain FIFO
 * until it is empty again.
 *
 * Requires Linux 6.16 (struct_ops for Qdisc_ops). Works only as root qdisc or as child of mq.
 */
/* Headers of the build machine may lack these structures, so define them as Linux 6.6 and later do. */
#define bpf_list_head machine_bpf_list_head
#define bpf_list_node machine_bpf_list_node
#define bpf_iter_num machine_bpf_iter_num
#include <linux/bpf.h>
#undef bpf_list_head
#undef bpf_list_node
#undef bpf_iter_num

struct bpf_list_head {
	__u64 opaque[2];
} __attribute__((aligned(8)));

struct bpf_list_node {
	__u64 opaque[3];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));

#include "kernel.h"
#include "evenkeel/datapath.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NET_XMIT_SUCCESS 0 /* include/linux/netdevice.h */
#define NET_XMIT_DROP 1

#define __contains(name, node) __attribute__((btf_decl_tag("contains:" #name ":" #node)))

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct qdisc_skb_head {
	__u32 qlen;
};

struct gnet_stats_queue {
	__u32 backlog;
};

struct Qdisc {
	__u32 limit;
	__u32 parent;
	struct qdisc_skb_head q;
	struct gnet_stats_queue qstats;
};

struct qdisc_skb_cb {
	unsigned int pkt_len;
};

/* Contains only the control block. The other fields are in kernel.h. */
struct sk_buff___cb {
	char cb[48];
};

#pragma clang attribute pop

struct nlattr;
struct netlink_ext_ack;

struct bpf_sk_buff_ptr {
	struct sk_buff *skb;
};

/* The members of the kernel's structure that this program sets. libbpf matches them by name. */
struct Qdisc_ops {
	char id[16];
	int (*enqueue)(struct sk_buff *skb, struct Qdisc *sch, struct bpf_sk_buff_ptr *to_free);
	struct sk_buff *(*dequeue)(struct Qdisc *sch);
	int (*init)(struct Qdisc *sch, struct nlattr *options, struct netlink_ext_ack *extack);
	void (*reset)(struct Qdisc *sch);
	void (*destroy)(struct Qdisc *sch);
};

extern void *bpf_obj_new_impl(__u64 local_type_id, void *meta) __ksym;
extern void bpf_obj_drop_impl(void *object, void *meta) __ksym;
extern int bpf_list_push_back_impl(struct bpf_list_head *head, struct bpf_list_node *node, void *meta,
				   __u64 offset) __ksym;
extern struct bpf_list_node *bpf_list_pop_front(struct bpf_list_head *head) __ksym;
extern void bpf_kfree_skb(struct sk_buff *skb) __ksym;
extern void bpf_qdisc_skb_drop(struct sk_buff *skb, struct bpf_sk_buff_ptr *to_free) __ksym;
extern void bpf_qdisc_watchdog_schedule(struct Qdisc *sch, __u64 expire, __u64 slack_ns) __ksym;
extern void bpf_qdisc_bstats_update(struct Qdisc *sch, const struct sk_buff *skb) __ksym;

const volatile struct ek_batch_config config = {};

struct ek_batch_counters counters SEC(".data.counters");

/* clang 14 drops the BTF type tag of a pointer to a structure, but not of a pointer to a typedef. */
typedef struct sk_buff segment;

struct waiting {
	segment __kptr *skb;
	struct bpf_list_node node;
};

/* State of one instance of this qdisc: one per transmit queue of the device if below mq, else one for
 * the root. Instances on two devices would share it, so each device needs its own registration. */
struct queue {
	struct bpf_spin_lock lock;
	struct bpf_list_head segments __contains(waiting, node);
	__u64 release_ns; /* CLOCK_MONOTONIC; 0: no segment is held */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EK_BATCH_QUEUES);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

#define COUNT(field) __sync_fetch_and_add(&counters.field, 1)

/* Returns the queue of a qdisc instance. Below mq, the parent's minor number is the number of the device's
 * queue, from 1. The root's parent has all bits set, so the root uses the last entry. */
static __always_inline struct queue *queue_of(const struct Qdisc *sch)
{
	__u32 place = sch->parent & (EK_BATCH_QUEUES - 1);

	return bpf_map_lookup_elem(&queues, &place);
}

static __always_inline __u32 length_of(const struct sk_buff *skb)
{
	const struct sk_buff___cb *with_block = (const void *)skb;

	return ((const struct qdisc_skb_cb *)with_block->cb)->pkt_len;
}

static __always_inline struct waiting *take_first(struct queue *queue)
{
	struct bpf_list_node *node;

	bpf_spin_lock(&queue->lock);
	node = bpf_list_pop_front(&queue->segments);
	bpf_spin_unlock(&queue->lock);
	if (!node)
		return 0;
	return (struct waiting *)((void *)node - __builtin_offsetof(struct waiting, node));
}

SEC("struct_ops/batch_enqueue")
int BPF_PROG(batch_enqueue, struct sk_buff *skb, struct Qdisc *sch, struct bpf_sk_buff_ptr *to_free)
{
	struct queue *queue = queue_of(sch);
	struct waiting *waiting;
	__u32 length;

	if (!queue || sch->q.qlen >= config.limit_packets)
		goto drop;
	waiting = bpf_obj_new_impl(bpf_core_type_id_local(struct waiting), 0);
	if (!waiting)
		goto drop;
	length = length_of(skb);
	if (!sch->q.qlen && config.hold_ns) {
		queue->release_ns = bpf_ktime_get_ns() + config.hold_ns;
		bpf_qdisc_watchdog_schedule(sch, queue->release_ns, 0);
		COUNT(held);
	}
	sch->q.qlen++;
	sch->qstats.backlog += length;
	skb = bpf_kptr_xchg(&waiting->skb, skb);
	if (skb) /* cannot happen: the node is new */
		bpf_qdisc_skb_drop(skb, to_free);
	bpf_spin_lock(&queue->lock);
	bpf_list_push_back_impl(&queue->segments, &waiting->node, 0, 0);
	bpf_spin_unlock(&queue->lock);
	return NET_XMIT_SUCCESS;
drop:
	COUNT(dropped);
	bpf_qdisc_skb_drop(skb, to_free);
	return NET_XMIT_DROP;
}

SEC("struct_ops/batch_dequeue")
struct sk_buff *BPF_PROG(batch_dequeue, struct Qdisc *sch)
{
	struct queue *queue = queue_of(sch);
	struct waiting *waiting;
	struct sk_buff *skb;

	if (!queue)
		return 0;
	if (queue->release_ns) {
		if (sch->q.qlen < config.batch_packets && bpf_ktime_get_ns() < queue->release_ns)
			return 0;
		queue->release_ns = 0;
		if (sch->q.qlen > 1)
			COUNT(batches);
	}
	waiting = take_first(queue);
	if (!waiting)
		return 0;
	skb = bpf_kptr_xchg(&waiting->skb, 0);
	bpf_obj_drop_impl(waiting, 0);
	if (!skb)
		return 0;
	sch->qstats.backlog -= length_of(skb);
	sch->q.qlen--;
	bpf_qdisc_bstats_update(sch, skb);
	return skb;
}

SEC("struct_ops/batch_init")
int BPF_PROG(batch_init, struct Qdisc *sch, struct nlattr *options, struct netlink_ext_ack *extack)
{
	sch->limit = config.limit_packets;
	return 0;
}

SEC("struct_ops/batch_reset")
void BPF_PROG(batch_reset, struct Qdisc *sch)
{
	struct queue *queue = queue_of(sch);
	__u32 index;

	bpf_for (index, 0, EK_BATCH_MAX_PACKETS) {
		struct waiting *waiting;
		struct sk_buff *skb;

		if (!queue)
			break;
		waiting = take_first(queue);
		if (!waiting)
			break;
		skb = bpf_kptr_xchg(&waiting->skb, 0);
		if (skb)
			bpf_kfree_skb(skb);
		bpf_obj_drop_impl(waiting, 0);
	}
	if (queue)
		queue->release_ns = 0;
	sch->q.qlen = 0;
	sch->qstats.backlog = 0;
}

SEC("struct_ops/batch_destroy")
void BPF_PROG(batch_destroy, struct Qdisc *sch)
{
}

SEC(".struct_ops.link")
struct Qdisc_ops batch = {
	.enqueue = (void *)batch_enqueue,
	.dequeue = (void *)batch_dequeue,
	.init = (void *)batch_init,
	.reset = (void *)batch_reset,
	.destroy = (void *)batch_destroy,
	/* User space overwrites the name. */
	.id = "evenkeel",
};
