/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR Apache-2.0 OR MIT
 *
 * TCP LoLa, a delay-based congestion control. The BPF program and user space include this header, so
 * the simulator runs the kernel's code.
 *
 * Source: Hock, Neumeister, Zitterbart, Bless: "TCP LoLa: Congestion Control for Low Latencies and High
 * Throughput", IEEE LCN 2017. The queueing delay is Q = RTTnow - RTTmin, and the states are:
 *
 *     slow start --- Q > slow_start_us, or window at ssthresh --> CUBIC increase
 *     CUBIC increase --- Q > balance_us --> fair flow balancing
 *     CUBIC increase, fair flow balancing --- Q > target_us --> hold
 *     hold --- after hold_us --> tailored decrease of cwnd --> CUBIC increase
 *
 * In fair flow balancing, each flow keeps the same amount of data X(t) in the queue. X grows with the
 * time since the flow entered this state. In the hold, all flows detect that the queueing delay has
 * reached the target. They then reduce their windows at about the same time, and can measure RTTmin in
 * the empty queue.
 *
 * Deliberate differences from the publication:
 *   - After each change of the window in fair flow balancing or by a decrease, the next measurement
 *     starts one round trip later. An earlier measurement would include the queue of the previous
 *     window.
 *   - In slow start, a measurement takes one round trip with at least 8 samples (N_RTT_SAMPLE of RFC
 *     9406). With measurements of 40 ms, the window would double many times before the flow detects its
 *     own queue.
 *   - Fair flow balancing takes the larger of the last two measurements. A sender that is not scheduled
 *     for some milliseconds empties the queue for one measurement, which is no reason to grow.
 *   - Fair flow balancing returns to CUBIC increase if Q falls below half of balance_us, because other
 *     flows have left. The factor of one half avoids a change of state by each small variation of Q.
 *   - Fair flow balancing at most doubles the window per measurement, as slow start does.
 *
 * Times are microseconds of a monotonic clock in 64 bits. Windows are packets. All functions accept any
 * settings, times and samples without division by zero or overflow. */
#ifndef EVENKEEL_LOLA_H
#define EVENKEEL_LOLA_H

#include "evenkeel/integers.h"

/* Smallest window. RFC 5681, section 3.1: ssthresh is at least two segments. */
#define EK_LOLA_MIN_CWND 2u
/* Largest window: 100 GB with packets of 1500 bytes. Up to this window, the products in this file fit
 * 64 bits. */
#define EK_LOLA_MAX_CWND (1u << 26)
/* Denominator of gamma, beta and cubic (as in the kernel's tcp_cubic.c). */
#define EK_LOLA_ONE 1024u
/* N_RTT_SAMPLE of RFC 9406. */
#define EK_LOLA_SLOW_START_SAMPLES 8u
/* Largest time, ms, whose cube the curves use: |t - K| for CUBIC, t for fair flow balancing. Its cube is
 * 2^60. */
#define EK_LOLA_MAX_CURVE_MS (1u << 20)

/* Defaults. "Module" is the authors' module for Linux, version 1.5. */
#define EK_LOLA_TARGET_US 5000u     /* Q_target: publication and module */
#define EK_LOLA_BALANCE_US 500u     /* Q_low: module */
#define EK_LOLA_SLOW_START_US 1000u /* end of slow start: module, 2 * Q_low */
#define EK_LOLA_HOLD_US 250000u     /* t_sync: publication and module */
#define EK_LOLA_WINDOW_US 40000u    /* t_measure: module */
#define EK_LOLA_WINDOW_SAMPLES 20u  /* module */
#define EK_LOLA_CURVE 75u           /* phi in ms per cube root of a byte: module; the publication has 35 */
#define EK_LOLA_BASE_DECREASES 10u  /* module; the publication has 100 as an example */
#define EK_LOLA_GAMMA 927u          /* module; the publication has 973 */
#define EK_LOLA_BETA 717u           /* tcp_cubic.c: beta = 717; RFC 9438 section 4.6: 0.7 */
#define EK_LOLA_CUBIC 41u           /* tcp_cubic.c: bic_scale = 41; C = 41 * 10 / 1024 = 0.4 (RFC 9438) */

