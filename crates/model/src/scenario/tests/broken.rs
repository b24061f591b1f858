//! Tests of invalid scenarios: each test changes a valid scenario, and expects an error with position and
//! message.

use super::*;

/// The replaced text, its replacement, line and column of the error, and its text.
pub(super) type Case = (&'static str, &'static str, (usize, usize), &'static str);

#[rustfmt::skip]
const SYNTAX_AND_TOP_LEVEL: &[Case] = &[
    ("schema = 1", "schema = = 1", (1, 10), ": not TOML: extra `=`, expected nothing"),
    ("rate = \"10gbit\"", "rate = \"10gbit", (8, 15), ": not TOML: invalid basic string"),
    ("queues = 4", "queues = 4\nqueues = 8", (10, 1), ": not TOML: duplicate key"),
    ("[groups]", "[link]", (35, 2), ": not TOML: duplicate key"),
    ("schema = 1\n", "", (1, 1), ": schema: missing; add the line schema = 1"),
    ("schema = 1", "schema = 2", (1, 10), ": schema: the file has schema 2, and this evenkeel reads schema 1;"),
    ("schema = 1", "schema = \"1\"", (1, 10), ": schema: expected a whole number, found a string"),
    ("name = \"valid\"\n", "", (1, 1), ": name: missing; name the scenario"),
    ("name = \"valid\"", "nane = \"valid\"", (2, 1), ": nane: unknown key; did you mean 'name'? known keys: schema, name,"),
    ("\"valid\"", "\"../valid\"", (2, 8), ": name: '../valid' cannot be a name; use at most 64 of a-z, 0-9 and '-', begin"),
    ("\"valid\"", "\"Valid\"", (2, 8), ": name: 'Valid' cannot be a name"),
    ("\"valid\"", "\"\"", (2, 8), ": name: '' cannot be a name"),
    ("\"A scenario to break\"", "\"\"", (3, 9), ": title: empty;"),
    ("\"A scenario to break\"", "\"one\\ntwo\"", (3, 9), ": title: contains a line break"),
    ("\"A scenario to break\"", "\"\\u001b[2J\"", (3, 9), ": title: contains a control character"),
    ("\"A scenario to break\"", "['a']", (3, 9), ": title: expected a string, found a list"),
    ("[link]", "[lnk]", (7, 2), ": lnk: unknown key; did you mean 'link'?"),
    ("[workload]\nflows = 12\n", "[work]\nflows = 12\n", (11, 2), ": work: unknown key;"),
    ("[groups]", "[extras]", (35, 2), ": extras: unknown key; known keys: schema, name, title,"),
];

#[rustfmt::skip]
const LINK_AND_WORKLOAD: &[Case] = &[
    ("queues = 4", "queuess = 4", (9, 1), ": link.queuess: unknown key; did you mean 'queues'? known keys: rate, mtu,"),
    ("queues = 4\n", "", (7, 1), ": link.queues: missing; for example queues = 8"),
    ("queues = 4", "queues = 0", (9, 10), ": link.queues: 0 is out of range; write a value from 1 to 256"),
    ("queues = 4", "queues = 257", (9, 10), ": link.queues: 257 is out of range; write a value from 1 to 256"),
    ("queues = 4", "queues = -1", (9, 10), ": link.queues: -1 is out of range"),
    ("queues = 4", "queues = 99999999999999999999999999999999999999999", (9, 10), ": link.queues: out of range; write"),
    ("queues = 4", "queues = 4.0", (9, 10), ": link.queues: expected a whole number, found a decimal number"),
    ("queues = 4", "queues = 1979-05-27", (9, 10), ": link.queues: expected a whole number, found a date or time"),
    ("\"10gbit\"", "10", (8, 8), ": link.rate: a bare number; units are needed; write it as a string, for example \"10gbit\""),
    ("\"10gbit\"", "\"10\"", (8, 8), ": link.rate: a rate needs a unit; write for example 10gbit"),
    ("\"10gbit\"", "\"10Gb\"", (8, 8), ": link.rate: 'Gb' is not a unit of a rate; use bit, kbit, mbit, gbit or tbit"),
    ("\"10gbit\"", "\"-10gbit\"", (8, 8), ": link.rate: a rate cannot be negative"),
    ("\"10gbit\"", "\"0gbit\"", (8, 8), ": link.rate: 0bit is out of range; write a value from 1mbit to 1.6tbit"),
    ("\"10gbit\"", "\"11tbit\"", (8, 8), ": link.rate: 11tbit is out of range"),
    ("\"10gbit\"", "\"NaN\"", (8, 8), ": link.rate: 'NaN' is not a rate"),
    ("\"10gbit\"", "\"\"", (8, 8), ": link.rate: empty; write a rate with its unit"),
    ("\"10gbit\"", "true", (8, 8), ": link.rate: expected a string with a unit, for example \"10gbit\", found true or false"),
    ("queues = 4", "queues = 4\nmtu = \"575B\"", (10, 7), ": link.mtu: 575B is out of range; write a value from 576B to"),
    ("queues = 4", "queues = 4\nmtu = \"64KiB\"", (10, 7), ": link.mtu: 64KiB is out of range"),
    ("queues = 4", "queues = 4\ntopology = \"mqq\"", (10, 12), ": link.topology: 'mqq' is not a value of this key; did you mean 'mq'? known: soft-nic, mq"),
    ("[link]", "[hosts]\nsending-cores = 0\n\n[link]", (8, 17), ": hosts.sending-cores: 0 is out of range"),
    ("[link]", "[hosts]\n\n[link]", (7, 1), ": hosts.sending-cores: missing"),
    ("[link]", "hosts = 8\n\n[link]", (7, 9), ": hosts: expected a table, found an integer"),
    ("flows = 12", "flows = 0", (12, 9), ": workload.flows: 0 is out of range; write a value from 1 to 100000"),
    ("flows = 12", "kind = \"shuffel\"", (12, 8), ": workload.kind: 'shuffel' is not a value of this key; did you mean 'shuffle'? known: bulk, shuffle, fetch"),
    ("flows = 12", "flows = 12\nbytes-per-flow = \"1GB\"", (13, 1), ": workload.bytes-per-flow: only with workload.kind = shuffle; known keys: kind, flows,"),
    ("[link]", "[hosts]\ncount = 6\nsending-cores = 4\n\n[link]", (8, 1), ": hosts.count: only with workload.kind = shuffle; known keys: sending-cores"),
    ("[link]", "[switch]\nbuffer = \"12MB\"\n\n[link]", (7, 2), ": switch: only with workload.kind = shuffle;"),
    ("queues = 4", "queues = 4\npriorities = []", (10, 14), ": link.priorities: the link has 0 priorities; state 1 to 8, or leave the key out"),
    ("queues = 4", "queues = 4\npriorities = [2, 2]", (10, 15), ": link.priorities[0]: expected a table, found an integer"),
    ("queues = 4", "queues = 4\npriorities = [{ queues = 1 }, { queues = 2 }]", (10, 14), ": link.priorities: the priorities have 3 queues in all, and the link has 4; give"),
    ("queues = 4", "queues = 4\npriorities = [{ queues = 0 }]", (10, 26), ": link.priorities[0].queues: 0 is out of range; write a value from 1 to 256"),
    ("queues = 4", "queues = 4\npriorities = [{ queues = 4, rate = 1 }]", (10, 29), ": link.priorities[0].rate: unknown key; known keys: queues"),
    ("queues = 4", "queues = 4\npriorities = [{ queues = 1 }, { queues = 3 }]", (28, 10), ": variant.small.queues: 2 queues, but the link's priorities have 4; use all queues"),
    ("queues = 4", "queues = 4\nreceive-queues = 0", (10, 18), ": link.receive-queues: 0 is out of range; write a value from 1 to 256"),
    ("queues = 4", "queues = 4\nreceive-queues = \"all\"", (10, 18), ": link.receive-queues: expected a whole number"),
    ("flows = 12", "flows = 12\npriority = 0", (13, 12), ": workload.priority: the link has no priorities; add link.priorities, or leave"),
    ("duration = \"2s\"", "duration = \"2s\"\npriority = 1", (16, 12), ": workload.latency.priority: the link has no priorities;"),
    ("flows = 12", "flows = 100_001", (12, 9), ": workload.flows: 100001 is out of range"),
    ("flows = 12", "flows = 12\ncongestion-control = \"Cubic\"", (13, 22), "'Cubic' cannot name a congestion control; use 1"),
    ("flows = 12", "flows = 12\ncongestion-control = \"\"", (13, 22), "'' cannot name a congestion control"),
    ("flows = 12", "flows = 12\ncongestion-control = \"a_name_too_long_\"", (13, 22), "cannot name a congestion control"),
    ("duration = \"2s\"", "duration = \"0s\"", (15, 12), ": workload.latency.duration: 0ns is out of range"),
    ("duration = \"2s\"", "duration = \"-2s\"", (15, 12), ": workload.latency.duration: a time cannot be negative"),
    ("duration = \"2s\"", "duration = \"5s\"", (15, 12), ": workload.latency.duration: a probe of 5s outlasts the measurement of 4s; "),
    ("duration = \"2s\"\n", "", (14, 1), ": workload.latency.duration: missing"),
    ("duration = \"2s\"", "duration = \"2s\"\nmessage = \"0B\"", (16, 11), ": workload.latency.message: 0B is out of range"),
    ("duration = \"2s\"", "duration = \"2s\"\nmessage = \"65KiB\"", (16, 11), "latency.message: 65KiB is out of range; write a value from 1B to 64KiB"),
];

#[rustfmt::skip]
const MEASURE: &[Case] = &[
    ("repeats = 3", "duration = \"4s\"", (18, 1), ": measure.duration: only with workload.kind = fetch, requests, tenants or transfers; known keys: warmup, windows, long-windows,"),
    ("repeats = 3", "repeats = 0", (18, 11), ": measure.repeats: 0 is out of range"),
    ("repeats = 3", "long-windows = 0", (18, 16), ": measure.long-windows: 0 is out of range"),
    ("repeats = 3", "warmup = \"11min\"", (18, 10), ": measure.warmup: 660s is out of range; write a value from 0ns to 600s"),
    ("repeats = 3", "warmup = \"-1s\"", (18, 10), ": measure.warmup: a time cannot be negative"),
    ("repeats = 3", "warm-up = \"1s\"", (18, 1), ": measure.warm-up: unknown key; did you mean 'warmup'?"),
    ("long = \"1s\"\nshort = \"1ms\"\n", "", (20, 1), ": measure.windows: empty; state at least one"),
    ("[measure.windows]\nlong = \"1s\"\nshort = \"1ms\"\n", "", (17, 1), ": measure.windows: missing"),
    ("long = \"1s\"", "long = \"0s\"", (21, 8), ": measure.windows.long: 0ns is out of range"),
    ("long = \"1s\"", "long = \"-1s\"", (21, 8), ": measure.windows.long: a time cannot be negative"),
    ("long = \"1s\"", "long = \"1\"", (21, 8), ": measure.windows.long: a time needs a unit"),
    ("long = \"1s\"", "long = \"1h\"", (21, 8), ": measure.windows.long: 'h' is not a unit of a time"),
    ("long = \"1s\"", "long = \"1s\"\nlong = \"2s\"", (22, 1), ": not TOML: duplicate key"),
    ("short = \"1ms\"", "short = \"600ms\"", (21, 8), ": measure.windows.long: 1s is not a multiple of the shortest window, 'short' of 600ms; use 1.2s,"),
    ("short = \"1ms\"", "short = \"300ms\"", (21, 8), ": measure.windows.long: 1s is not a multiple of the shortest window, 'short' of 300ms; use 900ms or 1.2s,"),
    ("long = \"1s\"", "long = \"1s\"\nsame = \"1000ms\"", (22, 8), ": measure.windows.same: the window 'long' has the same length"),
    ("long = \"1s\"", "long = \"1s\"\n2s = \"3s\"", (22, 6), ": measure.windows.2s: the window '2s' is 3s long; write the length"),
    ("long = \"1s\"", "long = \"1s\"\n\"1.5s\" = \"1.5s\"", (22, 1), ": measure.windows.\"1.5s\": '1.5s' cannot name a window"),
    ("short = \"1ms\"", "a='1ms'\nb='2ms'\nc='3ms'\nd='4ms'\ne='5ms'\nf='6ms'\ng='7ms'\nh='8ms'", (29, 1), "more than 8 windows"),
    ("short = \"1ms\"", "short = \"10us\"\nlonger = \"3s\"", (20, 1), "a repeat of 12s has 1200000 windows of the shortest length;"),
    ("repeats = 3\n\n[measure.windows]\nlong = \"1s\"\nshort = \"1ms\"", "long-windows = 1000\n\n[measure.windows]\nlong = \"90s\"", (20, 1), "a repeat of 1000 longest windows takes 90000s; lower measure.long-windows or shorten the longest window: a repeat takes at most 86400s"),
];

#[rustfmt::skip]
const VARIANTS: &[Case] = &[
    ("\"titan\"", "\"titen\"", (4, 17), ": variant-table: unknown variant table 'titen'; did you mean 'titan'? known: titan"),
    ("\"titan\"", "7", (4, 17), ": variant-table: expected the name of a variant table, found an integer"),
    ("variant-table = \"titan\"\n", "", (4, 22), ": variants[1]: unknown variant 'dqa'; known: small, smaller"),
    ("variants = [\"small\", \"dqa\", \"smaller\"]\n", "", (1, 1), ": variants: missing; list the variants to compare"),
    ("[\"small\", \"dqa\", \"smaller\"]", "[]", (5, 12), ": variants: empty; name at least one variant"),
    ("[\"small\", \"dqa\", \"smaller\"]", "\"dqa\"", (5, 12), ": variants: expected a list of variant names, found a string"),
    ("[\"small\", \"dqa\", \"smaller\"]", "[\"dqa\", 1]", (5, 20), ": variants[1]: expected the name of a variant, found an"),
    ("\"small\", \"dqa\", \"smaller\"", "\"dqa\", \"cmax\", \"dqa\"", (5, 28), ": variants[2]: 'dqa' appears twice; name it once"),
    ("\"dqa\", \"smaller\"", "\"dpa\"", (5, 22), ": variants[1]: unknown variant 'dpa'; did you mean 'dqa'? known: "),
    ("base = \"dqa\"", "base = \"dqaa\"", (25, 8), ": variant.small.base: unknown variant 'dqaa'; did you mean 'dqa'?"),
    ("base = \"dqa\"", "base = \"smaller\"", (25, 8), ": variant.small.base: the bases form a loop: small, smaller; remove or change"),
    ("base = \"dqa\"", "base = \"small\"", (25, 8), ": variant.small.base: the bases form a loop: small;"),
    ("base = \"dqa\"\n", "", (24, 1), ": variant.small.queue-choice: missing; a variant without a 'base' sets every knob"),
    ("summary = \"Two queues and small segments.\"\n", "", (24, 1), ": variant.small.summary: missing"),
    ("[variant.smaller]", "[variant.small]", (30, 10), ": not TOML: duplicate key"),
    ("[groups]", "[variant.cmax]\nbase = \"dqa\"\nsummary = \"s\"\n[groups]", (35, 10), ": variant.cmax: 'cmax' is already in the variant table; choose another name;"),
    ("[groups]", "[variant.\"sm/aller\"]\nbase = \"dqa\"\nsummary = \"s\"\n[groups]", (35, 10), ": variant.\"sm/aller\": 'sm/aller' cannot be a name; use at"),
    ("[groups]", "[variant.\"\"]\nbase = \"dqa\"\nsummary = \"s\"\n[groups]", (35, 10), ": variant.\"\": '' cannot be a name"),
    ("[variant.small]\n", "[variant]\nx = 1\n[variant.small]\n", (25, 5), ": variant.x: expected a table, found an integer"),
    ("queues = 2", "queues = 0", (27, 10), ": variant.small.queues: 0 is out of range; write a value from 1 to 256"),
    ("queues = 2", "queues = 5", (27, 10), ": variant.small.queues: 5 queues, but the link has 4; use at most 4"),
    ("queues = 2", "queues = \"two\"", (27, 10), ": variant.small.queues: 'two' is not a value of this key; write \"all\", or"),
    ("queues = 2", "queues = 2\nxps-pool = 0", (28, 12), ": variant.small.xps-pool: 0 is out of range"),
    ("queues = 2", "queues = 3\nxps-pool = 2", (28, 12), ".xps-pool: 3 queues cannot be divided into XPS pools of 2; let xps-pool be a divisor"),
    ("base = \"dqa\"\n", "base = \"dqa\"\nxps-pool = 3\n", (26, 12), "2 queues cannot be divided into XPS pools of 3"),
    ("queues = 2", "queue-choice = \"dqaa\"", (27, 16), "'dqaa' is not a value of this key; did you mean 'dqa'? known: hash, dqa"),
    ("queues = 2", "qdisc = \"sfq\"", (27, 9), ": variant.small.qdisc: 'sfq' is not a value of this key; known: pfifo_fast, sfq+prio"),
    ("queues = 2", "tso = \"on\"", (27, 7), ": variant.small.tso: expected true or false, found a string"),
    ("queues = 2", "queue-weight = true", (27, 1), ".queue-weight: unknown key; did you mean 'queue-weights'? known keys: base,"),
    ("queues = 2", "byte-queue-limit = \"dynamik\"", (27, 20), "'dynamik' is not a value of this key; write \"dynamic\", \"off\" or a value such as \"256KiB\""),
    ("queues = 2", "byte-queue-limit = \"0B\"", (27, 20), ".byte-queue-limit: 0B is out of range"),
    ("queues = 2", "tcp-small-queues = 262144", (27, 20), "a bare number; units are needed; write it as a string, for example \"256KiB\""),
    ("queues = 2", "tcp-small-queues = \"256Kb\"", (27, 20), "'Kb' is not a unit of a size (b is a bit, B is a byte); use B, kB,"),
    ("queues = 2", "interrupt-interval = \"0us\"", (27, 22), "0ns is out of range; write a value from 1us to 1s"),
    ("queues = 2", "interrupt-interval = \"off\"", (27, 22), "'off' is not a value of this key; write \"default\" or a value such as \"50us\""),
    ("queues = 2", "segment-size = \"513KiB\"", (27, 16), ".segment-size: 513KiB is out of range; write a value from 576B to 512KiB"),
    ("queues = 2", "segment-size = \"1kB\"", (27, 16), "a segment size of 1kB is below the link's MTU of 1500B; use at least 1500B"),
    ("queues = 2", "segment-size = \"32KiB\"", (27, 16), "a segment size of 32KiB is above the GSO size of 16KiB"),
    ("gso-size = \"16KiB\"", "gso-size = \"1MiB\"", (28, 12), ".gso-size: 1MiB is out of range"),
    ("gso-size = \"16KiB\"", "gso-size = \"1499B\"", (28, 12), "a GSO size of 1499B is below the link's MTU of 1500B"),
    ("[\"small\", \"dqa\", \"smaller\"]\n\n[link]", "[\"small\", \"gso-16k\"]\n\n[link]\nmtu = \"20kB\"", (5, 22), ": variants[1]: variant 'gso-16k' does not fit the link: a GSO size of 16KiB is below the link's MTU"),
];

#[rustfmt::skip]
const GROUPS_PAPER_AND_EXPECTATIONS: &[Case] = &[
    ("[\"small\", \"smaller\"]", "[\"small\", \"tiny\"]", (36, 19), ": groups.sizes[1]: unknown variant 'tiny'; known: "),
    ("[\"small\", \"smaller\"]", "[]", (36, 9), ": groups.sizes: empty"),
    ("sizes = ", "small = ", (36, 1), ": groups.small: 'small' is a variant already; give the group another name"),
    ("sizes = ", "\"all of them\" = ", (36, 1), ": groups.\"all of them\": 'all of them' cannot be a name"),
    ("source = \"Nowhere\"\n", "", (38, 1), ": paper.source: missing"),
    ("[paper.variants.dqa]", "[paper.variants.dqaa]", (41, 17), ": paper.variants.dqaa: unknown variant 'dqaa'; did you mean"),
    ("short = 1,", "shirt = 1,", (42, 9), ": paper.variants.dqa.nfm.shirt: unknown metric 'nfm.shirt'; did you mean 'nfm.short'?"),
    ("nfm = { short = 1,", "nfm = { short = { mean = 1 },", (42, 19), "unknown metric 'nfm.short.mean'; known: cpu_pct, "),
    ("cpu_pct = 66", "cpu = 66", (43, 1), ": paper.variants.dqa.cpu: unknown metric 'cpu'; known: cpu_pct, "),
    ("cpu_pct = 66", "cpu_pct = nan", (43, 11), ": paper.variants.dqa.cpu_pct: not a finite number"),
    ("cpu_pct = 66", "cpu_pct = -inf", (43, 11), ": paper.variants.dqa.cpu_pct: not a finite number"),
    ("cpu_pct = 66", "cpu_pct = 1e999", (43, 11), ": paper.variants.dqa.cpu_pct: not a finite number"),
    ("cpu_pct = 66", "cpu_pct = -66", (43, 11), ": paper.variants.dqa.cpu_pct: a negative number"),
    ("cpu_pct = 66", "cpu_pct = \"66\"", (43, 11), ": paper.variants.dqa.cpu_pct: expected a number, found a string"),
    ("cpu_pct = 66", "\"nfm.short\" = 1", (43, 1), ": paper.variants.dqa.\"nfm.short\": appears twice"),
    ("variant = \"dqa\"", "variant = \"dqaa\"", (46, 11), ": expect[0].variant: unknown variant 'dqaa'; did you mean 'dqa'?"),
    ("metric = \"nfm.long\"", "metric = \"nfm.1s\"", (47, 10), ": expect[0].metric: unknown metric 'nfm.1s'"),
    ("metric = \"nfm.long\"\n", "", (45, 1), ": expect[0].metric: missing"),
    ("statistic = \"share\"", "statistic = \"every\"", (48, 13), "known: mean, share"),
    ("share = 0.8\n", "", (45, 1), ": expect[0].share: missing"),
    ("share = 0.8", "share = 1", (49, 9), ": expect[0].share: 1 is not above 0 and below 1"),
    ("at-most = 0.80", "at-most = 0.80\nrepeats = 3", (52, 11), ": expect[0].repeats: "),
    ("statistic = \"share\"", "statistic = \"share\"\nrelative-to = \"dqaa\"", (49, 15), ": expect[0].relative-to: unknown variant 'dqaa'; did you mean 'dqa'?"),
    ("statistic = \"share\"", "statistic = \"share\"\nrelative-to = \"dqa\"", (49, 15), ": expect[0].relative-to: a variant cannot be compared with itself; name a different variant for the comparison"),
    ("at-least = 0.70\nat-most = 0.80\n", "", (45, 1), ": expect[0].at-most: missing; write at-least, at-most or both"),
    ("at-least = 0.70", "at-least = 0.90", (50, 12), ": expect[0].at-least: at-least is 0.9, and at-most is 0.8; at-least must"),
    ("metric = \"nfm.long\"\nstatistic = \"share\"\nshare = 0.8\nat-least = 0.70\nat-most = 0.80", "metric = \"jain_bytes\"\nstatistic = \"mean\"\nat-least = 1.5", (49, 12), ": expect[0].at-least: jain_bytes is never 1.5; it lies between 0 and 1"),
    ("at-least = 0.70\nat-most = 0.80", "at-most = -1", (50, 11), ": expect[0].at-most: a negative number"),
    ("cpu_pct = 66", "jain_bytes = 1.2", (43, 14), ": paper.variants.dqa.jain_bytes: jain_bytes is never 1.2; it lies between 0 and 1"),
    ("at-least = 0.70", "at-least = nan", (50, 12), ": expect[0].at-least: not a finite number"),
    ("at-least = 0.70", "atleast = 0.70", (50, 1), ": expect[0].atleast: unknown key; did you mean 'at-least'?"),
    ("[[expect]]\nvariant = \"dqa\"\n", "[expect]\nvariant = \"dqa\"\n", (53, 3), ": not TOML: duplicate key"),
    ("variant = \"small\"\nmetric = \"latency_us.p99\"\nstatistic = \"mean\"", "variant = \"dqa\"\nmetric = \"nfm.long\"\nstatistic = \"share\"\nshare = 0.8", (53, 1), ": expect[1]: an expectation above has the same variant, metric and statistic"),
    ("[workload.latency]\nduration = \"2s\"\n", "", (53, 10), ": expect[1].metric: no latency is measured; add a [workload.latency]"),
];

#[rustfmt::skip]
const SHUFFLE: &[Case] = &[
    ("count = 3\n", "", (10, 1), ": hosts.count: missing; for example count = 24"),
    ("count = 3", "count = 1", (11, 9), ": hosts.count: 1 is out of range; write a value from 2 to 320"),
    ("count = 3", "count = \"3\"", (11, 9), ": hosts.count: expected a whole number, found a string"),
    ("[hosts]\ncount = 3\nsending-cores = 4\n", "", (1, 1), ": hosts: missing; write the number of hosts"),
    ("[switch]\nbuffer = \"1MB\"\n", "", (1, 1), ": switch: missing; a shuffle needs a switch"),
    ("buffer = \"1MB\"", "buffer = 12", (15, 10), ": switch.buffer: a bare number; units are needed"),
    ("buffer = \"1MB\"", "buffer = \"1537B\"", (15, 10), ": switch.buffer: a packet takes 1538 bytes, and the buffer has 1537; state a larger buffer, or"),
    ("buffer = \"1MB\"", "bufer = \"1MB\"", (15, 1), ": switch.bufer: unknown key; did you mean 'buffer'?"),
    ("bytes-per-flow = \"2MB\"\n", "", (17, 1), ": workload.bytes-per-flow: missing; for example bytes-per-flow = \"1GB\""),
    ("\"2MB\"", "\"0B\"", (19, 18), ": workload.bytes-per-flow: 0B is out of range"),
    ("\"2MB\"", "\"2MB\"\nflows = 4", (20, 1), ": workload.flows: only with workload.kind = bulk; known keys: kind, bytes-per-flow, congestion-control"),
    ("\"2MB\"", "\"2MB\"\nlatency = { duration = \"1s\" }", (20, 1), ": workload.latency: only with workload.kind = bulk"),
    ("repeats = 2", "warmup = \"1s\"", (22, 1), ": measure.warmup: only with workload.kind = bulk, fetch, requests, tenants or transfers; known keys: repeats"),
    ("repeats = 2", "repeats = 0", (22, 11), ": measure.repeats: 0 is out of range"),
];

const VALID_SHUFFLE: &str = r#"schema = 1
name = "valid"
title = "A shuffle to break"
variant-table = "titan"
variants = ["cmax", "dqa"]

[link]
rate = "10gbit"
queues = 4
[hosts]
count = 3
sending-cores = 4

[switch]
buffer = "1MB"

[workload]
kind = "shuffle"
bytes-per-flow = "2MB"
[measure]

repeats = 2
"#;

#[test]
fn every_broken_shuffle_is_refused_at_its_place() {
    let scenario = parse_text(VALID_SHUFFLE).unwrap();
    assert_eq!((scenario.workload.flows, scenario.measure.repeats), (2, 2));
    let without = VALID_SHUFFLE.replace("[measure]\n\nrepeats = 2\n", "");
    assert_eq!(parse_text(&without).unwrap().measure.repeats, 5, "the default");
    assert_refused(VALID_SHUFFLE, SHUFFLE.iter());
}

#[rustfmt::skip]
const FETCH: &[Case] = &[
    ("[[workload.clients]]\ncount = 2\nsizes = [\"1KiB\", \"1500B\"]\npriority = 1\n", "", (12, 1), ": workload.clients: missing; add for example [[workload.clients]]"),
    ("count = 2\n", "", (15, 1), ": workload.clients[0].count: missing; for example count = 6"),
    ("count = 2", "count = 0", (16, 9), ": workload.clients[0].count: 0 is out of range; write a value from 1 to 100000"),
    ("count = 2", "number = 2", (16, 1), ": workload.clients[0].number: unknown key; known keys: count, sizes, timed, priority"),
    ("sizes = [\"1KiB\", \"1500B\"]\n", "", (15, 1), ": workload.clients[0].sizes: missing; for example sizes = [\"512KiB\"]"),
    ("[\"1KiB\", \"1500B\"]", "[]", (17, 9), ": workload.clients[0].sizes: the group has 0 sizes; write 1 to 32 sizes"),
    ("[\"1KiB\", \"1500B\"]", "\"1KiB\"", (17, 9), ": workload.clients[0].sizes: expected a list of sizes, each a string with a unit, found a string"),
    ("[\"1KiB\", \"1500B\"]", "[\"1KiB\", 1500]", (17, 18), ": workload.clients[0].sizes[1]: a bare number; units are needed"),
    ("[\"1KiB\", \"1500B\"]", "[\"1KiB\", \"1024B\"]", (17, 18), ": workload.clients[0].sizes[1]: 1KiB appears twice; name it once"),
    ("[\"1KiB\", \"1500B\"]", "[\"0B\"]", (17, 10), ": workload.clients[0].sizes[0]: 0B is out of range; write a value from 1B to 1GiB"),
    ("priority = 1", "priority = 2", (18, 12), ": workload.clients[0].priority: 2 is out of range; write a value from 0 to 1"),
    ("priority = 1", "timed = 1", (18, 9), ": workload.clients[0].timed: expected true or false, found an integer"),
    ("kind = \"fetch\"", "kind = \"fetch\"\npriority = 1", (14, 1), ": workload.priority: only with workload.kind = bulk or shuffle; known keys: kind, clients, congestion-control"),
    ("kind = \"fetch\"", "kind = \"fetch\"\nflows = 7", (14, 1), ": workload.flows: only with workload.kind = bulk;"),
    ("duration = \"1s\"\n", "", (19, 1), ": measure.duration: missing; for example duration = \"4s\""),
    ("duration = \"1s\"", "duration = \"0s\"", (20, 12), ": measure.duration: 0ns is out of range; write a value from 1ms to 86400s"),
    ("duration = \"1s\"", "windows = { 1s = \"1s\" }", (20, 1), ": measure.windows: only with workload.kind = bulk or tenants; known keys: warmup, duration, repeats"),
    ("fct_s.1KiB.p99", "fct_s.2KiB.p99", (24, 10), ": expect[0].metric: unknown metric 'fct_s.2KiB.p99'; did you mean 'fct_s.1KiB.p99'?"),
    ("fct_s.1KiB.p99", "latency_us.p99", (24, 10), ": expect[0].metric: this workload does not measure 'latency_us.p99'; it has cpu_pct, fct_s,"),
    ("priority = 1", "timed = false", (24, 10), ": expect[0].metric: unknown metric 'fct_s.1KiB.p99'"),
];

const VALID_FETCH: &str = r#"schema = 1
name = "valid"
title = "Clients to break"
variant-table = "titan"
variants = ["cmax", "dqa"]

[link]
rate = "10gbit"
queues = 4
priorities = [{ queues = 3 }, { queues = 1 }]

[workload]
kind = "fetch"

[[workload.clients]]
count = 2
sizes = ["1KiB", "1500B"]
priority = 1
[measure]
duration = "1s"

[[expect]]
variant = "dqa"
metric = "fct_s.1KiB.p99"
statistic = "mean"
relative-to = "cmax"
at-most = 1.0
"#;

#[test]
fn every_broken_scenario_with_clients_is_refused_at_its_place() {
    let scenario = parse_text(VALID_FETCH).unwrap();
    let sizes = [ByteSize::from_kib(1), ByteSize::from_bytes(1500)].to_vec();
    assert_eq!(scenario.workload.clients(), [ClientGroup { count: 2, sizes, timed: true, priority: 1 }]);
    assert_eq!((scenario.workload.flows, scenario.measure.repeats), (2, 5));
    assert_eq!(scenario.measure.duration(), Nanoseconds::from_secs(1));
    assert_eq!(scenario.expectations[0].relative_to.as_deref(), Some("cmax"));
    assert_refused(VALID_FETCH, FETCH.iter());
    let untimed = VALID_FETCH.replace("priority = 1\n", "timed = false\n");
    let error = parse_text(&untimed).unwrap_err().to_string();
    assert!(error.contains("unknown metric 'fct_s.1KiB.p99'"), "{error}");
    let many = VALID_FETCH
        .replace("[measure]", &"[[workload.clients]]\ncount = 60_000\nsizes = [\"1B\"]\n".repeat(2));
    let many = many.replacen("duration", "[measure]\nduration", 1);
    let error = parse_text(&many).unwrap_err().to_string();
    assert!(
        error.contains(": workload.clients: the groups have 120002 clients in total; use at most 100000"),
        "{error}"
    );
}

#[test]
fn every_broken_text_is_refused_at_its_place() {
    parse_text(VALID).unwrap();
    let cases = [SYNTAX_AND_TOP_LEVEL, LINK_AND_WORKLOAD, MEASURE, VARIANTS, GROUPS_PAPER_AND_EXPECTATIONS];
    assert_refused(VALID, cases.into_iter().flatten());
}

pub(super) fn assert_refused<'c>(valid: &str, cases: impl Iterator<Item = &'c Case>) {
    let mut wrong = Vec::new();
    for (from, to, (line, column), words) in cases {
        let text = valid.replacen(from, to, 1);
        assert_ne!(text, valid, "{from:?} is not in the text");
        let message = match parse_text(&text) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.to_string(),
        };
        if !message.starts_with(&format!("x.toml:{line}:{column}: ")) || !message.contains(words) {
            wrong.push(format!(
                "{from:?} -> {to:?}\n   wanted x.toml:{line}:{column}: ...{words}\n   got    {message}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_conflict_with_an_inherited_knob_names_the_base() {
    let text = VALID
        .replace("base = \"dqa\"", "base = \"dqa+dqwa+dsos\"")
        .replace("gso-size = \"16KiB\"", "gso-size = \"8KiB\"");
    let error = parse_text(&text).unwrap_err();
    assert_eq!((error.line, error.key.as_str()), (28, "variant.small.gso-size"));
    assert_eq!(
        error.problem,
        "a segment size of 16KiB is above the GSO size of 8KiB (from the base 'dqa+dqwa+dsos': segment-size)"
    );
    assert_eq!(error.advice, "lower segment-size to 8KiB, or raise gso-size to 16KiB");
}

#[test]
fn the_first_mistake_in_the_file_is_the_one_that_is_reported() {
    let text = VALID.replace("queues = 4", "queues = 0").replace("flows = 12", "flows = 0");
    assert_eq!(parse_text(&text).unwrap_err().line, 9);
    // A misspelt key is reported before the key that is missing because of it, and before later errors.
    let text = VALID.replace("rate =", "rat =").replace("queues = 4", "queues = 0");
    assert_eq!(parse_text(&text).unwrap_err().key, "link.rat");
    // Errors in variants are detected late, but are reported in file order.
    let text = VALID.replace("\"dqa\", ", "\"dpa\", ").replace("10gbit", "10");
    assert_eq!(parse_text(&text).unwrap_err().key, "variants[1]");
}

/// The parser does not report the keys and tables that the misspelt kind would have allowed.
#[test]
fn a_misspelt_kind_is_the_only_error() {
    for (name, text) in bundled() {
        let Some((_, rest)) = text.split_once("\nkind = \"") else { continue };
        let (kind, _) = rest.split_once('"').unwrap();
        let misspelt = &kind[..kind.len() - 1];
        let broken = text.replace(&format!("kind = \"{kind}\""), &format!("kind = \"{misspelt}\""));
        let error = parse(&broken, "x.toml", variant_tables()).unwrap_err().to_string();
        let told =
            format!(": workload.kind: '{misspelt}' is not a value of this key; did you mean '{kind}'?");
        assert!(error.contains(&told), "{name}: {error}");
        let number = text.replace(&format!("kind = \"{kind}\""), "kind = 1");
        let error = parse(&number, "x.toml", variant_tables()).unwrap_err().to_string();
        assert!(error.contains(": workload.kind: expected one of bulk, shuffle"), "{name}: {error}");
    }
}

#[test]
fn the_kind_of_a_mistake_is_told() {
    use ScenarioErrorKind::*;
    let kind = |from: &str, to: &str| parse_text(&VALID.replacen(from, to, 1)).unwrap_err().kind;
    assert_eq!(kind("schema = 1", "schema"), Syntax);
    assert_eq!(kind("schema = 1", "schema = 3"), Schema);
    assert_eq!(kind("queues = 4", "queues = 4\nx = 1"), UnknownKey);
    assert_eq!(kind("queues = 4", ""), MissingKey);
    assert_eq!(kind("queues = 4", "queues = true"), WrongType);
    assert_eq!(kind("queues = 4", "queues = 0"), BadValue);
    assert_eq!(kind("base = \"dqa\"", "base = \"q\""), UnknownName);
    assert_eq!(kind("sizes = ", "small = "), Duplicate);
    assert_eq!(kind("base = \"dqa\"", "base = \"small\""), Cycle);
}

#[test]
fn columns_count_characters_and_a_byte_order_mark_is_none() {
    let text = format!("\u{feff}{}", VALID.replace("schema = 1", "schema = 7"));
    let error = parse_text(&text).unwrap_err();
    assert_eq!((error.line, error.column), (1, 10));
    let text = VALID
        .replace("duration = \"2s\"\n", "")
        .replace("[workload.latency]", "latency = { message = \"1µB\" }");
    let error = parse_text(&text).unwrap_err();
    assert_eq!((error.line, error.column, error.key.as_str()), (14, 23, "workload.latency.message"));
    let text = VALID.replace("variants = [", "variants = [\"ä\", ").replace('\n', "\r\n");
    assert_eq!(parse_text(&text).unwrap_err().column, 13);
    let text = VALID.replace("long = \"1s\"\nshort = \"1ms\"", "\"ä\" = \"x\"");
    let error = parse_text(&text).unwrap_err();
    assert_eq!((error.line, error.column), (21, 1));
    let text = VALID.replace("{ short = 1, long = 0.5 }", "{ short = 1, \"µ\" = 1, long = x }");
    let error = parse_text(&text).unwrap_err();
    assert_eq!((error.line, error.column), (42, 36));
}

#[test]
fn a_mistake_in_a_variant_table_is_reported_in_the_table() {
    let (_, titan) = variant_tables()[0];
    let message = |from: &str, to: &str| {
        let table = titan.replacen(from, to, 1);
        assert_ne!(table, titan, "{from:?} is not in the table");
        parse(VALID, "x.toml", &[("titan", &table)]).unwrap_err().to_string()
    };
    let line = |start: &str| titan.lines().position(|line| line.starts_with(start)).unwrap() + 1;
    let at = |line: usize, column: usize, rest: &str| format!("variants/titan.toml:{line}:{column}: {rest}");
    let cvanilla = line("[variant.cvanilla]");
    assert_eq!(
        message("tso = true\n", ""),
        at(cvanilla, 1, "variant.cvanilla.tso: missing; a variant without a 'base' sets every knob")
    );
    let sfq = line("[variant.sfq-prio]");
    assert!(message("irq]\nbase = \"sfq-prio\"", "irq]\nbase = \"cmax\"").contains("the bases form a loop"));
    assert!(
        message("[variant.sfq-prio]\nbase = \"cvanilla\"", "[variant.sfq-prio]\nbase = \"small\"")
            .starts_with(&at(sfq + 1, 8, "variant.sfq-prio.base: unknown variant 'small'"))
    );
    assert!(message("name = \"titan\"\n", "").contains(":1:1: name: missing"));
    assert!(message("schema = 1", "schema = 2").contains("the file has schema 2"));
    assert!(message("name = \"titan\"", "name = \"titan\"\nlink = 1").contains("link: unknown key"));
}
