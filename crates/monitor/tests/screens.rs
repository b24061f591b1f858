//! Tests the screens of `evenkeel top` as text.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use evenkeel_monitor::view::{KEYS, KeyPress, Origin, ViewState, plain};
use evenkeel_monitor::{Flow, Interface, Interval, Loss, Processor, Queue, Sample, SocketDetail};
use proptest::prelude::*;

use support::{assert_golden, sample, screen};

const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (160, 50);

fn course(flows: u64, queues: u32, processors: u32) -> Vec<Sample> {
    (0..30).map(|at| sample(at, flows, queues, processors)).collect()
}

/// Returns the state after these keys. As in the command, the screen is drawn after each key.
fn after(keys: &str, samples: &[Sample], size: (u16, u16)) -> ViewState {
    let mut state = ViewState::default();
    state.adopt(screen(samples, &state, size).1);
    for key in keys.chars() {
        let key = match key {
            '⇟' => KeyPress::PageDown,
            '⇲' => KeyPress::End,
            '⏎' => KeyPress::Enter,
            other => KeyPress::Character(other),
        };
        state.press(key, samples.last().unwrap());
        state.adopt(screen(samples, &state, size).1);
    }
    state
}

fn shown(keys: &str, samples: &[Sample], size: (u16, u16)) -> String {
    screen(samples, &after(keys, samples, size), size).0
}

#[test]
fn screens_are_as_reviewed() {
    let samples = course(12, 8, 4);
    for (name, keys) in [
        ("queues", "1"),
        ("flows", "2"),
        ("processors", "3"),
        ("losses", "4"),
        ("fairness", "5"),
        ("help", "?"),
    ] {
        assert_golden(&format!("small-{name}.txt"), &shown(keys, &samples, SMALL));
    }
    assert_golden("large.txt", &shown("", &course(24, 16, 8), LARGE));
    assert_golden("medium-zoomed.txt", &shown("z2", &samples, (100, 30)));
    let origin = Origin::Live { interval: Duration::from_secs(1), recording: None };
    assert_golden("plain.txt", &plain(samples.last().unwrap(), &[], &origin));
}

#[test]
fn the_answer_comes_first() {
    let samples = course(12, 8, 4);
    let lines: Vec<String> = shown("", &samples, LARGE).lines().map(str::to_owned).collect();
    assert_eq!(
        lines[1],
        "eth0: 8.2 Gbit/s out, 12 busy flows, 12 share a queue, NFM 0.80; 120 packets lost/s at the qdisc"
    );
    let mut partly_known = samples;
    for (colliding, words) in [
        (12, "16 busy flows, 12 share a queue, 4 on unknown queues, NFM 0.80"),
        (0, "16 busy flows, 4 on unknown queues, NFM 0.80"),
    ] {
        let interfaces = partly_known.iter_mut().flat_map(|sample| &mut sample.interfaces);
        for interface in interfaces.filter(|interface| interface.name == "eth0") {
            (interface.busy_flows, interface.colliding_flows) = (Some(16), Some(colliding));
        }
        let text = shown("", &partly_known, LARGE);
        assert!(text.contains(words), "{text}");
        assert!(text.contains("queue 0 has 4 of 16 busy flows, 4 are on unknown queues"), "{text}");
    }
    let first = Sample { seconds: 0.0, ..sample(0, 12, 8, 4) };
    assert!(shown("", &[first], SMALL).contains("first sample; rates follow"));
    assert!(shown("", &[Sample::default()], SMALL).contains("no interface"));
}

#[test]
fn other_interfaces_lose_their_own_packets() {
    let mut samples = vec![sample(0, 2, 4, 2)];
    assert!(shown("", &samples, LARGE).contains("120 packets lost/s at the qdisc"));
    samples[0].interfaces[1].name = "eth9".to_owned();
    samples[0].interfaces.push(Interface { name: "eth0".to_owned(), ..Interface::default() });
    assert!(shown("", &samples, LARGE).lines().nth(1).unwrap().ends_with("; no losses"));
    samples[0].unread_places = vec!["network layer".to_owned()];
    let line = "; no losses seen; losses at the network layer are not known";
    assert!(shown("", &samples, LARGE).lines().nth(1).unwrap().ends_with(line));
    samples[0].losses_incomplete = true;
    assert!(shown("", &samples, LARGE).lines().nth(1).unwrap().ends_with("; losses are not known"));
    samples[0].losses[1].subject = "CPU 1".to_owned();
    assert!(shown("", &samples, LARGE).contains("120 packets lost/s at the qdisc"));
}