struct ek_lola_settings {
	ek_u32 target_us;     /* queueing delay that starts the hold */
	ek_u32 balance_us;    /* queueing delay that starts fair flow balancing */
	ek_u32 slow_start_us; /* queueing delay that ends slow start */
	ek_u32 hold_us;
	ek_u32 window_us;      /* duration of a measurement of RTTnow */
	ek_u32 window_samples; /* fewest samples of a measurement */
	ek_u32 curve;          /* phi: X(t) = (t / phi)^3 bytes, t in ms */
	ek_u32 base_decreases; /* decreases without an RTT close to RTTmin, after which RTTmin is reset */
	ek_u32 gamma;          /* factor of the tailored decrease, of 1024 */
	ek_u32 beta;           /* factor of the decrease after a loss, of 1024 */
	ek_u32 cubic;          /* C = cubic * 10 / 1024 packets per s^3 */
	ek_u32 loss_reaction;  /* 0: a loss does not change the window */
};

enum ek_lola_phase {
	EK_LOLA_SLOW_START = 0,
	EK_LOLA_CUBIC_INCREASE = 1,
	EK_LOLA_BALANCE = 2,
	EK_LOLA_HOLD = 3,
};

/* The state of a flow. ek_lola_init initializes it. */
struct ek_lola {
	ek_u64 epoch_us;      /* start of the CUBIC curve; 0: it starts with the next ACK */
	ek_u64 phase_us;      /* start of fair flow balancing or of the hold */
	ek_u64 window_us;     /* start of the measurement; samples before it are not used for RTTnow */
	ek_u64 last_us;       /* last sample */
	ek_u32 rtt_min_us;    /* base RTT; 0: unknown */
	ek_u32 rtt_now_us;    /* result of the last measurement; 0: none since a decrease, loss or pause */
	ek_u32 rtt_before_us; /* result of the measurement before the last one */
	ek_u32 window_min_us; /* smallest sample of this measurement */
	ek_u32 window_samples;
	ek_u32 cwnd_max;     /* W_max of the CUBIC curve (RFC 9438); 0: the curve starts at the window */
	ek_u32 k_ms;         /* time from the start of the curve to cwnd_max */
	ek_u32 credit;       /* acknowledged packets that have not increased the window yet */
	ek_u32 cwnd;         /* result of the last ek_lola_grow; 0: none yet */
	ek_u32 cwnd_at_loss; /* window before the last loss */
	ek_u32 decreases;    /* tailored decreases */
	ek_u32 losses;       /* calls of ek_lola_loss */
	ek_u16 stale;        /* decreases since an RTT close to RTTmin */
	unsigned char phase; /* enum ek_lola_phase */
	unsigned char fresh; /* a measurement has ended, and ek_lola_grow has not used it yet */
};

/* The kernel's private area of a congestion control: icsk_ca_priv, 13 words (inet_connection_sock.h). */
_Static_assert(sizeof(struct ek_lola) <= 13 * sizeof(ek_u64), "must fit icsk_ca_priv");

struct ek_lola_ack {
	ek_u64 now_us;
	ek_u32 acked; /* packets */
	ek_u32 cwnd;
	ek_u32 ssthresh;
	ek_u32 mss;     /* bytes */
	ek_u32 limited; /* the window limits the flow; if 0, the window does not grow */
};

struct ek_lola_window {
	ek_u32 cwnd;
	ek_u32 ssthresh;
};

EK_INLINE ek_u32 ek_lola_bound(ek_u64 value, ek_u32 least, ek_u32 most)
{
	return value < least ? least : value > most ? most : (ek_u32)value;
}

EK_INLINE ek_u64 ek_lola_elapsed(ek_u64 now_us, ek_u64 since_us)
{
	return now_us > since_us ? now_us - since_us : 0;
}

