//! sockperf: arguments, and the log of all exchanges of its ping-pong client (`--full-log`).
//!
//! Written for sockperf 3.7 and its `client.cpp`. Notes for callers:
//! - The client needs about two seconds before its first exchange. The log omits the exchanges of the
//!   first 400 ms and of the last 50 ms, so a run of `t` seconds gives samples of `t - 0.45` seconds.
//! - sockperf supports only IPv4.
//! - sockperf defines latency as **half of the round-trip time**, in microseconds. With `--full-rtt` it
//!   logs whole round-trip times. The log names the definition. A [`Sample`] always has the whole
//!   round-trip time.
//! - Times count from the start of the client process.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::{ArgumentError, in_range};

/// Minimum length of a message, bytes. This is the length of sockperf's own header.
pub const MIN_MESSAGE: u32 = 14;

/// Maximum length of a message, bytes.
pub const MAX_MESSAGE: u32 = 65_507;

/// Maximum duration, seconds.
pub const MAX_SECONDS: u32 = 36_000_000;

const TOOL: &str = "sockperf";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    pub server: Ipv4Addr,
    pub port: u16,
    /// Duration, seconds, 1 to [`MAX_SECONDS`].
    pub seconds: u32,
    /// Length of a request and of its answer, bytes, [`MIN_MESSAGE`] to [`MAX_MESSAGE`].
    pub message_bytes: u32,
    /// Exchanges per second; `None`: each request follows the previous answer immediately.
    pub rate: Option<u32>,
    pub full_log: PathBuf,
}

/// Returns the arguments of a sockperf ping-pong client over TCP, without the program's name.
pub fn client_args(options: &ClientOptions) -> Result<Vec<OsString>, ArgumentError> {
    in_range(TOOL, "--time", options.seconds, 1..=MAX_SECONDS)?;
    in_range(TOOL, "--msg-size", options.message_bytes, MIN_MESSAGE..=MAX_MESSAGE)?;
    let rate = match options.rate {
        Some(rate) => {
            in_range(TOOL, "--mps", rate, 1..=10_000_000)?;
            rate.to_string()
        }
        None => "max".to_owned(),
    };
    let mut args: Vec<OsString> = vec!["ping-pong".into(), "--tcp".into()];
    let mut option = |name: &str, value: OsString| args.extend([OsString::from(name), value]);
    option("--ip", options.server.to_string().into());
    option("--port", options.port.to_string().into());
    option("--time", options.seconds.to_string().into());
    option("--msg-size", options.message_bytes.to_string().into());
    option("--mps", rate.into());
    option("--full-log", options.full_log.clone().into_os_string());
    Ok(args)
}

/// Returns the arguments of a sockperf server over TCP, without the program's name. The server runs until it
/// is killed.
#[must_use]
pub fn server_args(bind: Ipv4Addr, port: u16) -> Vec<OsString> {
    vec![
        "server".into(),
        "--tcp".into(),
        "--ip".into(),
        bind.to_string().into(),
        "--port".into(),
        port.to_string().into(),
    ]
}

/// The exchanges of a ping-pong client, without the exchanges of its warm-up and cool-down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Samples in order of time; never empty.
    pub samples: Vec<Sample>,
    /// Number of unanswered requests, as sockperf counted them; 0 if the log does not have the number.
    pub dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time at which the client sent the request, since the start of the client process.
    pub sent_ns: u64,
    pub round_trip_ns: u64,
}

impl Sample {
    /// Returns the latency as sockperf defines it: half of the round-trip time, µs.
    #[must_use]
    pub fn half_round_trip_us(&self) -> f64 {
        self.round_trip_ns as f64 / 2_000.0
    }
}

/// The error for a log that has no samples, or is damaged or incomplete. `origin` is the caller's name
/// for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The log is empty: the client could not connect, or was killed before its end.
    #[error(
        "{origin}: sockperf wrote nothing: the process was killed, or its server does not answer; run the scenario \
         again"
    )]
    Empty { origin: String },
    #[error("{origin}:{line}: sockperf has no samples: {message}")]
    NoSamples { origin: String, line: usize, message: String },
    #[error("{origin}:{line}: {field}: {detail}")]
    Line {
        origin: String,
        line: usize,
        /// Column of the table, or part of the log.
        field: &'static str,
        detail: String,
    },
    #[error("{origin}:{line}: the log is cut short after {samples} samples")]
    CutShort { origin: String, line: usize, samples: usize },
    #[error("{origin}: the log has {found} samples, but announces {announced}")]
    Count { origin: String, announced: u64, found: usize },
}

/// Messages of sockperf about a run without samples.
const NO_SAMPLES: [&str; 3] =
    ["No messages were received", "No valid observations found", "Test end before test start"];

