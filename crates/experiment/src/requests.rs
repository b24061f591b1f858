//! Computes metrics and records from the clients' requests.

use std::collections::BTreeMap;

use evenkeel_metrics::{LatencySummary, Summary};
use evenkeel_model::record::{ClientsRecord, SecondRecord, metric};
use evenkeel_model::world::{RawClient, RawClients};

pub(crate) fn metrics(groups: &[RawClients]) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::new();
    for group in groups {
        of_group(&mut metrics, &group.name, &[group]);
    }
    if !groups.is_empty() {
        of_group(&mut metrics, metric::ALL_CLIENTS, &groups.iter().collect::<Vec<_>>());
    }
    metrics
}

fn of_group(metrics: &mut BTreeMap<String, f64>, name: &str, groups: &[&RawClients]) {
    let mut put = |prefix: &str, part: &str, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            metrics.insert(metric::of_clients(prefix, name, part), value);
        }
    };
    let clients = || groups.iter().flat_map(|group| &group.clients);
    let rates: Vec<f64> = clients().filter_map(requests_per_second).collect();
    put(metric::REQUESTS, "total", (!rates.is_empty()).then(|| total_per_second(clients())).flatten());
    put(metric::REQUESTS, "client_median", median(&rates));
    let responses: Vec<f64> = clients().filter_map(mean_response_us).collect();
    put(metric::RESPONSE, "client_median", median(&responses));
    let counted = groups.iter().flat_map(|group| &group.responses);
    let counted = counted.map(|(length, count)| (length.as_u64(), *count));
    if let Some(summary) = LatencySummary::from_counts(counted) {
        let (requests, sum) = clients().fold((0, 0), |(requests, sum), client| {
            (requests + client.requests.iter().sum::<u64>(), sum + client.response_ns.iter().sum::<u128>())
        });
        put(metric::RESPONSE, "mean", Some(sum as f64 / requests as f64 / 1e3));
        for (part, value) in summary.parts() {
            // The mean uses the exact sum; percentiles come from a histogram.
            if part != "mean" {
                put(metric::RESPONSE, part, Some(value));
            }
        }
    }
}

/// Returns the answered requests per second of a client's lifetime.
fn requests_per_second(client: &RawClient) -> Option<f64> {
    let present = client.present.as_secs_f64();
    (present > 0.0).then(|| client.requests.iter().sum::<u64>() as f64 / present)
}

/// Returns the answered requests per second of several clients together, over the longest lifetime of a
/// client.
fn total_per_second<'c>(clients: impl Iterator<Item = &'c RawClient>) -> Option<f64> {
    let (requests, present) = clients.fold((0_u64, 0.0_f64), |(requests, present), client| {
        (requests + client.requests.iter().sum::<u64>(), present.max(client.present.as_secs_f64()))
    });
    (present > 0.0).then(|| requests as f64 / present)
}

fn mean_response_us(client: &RawClient) -> Option<f64> {
    let requests: u64 = client.requests.iter().sum();
    let sum: u128 = client.response_ns.iter().sum();
    (requests > 0).then(|| sum as f64 / requests as f64 / 1e3)
}

fn median(values: &[f64]) -> Option<f64> {
    Summary::of(values).map(|summary| summary.median)
}

/// Returns the record of each group, with its values for each second.
pub(crate) fn records(groups: &[RawClients]) -> Vec<ClientsRecord> {
    groups.iter().map(record).collect()
}

fn record(group: &RawClients) -> ClientsRecord {
    let seconds = group.clients.iter().map(|client| client.requests.len()).max().unwrap_or(0);
    let requests = |client: &RawClient, second: usize| client.requests.get(second).copied().unwrap_or(0);
    let of_second = |second: usize| {
        let counts: Vec<f64> = group.clients.iter().map(|client| requests(client, second) as f64).collect();
        let responses: Vec<f64> = group
            .clients
            .iter()
            .filter(|client| requests(client, second) > 0)
            .filter_map(|client| {
                let sum = client.response_ns.get(second)?;
                Some(*sum as f64 / requests(client, second) as f64 / 1e3)
            })
            .collect();
        SecondRecord {
            requests: group.clients.iter().map(|client| requests(client, second)).sum(),
            client_median_requests: median(&counts).unwrap_or(0.0),
            client_median_response_us: median(&responses),
        }
    };
    ClientsRecord {
        name: group.name.clone(),
        clients: group.clients.len() as u32,
        requests: group.clients.iter().flat_map(|client| &client.requests).sum(),
        seconds: (0..seconds).map(of_second).collect(),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_model::units::Nanoseconds;

    use super::*;

    fn client(requests: &[u64], microseconds: u128) -> RawClient {
        RawClient {
            present: Nanoseconds::from_secs(requests.len() as u64),
            requests: requests.to_vec(),
            response_ns: requests.iter().map(|count| u128::from(*count) * microseconds * 1000).collect(),
            payload_bytes: 0,
        }
    }

    fn group(name: &str, clients: Vec<RawClient>, responses: &[(u64, u64)]) -> RawClients {
        let responses = responses.iter().map(|(us, count)| (Nanoseconds::from_micros(*us), *count)).collect();
        RawClients { name: name.to_owned(), clients, responses }
    }

    #[test]
    fn groups_are_told_apart_and_together() {
        let groups = [
            group("high", vec![client(&[100, 300], 10), client(&[200, 400], 20)], &[(10, 400), (20, 600)]),
            group("low", vec![client(&[50, 50], 40)], &[(40, 100)]),
        ];
        let metrics = metrics(&groups);
        let of = |key: &str| metrics.get(key).copied().unwrap_or(f64::NAN);
        assert_eq!(of("requests_per_s.high.total"), 500.0);
        assert_eq!(of("requests_per_s.high.client_median"), 250.0);
        assert_eq!(of("requests_per_s.all.total"), 550.0);
        assert_eq!(of("requests_per_s.all.client_median"), 200.0);
        assert_eq!(of("response_us.high.mean"), 16.0);
        assert_eq!(of("response_us.high.client_median"), 15.0);
        assert_eq!(of("response_us.all.client_median"), 20.0);
        assert!((of("response_us.high.p50") - 20.0).abs() < 0.02, "{}", of("response_us.high.p50"));
        assert!((of("response_us.all.p99") - 40.0).abs() < 0.04);
    }

    #[test]
    fn seconds_are_those_of_each_group() {
        let groups = [group("high", vec![client(&[100, 0], 10), client(&[200, 0], 30)], &[])];
        let records = records(&groups);
        assert_eq!((records[0].clients, records[0].requests), (2, 300));
        let first = SecondRecord {
            requests: 300,
            client_median_requests: 150.0,
            client_median_response_us: Some(20.0),
        };
        let silent =
            SecondRecord { requests: 0, client_median_requests: 0.0, client_median_response_us: None };
        assert_eq!(records[0].seconds, [first, silent]);
    }

    #[test]
    fn no_clients_have_no_metrics() {
        assert!(metrics(&[]).is_empty());
        assert!(records(&[]).is_empty());
    }
}