EK_INLINE struct ek_lola_settings ek_lola_defaults(void)
{
	struct ek_lola_settings settings = {
		.target_us = EK_LOLA_TARGET_US,
		.balance_us = EK_LOLA_BALANCE_US,
		.slow_start_us = EK_LOLA_SLOW_START_US,
		.hold_us = EK_LOLA_HOLD_US,
		.window_us = EK_LOLA_WINDOW_US,
		.window_samples = EK_LOLA_WINDOW_SAMPLES,
		.curve = EK_LOLA_CURVE,
		.base_decreases = EK_LOLA_BASE_DECREASES,
		.gamma = EK_LOLA_GAMMA,
		.beta = EK_LOLA_BETA,
		.cubic = EK_LOLA_CUBIC,
		.loss_reaction = 1,
	};

	return settings;
}

/* Returns the integer cube root in 22 steps, each of which computes one bit of the result. The code has
 * no branches, because the verifier would follow each branch in two directions: 2^22 paths. */
EK_INLINE ek_u32 ek_lola_cube_root(ek_u64 value)
{
	ek_u64 root = 0, step, above;
	int shift;

	for (shift = 63; shift >= 0; shift -= 3) {
		root <<= 1;
		/* step is (root + 1)^3 - root^3, in units of this step's bit. The rest of the value is
		 * below eight of the previous steps, so the difference is negative if and only if its
		 * first bit is set. */
		step = 3 * root * (root + 1) + 1;
		above = (((value >> shift) - step) >> 63) - 1;
		value -= (step << shift) & above;
		root += above & 1;
	}
	return (ek_u32)root;
}

EK_INLINE void ek_lola_init(struct ek_lola *flow, ek_u64 now_us)
{
	struct ek_lola fresh = {.window_us = now_us, .last_us = now_us};

	*flow = fresh;
}

/* Returns the queueing delay of a round-trip time; 0 if unknown. */
EK_INLINE ek_u32 ek_lola_delay(const struct ek_lola *flow, ek_u32 rtt_us)
{
	return flow->rtt_min_us && rtt_us > flow->rtt_min_us ? rtt_us - flow->rtt_min_us : 0;
}

/* Returns Q = RTTnow - RTTmin; 0 if unknown. */
EK_INLINE ek_u32 ek_lola_queueing_us(const struct ek_lola *flow)
{
	return ek_lola_delay(flow, flow->rtt_now_us);
}

EK_INLINE ek_u32 ek_lola_steady_rtt(const struct ek_lola *flow)
{
	return flow->rtt_now_us > flow->rtt_before_us ? flow->rtt_now_us : flow->rtt_before_us;
}

/* Starts the next measurement one round trip after a change of the window. */
EK_INLINE void ek_lola_remeasure(struct ek_lola *flow, ek_u64 now_us)
{
	flow->window_us = now_us + flow->rtt_now_us;
	flow->window_samples = 0;
	flow->fresh = 0;
}

/* Calls ek_lola_remeasure and resets the measurements, because they are of another window. */
EK_INLINE void ek_lola_forget(struct ek_lola *flow, ek_u64 now_us)
{
	ek_lola_remeasure(flow, now_us);
	flow->rtt_now_us = 0;
	flow->rtt_before_us = 0;
}

/* Starts CUBIC's curve with the next ACK. */
EK_INLINE void ek_lola_start_curve(struct ek_lola *flow, ek_u32 cwnd_max)
{
	flow->phase = EK_LOLA_CUBIC_INCREASE;
	flow->epoch_us = 0;
	flow->credit = 0;
	flow->cwnd_max = cwnd_max;
}

/* Adds the RTT sample of an ACK. RTTmin is the smallest sample since the last reset of RTTmin. RTTnow is
 * the smallest sample of the last measurement. */