const RULE: &str = "------------------------------";

/// Parses the log of a ping-pong client, with whole or half round-trip times.
///
/// `origin` names the log in errors, usually its path.
///
/// # Errors
/// Returns an error if the log has no samples, or is damaged or incomplete.
pub fn parse(origin: &str, text: &str) -> Result<Log, ParseError> {
    if text.trim().is_empty() {
        return Err(ParseError::Empty { origin: origin.to_owned() });
    }
    let mut lines = text.lines().zip(1..);
    let head = Head::read(origin, &mut lines)?;
    let mut table = Table { origin, trips_per_value: head.trips_per_value, samples: Vec::new() };
    let mut last_line = head.lines;
    let mut complete = false;
    for (line, number) in lines.by_ref() {
        last_line = number;
        if line == RULE {
            complete = true;
            break;
        }
        table.row(line, number)?;
    }
    let samples = table.samples;
    if !complete {
        let (origin, samples) = (origin.to_owned(), samples.len());
        return Err(ParseError::CutShort { origin, line: last_line, samples });
    }
    if let Some((line, number)) = lines.find(|(line, _)| !line.trim().is_empty()) {
        return Err(line_error(origin, number, "end of the log", format!("unexpected {line:?}")));
    }
    if let Some(announced) = head.received
        && announced != samples.len() as u64
    {
        return Err(ParseError::Count { origin: origin.to_owned(), announced, found: samples.len() });
    }
    if samples.is_empty() {
        let message = "the table is empty".to_owned();
        return Err(ParseError::NoSamples { origin: origin.to_owned(), line: last_line, message });
    }
    let Some(dropped) = head.dropped else {
        return Err(line_error(origin, head.lines, "# dropped messages", "the header has no such line"));
    };
    Ok(Log { samples, dropped })
}

fn line_error(origin: &str, line: usize, field: &'static str, detail: impl Into<String>) -> ParseError {
    ParseError::Line { origin: origin.to_owned(), line, field, detail: detail.into() }
}

/// The header above the table. The wording differs between versions, so only the used parts are parsed.
struct Head {
    /// 1 if the table has whole round-trip times, 2 if it has half round-trip times.
    trips_per_value: f64,
    /// Number of samples, if the header has it.
    received: Option<u64>,
    dropped: Option<u64>,
    lines: usize,
}

impl Head {
    fn read<'a>(
        origin: &str,
        lines: &mut impl Iterator<Item = (&'a str, usize)>,
    ) -> Result<Self, ParseError> {
        let mut head = Head { trips_per_value: 2.0, received: None, dropped: None, lines: 0 };
        for (line, number) in lines {
            head.lines = number;
            if let Some(columns) = line.strip_prefix("packet, ") {
                head.trips_per_value = match columns {
                    "txTime(sec), rxTime(sec), latency(usec)" => 2.0,
                    "txTime(sec), rxTime(sec), rtt(usec)" => 1.0,
                    _ => return Err(line_error(origin, number, "columns", format!("unknown {columns:?}"))),
                };
                return Ok(head);
            }
            if NO_SAMPLES.iter().any(|text| line.contains(text)) {
                let message = line.trim_start_matches("sockperf: ").to_owned();
                return Err(ParseError::NoSamples { origin: origin.to_owned(), line: number, message });
            }
            if line.contains("[Valid Duration]") {
                head.received = announced(origin, line, number, "ReceivedMessages=")?;
            }
            if let Some(dropped) = announced(origin, line, number, "# dropped messages = ")? {
                head.dropped = Some(dropped);
            }
        }
        Err(ParseError::CutShort { origin: origin.to_owned(), line: head.lines, samples: 0 })
    }
}

/// Returns the number after `label`, if the line has the label.
fn announced(
    origin: &str,
    line: &str,
    number: usize,
    label: &'static str,
) -> Result<Option<u64>, ParseError> {
    let Some((_, rest)) = line.split_once(label) else { return Ok(None) };
    let digits = rest.split(|character: char| !character.is_ascii_digit()).next().unwrap_or_default();
    match digits.parse() {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(line_error(origin, number, label, format!("{digits:?}: {error}"))),
    }
}

struct Table<'a> {
    origin: &'a str,
    trips_per_value: f64,
    samples: Vec<Sample>,
}

