//! The latency probe sends one small request at a time and waits for the answer, like sockperf's
//! ping-pong.

use evenkeel_transmit::{FlowWord, Pool};

use crate::parameters::Parameters;
use crate::random::{Component, Generator};
use crate::segment::{PROBE, Segment};
use crate::settings::Settings;
use crate::time::{MICROSECOND, Span, Time};

#[derive(Debug)]
pub struct Probe {
    pub(crate) word: FlowWord,
    pub(crate) hash: u32,
    /// Processor of the probe's program: the last processor, which has the fewest flows.
    pub(crate) processor: u32,
    pub(crate) pool: Pool,
    pub(crate) vector: u32,
    /// Receive queue of the requests.
    pub(crate) sink_queue: u32,
    pub(crate) bytes: u32,
    band: u8,
    /// When the present request was sent.
    pub(crate) sent: Time,
    /// Whether the request has arrived, but the receiver's interrupt has not handled it.
    pub(crate) at_sink: bool,
    first_wait: Span,
    application_latency: Span,
    /// Half round trips in µs.
    pub(crate) samples: Vec<f64>,
}

impl Probe {
    /// Creates a probe that has not sent a request.
    #[must_use]
    pub fn new(bytes: u32, settings: &Settings, parameters: &Parameters, seed: u64) -> Self {
        let mut generator = Generator::new(seed, Component::Probe);
        let processor = settings.processors.max(1) - 1;
        Self {
            word: FlowWord::new(),
            hash: generator.bits(),
            processor,
            pool: settings.pool(settings.probe_priority, processor),
            vector: settings.queues.max(1)
                + generator.below(u64::from(parameters.receive_queues.max(1))) as u32,
            sink_queue: generator.below(u64::from(parameters.receive_queues.max(1))) as u32,
            bytes,
            // The probe's port has priority if the qdisc has a band for that port (Titan, section 6).
            band: u8::from(!settings.fair_queueing),
            sent: Time::ZERO,
            at_sink: false,
            // Wait for a random time, so that repeats do not begin in phase with the interrupts.
            first_wait: generator.below(100 * MICROSECOND),
            application_latency: parameters.application_latency,
            samples: Vec::new(),
        }
    }

    #[must_use]
    pub fn first_wait(&self) -> Span {
        self.first_wait
    }

    #[must_use]
    pub(crate) fn request(&self, mss: u32) -> Segment {
        Segment {
            flow: PROBE,
            hash: self.hash,
            sequence: 0,
            payload: self.bytes,
            mss: mss.max(self.bytes),
            band: self.band,
            retransmit: false,
        }
    }

    /// Handles the interrupt of the answer. Returns the time when the program reads the answer and
    /// sends the next request.
    pub(crate) fn answered(&mut self, now: Time) -> Time {
        let read = now + self.application_latency;
        self.samples.push(read.since(self.sent) as f64 / MICROSECOND as f64 / 2.0);
        read
    }
}
