//! Compares requests byte for byte with the requests of ethtool 6.1, recorded at ioctl(2).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The request of `ethtool -N lo flow-type tcp4 src-ip 10.0.0.1 dst-ip 10.0.0.100 src-port 40000 dst-port
/// 11211 action 3 loc 5`: `struct ethtool_rxnfc` from its flow specification to the location.
const TCP4: &str = concat!(
    "010000000a0000010a0000649c402bcb0000000000000000000000000000000000000000000000000000",
    "00000000000000000000000000000000000000000000000000000000000000000000ffffffffffffffff",
    "ffffffff0000000000000000000000000000000000000000000000000000000000000000000000000000",
    "000000000000000000000000000000000000000000000000000003000000000000000500000000000000",
);
/// The request of `ethtool -N lo flow-type udp6 dst-ip fd00::1 dst-port 53 action 1 loc 6`.
const UDP6: &str = concat!(
    "0600000000000000000000000000000000000000fd000000000000000000000000000001000000350000",
    "000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000ffffffffffffffffffffffffffffffff0000ffff0000000000000000000000000000",
    "000000000000000000000000000000000000000000000000000001000000000000000600000000000000",
);
/// The request of `ethtool -N lo flow-type udp4 src-ip 10.1.0.0 m 0.0.255.255 action 2 loc 7`. In a mask of
/// ethtool(8), set bits are ignored.
const UDP4_NETWORK: &str = concat!(
    "020000000a01000000000000000000000000000000000000000000000000000000000000000000000000",
    "00000000000000000000000000000000000000000000000000000000000000000000ffff000000000000",
    "000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    "000000000000000000000000000000000000000000000000000002000000000000000700000000000000",
);

fn matching(
    protocol: u8,
    source: (&str, u128),
    destination: (&str, u128),
    ports: [(u16, u16); 2],
) -> RuleMatch {
    RuleMatch {
        protocol,
        source: source.0.parse().unwrap(),
        source_mask: source.1,
        destination: destination.0.parse().unwrap(),
        destination_mask: destination.1,
        source_port: ports[0].0,
        source_port_mask: ports[0].1,
        destination_port: ports[1].0,
        destination_port_mask: ports[1].1,
    }
}