#[test]
fn small_terminals_get_a_request_and_no_garbage() {
    for size in [(20, 5), (79, 24), (80, 23), (1, 1), (3, 2), (200, 1)] {
        let text = shown("2s/x", &course(12, 8, 4), size);
        assert!(!text.contains("eth0"), "{size:?}: {text}");
        assert!(size.0 < 10 || text.contains("needs"), "{size:?}: {text}");
    }
    let text = shown("", &course(1, 1, 1), (20, 5));
    assert_eq!(
        text.split_whitespace().collect::<Vec<_>>().join(" "),
        "the terminal has 20×5; evenkeel top needs 80×24"
    );
}

#[test]
fn every_number_of_flows_and_queues_fits() {
    for (flows, queues, processors) in [(0, 0, 0), (0, 1, 1), (1, 1, 1), (1000, 128, 64), (10_000, 128, 256)]
    {
        let samples = vec![sample(7, flows, queues, processors)];
        for size in [SMALL, (100, 30), LARGE, (300, 100)] {
            for keys in ["1", "2", "2s", "2sssr", "3⇲", "1⇟⇟", "4", "5", "2/nginx⏎⇲", "?"] {
                let text = shown(keys, &samples, size);
                assert!(text.lines().all(|line| line.chars().count() <= size.0.into()), "{text}");
                assert!(text.contains("evenkeel top  [eth0]") && text.contains("q quit"), "{text}");
            }
        }
    }
    let samples = vec![sample(7, 10_000, 128, 64)];
    let last = shown("2⇲", &samples, SMALL);
    assert!(last.contains("9,990-10,000 of 10,000 flows"), "{last}");
    let filtered = shown("2/NGINX⏎", &samples, SMALL);
    assert!(filtered.contains("of 2,222 flows; filter 'NGINX' (Esc clears it)"), "{filtered}");
    assert!(!filtered.contains("ceph-osd"), "{filtered}");
}

#[test]
fn sorting_shows_the_largest_or_smallest_first() {
    let samples = vec![sample(7, 1000, 8, 4)];
    let queues = |keys: &str| -> Vec<String> {
        let text = shown(keys, &samples, SMALL);
        let rows = text.lines().skip_while(|line| !line.contains("waiting")).skip(1).take(8);
        rows.map(|row| row.split_whitespace().nth(1).unwrap().to_owned()).collect()
    };
    let numbers =
        |keys: &str| -> Vec<u32> { queues(keys).iter().map(|flows| flows.parse().unwrap()).collect() };
    assert!(numbers("ss").is_sorted_by(|first, second| first >= second), "{:?}", numbers("ss"));
    assert!(numbers("ssr").is_sorted(), "{:?}", numbers("ssr"));
    assert!(shown("ssr", &samples, SMALL).contains("busy flows▲"));
}

#[test]
fn names_from_outside_reach_no_terminal() {
    let evil = "\x1b]0;x\x07\x1b[2J\n\u{202e}e";
    let mut sample = sample(0, 2, 2, 2);
    sample.interfaces[1].name = evil.to_owned();
    sample.interfaces[1].driver = Some(evil.to_owned());
    sample.interfaces[1].management.as_mut().unwrap().command = evil.to_owned();
    sample.interfaces[1].flows[0].destination = evil.to_owned();
    sample.interfaces[1].flows[0].socket.as_mut().unwrap().process = Some(evil.to_owned());
    sample.interfaces.push(Interface { name: evil.to_owned() + "2", ..Interface::default() });
    sample.losses[1].place = evil.to_owned();
    sample.not_read.push(evil.repeat(100));
    let is_safe = |text: &str| {
        !text.chars().any(|character| character != '\n' && evenkeel_model::text::is_invisible(character))
    };
    let samples = [sample];
    for size in [SMALL, LARGE] {
        for keys in ["1", "2", "4", "?", "2/\x1bx"] {
            assert!(is_safe(&shown(keys, &samples, size)), "{keys}");
        }
    }
    let origin = Origin::Live { interval: Duration::from_secs(1), recording: None };
    let lines = plain(&samples[0], &[], &origin);
    assert!(is_safe(&lines), "{lines:?}");
    let heads = lines.lines().filter(|line| !line.starts_with("  ")).count();
    assert_eq!(heads, samples[0].interfaces.len(), "{lines}");
}