EK_INLINE void ek_lola_sample(struct ek_lola *flow, const struct ek_lola_settings *settings, ek_u32 rtt_us,
			      ek_u64 now_us)
{
	ek_u32 duration = settings->window_us, samples = settings->window_samples;

	if (!rtt_us)
		rtt_us = 1;
	flow->last_us = now_us;
	if (!flow->rtt_min_us || rtt_us < flow->rtt_min_us)
		flow->rtt_min_us = rtt_us;
	if (now_us < flow->window_us)
		return;
	if (!flow->window_samples || rtt_us < flow->window_min_us)
		flow->window_min_us = rtt_us;
	flow->window_samples++;
	if (flow->phase == EK_LOLA_SLOW_START) {
		if (duration > flow->rtt_min_us)
			duration = flow->rtt_min_us;
		if (samples > EK_LOLA_SLOW_START_SAMPLES)
			samples = EK_LOLA_SLOW_START_SAMPLES;
	}
	if (flow->window_samples < samples || now_us - flow->window_us < duration)
		return;
	flow->rtt_before_us = flow->rtt_now_us;
	flow->rtt_now_us = flow->window_min_us;
	flow->window_us = now_us;
	flow->window_samples = 0;
	flow->fresh = 1;
	if (ek_lola_queueing_us(flow) <= settings->balance_us)
		flow->stale = 0;
}

/* Returns the window of CUBIC's curve, C * (t - K)^3 + cwnd_max, one RTTmin ahead as in tcp_cubic.c. */
EK_INLINE ek_u32 ek_lola_curve(struct ek_lola *flow, const struct ek_lola_settings *settings, ek_u32 cwnd,
			       ek_u64 now_us)
{
	ek_u64 scale = 10 * (ek_u64)ek_lola_bound(settings->cubic, 1, EK_LOLA_ONE), time_ms, offset;

	if (!flow->epoch_us) {
		flow->epoch_us = now_us;
		/* K is the cube root of (cwnd_max - cwnd) / C. In ms, its cube is at most 2^26 *
		 * 1.024e11. */
		if (flow->cwnd_max > cwnd) {
			flow->k_ms = ek_lola_cube_root((flow->cwnd_max - cwnd) *
						       (1000000000ull * EK_LOLA_ONE / scale));
		} else {
			flow->k_ms = 0;
			flow->cwnd_max = cwnd;
		}
	}
	time_ms = ek_lola_elapsed(now_us, flow->epoch_us) / 1000 + flow->rtt_min_us / 1000;
	offset = time_ms > flow->k_ms ? time_ms - flow->k_ms : flow->k_ms - time_ms;
	offset = ek_lola_bound(offset, 0, EK_LOLA_MAX_CURVE_MS);
	/* |t - K|^3 is at most 2^60, and scale is at most 10240. So the shifted product fits 64 bits. */
	offset = ((offset * offset * offset) >> 10) * scale / 1000000000ull;
	if (time_ms >= flow->k_ms)
		return ek_lola_bound(flow->cwnd_max + offset, EK_LOLA_MIN_CWND, EK_LOLA_MAX_CWND);
	return flow->cwnd_max > offset
		       ? ek_lola_bound(flow->cwnd_max - offset, EK_LOLA_MIN_CWND, EK_LOLA_MAX_CWND)
		       : EK_LOLA_MIN_CWND;
}

/* Returns the window after `acked` packets on CUBIC's curve. The window grows by at most half of
 * `acked` packets, as in tcp_cubic.c, but by up to one packet if `acked` is 0 or 1. */
EK_INLINE ek_u32 ek_lola_increase(struct ek_lola *flow, ek_u32 cwnd, ek_u32 target, ek_u32 acked)
{
	ek_u64 credit = (ek_u64)flow->credit + acked;
	ek_u32 per_packet, packets, most = acked / 2 ? acked / 2 : 1;

	if (target <= cwnd)
		return cwnd;
	per_packet = cwnd / (target - cwnd);
	if (per_packet < 2)
		per_packet = 2;
	if (most > target - cwnd)
		most = target - cwnd;
	packets = ek_lola_bound(credit / per_packet, 0, most);
	credit -= (ek_u64)packets * per_packet;
	/* A remainder of more than one packet is from a time with a flatter curve. */
	flow->credit = ek_lola_bound(credit, 0, per_packet - 1);
	return cwnd + packets;
}

/* Returns the window after a measurement in fair flow balancing. The flow should have X(t) = (t /
 * phi)^3 bytes in the queue, and has cwnd * Q / RTTnow packets there. */
