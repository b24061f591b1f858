use evenkeel_model::scenario::{
    WorkloadKind,
    bundled::{bundled, variant_tables},
    parse,
};
use evenkeel_model::units::{BitRate, Nanoseconds};
use evenkeel_model::world::{Job, Observer, World};
use evenkeel_sim::tcp::Profile;
use evenkeel_sim::world::SimWorld;
struct Nobody;
impl Observer for Nobody {
    fn progress(&self, _: f64, _: &str) {}
    fn remark(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (_, text) = bundled().iter().find(|(n, _)| *n == args[1]).unwrap();
    let scenario = parse(text, &args[1], variant_tables()).unwrap();
    let all: Vec<_> = if args.get(3).is_some() {
        scenario.variants.iter().chain(&scenario.further_variants).collect()
    } else {
        scenario.variants.iter().collect()
    };
    let mut world = SimWorld::new(Profile::Linux6_18);
    let rate: u64 =
        std::env::var("RATE").ok().map_or(scenario.link.rate.bits_per_second(), |r| r.parse().unwrap());
    let ms: u64 = std::env::var("MS").ok().map_or(1000, |r| r.parse().unwrap());
    for variant in all {
        if !args.get(2).is_none_or(|w| w.split(',').all(|w| variant.name.split(' ').any(|x| x == w))) {
            continue;
        }
        let job = Job {
            scenario: &scenario,
            variant,
            repeat: 0,
            seed: 1,
            rate: BitRate::from_bits_per_second(rate),
            warmup: Nanoseconds::from_millis(200),
            duration: Nanoseconds::from_millis(ms),
            bin: Nanoseconds::from_millis(1),
        };
        let t = std::time::Instant::now();
        let raw = match world.repeat(&job, &Nobody) {
            Ok(r) => r,
            Err(e) => {
                println!("{}: {e}", variant.name);
                continue;
            }
        };
        let wall = t.elapsed().as_secs_f64();
        let tp: u64 = raw.flows.iter().map(|f| f.payload_bytes).sum();
        let ten = raw.tenants.unwrap();
        let mut lat = raw.latency_us.clone();
        lat.sort_by(f64::total_cmp);
        let q = |p: f64| {
            lat.get(((lat.len() as f64 * p) as usize).min(lat.len().saturating_sub(1)))
                .copied()
                .unwrap_or(0.0)
        };
        let sum: f64 = raw.flows.iter().map(|f| f.payload_bytes as f64).sum();
        let sq: f64 = raw.flows.iter().map(|f| (f.payload_bytes as f64).powi(2)).sum();
        let (mut idle, mut back) = (0, 0);
        if let Some(l) = &ten.line {
            for (b, k) in l.bytes.iter().zip(&l.backlog_bytes) {
                if *k > 0 {
                    back += 1;
                    if (*b as f64) < l.capacity_bytes / 2.0 {
                        idle += 1;
                    }
                }
            }
        }
        println!(
            "{:52} {:7.3} Gbit/s jain {:.3} n {:6} mean {:8.1} p50 {:8.1} p99 {:8.1} retr {:5} cpu u{:.2} s{:.2} i{:.2} idle {idle}/{back} line {:?} q {:?} wall {:.2} us/pkt {:.2}",
            variant.name,
            tp as f64 * 8e-9 * 1000.0 / ms as f64,
            sum * sq.recip() * sum / raw.flows.len().max(1) as f64,
            lat.len(),
            lat.iter().sum::<f64>() / lat.len().max(1) as f64,
            q(0.5),
            q(0.99),
            raw.retransmits.unwrap(),
            ten.processors.iter().map(|p| p.user).sum::<f64>(),
            ten.processors.iter().map(|p| p.system).sum::<f64>(),
            ten.processors.iter().map(|p| p.softirq).sum::<f64>(),
            ten.line.map(|l| l.bytes.iter().sum::<u64>() as f64 * 8e-9 * 1000.0 / ms as f64),
            ten.qdiscs.first().map(|q| (q.packets, q.drops, q.overlimits, q.backlog_bytes)),
            wall,
            wall * 1e6 / raw.sim.unwrap().packets.max(1) as f64
        );
    }
    let _ = WorkloadKind::Tenants;
}