#[test]
fn nothing_needs_colour() {
    let samples = course(12, 8, 4);
    // The selected pane has brackets, and the sort column has a mark.
    assert!(shown("2", &samples, SMALL).contains("[2 flows]"));
    assert!(shown("2s", &samples, SMALL).contains("process▼"));
}

#[test]
fn the_documentation_has_all_keys() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to/watch-live.md");
    let page = std::fs::read_to_string(path).unwrap();
    for (keys, action) in KEYS {
        assert!(page.contains(&format!("| {keys} | {action} |")), "{keys}");
    }
}

// ---- Any sample ------------------------------------------------------------------------------------

fn any_f64() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        0.0..1.5,
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(-0.0),
        Just(f64::MIN_POSITIVE),
        Just(0.0),
    ]
}

fn any_u64() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0..2000_u64, any::<u64>()]
}

fn any_u32() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), 0..200_u32]
}

fn any_interval() -> impl Strategy<Value = Interval> {
    (any_u64(), any_u64()).prop_map(|(total, delta)| Interval { total, delta })
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof!["eth[0-9]", any::<String>(), "\\PC{0,80}", Just("日本語\u{301}\u{200d}👩‍👧".to_owned())]
}

fn some<S: Strategy>(strategy: S) -> impl Strategy<Value = Option<S::Value>> {
    (any::<bool>(), strategy).prop_map(|(is_there, value)| is_there.then_some(value))
}

fn any_queue() -> impl Strategy<Value = Queue> {
    let counters = (some(any_interval()), some(any_interval()), some(any_interval()), some(any_u64()));
    let rest = (prop::collection::vec(any_u32(), 0..6), some(any_u32()));
    (any_u32(), some(any_u32()), counters, rest).prop_map(
        |(index, busy_flows, (bytes, packets, drops, backlog_bytes), (interrupt_processors, node))| Queue {
            index,
            busy_flows,
            bytes,
            packets,
            drops,
            backlog_bytes,
            interrupt_processors,
            node,
        },
    )
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let socket = (some(any_text()), some(any_u32()), any_u32(), some(any_text()), any_interval()).prop_map(
        |(process, process_id, rtt_us, congestion, retransmitted)| SocketDetail {
            process,
            process_id,
            rtt_us,
            min_rtt_us: rtt_us,
            cwnd: rtt_us,
            congestion,
            retransmitted,
        },
    );
    let names = (any_text(), any_text(), any_text());
    (names, some(any_u32()), any_interval(), some(any_f64()), some(any::<bool>()), some(socket)).prop_map(
        |((protocol, source, destination), queue, bytes, of_fair_share, busy, socket)| Flow {
            protocol,
            source,
            destination,
            queue,
            bytes,
            of_fair_share,
            busy,
            socket,
        },
    )
}

fn any_interface() -> impl Strategy<Value = Interface> {
    let lists = (prop::collection::vec(any_queue(), 0..5), prop::collection::vec(any_flow(), 0..5));
    let figures = (some(any_f64()), some(any_f64()), some(any_f64()), some(any_interval()));
    let numbers = (some(any_u64()), any_u64(), some(any_u64()));
    (any_text(), some(any_text()), any::<bool>(), any_interval(), lists, figures, numbers).prop_map(
        |(name, driver, up, sent, (queues, flows), (nfm_1s, nfm_100ms, jain_1s, bpf_ns), numbers)| {
            Interface {
                name,
                root_qdisc: driver.clone(),
                driver,
                speed_bps: numbers.0,
                up,
                sent_bytes: sent,
                sent_packets: sent,
                received_bytes: sent,
                received_packets: sent,
                management: None,
                further: Vec::new(),
                queues,
                flows,
                observed: up,
                active_flows: Some(numbers.1),
                busy_flows: numbers.0,
                colliding_flows: numbers.2,
                nfm_1s,
                nfm_100ms,
                jain_1s,
                bpf_ns,
            }
        },
    )
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let processor = (any_u32(), some(any_u32()), any_f64(), any_f64(), any_interval()).prop_map(
        |(index, node, user, idle, interval)| Processor {
            index,
            node,
            user,
            system: idle,
            softirq: user,
            idle,
            interrupts: interval,
            packets: Some(interval),
            dropped: Some(interval),
            squeezed: Some(interval).filter(|_| user > 0.5),
        },
    );
    let loss = (any_text(), any_text(), any_interval()).prop_map(|(place, subject, packets)| Loss {
        rule: place.clone(),
        counter: subject.clone(),
        place,
        subject,
        packets,
    });
    let lists = (
        prop::collection::vec(any_interface(), 0..4),
        prop::collection::vec(processor, 0..4),
        prop::collection::vec(loss, 0..4),
        prop::collection::vec(any_text(), 0..4),
    );
    (any_u64(), any_f64(), lists).prop_map(|(at_ms, seconds, (interfaces, processors, losses, not_read))| {
        Sample {
            schema: 1,
            at_ms,
            seconds,
            interfaces,
            processors,
            losses,
            losses_incomplete: false,
            unread_places: Vec::new(),
            not_read,
        }
    })
}