EK_INLINE ek_u32 ek_lola_balance(const struct ek_lola *flow, const struct ek_lola_settings *settings,
				 const struct ek_lola_ack *ack, ek_u32 cwnd)
{
	ek_u64 phi = ek_lola_bound(settings->curve, 1, 65536), mss = ek_lola_bound(ack->mss, 1, 65536);
	ek_u64 time_ms =
		ek_lola_bound(ek_lola_elapsed(ack->now_us, flow->phase_us) / 1000, 0, EK_LOLA_MAX_CURVE_MS);
	ek_u64 wanted = time_ms * time_ms * time_ms / (phi * phi * phi), queued;
	ek_u32 rtt_us = ek_lola_steady_rtt(flow);

	if (!rtt_us)
		return cwnd;
	queued = (ek_u64)cwnd * ek_lola_delay(flow, rtt_us) / rtt_us * mss;
	if (wanted <= queued)
		return cwnd;
	return cwnd + ek_lola_bound((wanted - queued) / mss, 0, cwnd);
}

/* Returns the window after a tailored decrease: cwnd * RTTmin / RTTnow * gamma. The decrease empties
 * slightly more than the queue. */
EK_INLINE ek_u32 ek_lola_decrease(struct ek_lola *flow, const struct ek_lola_settings *settings, ek_u32 cwnd,
				  ek_u64 now_us)
{
	ek_u64 reduced = cwnd;

	if (flow->rtt_min_us && flow->rtt_min_us < flow->rtt_now_us)
		reduced = reduced * flow->rtt_min_us / flow->rtt_now_us;
	reduced = (reduced * ek_lola_bound(settings->gamma, 0, EK_LOLA_ONE)) >> 10;
	flow->decreases++;
	flow->stale++;
	if (flow->stale >= ek_lola_bound(settings->base_decreases, 1, 65535)) {
		flow->rtt_min_us = 0;
		flow->stale = 0;
	}
	ek_lola_forget(flow, now_us);
	ek_lola_start_curve(flow, cwnd);
	return ek_lola_bound(reduced, EK_LOLA_MIN_CWND, EK_LOLA_MAX_CWND);
}

/* Returns the window after the undo of a spurious loss, as tcp_reno_undo_cwnd. */
EK_INLINE ek_u32 ek_lola_undo(const struct ek_lola *flow, ek_u32 cwnd)
{
	return cwnd > flow->cwnd_at_loss ? cwnd : flow->cwnd_at_loss;
}

/* Limits the window to the larger of this code's last window and the window before the last loss. A
 * kernel can skip a BPF program, for example in a recursion, and then uses an undefined value as its
 * result. */
EK_INLINE ek_u32 ek_lola_known_cwnd(const struct ek_lola *flow, ek_u32 cwnd)
{
	ek_u32 most = ek_lola_undo(flow, flow->cwnd);

	return flow->cwnd && cwnd > most ? most : cwnd;
}

