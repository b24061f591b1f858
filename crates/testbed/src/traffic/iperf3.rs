//! iperf3: arguments, and the JSON output of client and server (`--json`).
//!
//! Written for iperf3 3.12 and its `iperf_api.c`. Notes for callers:
//! - A process supports at most [`MAX_STREAMS`] streams.
//! - With `--json`, a client that fails exits with code 0. Only the member `error` of its output shows
//!   the failure.
//! - A stream's bytes are TCP payload. The client counts writes to its socket, and the last writes may
//!   still be queued at the end. Use [`Stream::received`] for throughput.
//! - Times count from the connection of the streams, not from the start of the process.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{ArgumentError, in_range};

/// Maximum number of streams of an iperf3 process (`MAX_STREAMS` in `iperf.h`).
pub const MAX_STREAMS: u32 = 128;

/// Largest write to a TCP socket by iperf3, bytes (`MAX_BLOCKSIZE` in `iperf.h`).
pub const MAX_LENGTH: u32 = 1 << 20;

/// Maximum duration of iperf3, seconds (`MAX_TIME` in `iperf.h`): one day.
pub const MAX_SECONDS: u32 = 86_400;

const TOOL: &str = "iperf3";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    pub server: IpAddr,
    pub port: u16,
    /// Number of streams, 1 to [`MAX_STREAMS`].
    pub streams: u32,
    /// Duration in whole seconds (iperf3 accepts no fractions), 1 to [`MAX_SECONDS`].
    pub seconds: u32,
    /// Bytes of each write to the socket, 1 to [`MAX_LENGTH`]; `None`: iperf3's default (128 KiB).
    pub length: Option<u32>,
    /// TCP congestion control, such as `cubic`. It must be available in the client's namespace.
    pub congestion_control: String,
    /// Source port of the first stream. Each further stream uses the next port. `None`: the kernel
    /// chooses the ports.
    pub first_source_port: Option<u16>,
    pub connect_timeout: Duration,
}

/// Returns the arguments of an iperf3 client, without the program's name.
pub fn client_args(options: &ClientOptions) -> Result<Vec<String>, ArgumentError> {
    in_range(TOOL, "--parallel", options.streams, 1..=MAX_STREAMS)?;
    in_range(TOOL, "--time", options.seconds, 1..=MAX_SECONDS)?;
    check_congestion_control(&options.congestion_control)?;
    let connect_timeout_ms = u32::try_from(options.connect_timeout.as_millis()).unwrap_or(u32::MAX);
    in_range(TOOL, "--connect-timeout", connect_timeout_ms, 1..=i32::MAX.unsigned_abs())?;

    let mut args = vec!["--client".to_owned(), options.server.to_string()];
    args.extend(["--port".to_owned(), options.port.to_string()]);
    args.push("--json".to_owned());
    args.extend(["--parallel".to_owned(), options.streams.to_string()]);
    args.extend(["--time".to_owned(), options.seconds.to_string()]);
    if let Some(length) = options.length {
        in_range(TOOL, "--length", length, 1..=MAX_LENGTH)?;
        args.extend(["--length".to_owned(), length.to_string()]);
    }
    args.extend(["--congestion".to_owned(), options.congestion_control.clone()]);
    args.extend(["--connect-timeout".to_owned(), connect_timeout_ms.to_string()]);
    if let Some(first) = options.first_source_port {
        let last = u32::from(first) + options.streams - 1;
        in_range(TOOL, "--cport", u32::from(first), 1..=u32::from(u16::MAX))?;
        in_range(TOOL, "--cport of the last stream", last, 1..=u32::from(u16::MAX))?;
        args.extend(["--cport".to_owned(), first.to_string()]);
    }
    Ok(args)
}

/// Returns the arguments of an iperf3 server that serves one client and exits, without the program's name.
#[must_use]
pub fn server_args(bind: IpAddr, port: u16) -> Vec<String> {
    vec![
        "--server".to_owned(),
        "--one-off".to_owned(),
        "--json".to_owned(),
        "--bind".to_owned(),
        bind.to_string(),
        "--port".to_owned(),
        port.to_string(),
    ]
}

