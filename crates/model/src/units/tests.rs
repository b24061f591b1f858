//! Tests of the units with worked examples, and of the round trip through text.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

#[test]
fn rates_are_read_with_their_unit() {
    let bits = |text: &str| text.parse::<BitRate>().unwrap().bits_per_second();
    assert_eq!(bits("10gbit"), 10_000_000_000);
    assert_eq!(bits("2.5gbit"), 2_500_000_000);
    assert_eq!(bits("2.500gbit"), 2_500_000_000);
    assert_eq!(bits("300 Mbit"), 300_000_000);
    assert_eq!(bits("1Tbit/s"), 1_000_000_000_000);
    assert_eq!(bits("9600bit"), 9600);
    assert_eq!(bits("0.001kbit"), 1);
    assert_eq!(bits("0bit"), 0);
    assert_eq!(bits("18446744073709551615bit"), u64::MAX);
}

#[test]
fn sizes_are_read_with_their_unit() {
    let bytes = |text: &str| text.parse::<ByteSize>().unwrap().bytes();
    assert_eq!(bytes("1500B"), 1500);
    assert_eq!(bytes("256KiB"), 262_144);
    assert_eq!(bytes("64kB"), 64_000);
    assert_eq!(bytes("0.5KiB"), 512);
    assert_eq!(bytes("1.5GiB"), 3 << 29);
    // This is thirty decimals, and exactly one byte less than a GiB.
    assert_eq!(bytes("0.999999999068677425384521484375GiB"), (1 << 30) - 1);
}

#[test]
fn times_are_read_with_their_unit() {
    let nanoseconds = |text: &str| text.parse::<Nanoseconds>().unwrap().as_u64();
    assert_eq!(nanoseconds("50us"), 50_000);
    assert_eq!(nanoseconds("50µs"), 50_000);
    assert_eq!(nanoseconds("50μs"), 50_000);
    assert_eq!(nanoseconds("1.5s"), 1_500_000_000);
    assert_eq!(nanoseconds("2MIN"), 120_000_000_000);
    assert_eq!(nanoseconds("7ns"), 7);
}

#[test]
fn what_is_no_quantity_is_refused_with_the_reason() {
    let rate = |text: &str| text.parse::<BitRate>().unwrap_err().to_string();
    let size = |text: &str| text.parse::<ByteSize>().unwrap_err().to_string();
    let time = |text: &str| text.parse::<Nanoseconds>().unwrap_err().to_string();
    assert_eq!(rate("10"), "a rate needs a unit; write for example 10gbit");
    assert_eq!(rate("2.5"), "a rate needs a unit; write for example 10gbit");
    assert_eq!(rate(""), "empty; write a rate with its unit, for example 10gbit");
    assert_eq!(rate("-1gbit"), "a rate cannot be negative");
    assert_eq!(rate("0.5bit"), "not a whole number of bit/s");
    assert_eq!(rate("18446744073709551616bit"), "too large for a rate");
    assert_eq!(rate("99999999tbit"), "too large for a rate");
    assert_eq!(rate(&format!("{}gbit", "9".repeat(400))), "too large for a rate");
    assert_eq!(rate(&format!("1.{}1gbit", "0".repeat(400))), "not a whole number of bit/s");
    for text in
        ["NaN", "inf", "nangbit", "gbit", ".5gbit", "1.gbit", "+1gbit", " 1gbit", "-", "-inf", "٣gbit"]
    {
        assert!(
            rate(text).ends_with("is not a rate; write a number with its unit, for example 10gbit"),
            "{text}"
        );
    }
    for text in ["1e3bit", "10Gb", "10 gbit ", "10gbitt", "1,5gbit", "1_000bit", "0x10bit", "1.5.2gbit"] {
        assert!(rate(text).contains("is not a unit of a rate"), "{text}: {}", rate(text));
    }
    assert!(rate("10gbps").contains("tc reads it as bytes"));
    assert!(size("64KB").contains("KiB is 1024"));
    assert!(size("64Kb").contains("b is a bit"));
    assert!(size("1.5B").contains("not a whole number of bytes"));
    assert!(time("1.5ns").contains("not a whole number of nanoseconds"));
    assert!(time("5m").contains("min is a minute"));
    assert!(time("1h").contains("use ns, us, ms, s or min"));
}