/* Returns the window and ssthresh after an ACK of new data. May change the flow's state. */
EK_INLINE struct ek_lola_window ek_lola_grow(struct ek_lola *flow, const struct ek_lola_settings *settings,
					     const struct ek_lola_ack *ack)
{
	ek_u32 cwnd = ek_lola_bound(ek_lola_known_cwnd(flow, ack->cwnd), 1, EK_LOLA_MAX_CWND), before = cwnd;
	struct ek_lola_window window = {.cwnd = cwnd, .ssthresh = ack->ssthresh};
	ek_u32 queueing_us = ek_lola_queueing_us(flow), fresh = flow->fresh, acked = ack->acked, room;

	flow->fresh = 0;
	if (cwnd < window.ssthresh) {
		flow->phase = EK_LOLA_SLOW_START;
		if (queueing_us > settings->slow_start_us) {
			window.ssthresh = cwnd;
			ek_lola_start_curve(flow, 0);
		} else {
			room = ek_lola_bound(window.ssthresh, 0, EK_LOLA_MAX_CWND) - cwnd;
			if (ack->limited)
				cwnd += ek_lola_bound(acked, 0, room);
			acked = acked > room ? acked - room : 0;
			window.cwnd = ek_lola_bound(cwnd, EK_LOLA_MIN_CWND, EK_LOLA_MAX_CWND);
			flow->cwnd = window.cwnd;
			if (window.cwnd < window.ssthresh)
				return window;
			ek_lola_start_curve(flow, flow->cwnd_max);
		}
	} else if (flow->phase == EK_LOLA_SLOW_START) {
		ek_lola_start_curve(flow, flow->cwnd_max);
	}

	if (flow->phase != EK_LOLA_HOLD && queueing_us > settings->target_us) {
		flow->phase = EK_LOLA_HOLD;
		flow->phase_us = ack->now_us;
	} else if (flow->phase == EK_LOLA_CUBIC_INCREASE && queueing_us > settings->balance_us) {
		flow->phase = EK_LOLA_BALANCE;
		flow->phase_us = ack->now_us;
	} else if (flow->phase == EK_LOLA_BALANCE &&
		   ek_lola_delay(flow, ek_lola_steady_rtt(flow)) < settings->balance_us / 2) {
		ek_lola_start_curve(flow, 0);
	}

	if (flow->phase == EK_LOLA_CUBIC_INCREASE) {
		if (ack->limited)
			cwnd = ek_lola_increase(flow, cwnd, ek_lola_curve(flow, settings, cwnd, ack->now_us),
						acked);
	} else if (flow->phase == EK_LOLA_BALANCE) {
		if (ack->limited && fresh)
			cwnd = ek_lola_balance(flow, settings, ack, cwnd);
		if (cwnd != before)
			ek_lola_remeasure(flow, ack->now_us);
	} else if (ek_lola_elapsed(ack->now_us, flow->phase_us) >= settings->hold_us) {
		cwnd = ek_lola_decrease(flow, settings, cwnd, ack->now_us);
		/* The flow stays out of slow start. */
		window.ssthresh = cwnd;
	}
	window.cwnd = ek_lola_bound(cwnd, EK_LOLA_MIN_CWND, EK_LOLA_MAX_CWND);
	flow->cwnd = window.cwnd;
	return window;
}

/* Returns ssthresh after a loss, as CUBIC does (RFC 9438, sections 4.6 and 4.7). Without loss_reaction,
 * returns the unchanged window. */
EK_INLINE ek_u32 ek_lola_loss(struct ek_lola *flow, const struct ek_lola_settings *settings, ek_u32 cwnd,
			      ek_u64 now_us)
{
	ek_u64 beta = ek_lola_bound(settings->beta, 0, EK_LOLA_ONE);
	ek_u32 cwnd_max;

	flow->losses++;
	cwnd = ek_lola_bound(ek_lola_known_cwnd(flow, cwnd), EK_LOLA_MIN_CWND, EK_LOLA_MAX_CWND);
	flow->cwnd_at_loss = cwnd;
	if (!settings->loss_reaction)
		return cwnd;
	cwnd_max = cwnd;
	/* Fast convergence: leave room for new flows. */
	if (cwnd < flow->cwnd_max)
		cwnd_max = (ek_u32)((cwnd * (EK_LOLA_ONE + beta)) >> 11);
	ek_lola_forget(flow, now_us);
	ek_lola_start_curve(flow, cwnd_max);
	return ek_lola_bound((cwnd * beta) >> 10, EK_LOLA_MIN_CWND, EK_LOLA_MAX_CWND);
}

/* Handles the start of sending with nothing in flight. After a pause longer than a measurement, the
 * queue is unknown, and the pause does not count as time on CUBIC's curve. */
EK_INLINE void ek_lola_idle_restart(struct ek_lola *flow, const struct ek_lola_settings *settings,
				    ek_u64 now_us)
{
	ek_u64 idle_us = ek_lola_elapsed(now_us, flow->last_us);

	if (idle_us <= settings->window_us)
		return;
	flow->last_us = now_us;
	if (flow->epoch_us)
		flow->epoch_us = flow->epoch_us + idle_us > now_us ? now_us : flow->epoch_us + idle_us;
	if (flow->phase == EK_LOLA_BALANCE || flow->phase == EK_LOLA_HOLD)
		ek_lola_start_curve(flow, 0);
	flow->rtt_now_us = 0;
	ek_lola_forget(flow, now_us);
}

#endif /* EVENKEEL_LOLA_H */