fn recorded() -> [(&'static str, RuleMatch, u32, u32); 3] {
    const ALL: u128 = u32::MAX as u128;
    let exact = (u16::MAX, u16::MAX);
    [
        (
            TCP4,
            matching(6, ("10.0.0.1", ALL), ("10.0.0.100", ALL), [(40000, exact.0), (11211, exact.1)]),
            5,
            3,
        ),
        (UDP6, matching(17, ("::", 0), ("fd00::1", u128::MAX), [(0, 0), (53, u16::MAX)]), 6, 1),
        (UDP4_NETWORK, matching(17, ("10.1.0.0", 0xffff_0000), ("0.0.0.0", 0), [(0, 0), (0, 0)]), 7, 2),
    ]
}

#[test]
fn rules_are_built_as_ethtool_builds_them_and_read_back() {
    for (bytes, matches, location, queue) in recorded() {
        let rule = Rule::steer(location, &matches, queue);
        assert_eq!(rule.to_hex(), bytes, "{rule}");
        let read = Rule::from_hex(bytes).unwrap();
        assert_eq!((read.location(), read.queue()), (location, Some(queue)));
        assert_eq!(read.matches(), Some(matches));
    }
    assert_eq!(Rule::from_hex("00"), None);
    assert_eq!(Rule::from_hex(&"zz".repeat(RULE_LENGTH)), None);
}

#[test]
fn what_is_not_read_is_not_taken_for_something_else() {
    let changed = |at: usize, value: &[u8]| {
        let mut bytes = *Rule::from_hex(TCP4).unwrap().as_bytes();
        put(&mut bytes, at, value);
        Rule::from_bytes(bytes, 0)
    };
    // `matches` does not support a VLAN in the extension's mask, a type of service or another flow type. A
    // drop action has no queue.
    assert_eq!(changed(128 + 10, &[0xff]).matches(), None);
    assert_eq!(changed(76 + 12, &[0xff]).matches(), None);
    let other = changed(0, &[0x12]);
    assert_eq!(other.matches(), None);
    assert!(other.to_string().contains("flow type 0x12"), "{other}");
    assert_eq!(changed(152, &u64::MAX.to_ne_bytes()).queue(), None);
}

#[derive(Default)]
struct Driver {
    rules: RefCell<BTreeMap<u32, Vec<u8>>>,
    indirection: RefCell<Vec<u32>>,
    contexts: RefCell<BTreeMap<u32, Vec<u32>>>,
    without_contexts: bool,
    asked: RefCell<Vec<Vec<u8>>>,
    refusal: Option<i32>,
}

impl EthtoolCalls for &Driver {
    fn call(&self, interface: &str, data: &mut [u8]) -> io::Result<()> {
        assert_eq!(interface, "eth0");
        self.asked.borrow_mut().push(data.to_vec());
        if let Some(code) = self.refusal {
            return Err(io::Error::from_raw_os_error(code));
        }
        let location = || word(data, RXNFC_RULE + RULE_LOCATION);
        let context = word(data, RXFH_CONTEXT);
        if [GRSSH, SRSSH].contains(&word(data, 0)) && context != 0 {
            return self.of_context(context, data);
        }
        match word(data, 0) {
            GRXRINGS => put(data, RXNFC_DATA, &4_u64.to_ne_bytes()),
            GRXCLSRLCNT => {
                put(data, RXNFC_DATA, &64_u64.to_ne_bytes());
                put(data, RXNFC_COUNT, &(self.rules.borrow().len() as u32).to_ne_bytes());
            }
            GRXCLSRLALL => {
                put(data, RXNFC_DATA, &64_u64.to_ne_bytes());
                for (at, location) in self.rules.borrow().keys().enumerate() {
                    put(data, RXNFC_LOCATIONS + 4 * at, &location.to_ne_bytes());
                }
            }
            GRXCLSRULE => match self.rules.borrow().get(&location()) {
                Some(rule) => put(data, RXNFC_RULE, rule),
                None => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
            },
            SRXCLSRLINS => {
                // The RSS context is in the field of the rule count (`rule_cnt`), which follows the rule.
                let rule = data[RXNFC_RULE..RXNFC_RULE + RULE_LENGTH + 4].to_vec();
                self.rules.borrow_mut().insert(location(), rule);
            }
            SRXCLSRLDEL => {
                if self.rules.borrow_mut().remove(&location()).is_none() {
                    return Err(io::Error::from_raw_os_error(libc::ENOENT));
                }
            }
            GRSSH if word(data, 8) == 0 => {
                put(data, 8, &4_u32.to_ne_bytes());
                put(data, 12, &8_u32.to_ne_bytes());
            }
            GRSSH => {
                for (entry, queue) in self.indirection.borrow().iter().enumerate() {
                    put(data, RXFH_LENGTH + 4 * entry, &queue.to_ne_bytes());
                }
                put(data, RXFH_LENGTH + 16, &[0xab; 8]);
                data[16] = 1;
            }
            SRSSH => {
                let entries = word(data, 8) as usize;
                *self.indirection.borrow_mut() =
                    (0..entries).map(|entry| word(data, RXFH_LENGTH + 4 * entry)).collect();
            }
            command => panic!("command {command:#x}"),
        }
        Ok(())
    }
}

impl Driver {
    /// Behaves like net/ethtool/ioctl.c for a driver whose contexts the kernel numbers.
    fn of_context(&self, context: u32, data: &mut [u8]) -> io::Result<()> {
        if self.without_contexts {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let mut contexts = self.contexts.borrow_mut();
        let entries = word(data, 8);
        let given = (0..entries as usize).map(|entry| word(data, RXFH_LENGTH + 4 * entry)).collect();
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        match (word(data, 0), context) {
            (GRSSH, _) => {
                let table = contexts.get(&context).ok_or_else(missing)?;
                if entries == 0 {
                    put(data, 8, &4_u32.to_ne_bytes());
                }
                for (entry, queue) in table.iter().enumerate().take(entries as usize) {
                    put(data, RXFH_LENGTH + 4 * entry, &queue.to_ne_bytes());
                }
            }
            (_, u32::MAX) => {
                let free = (1..).find(|number| !contexts.contains_key(number)).unwrap();
                contexts.insert(free, given);
                put(data, RXFH_CONTEXT, &free.to_ne_bytes());
            }
            (_, _) if entries == 0 => drop(contexts.remove(&context).ok_or_else(missing)?),
            (_, _) => *contexts.get_mut(&context).ok_or_else(missing)? = given,
        }
        Ok(())
    }

    fn last_asked(&self) -> String {
        self.asked.borrow().last().unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[test]
fn contexts_are_made_changed_and_taken_out_as_ethtool_does_it() {
    let driver = Driver::default();
    let device = ReceiveRules::new(&driver, "eth0");
    assert!(device.has_contexts().unwrap());
    // The requests are `ethtool -X lo context new start 2 equal 2`, `context 1 start 1 equal 2`, `context 1
    // delete`. Compare each request before the driver's answer overwrites it.
    assert_eq!(device.create_context(&[2, 3, 2, 3]).unwrap(), 1);
    assert_eq!(
        driver.last_asked(),
        "47000000ffffffff0400000000000000000000000000000002000000030000000200000003000000"
    );
    assert_eq!(device.context(1).unwrap(), Some(vec![2, 3, 2, 3]));
    assert_eq!(device.create_context(&[0, 0, 0, 0]).unwrap(), 2);
    device.set_context(1, &[1, 2, 1, 2]).unwrap();
    assert_eq!(
        driver.last_asked(),
        "47000000010000000400000000000000000000000000000001000000020000000100000002000000"
    );
    device.delete_context(1).unwrap();
    assert_eq!(driver.last_asked(), "470000000100000000000000000000000000000000000000");
    assert_eq!((device.context(1).unwrap(), device.context(2).unwrap()), (None, Some(vec![0; 4])));
    assert!(device.delete_context(1).unwrap_err().to_string().contains("delete RSS context 1"));
    let without = Driver { without_contexts: true, ..Driver::default() };
    assert!(!ReceiveRules::new(&without, "eth0").has_contexts().unwrap());
}

/// Compares a rule with `ethtool -N lo flow-type tcp4 dst-port 443 context 1 loc 9`: from its flow
/// specification to the location, followed by the RSS context in the field of the rule count.
#[test]
fn a_rule_may_name_a_context() {
    const RECORDED: &str = concat!(
        "010000200000000000000000000001bb0000000000000000000000000000000000000000000000000000",
        "000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
        "0000ffff0000000000000000000000000000000000000000000000000000000000000000000000000000",
        "000000000000000000000000000000000000000000000000000000000000000000000900000000000000",
    );
    const CONTEXT: &str = "01000000";
    let any = ("0.0.0.0", 0);
    let matches = matching(6, any, any, [(0, 0), (443, u16::MAX)]);
    let rule = Rule::steer(9, &matches, 0).over(1);
    assert_eq!(rule.to_hex(), RECORDED.to_owned() + CONTEXT);
    assert_eq!((rule.matches(), rule.context(), rule.location()), (Some(matches), Some(1), 9));
    assert_eq!(rule.to_string(), "tcp4 dst-port 443 m ffff to RSS context 1");
    assert_eq!(Rule::from_hex(&rule.to_hex()), Some(rule));
    // A missing context and a superfluous context are both refused.
    assert_eq!(Rule::from_hex(RECORDED), None);
    assert_eq!(Rule::from_hex(&(TCP4.to_owned() + CONTEXT)), None);
    let driver = Driver::default();
    let device = ReceiveRules::new(&driver, "eth0");
    device.insert(&rule).unwrap();
    let asked = driver.last_asked();
    assert_eq!((&asked[32..32 + 336], &asked[368..376]), (RECORDED, CONTEXT));
    assert_eq!(device.rule(9).unwrap(), Some(rule));
}

#[test]
fn rules_come_and_go() {
    let driver = Driver::default();
    let device = ReceiveRules::new(&driver, "eth0");
    assert_eq!(device.queues().unwrap(), 4);
    for (bytes, ..) in recorded() {
        device.insert(&Rule::from_hex(bytes).unwrap()).unwrap();
    }
    let table = device.rules().unwrap().unwrap();
    assert_eq!((table.capacity, table.places_by_itself), (64, false));
    assert_eq!(table.rules.iter().map(Rule::location).collect::<Vec<_>>(), [5, 6, 7]);
    assert_eq!(table.rules[0].to_hex(), TCP4);
    device.delete(6).unwrap();
    assert_eq!(device.rule(6).unwrap(), None);
    assert!(device.delete(6).unwrap_err().to_string().contains("delete the n-tuple rule at location 6"));
    // `ethtool -N lo delete 5` uses the same field for the location.
    device.delete(5).unwrap();
    let asked = driver.asked.borrow();
    let last = asked.last().unwrap();
    assert_eq!((word(last, 0), word(last, RXNFC_RULE + RULE_LOCATION)), (0x31, 5));
}

#[test]
fn the_indirection_table_is_set_as_ethtool_does_it() {
    let driver = Driver { indirection: RefCell::new(vec![0, 1, 0, 1]), ..Driver::default() };
    let device = ReceiveRules::new(&driver, "eth0");
    let table = device.rss().unwrap().unwrap();
    assert_eq!(table, RssTable { indirection: vec![0, 1, 0, 1], key: vec![0xab; 8], function: 1 });
    device.set_indirection(&[0, 0, 1, 1]).unwrap();
    // The request equals the request of `ethtool -X lo weight 1 1` on a table of four entries.
    let hex: String =
        driver.asked.borrow().last().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "47000000000000000400000000000000000000000000000000000000000000000100000001000000");
}

#[test]
fn a_driver_without_rules_has_none_and_other_refusals_are_told() {
    let without = Driver { refusal: Some(libc::EOPNOTSUPP), ..Driver::default() };
    let device = ReceiveRules::new(&without, "eth0");
    assert_eq!(device.rules().unwrap(), None);
    assert_eq!(device.rss().unwrap(), None);
    let refused = Driver { refusal: Some(libc::EPERM), ..Driver::default() };
    let error = ReceiveRules::new(&refused, "eth0").rules().unwrap_err();
    assert_eq!(error.code(), Some(libc::EPERM));
    assert!(error.to_string().contains("the driver of eth0 refused to count its n-tuple rules"), "{error}");
}

#[test]
fn the_kernel_says_that_the_loopback_has_none() {
    let device = ReceiveRules::new(EthtoolSocket::open().unwrap(), "lo");
    assert_eq!(device.rules().unwrap(), None);
    let missing = ReceiveRules::new(EthtoolSocket::open().unwrap(), "evk-not-here");
    assert_eq!(missing.rules().unwrap_err().code(), Some(libc::ENODEV));
}
