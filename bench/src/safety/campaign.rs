//! Kills runs and their guardians at random times, stops guardians, moves and renames the interface, removes
//! the state directory, damages journals, and checks the outcome of one `evenkeel revert`:
//! - After a disturbance of a run, every setting has its value from before the run, no journal remains, and
//!   `revert` exits with code 0. If another interface has the index of the managed interface, the other
//!   interface is unchanged.
//! - After damage to a journal, `revert` restores the settings in the intact lines, reports the damage, keeps
//!   the journal and exits with code 4.
//!
//! Any other outcome is a failure.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_netlink::tc::{Handle, Qdisc};
use evenkeel_netlink::{GsoSizes, Netlink, VethOptions};
use evenkeel_testbed::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

pub type Fallible<T> = Result<T, Box<dyn Error>>;

const NAME: &str = "evs0";
const PEER: &str = "evs1";
const OTHER: &str = "evs9";
const QUEUES: u32 = 4;
const MAPS: [&str; 4] = ["1", "2", "1", "2"];
/// XPS maps of an interface that must not be changed.
const OTHER_MAPS: [&str; 4] = ["2", "1", "2", "1"];
const SIZES: GsoSizes = GsoSizes { all: 60_000, ipv4: 60_000 };
const OUTPUT_LIMIT: &str = "net/ipv4/tcp_limit_output_bytes";
const SACK: &str = "net/ipv4/tcp_sack";
/// Time limit for each step, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(2);

pub struct Options {
    pub binary: PathBuf,
    pub kills: u32,
    pub damaged: u32,
    /// Seed of all random choices except times.
    pub seed: u64,
}

#[derive(Debug, Default)]
pub struct Outcome {
    /// For each disturbance and command: the number of attempts, and the number of attempts in which the
    /// command had changed a setting before the disturbance.
    pub disturbed: BTreeMap<String, (u32, u32)>,
    /// For each kind of damage: the number of attempts, and the number of attempts in which the damage
    /// was reported and the journal kept.
    pub damaged: BTreeMap<&'static str, (u32, u32)>,
    pub failures: Vec<String>,
    pub slowest: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, (tried, changed)) in &self.disturbed {
            writeln!(formatter, "{what:<44} {tried:>5} tried, {changed:>5} after a change")?;
        }
        for (what, (tried, said)) in &self.damaged {
            writeln!(formatter, "journal: {what:<35} {tried:>5} tried, {said:>5} said and kept")?;
        }
        for failure in &self.failures {
            writeln!(formatter, "FAILED {failure}")?;
        }
        write!(formatter, "{} failures, slowest {:.1} s", self.failures.len(), self.slowest.as_secs_f64())
    }
}

pub fn run(options: &Options) -> Fallible<Outcome> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(options.seed);
    let mut outcome = Outcome::default();
    let mut bed = Bed::new(&options.binary)?;
    let timed = |outcome: &mut Outcome, work: &mut dyn FnMut(&mut Outcome) -> Fallible<()>| -> Fallible<()> {
        let began = Instant::now();
        work(outcome)?;
        outcome.slowest = outcome.slowest.max(began.elapsed());
        Ok(())
    };
    for round in 0..options.kills {
        timed(&mut outcome, &mut |outcome| bed.disturb(round, &mut random, outcome))?;
    }
    if options.damaged > 0 {
        let journal = bed.journal()?;
        for round in 0..options.damaged {
            timed(&mut outcome, &mut |outcome| bed.damage(&journal, round, &mut random, outcome))?;
        }
    }
    Ok(outcome)
}

fn pick<'a, T>(random: &mut Xoshiro256PlusPlus, of: &'a [T]) -> &'a T {
    &of[below(random, of.len())]
}

fn below(random: &mut Xoshiro256PlusPlus, limit: usize) -> usize {
    (random.next_u64() % limit.max(1) as u64) as usize
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    maps: Vec<String>,
    receive_maps: Vec<String>,
    sizes: GsoSizes,
    /// Handle of the root qdisc; `None` if the interface was moved, because the kernel then deletes its
    /// qdiscs.
    root: Option<Handle>,
    sysctls: [String; 2],
}