#[test]
fn quantities_are_written_shortly() {
    let rate = |bits| BitRate::from_bits_per_second(bits).to_string();
    let size = |bytes| ByteSize::from_bytes(bytes).to_string();
    let time = |nanoseconds| Nanoseconds::new(nanoseconds).to_string();
    assert_eq!(rate(10_000_000_000), "10gbit");
    assert_eq!(rate(2_500_000_000), "2.5gbit");
    assert_eq!(rate(1_234_567_890), "1234567.89kbit");
    assert_eq!(rate(0), "0bit");
    assert_eq!(size(262_144), "256KiB");
    assert_eq!(size(1500), "1500B");
    assert_eq!(size(64_000), "64kB");
    assert_eq!(size(0), "0B");
    assert_eq!(time(50_000), "50us");
    assert_eq!(time(1_500_000_000), "1.5s");
    assert_eq!(time(60_000_000_000), "60s");
    assert_eq!(time(0), "0ns");
    assert_eq!(format!("[{:>7}]", Nanoseconds::from_secs(1)), "[     1s]");
}

#[test]
fn bytes_and_time_at_a_rate() {
    let rate = BitRate::from_bits_per_second(10_000_000_000);
    assert_eq!(rate.bytes_in(Nanoseconds::from_millis(1)), ByteSize::from_bytes(1_250_000));
    assert_eq!(rate.time_to_send(ByteSize::from_bytes(1_250_000)), Nanoseconds::from_millis(1));
    assert_eq!(BitRate::from_bits_per_second(3).bytes_in(Nanoseconds::from_secs(4)).bytes(), 1);
    assert_eq!(
        BitRate::from_bits_per_second(3).time_to_send(ByteSize::from_bytes(1)).as_u64(),
        2_666_666_667
    );
    let fastest = BitRate::from_bits_per_second(u64::MAX);
    assert_eq!(fastest.bytes_in(Nanoseconds::MAX).bytes(), u64::MAX);
    assert_eq!(
        BitRate::from_bits_per_second(1).time_to_send(ByteSize::from_bytes(u64::MAX)),
        Nanoseconds::MAX
    );
    let stopped = BitRate::from_bits_per_second(0);
    assert_eq!(stopped.time_to_send(ByteSize::from_bytes(1)), Nanoseconds::MAX);
    assert_eq!(stopped.time_to_send(ByteSize::from_bytes(0)), Nanoseconds::new(0));
}

#[test]
fn durations_convert_and_saturate() {
    assert_eq!(Duration::from(Nanoseconds::from_micros(50)), Duration::from_micros(50));
    assert_eq!(Nanoseconds::from(Duration::from_millis(3)), Nanoseconds::from_millis(3));
    assert_eq!(Nanoseconds::from(Duration::MAX), Nanoseconds::MAX);
    assert_eq!(Nanoseconds::from_secs(u64::MAX), Nanoseconds::MAX);
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        value in prop_oneof![any::<u64>(), 0_u64..5_000_000, (0_u64..5000).prop_map(|n| n * 1_000_000)],
    ) {
        let rate = BitRate::from_bits_per_second(value);
        prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        let size = ByteSize::from_bytes(value);
        prop_assert_eq!(size.to_string().parse(), Ok(size));
        let time = Nanoseconds::new(value);
        prop_assert_eq!(time.to_string().parse(), Ok(time));
    }

    #[test]
    fn no_text_makes_the_readers_panic(text in any::<String>(), digits in "[-0-9.]{0,60} ?[a-zA-Zµ/]{0,6}") {
        for text in [text, digits] {
            let _ = (text.parse::<BitRate>(), text.parse::<ByteSize>(), text.parse::<Nanoseconds>());
        }
    }

    #[test]
    fn the_time_to_send_is_the_shortest_that_suffices(bits in 1_u64..1 << 42, bytes in 1_u64..1 << 32) {
        let (rate, size) = (BitRate::from_bits_per_second(bits), ByteSize::from_bytes(bytes));
        let time = rate.time_to_send(size);
        prop_assume!(time < Nanoseconds::MAX);
        prop_assert!(rate.bytes_in(time) >= size);
        prop_assert!(rate.bytes_in(Nanoseconds::new(time.as_u64() - 1)) < size);
    }
}

#[test]
fn rates_have_decimal_units() {
    assert_eq!(mean_rate_text(125_000_000, 1.0), "1.0 Gbit/s");
    assert_eq!(mean_rate_text(12_500, 1.0), "100 kbit/s");
    assert_eq!(mean_rate_text(1, 1.0), "8 bit/s");
    assert_eq!(mean_rate_text(1, 0.0), "0 bit/s");
    assert_eq!(mean_rate_text(124_990_000, 1.0), "1.0 Gbit/s");
    assert_eq!(mean_rate_text(u64::MAX, 1.0), "148 Ebit/s");
    assert_eq!((rate_text(f64::NAN), rate_text(f64::INFINITY)), ("?".to_owned(), "?".to_owned()));
}
