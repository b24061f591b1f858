//! Two connected network interfaces of the virtual machine, each in its own namespace.

use std::fs::{self, File};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use evenkeel_datapath::{Completion, QueueSelect, SelectOptions, Steering};
use evenkeel_netlink::Netlink;
use evenkeel_netlink::tc::{Handle, Qdisc, Statistics};
use evenkeel_testbed::{Namespace, RECEIVER_ADDRESS, SENDER_ADDRESS};
use evenkeel_transmit::Policy;

use super::{PATIENCE, wait_for};

/// Number of transmit queues of each interface of the virtual machine: one queue per CPU.
pub const QUEUES: u32 = 4;

/// Time limit for a link to come up. On igb, the link negotiates its speed.
const LINK_LIMIT: Duration = Duration::from_secs(30);

/// A pair of interfaces of one driver. Dropping the pair restores the XPS maps and moves the interfaces back
/// to their first namespace.
pub struct Nics {
    pub sender: Namespace,
    pub receiver: Namespace,
    pub netlink: Netlink,
    pub index: u32,
    pub name: String,
    receiver_name: String,
    /// The driver's own XPS maps.
    pub xps: Vec<String>,
}

impl Nics {
    /// Claims the interfaces of a driver (`virtio_net`, `igb`), assigns addresses, and brings them up.
    pub fn take(driver: &str) -> Self {
        let names: [String; 2] = wait_for("both interfaces of the driver are here", PATIENCE, || {
            interfaces_of(driver).try_into().ok()
        });
        let (sender, receiver) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        for namespace in [&sender, &receiver] {
            // With IPv6, the kernel would send router solicitations and multicast reports.
            namespace.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        }
        let mut here = Netlink::open().unwrap();
        for (name, namespace) in names.iter().zip([&sender, &receiver]) {
            let index = here.link_index(name).unwrap();
            here.move_link(index, namespace.as_fd()).unwrap();
        }
        let up = |namespace: &Namespace, name: &str, address: IpAddr| {
            let mut netlink = namespace.netlink().unwrap();
            let index = netlink.link_index(name).unwrap();
            netlink.add_address(index, address, 24).unwrap();
            netlink.set_up(index).unwrap();
            (netlink, index)
        };
        let (netlink, index) = up(&sender, &names[0], SENDER_ADDRESS.into());
        up(&receiver, &names[1], RECEIVER_ADDRESS.into());
        for (namespace, name) in [&sender, &receiver].into_iter().zip(&names) {
            wait_for("the link is up", LINK_LIMIT, || {
                let carrier = namespace.read_sysfs(&[format!("class/net/{name}/carrier")]).ok()?;
                (carrier[0] == "1").then_some(())
            });
        }
        meet(&sender, &receiver);
        let [name, receiver_name] = names;
        let xps = sender.read_sysfs(&xps_files(&name)).unwrap();
        Self { sender, receiver, netlink, index, name, receiver_name, xps }
    }

    pub fn set_xps(&self, masks: &[String]) {
        let files = xps_files(&self.name).into_iter().zip(masks.iter().cloned()).collect::<Vec<_>>();
        self.sender.write_sysfs(&files).unwrap();
    }

    pub fn clear_xps(&self) {
        self.set_xps(&vec!["0".to_owned(); QUEUES as usize]);
    }

    /// Installs `mq` with a shaper and a leaf qdisc per transmit queue.
    pub fn shape(&mut self, leaf: &'static str, rate_bps_per_queue: u64) {
        self.unshaped();
        for queue in 1..=QUEUES as u16 {
            let shaper =
                Qdisc::Tbf { rate_bps: rate_bps_per_queue, burst_bytes: 70_000, limit_bytes: 2_000_000 };
            let (place, handle) = (Handle::new(1, queue), Handle::new(0x10 + queue, 0));
            self.netlink.replace_qdisc(self.index, place, handle, &shaper).unwrap();
            let (place, handle) = (Handle::new(0x10 + queue, 1), Handle::new(0x20 + queue, 0));
            self.netlink.replace_qdisc(self.index, place, handle, &Qdisc::Named(leaf)).unwrap();
        }
    }