impl Table<'_> {
    fn row(&mut self, line: &str, number: usize) -> Result<(), ParseError> {
        let error = |field, detail: String| line_error(self.origin, number, field, detail);
        let fields: Vec<&str> = line.split(", ").collect();
        let [packet, sent, received, value] = fields[..] else {
            return Err(error("row", format!("{} fields instead of 4 in {line:?}", fields.len())));
        };
        if packet.parse() != Ok(self.samples.len()) {
            return Err(error("packet", format!("{packet:?} instead of {}", self.samples.len())));
        }
        let sent_ns = nanoseconds(sent).ok_or_else(|| error("txTime", format!("{sent:?} is not a time")))?;
        let received_ns =
            nanoseconds(received).ok_or_else(|| error("rxTime", format!("{received:?} is not a time")))?;
        let round_trip_ns = received_ns
            .checked_sub(sent_ns)
            .ok_or_else(|| error("rxTime", format!("{received} is before {sent}")))?;
        if self.samples.last().is_some_and(|last| sent_ns < last.sent_ns) {
            return Err(error("txTime", format!("{sent} is before the txTime of the previous line")));
        }
        // The last column is the difference of the two times, or half of it. This check therefore detects
        // a lost digit in any of the three columns.
        let expected_us = round_trip_ns as f64 / (1_000.0 * self.trips_per_value);
        match value.parse::<f64>() {
            Ok(value_us) if (value_us - expected_us).abs() < 0.002 && has_decimals(value, 3) => {}
            _ => return Err(error("latency", format!("{value:?} instead of {expected_us:.3}"))),
        }
        self.samples.push(Sample { sent_ns, round_trip_ns });
        Ok(())
    }
}

/// Parses seconds with nine decimals without floating point. Returns nanoseconds.
fn nanoseconds(text: &str) -> Option<u64> {
    if !has_decimals(text, 9) {
        return None;
    }
    let (seconds, nanoseconds) = text.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds.parse().ok()?)
}