/// Returns an error if the name cannot be the name of a congestion control in the kernel. A valid name
/// is short and has no special characters (`TCP_CA_NAME_MAX` is 16, including the NUL). iperf3 could
/// parse other text as an option.
fn check_congestion_control(name: &str) -> Result<(), ArgumentError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let usable = !name.is_empty() && name.len() < 16 && !name.starts_with('-') && name.bytes().all(plain);
    if usable {
        return Ok(());
    }
    let detail = format!("{name:?} is not a name of a congestion control");
    Err(ArgumentError { tool: TOOL, option: "--congestion", detail })
}

/// The report of an iperf3 client or server.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name and version, such as `iperf 3.12`.
    pub version: String,
    /// Streams in the order of connection.
    pub streams: Vec<Stream>,
}

/// One TCP stream, from client to server.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Bytes written to the sending socket; `None` in a server's report.
    pub sent: Option<Transfer>,
    /// Bytes read from the receiving socket. A client gets this number from its server; after SIGTERM, the
    /// client prints 0.
    pub received: Transfer,
    /// Retransmitted segments; `None` in a server's report, or if the client does not print the number.
    pub retransmits: Option<u64>,
    /// Bytes of the reporting side per interval, in order of time.
    pub intervals: Vec<Interval>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    pub bytes: u64,
    pub seconds: f64,
}

/// A part of a stream's run, one second by default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Time since the streams were connected.
    pub start_s: f64,
    /// Time since the streams were connected.
    pub end_s: f64,
    /// TCP payload that the reporting side wrote or read.
    pub bytes: u64,
}

/// The error for output without a report. `origin` is the caller's name for the output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// No output: iperf3 was killed, or it refused its arguments and reported this on standard error.
    #[error("{origin}: iperf3 printed nothing; run the scenario again")]
    Empty { origin: String },
    /// Invalid or truncated JSON, or a value of the wrong type.
    #[error("{origin}:{line}:{column}: not iperf3's JSON: {detail}; run the scenario again")]
    Json { origin: String, line: usize, column: usize, detail: String },
    #[error("{origin}: iperf3 failed: {message}")]
    Failed { origin: String, message: String },
    /// Valid JSON in which a member is missing, has an unsupported value, or contradicts another member.
    #[error("{origin}: wrong field in iperf3's JSON, `{field}`: {detail}; run the scenario again")]
    Field {
        origin: String,
        /// Path of the member, such as `end.streams[2].receiver`.
        field: String,
        detail: String,
    },
}

/// Parses the `--json` output of an iperf3 client or server.
///
/// `origin` names the output in errors: a file, or "iperf3 client 2".
///
/// # Errors
/// Returns an error if iperf3 reports a failure, or the text is damaged or incomplete.
pub fn parse(origin: &str, text: &str) -> Result<Report, ParseError> {
    report(origin, text, |_| false)
}

/// Error messages of iperf3's client and server after the client received SIGTERM.
const TOLD_TO_END: [&str; 2] = ["interrupt - the client has terminated", "the client has terminated"];

/// Parses the output of a client that SIGTERM ended early, or of its server. Client and server report
/// their counts so far:
/// - The client does not know its server's count and prints 0.
/// - The server prints all bytes that it received, but the end of its last complete interval as its
///   time.
///
/// # Errors
/// Returns an error of [`parse`], except for the messages about SIGTERM.
pub fn parse_ended(origin: &str, text: &str) -> Result<Report, ParseError> {
    report(origin, text, |message| TOLD_TO_END.contains(&message))
}

