/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The weight of a flow: the weight of the device's first rule that matches the flow's segment. Part of
 * queue_select.bpf.c. */

struct query {
	struct __sk_buff *ctx;
	const struct ek_tuple *tuple;
	__u32 mark;
	__u32 priority;
	__u32 weight;
};

static long try_rule(__u32 index, struct query *query)
{
	const struct ek_rule *rule = &device.rule[index & (EK_MAX_RULES - 1)];
	const struct ek_tuple *tuple = query->tuple;
	__u32 match = rule->match;

	if ((match & EK_MATCH_PROTOCOL && tuple->protocol != rule->protocol) ||
	    (match & EK_MATCH_SOURCE_PORT &&
	     (tuple->source_port < rule->source_port_first || tuple->source_port > rule->source_port_last)) ||
	    (match & EK_MATCH_DESTINATION_PORT && (tuple->destination_port < rule->destination_port_first ||
						   tuple->destination_port > rule->destination_port_last)) ||
	    (match & EK_MATCH_MARK && (query->mark & rule->mark_mask) != rule->mark) ||
	    (match & EK_MATCH_PRIORITY && query->priority != rule->priority) ||
	    (match & EK_MATCH_CGROUP &&
	     bpf_skb_ancestor_cgroup_id(query->ctx, rule->cgroup_level) != rule->cgroup))
		return 0;
	query->weight = rule->weight;
	return 1;
}

/* Returns the weight that the rules give to a segment's flow; 1 if no rule matches. */
static __always_inline __u32 weight_by_rules(struct __sk_buff *ctx, const struct ek_tuple *tuple)
{
	struct query query = {
		.ctx = ctx, .tuple = tuple, .mark = ctx->mark, .priority = ctx->priority, .weight = 1};
	__u32 count = *(volatile __u32 *)&device.rule_count;

	if (count)
		bpf_loop(count < EK_MAX_RULES ? count : EK_MAX_RULES, try_rule, &query, 0);
	return query.weight ? query.weight : 1;
}