/// Returns whether the text is digits, a point, and `count` digits.
fn has_decimals(text: &str, count: usize) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('.').is_some_and(|(whole, part)| digits(whole) && digits(part) && part.len() == count)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    const HALF: &str = include_str!("../../tests/data/sockperf-half.csv");
    const FULL: &str = include_str!("../../tests/data/sockperf-full.csv");
    const NO_OBSERVATIONS: &str = include_str!("../../tests/data/sockperf-no-observations.csv");

    fn options() -> ClientOptions {
        ClientOptions {
            server: Ipv4Addr::new(10, 0, 0, 2),
            port: 5401,
            seconds: 4,
            message_bytes: 64,
            rate: None,
            full_log: "/run/some where/log.csv".into(),
        }
    }

    fn joined(args: &[OsString]) -> String {
        args.iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn arguments_of_a_client() {
        let args = client_args(&options()).unwrap();
        assert_eq!(
            joined(&args),
            "ping-pong|--tcp|--ip|10.0.0.2|--port|5401|--time|4|--msg-size|64|--mps|max|\
             --full-log|/run/some where/log.csv"
        );
        let paced = client_args(&ClientOptions { rate: Some(500), ..options() }).unwrap();
        assert!(joined(&paced).contains("|--mps|500|"));
    }

    #[test]
    fn arguments_of_a_server() {
        let args = server_args(Ipv4Addr::LOCALHOST, 5401);
        assert_eq!(joined(&args), "server|--tcp|--ip|127.0.0.1|--port|5401");
    }

    #[test]
    fn limits_of_sockperf_are_kept() {
        let refused = |options: ClientOptions| client_args(&options).unwrap_err().option;
        assert_eq!(refused(ClientOptions { seconds: 0, ..options() }), "--time");
        assert_eq!(refused(ClientOptions { message_bytes: 13, ..options() }), "--msg-size");
        assert_eq!(refused(ClientOptions { message_bytes: 65_508, ..options() }), "--msg-size");
        assert_eq!(refused(ClientOptions { rate: Some(0), ..options() }), "--mps");
        let error = client_args(&ClientOptions { message_bytes: 13, ..options() }).unwrap_err();
        assert_eq!(error.to_string(), "sockperf --msg-size: 13 is outside of 14 to 65507");
    }

    fn mean_us(log: &Log) -> f64 {
        log.samples.iter().map(Sample::half_round_trip_us).sum::<f64>() / log.samples.len() as f64
    }

    #[test]
    fn half_round_trips_agree_with_the_summary_of_sockperf() {
        let log = parse("half", HALF).unwrap();
        assert_eq!(log.samples.len(), 54);
        assert_eq!(log.samples[0], Sample { sent_ns: 2_401_873_975, round_trip_ns: 35_510 });
        assert!((log.samples[0].half_round_trip_us() - 17.755).abs() < 1e-9);
        // The header of this file has avg-latency=111.017.
        assert!((mean_us(&log) - 111.017).abs() < 0.001, "{}", mean_us(&log));
        assert_eq!(log.dropped, 0);
    }

    #[test]
    fn whole_round_trips_are_not_doubled() {
        let log = parse("full", FULL).unwrap();
        assert_eq!(log.samples.len(), 27);
        assert_eq!(log.samples[0].round_trip_ns, 34_577);
        // The header of this file has avg-rtt=230.119.
        assert!((2.0 * mean_us(&log) - 230.119).abs() < 0.001, "{}", mean_us(&log));
    }

    #[test]
    fn nothing_measured() {
        assert_eq!(parse("it", "\n"), Err(ParseError::Empty { origin: "it".to_owned() }));
        let error = parse("it", NO_OBSERVATIONS).unwrap_err().to_string();
        assert!(error.starts_with("it:6: sockperf has no samples: No valid observations found"), "{error}");
        let unanswered = "sockperf: No messages were received from the server. Is the server down?\n";
        assert!(matches!(parse("it", unanswered), Err(ParseError::NoSamples { line: 1, .. })));
        let empty = format!("packet, txTime(sec), rxTime(sec), rtt(usec)\n{RULE}\n");
        assert!(matches!(parse("it", &empty), Err(ParseError::NoSamples { line: 2, .. })));
    }

    #[test]
    fn a_log_that_is_cut_short_anywhere_is_refused() {
        for text in [HALF, FULL] {
            let whole = text.trim_end();
            for length in (0..whole.len()).filter(|&length| whole.is_char_boundary(length)) {
                assert!(parse("it", &whole[..length]).is_err(), "{length} of {} bytes", whole.len());
            }
        }
        let rows = HALF.lines().take(30).collect::<Vec<_>>().join("\n");
        assert_eq!(
            parse("it", &rows),
            Err(ParseError::CutShort { origin: "it".to_owned(), line: 30, samples: 9 })
        );
    }

    #[test]
    fn any_damaged_byte_of_the_table_is_found() {
        let table = HALF.find("\n0, ").unwrap() + 1;
        for index in table..HALF.trim_end().len() {
            for byte in ["\n", ",", "x", "é"] {
                if &HALF[index..=index] == byte {
                    continue;
                }
                let damaged = format!("{}{byte}{}", &HALF[..index], &HALF[index + 1..]);
                assert!(parse("it", &damaged).is_err(), "byte {index} replaced by {byte:?}");
            }
        }
    }

    fn complaint(from: &str, to: &str) -> String {
        assert!(HALF.contains(from), "the recorded log has no {from}");
        parse("it", &HALF.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn damage_is_told_with_line_and_field() {
        let cases = [
            ("0, 2.401873975", "0, 2.40187397", "it:22: txTime: \"2.40187397\" is not a time"),
            ("2.401909485", "-2.401909485", "it:22: rxTime: \"-2.401909485\" is not a time"),
            ("2.401909485", "1.401909485", "it:22: rxTime: 1.401909485 is before 2.401873975"),
            ("17.848", "17.900", "it:23: latency: \"17.900\" instead of 17.849"),
            ("17.848", "nan", "it:23: latency: \"nan\""),
            ("1, 2.413877876", "3, 2.413877876", "it:23: packet: \"3\" instead of 1"),
            (
                "1, 2.413877876",
                "1, 99999999999.413877876",
                "it:23: txTime: \"99999999999.413877876\" is not a time",
            ),
            (", 17.848", "", "it:23: row: 3 fields instead of 4"),
            ("latency(usec)", "latency(nsec)", "it:21: columns: unknown"),
            (
                "SentMessages=54; ReceivedMessages=54",
                "SentMessages=54; ReceivedMessages=55",
                "54 samples, but announces 55",
            ),
            ("ReceivedMessages=54", "ReceivedMessages=", "it:6: ReceivedMessages="),
            ("5.030\n", "5.030\nmore\n", "it:76: row: 1 fields instead of 4"),
        ];
        for (from, to, expected) in cases {
            let text = complaint(from, to);
            assert!(text.contains(expected), "{from:?} to {to:?}: {text}");
        }
        let trailing = format!("{HALF}more\n");
        assert!(parse("it", &trailing).unwrap_err().to_string().contains("end of the log"));
        let out_of_order = complaint("1, 2.413877876, 2.413913573", "1, 2.313877876, 2.313913573");
        assert!(out_of_order.contains("is before the txTime of the previous line"), "{out_of_order}");
    }

    #[test]
    fn requests_without_an_answer_are_counted() {
        // sockperf colours the line if the count is not zero.
        let text = HALF.replace("# dropped messages = 0", "\u{1b}[0;31m# dropped messages = 3");
        assert_eq!(parse("it", &text).unwrap().dropped, 3);
        let error =
            parse("it", &HALF.replace("# dropped messages", "# lost messages")).unwrap_err().to_string();
        assert!(error.contains("# dropped messages"), "{error}");
    }
}