fn report(origin: &str, text: &str, is_no_failure: impl Fn(&str) -> bool) -> Result<Report, ParseError> {
    if text.trim().is_empty() {
        return Err(ParseError::Empty { origin: origin.to_owned() });
    }
    let mut document: Document = serde_json::from_str(text).map_err(|error| json_error(origin, &error))?;
    if !document.errors.is_empty()
        && let Some(intervals) = &mut document.intervals
    {
        // A SIGTERM at the beginning of an interval leaves an interval without streams.
        intervals.pop_if(|last| last.streams.is_empty());
    }
    if let Some(message) = document.errors.first().filter(|message| !is_no_failure(message)).cloned() {
        return Err(ParseError::Failed { origin: origin.to_owned(), message });
    }
    document.into_report().map_err(|(field, detail)| ParseError::Field {
        origin: origin.to_owned(),
        field,
        detail,
    })
}

fn json_error(origin: &str, error: &serde_json::Error) -> ParseError {
    let text = error.to_string();
    // serde_json's text repeats the position. Remove the position, because the error already contains
    // it.
    let detail = text.rsplit_once(" at line ").map_or(text.as_str(), |(detail, _)| detail);
    ParseError::Json {
        origin: origin.to_owned(),
        line: error.line(),
        column: error.column(),
        detail: detail.to_owned(),
    }
}

/// Path of a member, and the description of its fault.
type FieldError = (String, String);

fn field_error<T>(field: impl Into<String>, detail: impl Into<String>) -> Result<T, FieldError> {
    Err((field.into(), detail.into()))
}

fn required<T>(value: Option<T>, field: &str) -> Result<T, FieldError> {
    value.map_or_else(|| field_error(field, "is missing"), Ok)
}

