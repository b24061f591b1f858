//! The latency probe: one small request and its answer at a time, as sockperf's ping-pong.

use evenkeel_transmit::{FlowWord, Pool};

use crate::parameters::Parameters;
use crate::random::{Component, Generator};
use crate::segment::{PROBE, Segment};
use crate::settings::Settings;
use crate::time::{MICROSECOND, Span, Time};

/// The probe's state.
#[derive(Debug)]
pub struct Probe {
    /// State of the queue choice.
    pub(crate) word: FlowWord,
    pub(crate) hash: u32,
    /// Processor of its program: the last one, which has the fewest flows.
    pub(crate) processor: u32,
    /// Queues that it may use.
    pub(crate) pool: Pool,
    /// Vector that the answers arrive at.
    pub(crate) vector: u32,
    /// Queue of the receiver that the requests arrive at.
    pub(crate) sink_queue: u32,
    pub(crate) bytes: u32,
    band: u8,
    /// When the request at hand was sent.
    pub(crate) sent: Time,
    /// It has arrived, and waits for the receiver's interrupt.
    pub(crate) at_sink: bool,
    first_wait: Span,
    application_latency: Span,
    /// Half round trips, µs.
    pub(crate) samples: Vec<f64>,
}

impl Probe {
    /// Creates a probe that has not sent.
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
            // Its port is prioritised where the qdisc has a band for it (Titan, section 6).
            band: u8::from(!settings.fair_queueing),
            sent: Time::ZERO,
            at_sink: false,
            // So that repeats do not all begin in step with the interrupts.
            first_wait: generator.below(100 * MICROSECOND),
            application_latency: parameters.application_latency,
            samples: Vec::new(),
        }
    }

    /// Time until the first request.
    #[must_use]
    pub fn first_wait(&self) -> Span {
        self.first_wait
    }

    /// A request.
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

    /// The answer's interrupt has come: when the program reads it, and sends the next request.
    pub(crate) fn answered(&mut self, now: Time) -> Time {
        let read = now + self.application_latency;
        self.samples.push(read.since(self.sent) as f64 / MICROSECOND as f64 / 2.0);
        read
    }
}
