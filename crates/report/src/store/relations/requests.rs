//! Relations of requests and response times of clients.

use evenkeel_model::record::{ClientsRecord, metric};
use evenkeel_model::scenario::{RequestClients, ServerKind};
use evenkeel_model::units::Nanoseconds;

use super::{Checked, Facts, HISTOGRAM, ROUNDING, against, at_least, at_most, same};

/// Bytes around the value in the response to a get, and bytes of the response to a set. Keys have 64
/// bytes and the transport is UDP (memcached, doc/protocol.txt).
const AROUND_VALUE: f64 = 95.0;
const STORED: f64 = 16.0;

/// Checks the throughput against the number of requests and the size of a response.
pub(super) fn throughput(facts: &Facts<'_>) -> Checked {
    let clients = &facts.repeat.clients;
    let (Some(run), Some((scenario, variant)), Some(throughput)) =
        (facts.timed_run(), facts.known, facts.of(metric::THROUGHPUT))
    else {
        return Ok(());
    };
    let (Some(requests), Some(knobs)) = (scenario.workload.requests(), variant.receive()) else {
        return Ok(());
    };
    if clients.is_empty() {
        return Ok(());
    }
    let message = knobs.message.bytes() as f64;
    let value = message + AROUND_VALUE;
    let (least, most) = match (requests.server, requests.set_percent) {
        (ServerKind::Echo, _) => (message, message),
        (ServerKind::Memcached, 0) => (value, value),
        (ServerKind::Memcached, 100) => (STORED, STORED),
        (ServerKind::Memcached, _) => (STORED, value),
    };
    let count = clients.iter().map(|group| group.requests as f64).sum::<f64>();
    let rate = |bytes: f64| count * bytes * 8.0 / run.seconds;
    let source = format!("{count} requests in {} s", run.seconds);
    at_least(metric::THROUGHPUT, throughput, rate(least), ROUNDING, &source)?;
    at_most(metric::THROUGHPUT, throughput, rate(most), ROUNDING, &source)
}

struct Group<'r> {
    facts: &'r Facts<'r>,
    name: &'r str,
}

impl Group<'_> {
    fn key(&self, prefix: &str, part: &str) -> String {
        metric::of_clients(prefix, self.name, part)
    }

    fn of(&self, prefix: &str, part: &str) -> Option<f64> {
        self.facts.of(&self.key(prefix, part))
    }
}