/// The members of iperf3's output that the parser uses. Any of them may be missing from output with an
/// `error`.
#[derive(Default)]
struct Document {
    /// There can be several errors: a server whose client received SIGTERM may report a second error.
    errors: Vec<String>,
    start: Option<Start>,
    intervals: Option<Vec<IntervalPart>>,
    end: Option<End>,
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Document;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Document, A::Error> {
                fn once<T, E: serde::de::Error>(
                    slot: &mut Option<T>,
                    name: &'static str,
                    value: T,
                ) -> Result<(), E> {
                    match slot.replace(value) {
                        None => Ok(()),
                        Some(_) => Err(E::duplicate_field(name)),
                    }
                }
                let mut document = Document::default();
                while let Some(name) = members.next_key::<String>()? {
                    match name.as_str() {
                        "error" => document.errors.push(members.next_value()?),
                        "start" => once(&mut document.start, "start", members.next_value()?)?,
                        "intervals" => once(&mut document.intervals, "intervals", members.next_value()?)?,
                        "end" => once(&mut document.end, "end", members.next_value()?)?,
                        _ => {
                            members.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(document)
            }
        }

        deserializer.deserialize_map(Members)
    }
}

#[derive(Deserialize)]
struct Start {
    #[serde(default)]
    connected: Vec<Connected>,
    version: Option<String>,
    test_start: Option<TestStart>,
}

#[derive(Deserialize)]
struct Connected {
    socket: i64,
    local_host: IpAddr,
    local_port: u16,
    remote_host: IpAddr,
    remote_port: u16,
}

#[derive(Deserialize)]
struct TestStart {
    protocol: String,
    num_streams: usize,
}

#[derive(Deserialize)]
struct IntervalPart {
    #[serde(default)]
    streams: Vec<Side>,
}

#[derive(Deserialize)]
struct End {
    #[serde(default)]
    streams: Vec<EndStream>,
}

#[derive(Deserialize)]
struct EndStream {
    sender: Option<Side>,
    receiver: Option<Side>,
}

#[derive(Clone, Deserialize)]
struct Side {
    socket: i64,
    start: f64,
    end: f64,
    bytes: u64,
    retransmits: Option<u64>,
    /// Whether the *reporting process* is the sender. The entries of sender and receiver have the same
    /// value.
    sender: bool,
}

impl Document {
    fn into_report(self) -> Result<Report, FieldError> {
        let start = required(self.start, "start")?;
        let version = required(start.version, "start.version")?;
        let test = required(start.test_start, "start.test_start")?;
        let intervals = required(self.intervals, "intervals")?;
        let ends = required(self.end, "end")?.streams;

        if test.protocol != "TCP" {
            return field_error("start.test_start.protocol", format!("is {}, not TCP", test.protocol));
        }
        if test.num_streams == 0 {
            return field_error("start.test_start.num_streams", "is 0");
        }
        for (field, found) in [("start.connected", start.connected.len()), ("end.streams", ends.len())] {
            if found != test.num_streams {
                return field_error(field, format!("has {found} streams instead of {}", test.num_streams));
            }
        }

        let mut streams = Vec::with_capacity(ends.len());
        for (index, (connected, end)) in start.connected.iter().zip(ends).enumerate() {
            let mut stream = stream(index, connected, end)?;
            stream.intervals = stream_intervals(connected.socket, &intervals)?;
            streams.push(stream);
        }
        Ok(Report { version, streams })
    }
}

fn stream(index: usize, connected: &Connected, end: EndStream) -> Result<Stream, FieldError> {
    let sender_field = format!("end.streams[{index}].sender");
    let receiver_field = format!("end.streams[{index}].receiver");
    let sender = required(end.sender, &sender_field)?;
    let receiver = required(end.receiver, &receiver_field)?;
    for (side, field) in [(&sender, &sender_field), (&receiver, &receiver_field)] {
        if side.socket != connected.socket {
            let detail =
                format!("is {}, but the connection has the socket {}", side.socket, connected.socket);
            return field_error(format!("{field}.socket"), detail);
        }
    }
    // An iperf3 server does not know how many bytes its client sent or how many segments the client
    // retransmitted, and prints 0 for both.
    let known = sender.sender;
    Ok(Stream {
        local: SocketAddr::new(connected.local_host.to_canonical(), connected.local_port),
        remote: SocketAddr::new(connected.remote_host.to_canonical(), connected.remote_port),
        sent: if known { Some(transfer(&sender, &sender_field)?) } else { None },
        received: transfer(&receiver, &receiver_field)?,
        retransmits: sender.retransmits.filter(|_| known),
        intervals: Vec::new(),
    })
}

fn transfer(side: &Side, field: &str) -> Result<Transfer, FieldError> {
    // `seconds` is the sender's time even in the receiver's entry. Compute the duration from start and
    // end instead.
    let seconds = side.end - side.start;
    if seconds <= 0.0 {
        return field_error(format!("{field}.end"), format!("{} is not after {}", side.end, side.start));
    }
    Ok(Transfer { bytes: side.bytes, seconds })
}

fn stream_intervals(socket: i64, intervals: &[IntervalPart]) -> Result<Vec<Interval>, FieldError> {
    let mut found = Vec::with_capacity(intervals.len());
    for (index, part) in intervals.iter().enumerate() {
        let field = format!("intervals[{index}].streams");
        let Some(side) = part.streams.iter().find(|side| side.socket == socket) else {
            return field_error(field, format!("has no entry of socket {socket}"));
        };
        if side.end < side.start {
            return field_error(field, format!("ends at {} before {}", side.end, side.start));
        }
        found.push(Interval { start_s: side.start, end_s: side.end, bytes: side.bytes });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    const CLIENT: &str = include_str!("../../tests/data/iperf3-client.json");
    const CLIENT_IPV6: &str = include_str!("../../tests/data/iperf3-client-ipv6.json");
    const SERVER: &str = include_str!("../../tests/data/iperf3-server.json");
    const REFUSED: &str = include_str!("../../tests/data/iperf3-client-connection-refused.json");
    const NO_CONGESTION_CONTROL: &str =
        include_str!("../../tests/data/iperf3-client-congestion-control-refused.json");
    const SERVER_GONE: &str = include_str!("../../tests/data/iperf3-client-server-gone.json");
    const CLIENT_ENDED: &str = include_str!("../../tests/data/iperf3-client-ended.json");
    const SERVER_OF_ENDED: &str = include_str!("../../tests/data/iperf3-server-client-ended.json");
    const CLIENT_GONE: &str = include_str!("../../tests/data/iperf3-server-client-gone.json");

    fn options() -> ClientOptions {
        ClientOptions {
            server: "10.0.0.2".parse().unwrap(),
            port: 5301,
            streams: 2,
            seconds: 7,
            length: None,
            congestion_control: "cubic".to_owned(),
            first_source_port: None,
            connect_timeout: Duration::from_secs(3),
        }
    }

    fn refused_option(change: impl FnOnce(&mut ClientOptions)) -> &'static str {
        let mut options = options();
        change(&mut options);
        client_args(&options).unwrap_err().option
    }

    #[test]
    fn arguments_of_a_client() {
        let plain = client_args(&options()).unwrap().join(" ");
        assert_eq!(
            plain,
            "--client 10.0.0.2 --port 5301 --json --parallel 2 --time 7 --congestion cubic \
             --connect-timeout 3000"
        );
        let with_port = ClientOptions { first_source_port: Some(20_000), ..options() };
        assert_eq!(client_args(&with_port).unwrap().join(" "), format!("{plain} --cport 20000"));
        let with_length = ClientOptions { length: Some(4096), ..options() };
        assert!(client_args(&with_length).unwrap().join(" ").contains("--time 7 --length 4096 --congestion"));
        let ipv6 = ClientOptions { server: "fd00::2".parse().unwrap(), ..options() };
        assert_eq!(client_args(&ipv6).unwrap()[1], "fd00::2");
    }

    #[test]
    fn arguments_of_a_server() {
        let args = server_args("::1".parse().unwrap(), 5301).join(" ");
        assert_eq!(args, "--server --one-off --json --bind ::1 --port 5301");
    }

    #[test]
    fn limits_of_iperf3_are_kept() {
        assert!(client_args(&ClientOptions { streams: 128, ..options() }).is_ok());
        assert_eq!(refused_option(|options| options.streams = 129), "--parallel");
        assert_eq!(refused_option(|options| options.streams = 0), "--parallel");
        assert_eq!(refused_option(|options| options.seconds = 0), "--time");
        assert_eq!(refused_option(|options| options.seconds = 86_401), "--time");
        assert_eq!(refused_option(|options| options.connect_timeout = Duration::ZERO), "--connect-timeout");
        assert_eq!(refused_option(|options| options.connect_timeout = Duration::MAX), "--connect-timeout");
        assert_eq!(refused_option(|options| options.first_source_port = Some(0)), "--cport");
        assert_eq!(refused_option(|options| options.length = Some(0)), "--length");
        assert_eq!(refused_option(|options| options.length = Some((1 << 20) + 1)), "--length");
        // 65535 is the last port, so there is no port for a second stream.
        assert_eq!(
            refused_option(|options| options.first_source_port = Some(65_535)),
            "--cport of the last stream"
        );
        for name in ["", "--reverse", "cubic reno", "a_name_of_16_chr"] {
            assert_eq!(
                refused_option(|options| options.congestion_control = name.to_owned()),
                "--congestion"
            );
        }
    }

    #[test]
    fn a_client_reports_both_sides_of_each_stream() {
        let report = parse("client", CLIENT).unwrap();
        assert_eq!(report.version, "iperf 3.12");
        assert_eq!(report.streams.len(), 2);
        let second = &report.streams[1];
        assert_eq!(second.local, "127.0.0.1:25001".parse().unwrap());
        assert_eq!(second.remote, "127.0.0.1:15211".parse().unwrap());
        assert_eq!(second.sent, Some(Transfer { bytes: 3_301_703_680, seconds: 2.00003 }));
        // This is the receiver's time, although the receiver's `seconds` repeats the sender's time.
        assert_eq!(second.received, Transfer { bytes: 3_297_640_448, seconds: 2.003561 });
        assert_eq!(second.retransmits, Some(19));
        assert_eq!(
            second.intervals,
            [
                Interval { start_s: 0.0, end_s: 1.00027, bytes: 1_530_920_960 },
                Interval { start_s: 1.00027, end_s: 2.000045, bytes: 1_770_782_720 },
            ]
        );
        assert_eq!(report.streams[0].retransmits, Some(4));
    }

    #[test]
    fn a_server_knows_only_what_it_received() {
        let report = parse("server", SERVER).unwrap();
        assert_eq!(report.streams.len(), 2);
        let first = &report.streams[0];
        assert_eq!(first.remote, "127.0.0.1:25000".parse().unwrap());
        assert_eq!(first.sent, None);
        assert_eq!(first.retransmits, None);
        assert_eq!(first.received, Transfer { bytes: 3_382_968_320, seconds: 2.003561 });
        let of_client = &parse("client", CLIENT).unwrap().streams[0];
        assert_eq!((of_client.local, of_client.remote), (first.remote, first.local));
        assert_eq!(of_client.received, first.received);
        assert_eq!(first.intervals.iter().map(|interval| interval.bytes).sum::<u64>(), 3_382_968_320);
    }

    /// Checks the reports of a client that got SIGTERM after 1.3 s of 60 s, and of its server.
    #[test]
    fn a_client_that_was_told_to_end_and_its_server_report_what_they_counted() {
        let client = parse_ended("client", CLIENT_ENDED).unwrap();
        assert_eq!(client.streams[0].sent.unwrap().bytes, 1_334_927_360);
        assert_eq!(client.streams[0].retransmits, Some(0));
        assert_eq!(client.streams[0].received.bytes, 0, "it has not learnt it");
        let server = parse_ended("server", SERVER_OF_ENDED).unwrap();
        assert_eq!(server.streams[0].received.bytes, 1_332_142_080);
        assert_eq!(server.streams[0].remote, client.streams[0].local);
        for text in [CLIENT_ENDED, SERVER_OF_ENDED] {
            assert!(matches!(parse("it", text), Err(ParseError::Failed { .. })));
        }
        let mut document: serde_json::Value = serde_json::from_str(CLIENT_ENDED).unwrap();
        document["intervals"].as_array_mut().unwrap().push(serde_json::json!({ "streams": [] }));
        assert_eq!(parse_ended("client", &document.to_string()), parse_ended("client", CLIENT_ENDED));
        let twice = SERVER_OF_ENDED.replace(
            "the client has terminated\"",
            "the client has terminated\",\n\t\"error\":\t\"getsockopt - Bad file descriptor\"",
        );
        assert_eq!(parse_ended("server", &twice), parse_ended("server", SERVER_OF_ENDED));
        assert!(matches!(parse_ended("it", SERVER_GONE), Err(ParseError::Failed { .. })));
        assert_eq!(parse_ended("it", CLIENT), parse("it", CLIENT));
    }

    #[test]
    fn ipv6_and_mapped_addresses() {
        let report = parse("client", CLIENT_IPV6).unwrap();
        assert_eq!(report.streams[0].remote, "[::1]:15212".parse().unwrap());
        // A server without a bind address listens on IPv6 and reports IPv4-mapped addresses.
        let mapped = SERVER.replace("\"127.0.0.1\"", "\"::ffff:127.0.0.1\"");
        let report = parse("server", &mapped).unwrap();
        assert_eq!(report.streams[0].remote, "127.0.0.1:25000".parse().unwrap());
    }

    #[test]
    fn a_failed_run_is_told_in_the_words_of_iperf3() {
        let cases = [
            (REFUSED, "unable to connect to server: Connection refused"),
            (
                NO_CONGESTION_CONTROL,
                "unable to set TCP_CONGESTION: Supplied congestion control algorithm not supported on this host",
            ),
            (SERVER_GONE, "unable to write to stream socket: Connection reset by peer"),
            (CLIENT_GONE, "error - unable to send control message: Broken pipe"),
        ];
        for (text, message) in cases {
            let expected = ParseError::Failed { origin: "it".to_owned(), message: message.to_owned() };
            assert_eq!(parse("it", text), Err(expected));
        }
    }

    #[test]
    fn nothing_printed() {
        for text in ["", "\n", " \t\n\n"] {
            assert_eq!(parse("it", text), Err(ParseError::Empty { origin: "it".to_owned() }));
        }
    }

    #[test]
    fn an_output_that_is_cut_short_anywhere_is_refused() {
        for text in [CLIENT, SERVER, REFUSED] {
            let whole = text.trim_end();
            for length in 0..whole.len() {
                let error = parse("it", &whole[..length]).unwrap_err();
                assert!(
                    matches!(error, ParseError::Empty { .. } | ParseError::Json { .. }),
                    "{length}: {error}"
                );
            }
        }
    }

    #[test]
    fn any_damaged_byte_is_survived() {
        for index in (0..CLIENT.len()).step_by(5) {
            for byte in ["0", "-", "\"", "}", "x", "é"] {
                let damaged = format!("{}{byte}{}", &CLIENT[..index], &CLIENT[index + 1..]);
                // Some damage is harmless (a digit of an unused member), so the test only detects
                // panics.
                let _ = parse("it", &damaged);
            }
        }
    }

    /// Returns the error of [`parse`] for a recorded output after one replacement.
    fn complaint(text: &str, from: &str, to: &str) -> String {
        assert!(text.contains(from), "the recorded output has no {from}");
        parse("it", &text.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn wrong_types_are_told_with_their_place() {
        let line = CLIENT.lines().position(|line| line.contains("\"local_port\"")).unwrap() + 1;
        let port = complaint(CLIENT, "\"local_port\":\t25000", "\"local_port\":\t70000");
        assert!(port.starts_with(&format!("it:{line}:")) && port.contains("70000"), "{port}");
        let address = complaint(CLIENT, "\"local_host\":\t\"127.0.0.1\"", "\"local_host\":\t\"localhost\"");
        assert!(address.contains("invalid IP address"), "{address}");
        for bytes in ["-1", "1.5", "\"3386900480\"", "null", "[]", "18446744073709551616"] {
            let text = complaint(CLIENT, "\"bytes\":\t3386900480", &format!("\"bytes\":\t{bytes}"));
            assert!(text.contains("not iperf3's JSON"), "{text}");
        }
        for whole in ["[]", "null", "1", "iperf3: parameter error - too many streams"] {
            assert!(matches!(parse("it", whole), Err(ParseError::Json { line: 1, .. })), "{whole}");
        }
    }

    #[test]
    fn sound_json_that_is_no_completed_run_is_refused() {
        let cases = [
            ("\"num_streams\":\t2", "\"num_streams\":\t3", "`start.connected`: has 2 streams instead of 3"),
            ("\"num_streams\":\t2", "\"num_streams\":\t0", "`start.test_start.num_streams`: is 0"),
            (
                "\"protocol\":\t\"TCP\"",
                "\"protocol\":\t\"UDP\"",
                "`start.test_start.protocol`: is UDP, not TCP",
            ),
            ("\"test_start\"", "\"test_stop\"", "`start.test_start`: is missing"),
            ("\"intervals\"", "\"breaks\"", "`intervals`: is missing"),
            ("\"version\"", "\"edition\"", "`start.version`: is missing"),
            ("\"receiver\":", "\"retriever\":", "`end.streams[0].receiver`: is missing"),
            ("\"sender\":\t{", "\"lender\":\t{", "`end.streams[0].sender`: is missing"),
            (
                "\"socket\":\t5,\n\t\t\t\t\t\"start\"",
                "\"socket\":\t6,\n\t\t\t\t\t\"start\"",
                "has no entry of socket 5",
            ),
            ("\"end\":\t2.003561", "\"end\":\t-1.0", "`end.streams[0].receiver.end`: -1 is not after 0"),
        ];
        for (from, to, expected) in cases {
            let text = complaint(CLIENT, from, to);
            assert!(text.contains(expected), "{from} to {to}: {text}");
        }
    }
}
