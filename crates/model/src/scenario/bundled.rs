//! The scenarios and variant tables that are compiled into the program.
//!
//! They are the files in `scenarios/` at the root of the repository. No scenario is generated.

macro_rules! scenario_files {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../../../../scenarios/", $name, ".toml")))),+]
    };
}

/// Returns the names and texts of the bundled scenarios. The order is: bulk flows between two hosts,
/// clusters, fetching clients, requesting clients, tenants, transfers. Scenarios of bulk flows and of
/// clusters are sorted by the number of flows.
#[must_use]
pub fn bundled() -> &'static [(&'static str, &'static str)] {
    const SCENARIOS: [(&str, &str); 33] = scenario_files![
        "titan-3-flows",
        "titan-6-flows",
        "titan-12-flows",
        "titan-24-flows",
        "titan-48-flows",
        "titan-192-flows",
        "shuffle-6",
        "shuffle-12",
        "shuffle-24",
        "memcached-hol",
        "dragonet-echo",
        "dragonet-memcached",
        "tc-packet-length",
        "tc-clients",
        "tc-latency",
        "tc-priority",
        "tc-fairness",
        "tc-fairness-mixed",
        "tc-work-conservation",
        "tc-filter-cost",
        "host-stack",
        "tcp100g-mtu",
        "tcp100g-ramp",
        "tcp100g-fan",
        "tcp100g-placement",
        "tcp100g-cores",
        "tcp100g-two-cores",
        "tcp100g-tuning",
        "tcp100g-cubic",
        "tcp100g-bbr",
        "tcp100g-lola",
        "congestion-shallow",
        "congestion-coexist",
    ];
    &SCENARIOS
}

#[must_use]
pub fn variant_tables() -> &'static [(&'static str, &'static str)] {
    const TABLES: [(&str, &str); 2] = [
        ("titan", include_str!("../../../../scenarios/variants/titan.toml")),
        ("tcp100g", include_str!("../../../../scenarios/variants/tcp100g.toml")),
    ];
    &TABLES
}