/// Checks the figures of each group, and of all groups together, against the recorded clients.
pub(super) fn groups(facts: &Facts<'_>) -> Checked {
    let clients = &facts.repeat.clients;
    for record in clients {
        of_group(facts, record)?;
    }
    if clients.is_empty() {
        return Ok(());
    }
    let all = Group { facts, name: metric::ALL_CLIENTS };
    if let [only] = &clients[..] {
        of_only_group(&all, &Group { facts, name: &only.name })?;
    }
    let each: Vec<(Group<'_>, &ClientsRecord)> =
        clients.iter().map(|record| (Group { facts, name: &record.name }, record)).collect();
    let count: f64 = clients.iter().map(|record| record.requests as f64).sum();
    // Clients that begin after the measured time have no rate.
    let present: Vec<&(Group<'_>, &ClientsRecord)> = each
        .iter()
        .filter(|(group, record)| record.requests > 0 || group.of(metric::REQUESTS, "total").is_some())
        .collect();
    // The rate of all groups together counts all requests in the longest time that a group runs.
    let presences: Option<Vec<f64>> = present
        .iter()
        .map(|(group, record)| {
            let total = group.of(metric::REQUESTS, "total").filter(|total| *total > 0.0);
            presence(facts, &record.name).or(Some(record.requests as f64 / total?))
        })
        .collect();
    let longest =
        presences.map(|times| times.into_iter().fold(0.0, f64::max)).filter(|longest| *longest > 0.0);
    if let (Some(total), Some(longest)) = (all.of(metric::REQUESTS, "total"), longest) {
        let source = format!("the requests of all groups, {count} in {longest} s");
        same(&all.key(metric::REQUESTS, "total"), total, count / longest, &source)?;
    }
    let means: Option<f64> = each
        .iter()
        .filter(|(_, record)| record.requests > 0)
        .map(|(group, record)| Some(group.of(metric::RESPONSE, "mean")? * record.requests as f64))
        .sum();
    if let (Some(mean), Some(sum)) = (all.of(metric::RESPONSE, "mean"), means.filter(|_| count > 0.0)) {
        same(&all.key(metric::RESPONSE, "mean"), mean, sum / count, "the means of the groups")?;
    }
    let rates: Option<f64> = present.iter().map(|(group, _)| group.of(metric::REQUESTS, "total")).sum();
    let number: u64 = present.iter().map(|(_, record)| u64::from(record.clients)).sum();
    if let Some(rates) = rates {
        check_median(&all, number, rates)?;
    }
    // A percentile or median over all groups lies between the values of the groups.
    let between = [(metric::REQUESTS, "client_median")].into_iter().chain(
        metric::RESPONSE_PARTS
            .into_iter()
            .filter(|part| *part != "mean")
            .map(|part| (metric::RESPONSE, part)),
    );
    for (prefix, part) in between {
        let Some(value) = all.of(prefix, part) else { continue };
        let values: Vec<f64> = each.iter().filter_map(|(group, _)| group.of(prefix, part)).collect();
        if values.is_empty() {
            continue;
        }
        let rounding = if part == "client_median" { ROUNDING } else { HISTOGRAM };
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        at_least(&all.key(prefix, part), value, least, rounding, "the same figure of each group")?;
        at_most(&all.key(prefix, part), value, most, rounding, "the same figure of each group")?;
    }
    Ok(())
}

/// Checks the figures of all clients against the figures of the only group.
fn of_only_group(all: &Group<'_>, only: &Group<'_>) -> Checked {
    let parts = metric::REQUESTS_PARTS.map(|part| (metric::REQUESTS, part));
    for (prefix, part) in parts.into_iter().chain(metric::RESPONSE_PARTS.map(|part| (metric::RESPONSE, part)))
    {
        if let (Some(value), Some(expected)) = (all.of(prefix, part), only.of(prefix, part)) {
            let source = format!("{} of the only group", only.key(prefix, part));
            same(&all.key(prefix, part), value, expected, &source)?;
        }
    }
    Ok(())
}

fn of_group(facts: &Facts<'_>, record: &ClientsRecord) -> Checked {
    let group = Group { facts, name: &record.name };
    let sum: u64 = record.seconds.iter().map(|second| second.requests).sum();
    if sum != record.requests {
        let field = format!("the requests of the group {}", record.name);
        return Err(against(&field, record.requests as f64, format!("the sum over its seconds, {sum}")));
    }
    let present = presence(facts, &record.name);
    let total = group.of(metric::REQUESTS, "total");
    let key = group.key(metric::REQUESTS, "total");
    if let (Some(total), Some(run)) = (total, facts.timed_run()) {
        let requests = record.requests as f64;
        match present {
            Some(present) => {
                same(&key, total, requests / present, &format!("its requests, {requests} in {present} s"))?;
            }
            None => {
                let source = format!("its requests, {requests} in {} s", run.seconds);
                at_least(&key, total, requests / run.seconds, ROUNDING, &source)?;
            }
        }
    }
    if let Some(total) = total {
        check_median(&group, record.clients.into(), total)?;
    }
    // With one recorded second, its medians equal the medians of the whole time.
    if let ([only], Some(present)) = (&record.seconds[..], present) {
        let source = "the median in its only second";
        if let Some(median) = group.of(metric::REQUESTS, "client_median") {
            let expected = only.client_median_requests / present;
            same(&group.key(metric::REQUESTS, "client_median"), median, expected, source)?;
        }
        let medians = group.of(metric::RESPONSE, "client_median").zip(only.client_median_response_us);
        if let Some((median, expected)) = medians {
            same(&group.key(metric::RESPONSE, "client_median"), median, expected, source)?;
        }
    }
    let medians = group.of(metric::RESPONSE, "client_median").zip(group.of(metric::RESPONSE, "mean"));
    if let Some((median, mean)) = medians.filter(|_| record.clients == 1) {
        same(&group.key(metric::RESPONSE, "client_median"), median, mean, "the mean of its only client")?;
    }
    check_outstanding(&group)
}

/// Checks a median over clients: more than half of the clients have at least the median.
fn check_median(group: &Group<'_>, clients: u64, total: f64) -> Checked {
    let Some(median) = group.of(metric::REQUESTS, "client_median") else { return Ok(()) };
    let key = group.key(metric::REQUESTS, "client_median");
    if clients == 1 {
        return same(&key, median, total, "the rate of its only client");
    }
    let at_least_as_much = clients / 2 + 1;
    let source = format!("the rate of {clients} clients together, {total}");
    at_most(&key, median, total / at_least_as_much as f64, ROUNDING, &source)
}

/// Checks the mean response time: a group has at most its outstanding requests in flight. The first
/// answered requests may have begun in the warm-up.
fn check_outstanding(group: &Group<'_>) -> Checked {
    let facts = group.facts;
    let (Some(run), Some(described)) = (facts.timed_run(), described(facts, group.name)) else {
        return Ok(());
    };
    let (Some(present), Some(total), Some(mean)) = (
        presence(facts, group.name),
        group.of(metric::REQUESTS, "total").filter(|total| *total > 0.0),
        group.of(metric::RESPONSE, "mean"),
    ) else {
        return Ok(());
    };
    // A client that gives up a request sends another request, and also counts the late response to the first.
    // It then has more requests in flight than this bound assumes.
    if facts.repeat.counters.get("requests_given_up").copied() != Some(0.0) {
        return Ok(());
    }
    let time = described.outstanding_in_all() as f64 * (present + run.warmup);
    let source = format!("its {} outstanding requests", described.outstanding_in_all());
    at_most(&group.key(metric::RESPONSE, "mean"), mean, time * 1e6 / (total * present), ROUNDING, &source)
}

fn described<'r>(facts: &Facts<'r>, name: &str) -> Option<&'r RequestClients> {
    let (scenario, _) = facts.known?;
    scenario.workload.requests()?.clients.iter().find(|group| group.name == name)
}

/// Returns the part of the measured time in which the clients of a group run, in seconds; `None` if it is 0
/// or unknown.
fn presence(facts: &Facts<'_>, name: &str) -> Option<f64> {
    let seconds = facts.timed_run()?.seconds;
    let described = described(facts, name)?;
    let from = described.from.as_secs_f64();
    let until = described.stay.map_or(seconds, |stay: Nanoseconds| (from + stay.as_secs_f64()).min(seconds));
    Some(until - from).filter(|present| *present > 0.0)
}