fn any_key() -> impl Strategy<Value = KeyPress> {
    use KeyPress::{Down, End, Enter, Escape, Home, Left, PageDown, PageUp, Tab, Up};
    prop_oneof![
        prop::sample::select(vec![Down, End, Enter, Escape, Home, Left, PageDown, PageUp, Tab, Up]),
        prop::sample::select("12345srf/ziif?kj".chars().collect::<Vec<_>>()).prop_map(KeyPress::Character),
        any::<char>().prop_map(KeyPress::Character),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_sample_and_no_key_panic(
        samples in prop::collection::vec(any_sample(), 1..4),
        keys in prop::collection::vec(any_key(), 0..30),
        size in prop_oneof![Just(SMALL), Just(LARGE), (0..200_u16, 0..60_u16)],
    ) {
        let mut state = ViewState::default();
        for (key, at) in keys.into_iter().zip(0..) {
            let sample: &Sample = &samples[at % samples.len()];
            state.press(key, sample);
            let (text, extents) = screen(&samples[..=at % samples.len()], &state, size);
            state.adopt(extents);
            prop_assert!(text.lines().count() <= size.1.max(1).into());
        }
        let origin = Origin::Replay { file: "r".to_owned(), index: 0, count: 1 };
        let text = plain(&samples[0], &[], &origin);
        let is_unsafe = |character: char| character != '\n' && evenkeel_model::text::is_invisible(character);
        prop_assert!(!text.chars().any(is_unsafe));
    }

    #[test]
    fn what_is_recorded_is_read_again(mut sample in any_sample()) {
        // JSON has no number for NaN and infinity, and the collector does not produce them.
        sample.seconds = 1.0;
        sample.processors.clear();
        // The JSON reader rounds the last digit of some numbers.
        let is_finite = |figure: &mut Option<f64>| {
            *figure = figure.filter(|value| value.abs() < 1e6).map(|value| value.abs().round());
        };
        let has_grown = |interval: &mut Interval| interval.delta = interval.delta.min(interval.total);
        // A reader refuses duplicate names.
        for (interface, number) in sample.interfaces.iter_mut().zip(0..) {
            interface.name += &format!(" {number}");
            interface.colliding_flows = interface.colliding_flows.min(interface.busy_flows);
            [&mut interface.nfm_1s, &mut interface.nfm_100ms, &mut interface.jain_1s].into_iter().for_each(is_finite);
            interface.jain_1s = interface.jain_1s.map(|jain| jain.min(1.0));
            let sums = [&mut interface.sent_bytes, &mut interface.sent_packets, &mut interface.received_bytes];
            sums.into_iter().for_each(has_grown);
            interface.bpf_ns.iter_mut().chain([&mut interface.received_packets]).for_each(has_grown);
            for (queue, index) in interface.queues.iter_mut().zip(0..) {
                queue.index = index;
                let counters = [&mut queue.bytes, &mut queue.packets, &mut queue.drops];
                counters.into_iter().flatten().for_each(has_grown);
            }
            for (flow, number) in interface.flows.iter_mut().zip(0..) {
                flow.source += &format!(" {number}");
                is_finite(&mut flow.of_fair_share);
                let socket = flow.socket.as_mut().map(|socket| &mut socket.retransmitted);
                socket.into_iter().chain([&mut flow.bytes]).for_each(has_grown);
            }
        }
        for (loss, number) in sample.losses.iter_mut().zip(0..) {
            loss.subject += &format!(" {number}");
            has_grown(&mut loss.packets);
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("recording");
        let mut recorder = evenkeel_monitor::Recorder::create(&path).unwrap();
        recorder.write(&sample).unwrap();
        recorder.finish().unwrap();
        let recording = evenkeel_monitor::Recording::read(&path, &[]).unwrap();
        prop_assert_eq!(recording.sample(0), sample);
    }
}