/// Name and arguments of a command to disturb, and the output that shows that it is active.
const COMMANDS: [(&str, &[&str], &str); 5] = [
    ("fair --xps off", &["fair", NAME, "--xps", "off"], "managed now"),
    ("fair --segments", &["fair", NAME, "--xps", "off", "--segments", "16KiB"], "managed now"),
    (
        "fair --queue-weights htb",
        &["fair", NAME, "--queue-weights", "htb", "--rate", "200mbit"],
        "managed now",
    ),
    ("steer --backend rps", &["steer", NAME, "--backend", "rps", "--policy", "balance"], "steered now"),
    ("tune --apply", &["tune", NAME, "--apply", "sack-off", "--no-watch"], "never"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturbance {
    KillWorker,
    KillBoth,
    KillGuardian,
    StopGuardian,
    StopGuardianKillBoth,
    Rename,
    RenameKillBoth,
    Move,
    MoveAndBack,
    KillBothMove,
    KillBothReuseIndex,
    RemoveStateDirectory,
}

const DISTURBANCES: [Disturbance; 12] = [
    Disturbance::KillWorker,
    Disturbance::KillBoth,
    Disturbance::KillGuardian,
    Disturbance::StopGuardian,
    Disturbance::StopGuardianKillBoth,
    Disturbance::Rename,
    Disturbance::RenameKillBoth,
    Disturbance::Move,
    Disturbance::MoveAndBack,
    Disturbance::KillBothMove,
    Disturbance::KillBothReuseIndex,
    Disturbance::RemoveStateDirectory,
];

struct Ended {
    code: Option<i32>,
    said: String,
}

/// An interface in a namespace, a second namespace to which it may be moved, and a state directory.
struct Bed {
    binary: PathBuf,
    here: Namespace,
    there: Namespace,
    netlink: Netlink,
    directory: tempfile::TempDir,
    index: u32,
    /// Whether the interface is in the second namespace, and whether it has ever left the first
    /// namespace.
    moved: bool,
    left: bool,
    name: &'static str,
}

impl Bed {
    fn new(binary: &Path) -> Fallible<Self> {
        if !binary.exists() {
            return Err(format!("{} is not there", binary.display()).into());
        }
        let (here, there) = (Namespace::new()?, Namespace::new()?);
        for namespace in [&here, &there] {
            // With IPv6, the kernel would send packets at unpredictable times.
            let _ = namespace.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
        }
        here.set_sysctl(SACK, "0")?;
        let netlink = here.netlink()?;
        let (binary, directory) = (binary.to_owned(), tempfile::tempdir()?);
        let mut bed =
            Self { binary, here, there, netlink, directory, index: 0, moved: false, left: false, name: NAME };
        bed.make_interface()?;
        Ok(bed)
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn make_interface(&mut self) -> Fallible<()> {
        let pair = VethOptions {
            name: NAME,
            peer_name: PEER,
            peer_namespace: self.there.as_fd(),
            queues: QUEUES,
            mtu: 1500,
        };
        self.netlink.add_veth(&pair)?;
        (self.index, self.name) = (self.netlink.link_index(NAME)?, NAME);
        (self.moved, self.left) = (false, false);
        let mut far = self.there.netlink()?;
        let peer = far.link_index(PEER)?;
        far.set_up(peer)?;
        self.netlink.set_up(self.index)?;
        self.netlink.replace_qdisc(self.index, Handle::ROOT, Handle::new(7, 0), &Qdisc::Mq)?;
        self.set(&MAPS, SIZES)
    }

    /// Sets the XPS maps and the GSO sizes of the interface.
    fn set(&mut self, maps: &[&str; 4], sizes: GsoSizes) -> Fallible<()> {
        self.set_maps(NAME, maps)?;
        Ok(self.netlink.set_gso_sizes(self.index, sizes)?)
    }

    fn set_maps(&self, name: &str, maps: &[&str; 4]) -> Fallible<()> {
        let files: Vec<(String, String)> =
            (0..).zip(maps).map(|(queue, map)| (map_file(name, queue), (*map).to_owned())).collect();
        Ok(self.here.write_sysfs(&files)?)
    }

    fn place(&self) -> &Namespace {
        if self.moved { &self.there } else { &self.here }
    }

    fn maps(&self, name: &str) -> Fallible<Vec<String>> {
        Ok(self.place().read_sysfs(&(0..QUEUES).map(|queue| map_file(name, queue)).collect::<Vec<_>>())?)
    }

    fn sysctls(&self) -> Fallible<[String; 2]> {
        let read = |name: &str| fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default();
        Ok(self.here.run(|| Ok([OUTPUT_LIMIT, SACK].map(read)))?)
    }

    fn seen(&self) -> Fallible<Seen> {
        let mut netlink = self.place().netlink()?;
        let link = netlink.link_named(self.name)?.ok_or("the interface is gone")?;
        let receive: Vec<String> =
            (0..QUEUES).map(|queue| format!("class/net/{}/queues/rx-{queue}/rps_cpus", self.name)).collect();
        let root = match self.left {
            true => None,
            false => netlink.qdiscs(link.index)?.first().map(|root| root.handle),
        };
        Ok(Seen {
            maps: self.maps(self.name)?,
            receive_maps: self.place().read_sysfs(&receive)?,
            sizes: link.gso,
            root,
            sysctls: self.sysctls()?,
        })
    }

    fn command(&self, arguments: &[&str]) -> Fallible<(Command, PathBuf)> {
        let said = self.directory.path().join("said");
        let errors = fs::File::create(&said)?;
        let mut command = Command::new(&self.binary);
        command.args(arguments).env("EVENKEEL_STATE_DIR", self.state());
        command.env("EVENKEEL_ETC_DIR", self.directory.path().join("etc"));
        command.stdin(Stdio::null()).stdout(errors.try_clone()?).stderr(errors);
        let namespace = self.here.as_fd().as_raw_fd();
        // SAFETY: the closure makes one system call, on a descriptor that the fork has copied.
        unsafe {
            command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Ok((command, said))
    }

    fn revert(&self) -> Fallible<Ended> {
        let (mut command, said) = self.command(&["revert"])?;
        let status = wait(command.spawn()?)?;
        Ok(Ended { code: status, said: fs::read_to_string(said)? })
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.state()).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Returns the process ids of this test bed's guardians. Their command lines name its state directory.
    fn guardians(&self) -> Vec<u32> {
        let state = self.state().to_string_lossy().into_owned();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_ours = |process: &u32| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("\0guard\0") && line.contains(&state)
        };
        numbers.filter(is_ours).collect()
    }

    fn wait_for_guardians(&self) -> Fallible<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.guardians().is_empty() {
            if Instant::now() > deadline {
                self.guardians().into_iter().for_each(|guardian| send(guardian, Signal::SIGKILL));
                return Err("a guardian did not end".into());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn kill_guardians(&self) {
        self.guardians().into_iter().for_each(|guardian| send(guardian, Signal::SIGKILL));
    }

    /// Starts a command, disturbs it, and calls `revert`. Compares the settings with those from before the
    /// command.
    fn disturb(
        &mut self,
        round: u32,
        random: &mut Xoshiro256PlusPlus,
        outcome: &mut Outcome,
    ) -> Fallible<()> {
        let before = self.seen()?;
        let (what, arguments, at_work) = *pick(random, &COMMANDS);
        let disturbance = *pick(random, &DISTURBANCES);
        let (mut command, said) = self.command(arguments)?;
        let mut child = command.spawn()?;
        if below(random, 3) > 0 {
            let deadline = Instant::now() + PATIENCE;
            while !fs::read_to_string(&said)?.contains(at_work) && child.try_wait()?.is_none() {
                if Instant::now() > deadline {
                    break;
                }
                std::thread::sleep(POLL);
            }
            std::thread::sleep(Duration::from_millis(below(random, 60) as u64));
        } else {
            std::thread::sleep(Duration::from_millis(below(random, 400) as u64));
        }
        let changed = self.seen()? != before;
        let counts = outcome.disturbed.entry(format!("{what}: {disturbance:?}")).or_default();
        counts.0 += 1;
        counts.1 += u32::from(changed);

        let pause = Duration::from_millis(below(random, 300) as u64);
        let other = self.carry_out(disturbance, pause, child)?;
        let first = fs::read_to_string(&said)?;
        let ended = self.revert()?;
        let mut wrong = Vec::new();
        let now = if other { None } else { Some(self.seen()?) };
        let before = Seen { root: if self.left { None } else { before.root }, ..before };
        match &now {
            Some(now) if *now != before => wrong.push(format!("left: {now:?}\n  was: {before:?}")),
            None if self.maps(OTHER)? != OTHER_MAPS => wrong.push("another interface was changed".to_owned()),
            None if self.sysctls()? != before.sysctls => wrong.push("a sysctl is left".to_owned()),
            _ => {}
        }
        if !self.files().is_empty() {
            wrong.push(format!("files are left: {:?}", self.files()));
        }
        if ended.code != Some(0) {
            wrong.push(format!("revert ended with {:?}", ended.code));
        }
        if !wrong.is_empty() {
            outcome.failures.push(format!(
                "round {round}, {what}, {disturbance:?}: {}\n  said: {first}\n  revert: {}",
                wrong.join("; "),
                ended.said
            ));
        }
        if other || self.left || self.name != NAME || !wrong.is_empty() {
            self.begin_anew(other)?;
        }
        Ok(())
    }

    /// Carries out a disturbance. Returns whether another interface now has the index of the managed one.
    fn carry_out(&mut self, disturbance: Disturbance, pause: Duration, child: Child) -> Fallible<bool> {
        let worker = child.id();
        let kill_both = |bed: &Self, child: Child| -> Fallible<()> {
            // Stop the worker, so that it does not start a new guardian while the old guardian exits.
            send(worker, Signal::SIGSTOP);
            bed.kill_guardians();
            send(worker, Signal::SIGKILL);
            wait(child)?;
            // Kill a guardian that the worker was starting when it stopped.
            bed.kill_guardians();
            bed.wait_for_guardians()
        };
        match disturbance {
            Disturbance::KillWorker => {
                send(worker, Signal::SIGKILL);
                wait(child)?;
            }
            Disturbance::KillBoth => kill_both(self, child)?,
            Disturbance::KillGuardian => {
                self.kill_guardians();
                send(worker, Signal::SIGTERM);
                wait(child)?;
            }
            Disturbance::StopGuardian => {
                self.guardians().into_iter().for_each(|guardian| send(guardian, Signal::SIGSTOP));
                send(worker, Signal::SIGTERM);
                wait(child)?;
                self.guardians().into_iter().for_each(|guardian| send(guardian, Signal::SIGCONT));
            }
            Disturbance::StopGuardianKillBoth => {
                self.guardians().into_iter().for_each(|guardian| send(guardian, Signal::SIGSTOP));
                kill_both(self, child)?;
            }
            Disturbance::Rename => {
                self.rename()?;
                send(worker, Signal::SIGKILL);
                wait(child)?;
            }
            Disturbance::RenameKillBoth => {
                self.rename()?;
                kill_both(self, child)?;
            }
            Disturbance::Move => {
                self.move_interface()?;
                // The session restores its settings and exits. A command without a session may have exited
                // already.
                std::thread::sleep(Duration::from_millis(300));
                send(worker, Signal::SIGTERM);
                wait(child)?;
            }
            Disturbance::MoveAndBack => {
                self.move_interface()?;
                // The session checks its interface several times a second. The interface may return between
                // any two steps of the session.
                std::thread::sleep(pause);
                self.move_back()?;
                std::thread::sleep(Duration::from_millis(300));
                send(worker, Signal::SIGTERM);
                wait(child)?;
            }
            Disturbance::KillBothMove => {
                kill_both(self, child)?;
                self.move_interface()?;
            }
            Disturbance::KillBothReuseIndex => {
                kill_both(self, child)?;
                self.netlink.delete_link(self.index)?;
                let index = self.index.to_string();
                let queues = QUEUES.to_string();
                let link = ["link", "add", OTHER, "index", &index, "numtxqueues", &queues];
                let (mut command, _) = self.command(&[])?;
                let mut ip = Command::new("ip");
                ip.args([&link[..], &["type", "veth", "peer", "name", "evs8"]].concat());
                std::mem::swap(&mut command, &mut ip);
                let namespace = self.here.as_fd().as_raw_fd();
                // SAFETY: the closure makes one system call, on a descriptor that the fork has copied.
                unsafe {
                    command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
                        0 => Ok(()),
                        _ => Err(std::io::Error::last_os_error()),
                    });
                }
                if wait(command.spawn()?)? != Some(0) {
                    return Err("ip link add failed".into());
                }
                self.set_maps(OTHER, &OTHER_MAPS)?;
                return Ok(true);
            }
            Disturbance::RemoveStateDirectory => {
                let at_work = !self.guardians().is_empty();
                // Only a guardian can restore the settings without the directory, because it has the journal
                // open. After the end of `tune`, `revert` needs the journal.
                if at_work {
                    let _ = fs::remove_dir_all(self.state());
                }
                send(worker, Signal::SIGKILL);
                wait(child)?;
            }
        }
        self.wait_for_guardians()?;
        Ok(false)
    }

    fn rename(&mut self) -> Fallible<()> {
        self.netlink.rename(self.index, "evs5")?;
        self.name = "evs5";
        Ok(())
    }

    fn move_interface(&mut self) -> Fallible<()> {
        self.netlink.move_link(self.index, self.there.as_fd())?;
        (self.moved, self.left) = (true, true);
        Ok(())
    }

    fn move_back(&mut self) -> Fallible<()> {
        let mut there = self.there.netlink()?;
        let index = there.link_index(self.name)?;
        there.move_link(index, self.here.as_fd())?;
        self.moved = false;
        Ok(())
    }

    /// Deletes the interface and the journals, and creates the interface again. With `other`, deletes the
    /// interface that replaced the managed one.
    fn begin_anew(&mut self, other: bool) -> Fallible<()> {
        let name = if other { OTHER } else { self.name };
        let mut netlink = self.place().netlink()?;
        if let Some(link) = netlink.link_named(name)? {
            netlink.delete_link(link.index)?;
        }
        let _ = fs::remove_dir_all(self.state());
        self.here.set_sysctl(SACK, "0")?;
        self.make_interface()
    }

    /// Returns the journal of a run that was killed after it had changed every setting.
    fn journal(&mut self) -> Fallible<Journal> {
        let deadline = Instant::now() + PATIENCE;
        let (mut command, said) = self.command(COMMANDS[1].1)?;
        let child = command.spawn()?;
        while !fs::read_to_string(&said)?.contains(COMMANDS[1].2) {
            if Instant::now() > deadline {
                return Err(format!("the run has not started: {}", fs::read_to_string(&said)?).into());
            }
            std::thread::sleep(POLL);
        }
        self.carry_out(Disturbance::KillBoth, Duration::ZERO, child)?;
        let [name] = <[String; 1]>::try_from(self.files()).map_err(|files| format!("{files:?}"))?;
        let bytes = fs::read(self.state().join(&name))?;
        let sysctls = self.sysctls()?;
        Ok(Journal { name, bytes, sysctls })
    }

    /// Sets all values as the killed run did, damages the run's journal, and reverts.
    fn damage(
        &mut self,
        journal: &Journal,
        round: u32,
        random: &mut Xoshiro256PlusPlus,
        outcome: &mut Outcome,
    ) -> Fallible<()> {
        const OURS: [&str; 4] = ["0"; 4];
        const OUR_SIZES: GsoSizes = GsoSizes { all: 16_384, ipv4: 16_384 };
        self.set(&OURS, OUR_SIZES)?;
        let (kind, bytes) = journal.damaged(random);
        let _ = fs::remove_dir_all(self.state());
        fs::create_dir(self.state())?;
        fs::write(self.state().join(&journal.name), &bytes)?;
        let ended = self.revert()?;
        // Data after the end does not count as damage, because a crash can leave it. A repeated line does.
        let is_whole = bytes == journal.bytes || kind == BEHIND;
        let (maps, sizes) = (self.maps(NAME)?, self.seen()?.sizes);
        let kept = self.files().iter().any(|name| name.ends_with(".damaged"));
        let said = ended.said.contains("is damaged");
        let mut wrong = Vec::new();
        if is_whole != (ended.code == Some(0)) || !is_whole && (ended.code != Some(4) || !kept || !said) {
            wrong.push(format!("ended with {:?}, kept: {kept}, said: {said}", ended.code));
        }
        for (queue, map) in maps.iter().enumerate() {
            let line = format!("\"interface-file\":\"queues/tx-{queue}/xps_cpus\"");
            if map != MAPS[queue] && (map != OURS[queue] || journal.has_good(&bytes, &line)) {
                wrong.push(format!("queue {queue} has {map}"));
            }
        }
        if sizes != SIZES && (sizes != OUR_SIZES || journal.has_good(&bytes, "\"knob\":\"gso-sizes\"")) {
            wrong.push(format!("gso_max_size is {sizes:?}"));
        }
        if self.sysctls()? != journal.sysctls {
            wrong.push("a sysctl is another one".to_owned());
        }
        let counts = outcome.damaged.entry(kind).or_default();
        counts.0 += 1;
        counts.1 += u32::from(kept && said);
        if !wrong.is_empty() {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            outcome.failures.push(format!(
                "journal {round}, {kind}: {}\n  revert: {}\n{text}",
                wrong.join("; "),
                ended.said
            ));
        }
        Ok(())
    }
}

const BEHIND: &str = "a line of a crash behind it";

struct Journal {
    name: String,
    bytes: Vec<u8>,
    sysctls: [String; 2],
}

impl Journal {
    fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
        bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    }

    /// Returns whether the damaged journal still contains the last line about a setting. Ignores the first
    /// line, because `revert` reads the first line as the count.
    fn has_good(&self, bytes: &[u8], setting: &str) -> bool {
        let is_about = |line: &&Vec<u8>| String::from_utf8_lossy(line).contains(setting);
        let own = Self::lines(&self.bytes);
        own.iter()
            .rfind(is_about)
            .is_some_and(|line| Self::lines(bytes).iter().skip(1).any(|read| read == line))
    }

    fn damaged(&self, random: &mut Xoshiro256PlusPlus) -> (&'static str, Vec<u8>) {
        let mut bytes = self.bytes.clone();
        let mut lines = Self::lines(&bytes);
        let at = below(random, bytes.len());
        let line = below(random, lines.len());
        match below(random, 9) {
            0 => {
                bytes.truncate(at);
                ("cut", bytes)
            }
            1 => {
                bytes[at] ^= 1 << below(random, 8);
                ("one bit", bytes)
            }
            2 => {
                for _ in 0..=below(random, 20) {
                    let at = below(random, bytes.len());
                    bytes[at] = random.next_u64() as u8;
                }
                ("some bytes", bytes)
            }
            3 => {
                lines.remove(line);
                ("a line removed", lines.concat())
            }
            4 => {
                let copy = lines[line].clone();
                lines.insert(below(random, lines.len()), copy);
                ("a line repeated", lines.concat())
            }
            5 => {
                let last = lines.len() - 1;
                lines.swap(0, last);
                ("first and last line swapped", lines.concat())
            }
            6 => {
                let text = String::from_utf8_lossy(&bytes).replacen(
                    "\"from\":{\"text\":\"1\"}",
                    "\"from\":{\"text\":\"3\"}",
                    1,
                );
                ("a value edited", text.into_bytes())
            }
            7 => {
                let end = (at + below(random, 1000)).min(bytes.len());
                bytes[at..end].fill(0);
                ("a hole", bytes)
            }
            _ => {
                bytes.extend_from_slice(&self.bytes[..at.min(300)]);
                (BEHIND, bytes)
            }
        }
    }
}

fn map_file(name: &str, queue: u32) -> String {
    format!("class/net/{name}/queues/tx-{queue}/xps_cpus")
}

fn send(process: u32, signal: Signal) {
    // Ignore errors: the process may have ended.
    let _ = kill(Pid::from_raw(process.cast_signed()), signal);
}

/// Waits for a process to exit, and kills it if it takes too long.
fn wait(mut child: Child) -> Fallible<Option<i32>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err("a process did not end".into());
        }
        std::thread::sleep(POLL);
    }
}
