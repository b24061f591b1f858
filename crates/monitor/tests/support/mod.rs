//! Synthetic samples of hosts, and screens as text.

use std::path::Path;
use std::time::Duration;

use evenkeel_monitor::view::{Extent, History, Origin, Palette, Scene, ViewState, draw};
use evenkeel_monitor::{
    Flow, Interface, Interval, Loss, Management, Processor, Queue, SCHEMA, Sample, SocketDetail,
};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

fn interval(delta: u64) -> Interval {
    Interval { total: delta.saturating_mul(60), delta }
}

/// Returns the sample of second `at` of a synthetic host, whose numbers are computed from their
/// positions.
pub fn sample(at: u64, flows: u64, queues: u32, processors: u32) -> Sample {
    let mut loads = vec![(0_u32, 0_u64); queues as usize];
    let flow = |number: u64| {
        let queue = u32::try_from((number * 5 + number / 3) % u64::from(queues.max(1))).unwrap();
        let bytes = 1_200_000_000 / flows.max(1) * (2 * flows - number) / (2 * flows);
        if let Some(load) = loads.get_mut(queue as usize) {
            *load = (load.0 + 1, load.1 + bytes);
        }
        let is_udp = number % 9 == 8;
        let socket = SocketDetail {
            process: Some(["iperf3", "nginx", "ceph-osd", "rsync"][(number % 4) as usize].to_owned()),
            process_id: Some(4000 + number as u32),
            rtt_us: 250 + 731 * (number % 1000) as u32,
            min_rtt_us: 200,
            cwnd: 100,
            congestion: Some("cubic".to_owned()),
            retransmitted: interval(if number.is_multiple_of(5) { 3 } else { 0 }),
        };
        Flow {
            protocol: if is_udp { "udp" } else { "tcp" }.to_owned(),
            source: format!("10.20.30.40:{}", 40_000 + number % 20_000),
            destination: match number % 4 {
                0 => format!("[2001:db8:0:12::{number:x}]:443"),
                _ => format!("10.20.31.{}:5201", number % 250 + 1),
            },
            queue: Some(queue),
            bytes: interval(bytes),
            of_fair_share: Some(2.0 * (1.0 - number as f64 / flows as f64)),
            busy: Some(true),
            socket: (!is_udp).then_some(socket),
        }
    };
    let listed: Vec<Flow> = (0..flows).map(flow).collect();
    let queue = |(index, (flows, bytes)): (u32, &(u32, u64))| Queue {
        index,
        busy_flows: Some(*flows),
        bytes: Some(interval(*bytes)),
        packets: Some(interval(bytes / 1500)),
        drops: Some(interval(if index == 3 { 120 } else { 0 })),
        backlog_bytes: Some(u64::from(*flows) * 90_000),
        interrupt_processors: vec![index % processors.max(1)],
        node: Some(index % processors.max(1) * 2 / processors.max(1)),
    };
    let processor = |index: u32| Processor {
        index,
        node: Some(index * 2 / processors),
        user: 0.05,
        system: 0.15,
        softirq: if index == 0 { 0.72 } else { 0.12 },
        idle: if index == 0 { 0.08 } else { 0.68 },
        interrupts: interval(18_644),
        packets: Some(interval(152_000)),
        dropped: Some(interval(0)),
        squeezed: Some(interval(if index == 0 { 4 } else { 0 })),
    };
    let eth0 = Interface {
        name: "eth0".to_owned(),
        driver: Some("mlx5_core".to_owned()),
        speed_bps: Some(10_000_000_000),
        up: true,
        root_qdisc: Some("mq".to_owned()),
        sent_bytes: interval(1_180_000_000 - 40_000_000 * (at % 5)),
        sent_packets: interval(787_000),
        received_bytes: interval(15_000_000 + 1_000_000 * (at % 3)),
        received_packets: interval(100_000),
        management: Some(Management { command: "fair".to_owned(), process: 1234 }),
        further: Vec::new(),
        busy_flows: Some(loads.iter().map(|(flows, _)| u64::from(*flows)).sum()),
        colliding_flows: Some(
            loads.iter().filter(|(flows, _)| *flows > 1).map(|(flows, _)| u64::from(*flows)).sum(),
        ),
        queues: (0..).zip(&loads).map(queue).collect(),
        observed: true,
        active_flows: Some(flows + 28),
        flows: listed,
        nfm_1s: Some(0.75 + 0.05 * (at % 4) as f64),
        nfm_100ms: Some(1.2 - 0.1 * (at % 3) as f64),
        jain_1s: Some(0.91),
        bpf_ns: Some(interval(71_617_000)),
    };
    let lo = Interface { name: "lo".to_owned(), up: true, active_flows: Some(0), ..Interface::default() };
    let loss = |place: &str, rule: &str, counter: &str, packets: u64| Loss {
        place: place.to_owned(),
        subject: "eth0".to_owned(),
        packets: interval(packets),
        counter: counter.to_owned(),
        rule: rule.to_owned(),
    };
    Sample {
        schema: SCHEMA,
        at_ms: 1_795_806_855_000 + 1000 * at,
        seconds: 1.0,
        interfaces: vec![lo, eth0],
        processors: (0..processors).map(processor).collect(),
        losses: vec![
            loss("receive ring", "rx-ring-drops", "rx_out_of_buffer", 0),
            loss("qdisc", "qdisc-drops", "qdisc drops", 120),
        ],
        losses_incomplete: false,
        unread_places: Vec::new(),
        not_read: Vec::new(),
    }
}

/// Draws the last sample. Returns the screen as text, and the extents of the panes.
pub fn screen(
    samples: &[Sample],
    state: &ViewState,
    (width, height): (u16, u16),
) -> (String, [Option<Extent>; 5]) {
    let mut history = History::default();
    samples.iter().for_each(|sample| history.push(sample));
    let origin = Origin::Live { interval: Duration::from_secs(1), recording: None };
    let scene = Scene { sample: samples.last().unwrap(), points: history.points(0), origin: &origin };
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    let extents = draw(&scene, state, Palette { colours: true }, &mut buffer);
    (text(&buffer), extents)
}

fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in buffer.content().chunks(usize::from(buffer.area().width).max(1)) {
        let line: String = row.iter().map(ratatui_core::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Compares `found` with `tests/golden/NAME`. With `EVENKEEL_BLESS=1` in the environment, the function
/// writes the file instead.
pub fn assert_golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("EVENKEEL_BLESS").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, found).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == found, "{name} differs (EVENKEEL_BLESS=1 rewrites it). Found:\n{found}");
}