    /// Installs a new `mq` with the kernel's default qdiscs as children, which resets the statistics of the
    /// queues.
    pub fn unshaped(&mut self) {
        match self.netlink.delete_qdisc(self.index, Handle::ROOT) {
            // A default qdisc can be replaced, but not deleted.
            Err(error) if error.refusal_code() == Some(libc::ENOENT) => {}
            result => result.unwrap(),
        }
        self.netlink.replace_qdisc(self.index, Handle::ROOT, Handle::new(1, 0), &Qdisc::Mq).unwrap();
    }

    /// Returns the counters of each transmit queue, which are those of its class of `mq` or `mqprio`. The
    /// kernel counts a packet at the queue that it picked.
    pub fn queue_statistics(&mut self) -> Vec<Statistics> {
        let classes = self.netlink.class_statistics(self.index).unwrap();
        (1..=QUEUES as u16)
            .map(|queue| {
                let of_queue = |(handle, statistics): &(Handle, Statistics)| {
                    (*handle == Handle::new(1, queue)).then_some(*statistics)
                };
                classes.iter().find_map(of_queue).unwrap()
            })
            .collect()
    }

    /// Attaches the queue choice to the sender's interface, with exact completion.
    pub fn select(&self, policy: Policy, rate_bps: u64) -> QueueSelect {
        let mut select = QueueSelect::load(&SelectOptions {
            policy,
            steering: Steering::Queue,
            completion: Completion::Exact,
            queues: QUEUES,
            rate_bps,
            ageing_floor_ns: 1_000_000_000,
            ..SelectOptions::default()
        })
        .unwrap();
        assert_eq!(select.refused(), None, "this kernel loads fentry");
        self.sender.run(|| Ok(select.attach(self.index.cast_signed())?)).unwrap();
        select
    }

    pub fn of_each_queue(&self, file: &str) -> Vec<String> {
        self.sender.read_sysfs(&queue_files(&self.name, file)).unwrap()
    }
}

impl Drop for Nics {
    /// Restores the XPS maps, and moves the interfaces back immediately. An open connection without a peer
    /// would keep its namespace, and so the interface, for minutes.
    fn drop(&mut self) {
        let files = xps_files(&self.name).into_iter().zip(self.xps.iter().cloned()).collect::<Vec<_>>();
        let _ = self.sender.write_sysfs(&files);
        let Ok(home) = File::open("/proc/thread-self/ns/net") else { return };
        for (namespace, name) in [(&self.sender, &self.name), (&self.receiver, &self.receiver_name)] {
            let Ok(mut netlink) = namespace.netlink() else { continue };
            let Ok(index) = netlink.link_index(name) else { continue };
            let _ = netlink.move_link(index, home.as_fd());
        }
    }
}

/// Sends datagrams until a datagram arrives. The hosts then know each other's hardware addresses.
/// Without these addresses, the kernel queues only a few segments.
fn meet(sender: &Namespace, receiver: &Namespace) {
    let to = receiver.run(|| Ok(UdpSocket::bind((RECEIVER_ADDRESS, 0)).unwrap())).unwrap();
    let from = sender.run(|| Ok(UdpSocket::bind((SENDER_ADDRESS, 0)).unwrap())).unwrap();
    to.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let address = to.local_addr().unwrap();
    wait_for("a datagram arrives", PATIENCE, || {
        from.send_to(b"hello", address).unwrap();
        to.recv(&mut [0; 10]).ok()
    });
}

fn queue_files(name: &str, file: &str) -> Vec<String> {
    (0..QUEUES).map(|queue| format!("class/net/{name}/queues/tx-{queue}/{file}")).collect()
}

fn xps_files(name: &str) -> Vec<String> {
    queue_files(name, "xps_cpus")
}

/// Returns the interfaces of a driver in the machine's own namespace, by name.
fn interfaces_of(driver: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir("/sys/class/net")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let of = fs::read_link(entry.path().join("device/driver")).ok()?;
            (of.file_name()? == driver).then(|| entry.file_name().into_string().unwrap())
        })
        .collect();
    names.sort();
    names
}
